//! Members join and are filled: whatever is written meanwhile, in whatever order members answer,
//! afterwards every member holds what it must, and the content is what was written.

mod common;

use common::*;
use raid_core::geometry::{Geometry, Layout, Level};
use raid_core::queue::MemberError;
use raid_core::request::{Request, RequestKind};
use raid_core::slots::SlotSet;
use raid_core::volume::{Join, JoinError, NotBorne};

const POISON: u8 = 0xee;

/// An array under writes while members come and go.
struct Scene {
    geometry: Geometry,
    rig: Rig,
    model: Vec<u8>,
    random: Random,
    /// Requests under way: `(tag, kind, offset, length)`.
    flying: Vec<(u32, RequestKind, u64, u64)>,
    /// How far the walk of the recovery has come, and under which membership.
    walk: Option<(u64, u64, u64)>,
}

impl Scene {
    fn new(geometry: &Geometry, seed: u64, options: RigOptions) -> Self {
        let bytes = (DATA_OFFSET + geometry.component_bytes()) as usize;
        let members = vec![vec![0; bytes]; geometry.slot_count()];
        let rig = Rig::new(geometry, members, RigOptions { queues: 2, ..options });
        let model = vec![0; geometry.array_bytes() as usize];
        let random = Random::new(seed);
        Self { geometry: geometry.clone(), rig, model, random, flying: Vec::new(), walk: None }
    }

    fn lose(&mut self, slot: usize) {
        let member = self.rig.volume.member_index(0, slot);
        self.rig.volume.fail_member(member).expect("it can be borne");
    }

    /// A new member with other things on it.
    fn add_member(&mut self) -> usize {
        let bytes = (DATA_OFFSET + self.geometry.component_bytes()) as usize;
        self.rig.members.push(vec![POISON; bytes]);
        let member = self.rig.volume.reserve_member().expect("there is room");
        assert_eq!(member + 1, self.rig.members.len());
        member
    }

    fn join(&mut self, slot: usize) {
        let member = self.add_member();
        let join = Join { member, data_offset: DATA_OFFSET, recovered: 0, by_bitmap: false };
        self.rig.volume.join(0, slot, join).expect("the slot is empty");
    }

    /// Sends a write or a read of blocks that nothing under way concerns.
    fn send(&mut self) {
        let blocks = self.geometry.array_bytes() / 512;
        let first = self.random.below(blocks);
        let count = 1 + self.random.below((blocks - first).min(40));
        let (offset, len) = (first * 512, count * 512);
        let meets = |&(_, kind, at, other): &(u32, RequestKind, u64, u64)| {
            !matches!(kind, RequestKind::Recover { .. }) && at < offset + len && offset < at + other
        };
        let tag = (0..60).find(|tag| self.flying.iter().all(|flight| flight.0 != *tag));
        let (Some(tag), false) = (tag, self.flying.iter().any(meets)) else { return };
        let range = offset as usize..(offset + len) as usize;
        let writes = self.random.below(3) > 0;
        let mut buffer = vec![0; len as usize];
        if writes {
            buffer.iter_mut().for_each(|byte| *byte = self.random.below(256) as u8);
            self.model[range].copy_from_slice(&buffer);
        }
        let kind = if writes { RequestKind::Write } else { RequestKind::Read };
        let queue = tag as usize % 2;
        self.rig.memories[queue].requests.insert(tag, buffer);
        let request = Request { tag, kind, offset, len, fua: false };
        self.rig.queues[queue].submit(request).expect("acceptable");
        self.flying.push((tag, kind, offset, len));
    }

    /// Sends the next step of the recovery, unless one is under way; true if nothing is due.
    fn recover(&mut self) -> bool {
        if self.flying.iter().any(|flight| matches!(flight.1, RequestKind::Recover { .. })) {
            return false;
        }
        let membership = self.rig.volume.membership(0);
        let Some((start, end)) = self.rig.volume.next_unrecovered(0, 0) else { return true };
        let len = self.rig.volume.resync_unit(0).min(end - start);
        self.walk = Some((start, start + len, membership));
        let kind = RequestKind::Recover { group: 0 };
        let request = Request { tag: 62, kind, offset: start, len, fua: false };
        self.rig.queues[0].submit(request).expect("acceptable");
        self.flying.push((62, kind, start, len));
        false
    }

    /// Lets one member operation end, and takes what is completed.
    fn turn(&mut self) {
        self.rig.drive();
        if !self.rig.pending.is_empty() {
            let index = self.random.below(self.rig.pending.len() as u64) as usize;
            self.rig.answer(index);
        }
        self.rig.drive();
        for (queue, completion) in std::mem::take(&mut self.rig.completions) {
            let at = self.flying.iter().position(|flight| {
                flight.0 == completion.tag && (flight.0 == 62 || flight.0 as usize % 2 == queue)
            });
            let (tag, kind, offset, len) = self.flying.swap_remove(at.expect("in flight"));
            assert!(completion.result.is_ok(), "{kind:?} at {offset}: {completion:?}");
            match kind {
                RequestKind::Recover { .. } => {
                    let (start, end, membership) = self.walk.take().expect("a step");
                    self.rig.volume.note_recovered(0, start, end, membership);
                }
                RequestKind::Read => {
                    let buffer = self.rig.memories[queue].requests.remove(&tag).expect("a buffer");
                    let range = offset as usize..(offset + len) as usize;
                    assert!(buffer == self.model[range], "read at {offset}+{len}");
                }
                _ => {}
            }
        }
    }

    /// Recovers everything under writes.
    fn recover_all(&mut self) {
        for _ in 0..200_000 {
            if self.recover() {
                self.settle();
                if !self.rig.volume.finish_recovery(0).is_empty() {
                    return;
                }
            }
            if self.random.below(3) == 0 {
                self.send();
            }
            self.turn();
        }
        panic!("the recovery does not end");
    }

    fn settle(&mut self) {
        while !self.flying.is_empty() || !self.rig.pending.is_empty() {
            self.turn();
        }
    }

    /// Each slot's member, in sync, as it lies there.
    fn slots(&self) -> Vec<Vec<u8>> {
        let member = |slot| self.rig.members[self.rig.volume.member_index(0, slot)].clone();
        (0..self.geometry.slot_count()).map(member).collect()
    }

    fn judge(&mut self, name: &str) {
        self.settle();
        assert_eq!(self.rig.volume.in_sync(0), self.geometry.slots(), "{name}");
        check_redundancy(&self.geometry, &self.slots(), &self.geometry.slots());
        let (completion, bytes) = self.rig.read(0, self.geometry.array_bytes());
        assert!(completion.result.is_ok());
        assert!(bytes == self.model, "{name}: content");
        // Without any of the others: what was filled must do.
        for missing in tolerated_losses(&self.geometry) {
            let options = RigOptions { absent: missing, ..RigOptions::default() };
            let mut rig = Rig::new(&self.geometry, self.slots(), options);
            let (completion, bytes) = rig.read(0, self.geometry.array_bytes());
            assert!(completion.result.is_ok() && bytes == self.model, "{name} without {missing:?}");
        }
    }
}

fn redundant() -> impl Iterator<Item = (String, Geometry)> {
    redundant_of(4096, 5)
}

fn redundant_of(chunk: u64, stripes: u64) -> impl Iterator<Item = (String, Geometry)> {
    small_geometries(chunk, stripes)
        .into_iter()
        .filter(|(_, geometry)| !matches!(geometry.level(), Level::Raid0 | Level::Linear))
}

#[test]
fn new_members_are_filled_under_writes() {
    for (name, geometry) in redundant() {
        for (seed, missing) in tolerated_losses(&geometry).into_iter().enumerate() {
            let mut scene = Scene::new(&geometry, seed as u64 + 1, RigOptions::default());
            for _ in 0..20 {
                scene.send();
                scene.turn();
            }
            missing.iter().for_each(|slot| scene.lose(slot));
            for _ in 0..20 {
                scene.send();
                scene.turn();
            }
            missing.iter().for_each(|slot| scene.join(slot));
            if !missing.is_empty() {
                scene.recover_all();
            }
            scene.judge(&format!("{name} {missing:?}"));
        }
    }
}

/// A member joins while another one is half filled: each position counts alone.
#[test]
fn a_member_that_joins_later_is_filled_from_its_own_start() {
    for (name, geometry) in redundant().filter(|(_, geometry)| geometry.max_degraded() > 1) {
        let mut scene = Scene::new(&geometry, 7, RigOptions::default());
        let missing = tolerated_losses(&geometry).into_iter().max_by_key(SlotSet::len);
        let mut slots = missing.expect("there are some").iter();
        let (first, second) = (slots.next().expect("two"), slots.next().expect("two"));
        scene.lose(first);
        scene.lose(second);
        scene.join(first);
        while scene.rig.volume.recovered(0, first) == 0 {
            scene.recover();
            scene.send();
            scene.turn();
        }
        scene.join(second);
        assert_eq!(scene.rig.volume.recovered(0, second), 0);
        scene.recover_all();
        scene.judge(&name);
    }
}

/// A member comes back and gets only what the bitmap says that it missed; of what was written
/// before, not a byte is written to it again.
#[test]
fn a_member_that_comes_back_is_filled_by_the_bitmap() {
    // Several lock units of mirrors, which are 256 KiB.
    for (name, geometry) in redundant_of(65536, 13) {
        for slot in 0..geometry.slot_count() {
            if !geometry.tolerates(&SlotSet::one(slot)) {
                continue;
            }
            let options = RigOptions { granule: Some(65536), ..RigOptions::default() };
            let mut scene = Scene::new(&geometry, slot as u64 + 1, options);
            for _ in 0..20 {
                scene.send();
                scene.turn();
            }
            scene.settle();
            // Nothing of that is in the bitmap any more when the member leaves.
            for _ in 0..3 {
                scene.rig.volume.age_intent(0);
                scene.rig.drive();
            }
            scene.lose(slot);
            let unit = scene.rig.volume.resync_unit(0);
            let offset = scene.random.below(geometry.array_bytes() / unit) * unit;
            let bytes = vec![0x77; 512];
            scene.rig.write(offset, &bytes);
            scene.model[offset as usize..offset as usize + 512].copy_from_slice(&bytes);
            let member = scene.rig.volume.member_index(0, slot);
            let back = Join { member, data_offset: DATA_OFFSET, recovered: 0, by_bitmap: true };
            scene.rig.volume.join(0, slot, back).expect("it was there");
            let (_, run_end) = scene.rig.volume.next_unrecovered(0, 0).expect("one region");
            assert!(scene.rig.volume.next_unrecovered(0, run_end).is_none(), "{name}: one region");
            scene.recover_all();
            scene.judge(&format!("{name} slot {slot}"));
        }
    }
}

/// A member in sync is replaced by another one under writes; then the old one is not touched any
/// more.
#[test]
fn a_member_is_replaced_under_writes() {
    for (name, geometry) in redundant() {
        for slot in 0..geometry.slot_count() {
            let mut scene = Scene::new(&geometry, slot as u64 + 1, RigOptions::default());
            for _ in 0..20 {
                scene.send();
                scene.turn();
            }
            let old = scene.rig.volume.member_index(0, slot);
            let member = scene.add_member();
            let join = Join { member, data_offset: DATA_OFFSET, recovered: 0, by_bitmap: false };
            scene.rig.volume.join_replacement(0, slot, join).expect("it is in sync");
            scene.recover_all();
            assert_eq!(scene.rig.volume.member_index(0, slot), member);
            scene.rig.members[old].fill(POISON);
            scene.judge(&format!("{name} slot {slot}"));
            assert!(scene.rig.members[old].iter().all(|byte| *byte == POISON), "{name}");
        }
    }
}

/// The member that is being replaced fails half way: the replacement goes on from there.
#[test]
fn a_replacement_takes_over_when_the_member_fails() {
    for (name, geometry) in redundant() {
        let slot = geometry.slot_count() - 1;
        let mut scene = Scene::new(&geometry, 3, RigOptions::default());
        for _ in 0..20 {
            scene.send();
            scene.turn();
        }
        let member = scene.add_member();
        let join = Join { member, data_offset: DATA_OFFSET, recovered: 0, by_bitmap: false };
        scene.rig.volume.join_replacement(0, slot, join).expect("it is in sync");
        while scene.rig.volume.replaced(0, slot) == 0 {
            scene.recover();
            scene.send();
            scene.turn();
        }
        scene.lose(slot);
        let is_whole = scene.rig.volume.recovered(0, slot) == u64::MAX;
        assert_eq!(scene.rig.volume.recovering(0), SlotSet::one(slot), "{name} {is_whole}");
        assert!(scene.rig.volume.replacing(0).is_empty());
        scene.recover_all();
        scene.judge(&name);
    }
}

/// A member that is being filled fails: it leaves, the array goes on, another one is filled.
#[test]
fn a_recovering_member_that_fails_leaves() {
    for (name, geometry) in redundant() {
        let mut scene = Scene::new(&geometry, 5, RigOptions::default());
        scene.lose(0);
        scene.join(0);
        let bad = scene.rig.volume.member_index(0, 0);
        let mut left = 3;
        scene.rig.fault = Some(Box::new(move |io| {
            if io.member != bad || io.kind == raid_core::plan::IoKind::Read {
                return Ok(());
            }
            left = left.max(1) - 1;
            if left == 0 { Err(MemberError::NoSpace) } else { Ok(()) }
        }));
        while !scene.rig.volume.recovering(0).is_empty() {
            scene.recover();
            scene.send();
            scene.turn();
        }
        scene.settle();
        scene.join(0);
        scene.recover_all();
        scene.judge(&name);
    }
}

/// An operation that was on its way to a member that left never reaches the one that took its
/// slot.
#[test]
fn a_read_of_a_member_that_left_does_not_reach_its_successor() {
    let geometry = geometry(Level::Raid5, Layout::default_for(Level::Raid5), 3, 4096, 5 * 4096);
    let mut scene = Scene::new(&geometry, 9, RigOptions::default());
    let bytes: Vec<u8> = (0..geometry.array_bytes()).map(|at| at as u8).collect();
    assert!(scene.rig.write(0, &bytes).result.is_ok());
    scene.model.clone_from(&bytes);
    scene.rig.memories[0].requests.insert(0, vec![0; 4096]);
    let request = Request { tag: 0, kind: RequestKind::Read, offset: 0, len: 4096, fua: false };
    scene.rig.queues[0].submit(request).expect("acceptable");
    // Not polled yet, when the slot changes hands.
    let slot = geometry.stripe(0).data_slot(0);
    scene.lose(slot);
    scene.join(slot);
    scene.rig.settle(&mut Random::new(1));
    assert!(scene.rig.completions.pop().expect("one").1.result.is_ok());
    assert!(scene.rig.memories[0].requests[&0] == bytes[..4096], "the successor's bytes were read");
}

#[test]
fn joins_that_make_no_sense_are_refused() {
    let geometry = geometry(Level::Raid5, Layout::default_for(Level::Raid5), 3, 4096, 5 * 4096);
    let mut scene = Scene::new(&geometry, 1, RigOptions::default());
    let join = |member| Join { member, data_offset: DATA_OFFSET, recovered: 0, by_bitmap: false };
    let member = scene.add_member();
    let volume = scene.rig.volume.clone();
    assert_eq!(volume.join(0, 1, join(member)), Err(JoinError::Occupied { slot: 1 }));
    assert_eq!(volume.join(0, 3, join(member)), Err(JoinError::NoSuchSlot { slot: 3, slots: 3 }));
    let unknown = Err(JoinError::Member { member: 9, data_offset: DATA_OFFSET });
    assert_eq!(volume.join(0, 1, join(9)), unknown);
    scene.lose(1);
    let by_bitmap = Join { by_bitmap: true, ..join(member) };
    assert_eq!(volume.join(0, 1, by_bitmap), Err(JoinError::NoBitmap { slot: 1 }));
    let replaced = volume.join_replacement(0, 1, join(member));
    assert_eq!(replaced, Err(JoinError::NotReplaceable { slot: 1 }));
    // The last copy of anything is never taken away.
    assert_eq!(volume.fail_member(0), Err(NotBorne { member: 0 }));
    assert_eq!(volume.fail_member(1), Ok(()), "it has left already");
}

/// An array goes clean when nothing is written, and dirty again before the next write.
#[test]
fn an_idle_array_is_marked_clean() {
    let geometry = geometry(Level::Raid5, Layout::default_for(Level::Raid5), 3, 4096, 5 * 4096);
    let mut scene = Scene::new(&geometry, 1, RigOptions::default());
    let volume = scene.rig.volume.clone();
    assert!(!volume.mark_idle(0), "it is clean");
    scene.rig.memories[0].requests.insert(0, vec![1; 512]);
    let request = Request { tag: 0, kind: RequestKind::Write, offset: 0, len: 512, fua: false };
    scene.rig.queues[0].submit(request).expect("acceptable");
    scene.rig.drive();
    assert!(volume.is_dirty(0) && !volume.mark_idle(0), "a write is under way");
    assert!(volume.is_dirty(0));
    scene.rig.settle(&mut Random::new(1));
    assert!(volume.mark_idle(0) && !volume.is_dirty(0));
    let update = volume.poll_metadata().expect("it says clean");
    assert!(update.superblocks && !update.dirty);
    // A write that comes in between waits, and is marked before it goes out.
    scene.rig.memories[0].requests.insert(1, vec![1; 512]);
    scene.rig.queues[0].submit(Request { tag: 1, ..request }).expect("acceptable");
    assert!(scene.rig.queues[0].poll_io().is_none());
    scene.rig.queues[0].handle_metadata(&update, &SlotSet::new());
    assert!(scene.rig.queues[0].poll_io().is_none());
    let update = scene.rig.queues[0].poll_metadata().expect("it says dirty");
    assert!(update.superblocks && update.dirty);
    scene.rig.queues[0].handle_metadata(&update, &SlotSet::new());
    scene.rig.settle(&mut Random::new(1));
}
