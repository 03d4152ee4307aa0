//! Many requests, many queues, any order of answers: overlapping writes leave copies and parity
//! equal, every byte is what some legal order would give, failures of members lose nothing.
//!
//! Each 512-byte block is a register. A read must return a value that was written by a write which
//! had started before the read ended and was not certainly overwritten before it began.

mod common;

use common::*;
use proptest::prelude::*;
use raid_core::geometry::{Geometry, GeometrySpec, Layout, Level};
use raid_core::plan::{IoKind, Trust};
use raid_core::queue::MemberError;
use raid_core::request::{Request, RequestKind};
use raid_core::slots::SlotSet;
use raid_core::volume::OuterConfig;
use std::cell::RefCell;
use std::rc::Rc;

const BLOCK: usize = 512;

/// The values a block may have: those of writes under way, and the last one that certainly stands.
struct Register {
    /// `(stamp, started, ended)`: ended is `None` while the write is under way.
    writes: Vec<(u64, u64, Option<u64>)>,
}

impl Register {
    /// True if a read that was under way from `started` on may return `stamp`.
    fn may_return(&self, stamp: u64, started: u64) -> bool {
        let Some(&(_, began, ended)) = self.writes.iter().find(|write| write.0 == stamp) else {
            return false;
        };
        // Overwritten for certain: a later write began after this one ended, and ended before the
        // read started.
        let overwritten = self.writes.iter().any(|&(_, other_began, other_ended)| {
            ended.is_some_and(|ended| other_began > ended)
                && other_ended.is_some_and(|other_ended| other_ended < started)
        });
        let _ = began;
        !overwritten
    }
}

struct World {
    rig: Rig,
    registers: Vec<Register>,
    clock: u64,
    /// `(queue, tag)` of requests under way with what they do.
    flying: Vec<(usize, u32, Request, u64, u64)>,
    failed: u64,
}

impl World {
    fn new(rig: Rig) -> Self {
        let blocks = rig.volume.array_bytes() as usize / BLOCK;
        let registers = (0..blocks).map(|_| Register { writes: vec![(0, 0, Some(0))] }).collect();
        Self { rig, registers, clock: 1, flying: Vec::new(), failed: 0 }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn submit(&mut self, random: &mut Random) {
        let queue = random.below(self.rig.queues.len() as u64) as usize;
        let used: Vec<u32> =
            self.flying.iter().filter(|flight| flight.0 == queue).map(|flight| flight.1).collect();
        let Some(tag) = (0..63).find(|tag| !used.contains(tag)) else { return };
        let blocks = self.registers.len() as u64;
        // A few hot blocks, so that requests meet often.
        let first =
            if random.below(2) == 0 { random.below(blocks) } else { random.below(blocks.min(24)) };
        let count = 1 + random.below((blocks - first).min(40));
        let kind = match random.below(10) {
            0..4 => RequestKind::Read,
            4..9 => RequestKind::Write,
            _ => RequestKind::Flush,
        };
        let now = self.tick();
        let mut buffer = vec![0u8; count as usize * BLOCK];
        if kind == RequestKind::Write {
            for (index, block) in buffer.chunks_mut(BLOCK).enumerate() {
                for word in block.chunks_mut(8) {
                    word.copy_from_slice(&now.to_le_bytes());
                }
                self.registers[first as usize + index].writes.push((now, now, None));
            }
        }
        let request = Request {
            tag,
            kind,
            offset: first * BLOCK as u64,
            len: count * BLOCK as u64,
            fua: random.below(4) == 0 && kind == RequestKind::Write,
        };
        self.rig.memories[queue].requests.insert(tag, buffer);
        self.rig.queues[queue].submit(request).expect("acceptable");
        self.flying.push((queue, tag, request, now, now));
    }

    fn collect(&mut self, may_fail: bool) {
        for (queue, completion) in std::mem::take(&mut self.rig.completions) {
            let at = self.flying.iter().position(|f| (f.0, f.1) == (queue, completion.tag));
            let (_, tag, request, started, stamp) = self.flying.swap_remove(at.expect("in flight"));
            let buffer = self.rig.memories[queue].requests.remove(&tag).expect("its buffer");
            let first = request.offset as usize / BLOCK;
            if let Err(error) = completion.result {
                assert!(may_fail, "{request:?}: {error}");
                self.failed += 1;
                continue;
            }
            let now = self.tick();
            for (index, block) in buffer.chunks(BLOCK).enumerate() {
                let register = &mut self.registers[first + index];
                match request.kind {
                    RequestKind::Write => {
                        for write in register.writes.iter_mut().filter(|w| w.0 == stamp) {
                            write.2 = Some(now);
                        }
                    }
                    RequestKind::Read => {
                        let word = |at: usize| {
                            u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"))
                        };
                        let value = word(0);
                        let whole = (0..BLOCK).step_by(8).all(|at| word(at) == value);
                        assert!(whole, "block {} is a mixture", first + index);
                        let legal = register.may_return(value, started);
                        assert!(legal, "block {} returned {value}: {request:?}", first + index);
                    }
                    _ => {}
                }
            }
        }
    }

    fn run(&mut self, random: &mut Random, steps: usize, depth: usize, may_fail: bool) {
        for _ in 0..steps {
            if self.flying.len() < depth && random.below(2) == 0 {
                self.submit(random);
            }
            self.rig.drive();
            self.collect(may_fail);
            if !self.rig.pending.is_empty() && random.below(4) != 0 {
                let index = random.below(self.rig.pending.len() as u64) as usize;
                self.rig.answer(index);
            }
        }
        self.rig.settle(random);
        self.collect(may_fail);
        assert!(self.flying.is_empty());
    }
}

fn shapes() -> Vec<(String, Geometry)> {
    small_geometries(4096, 6)
}

fn blank(geometry: &Geometry) -> Vec<Vec<u8>> {
    vec![vec![0; (DATA_OFFSET + geometry.component_bytes()) as usize]; geometry.slot_count()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    /// Healthy or degraded, on one to four queues: registers hold, redundancy is equal at rest.
    #[test]
    fn overlapping_requests_keep_copies_and_parity_equal(
        seed in any::<u64>(),
        shape in 0usize..23,
        queues in 1usize..5,
        loss in any::<prop::sample::Index>(),
    ) {
        let mut random = Random::new(seed);
        let (_, geometry) = &shapes()[shape];
        let losses = tolerated_losses(geometry);
        let absent = losses[loss.index(losses.len())];
        let options = RigOptions { queues, absent, ..RigOptions::default() };
        let rig = Rig::new(geometry, blank(geometry), options);
        let mut world = World::new(rig);
        world.run(&mut random, 1500, 24, false);
        check_redundancy(geometry, &world.rig.members, &geometry.slots().difference(absent));
    }

    /// Members that break in the middle (every write to them fails from then on, reads too) leave
    /// the array, no request fails while that is within the level's limit, and what is left is
    /// enough to read everything.
    #[test]
    fn members_that_break_lose_nothing(
        seed in any::<u64>(),
        shape in 0usize..23,
        queues in 1usize..4,
    ) {
        let mut random = Random::new(seed);
        let (_, geometry) = &shapes()[shape];
        let losses = tolerated_losses(geometry);
        let broken = losses[random.below(losses.len() as u64) as usize];
        let options = RigOptions { queues, ..RigOptions::default() };
        let mut rig = Rig::new(geometry, blank(geometry), options);
        let countdown = Rc::new(RefCell::new(random.below(200)));
        let error = if random.below(2) == 0 { MemberError::Gone } else { MemberError::Io };
        rig.fault = Some(Box::new(move |io| {
            let mut left = countdown.borrow_mut();
            *left = left.saturating_sub(1);
            if *left == 0 && broken.contains(io.member) { Err(error) } else { Ok(()) }
        }));
        let mut world = World::new(rig);
        world.run(&mut random, 1500, 16, false);
        let in_sync = world.rig.volume.in_sync(0);
        let good = geometry.slots().difference(broken);
        prop_assert!(good.is_subset(&in_sync), "a good member was failed");
        // Every block once more, without the broken members.
        let size = geometry.array_bytes();
        let (completion, _) = world.rig.read(0, size);
        prop_assert!(completion.result.is_ok());
        check_redundancy(geometry, &world.rig.members, &in_sync);
    }

    /// Single reads that fail (a latent sector error) are answered from the rest and nothing leaves
    /// the array.
    #[test]
    fn unreadable_sectors_are_regenerated(seed in any::<u64>(), shape in 1usize..23) {
        let mut random = Random::new(seed);
        let (_, geometry) = &shapes()[shape];
        let options = RigOptions { queues: 2, ..RigOptions::default() };
        let mut rig = Rig::new(geometry, blank(geometry), options);
        let bad = random.below(geometry.slot_count() as u64) as usize;
        // Each is readable once it has been written.
        let mut healed = std::collections::BTreeSet::new();
        rig.fault = Some(Box::new(move |io| {
            let blocks = io.offset.div_ceil(8192)..(io.offset + io.len).div_ceil(8192);
            match io.kind {
                _ if io.member != bad => {}
                IoKind::Read if blocks.clone().any(|block| !healed.contains(&block)) => {
                    return Err(MemberError::Io);
                }
                IoKind::Write => healed.extend(blocks),
                _ => {}
            }
            Ok(())
        }));
        let mut world = World::new(rig);
        world.run(&mut random, 1200, 16, false);
        prop_assert_eq!(world.rig.volume.in_sync(0), geometry.slots());
        check_redundancy(geometry, &world.rig.members, &geometry.slots());
    }
}

/// Beyond the limit: requests fail with an error, none hangs, nothing panics, and reads never give
/// wrong bytes.
#[test]
fn beyond_the_limit_is_an_error() {
    for (name, geometry) in shapes() {
        println!("{name}");
        let mut rig = Rig::new(
            &geometry,
            blank(&geometry),
            RigOptions { queues: 2, ..RigOptions::default() },
        );
        let mut countdown = 150;
        rig.fault = Some(Box::new(move |_| {
            countdown -= 1;
            if countdown < 0 { Err(MemberError::Io) } else { Ok(()) }
        }));
        let mut world = World::new(rig);
        world.run(&mut Random::new(3), 1500, 16, true);
        assert!(world.failed > 0);
        assert!(geometry.tolerates(&geometry.slots().difference(world.rig.volume.in_sync(0))));
    }
}

/// RAID 50 and 60: groups of unequal size under an outer RAID 0, everything as above.
#[test]
fn nested_levels() {
    for (level, slots, seed) in [(Level::Raid5, 3, 1), (Level::Raid6, 4, 2), (Level::Raid1, 2, 3)] {
        let layout = Layout::default_for(level);
        let groups = [
            geometry(level, layout, slots, 4096, 8 * 4096),
            geometry(level, layout, slots, 4096, 12 * 4096),
        ];
        let sizes = groups.each_ref().map(|group| group.array_bytes() - 4096);
        let spec = GeometrySpec {
            level: Level::Raid0,
            layout: Layout::default_for(Level::Raid0),
            slot_count: 2,
            chunk_bytes: 8192,
            member_data_bytes: &sizes,
        };
        let outer = Geometry::new(spec).expect("valid");
        let outer = OuterConfig { geometry: outer, data_offsets: vec![4096, 4096] };
        for absent in [SlotSet::new(), [1, slots + 1].into_iter().collect()] {
            let members = groups.iter().flat_map(blank).collect();
            let options = RigOptions { queues: 3, absent, ..RigOptions::default() };
            let rig = Rig::nested(&groups, Some(outer.clone()), members, options);
            let mut world = World::new(rig);
            world.run(&mut Random::new(seed), 4000, 24, false);
            for (index, group) in groups.iter().enumerate() {
                let members = &world.rig.members[index * slots..(index + 1) * slots];
                check_redundancy(group, members, &world.rig.volume.in_sync(index));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// A resync over garbage redundancy, with requests on other queues at the same time: no read
    /// returns garbage, and afterwards all of it agrees.
    #[test]
    fn resync_against_concurrent_writes(seed in any::<u64>(), shape in 1usize..23) {
        let mut random = Random::new(seed);
        let (_, geometry) = &shapes()[shape];
        let mut members = blank(geometry);
        let data = |offset: u64| {
            let place = geometry.copy(offset, 0);
            (place.slot, (DATA_OFFSET + place.member_offset) as usize)
        };
        let kept: Vec<_> = (0..geometry.array_bytes()).step_by(4096).map(data).collect();
        for (slot, member) in members.iter_mut().enumerate() {
            for start in (0..member.len()).step_by(4096) {
                if !kept.contains(&(slot, start)) {
                    member[start..start + 4096].fill(0xbd);
                }
            }
        }
        let options = RigOptions { queues: 3, trust: Trust::Unsynced, ..RigOptions::default() };
        let mut world = World::new(Rig::new(geometry, members, options));
        let suspicion = world.rig.volume.suspicion(0);
        let (unit, size) = (world.rig.volume.resync_unit(0), geometry.array_bytes());
        let mut at = 0;
        while at < size {
            let len = (unit * (1 + random.below(3))).min(size - at);
            let kind = RequestKind::Resync { group: 0 };
            let request = Request { tag: 63, kind, offset: at, len, fua: false };
            world.rig.queues[2].submit(request).expect("acceptable");
            let done = |world: &mut World| {
                let completions = &mut world.rig.completions;
                let at = completions.iter().position(|(queue, c)| (*queue, c.tag) == (2, 63));
                at.map(|at| completions.swap_remove(at).1)
            };
            let completion = loop {
                if let Some(completion) = done(&mut world) {
                    break completion;
                }
                world.collect(false);
                if world.flying.len() < 20 {
                    world.submit(&mut random);
                }
                world.rig.drive();
                if !world.rig.pending.is_empty() {
                    let index = random.below(world.rig.pending.len() as u64) as usize;
                    world.rig.answer(index);
                }
            };
            prop_assert!(completion.result.is_ok());
            at += len;
            prop_assert!(world.rig.volume.note_synced(0, at, suspicion));
        }
        world.run(&mut random, 200, 16, false);
        prop_assert!(world.rig.volume.is_trusted(0));
        check_redundancy(geometry, &world.rig.members, &geometry.slots());
    }
}

/// No data is written before the dirty mark is durable, and no write that relies on a member's
/// failure is acknowledged before that failure is (md's R06: acknowledged, then resynced from the
/// stale copy).
#[test]
fn metadata_is_durable_before_it_is_relied_on() {
    for (name, geometry) in shapes() {
        if geometry.max_degraded() == 0 {
            continue;
        }
        println!("{name}");
        let mut rig = Rig::new(&geometry, blank(&geometry), RigOptions::default());
        rig.hold_metadata = true;
        rig.memories[0].requests.insert(0, vec![7; 4096]);
        let request =
            Request { tag: 0, kind: RequestKind::Write, offset: 0, len: 4096, fua: false };
        rig.queues[0].submit(request).expect("acceptable");
        rig.drive();
        assert!(rig.pending.is_empty(), "a member is touched before the dirty mark");
        assert!(rig.queues[0].poll_completion().is_none());
        let mark = rig.held_metadata.take().expect("the dirty mark is asked for");
        assert!(mark.dirty && mark.in_sync == geometry.slots());
        rig.queues[0].handle_metadata(&mark, &SlotSet::new());
        rig.fault = Some(Box::new(|io| {
            let breaks = io.member == 0 && io.kind != IoKind::Read;
            if breaks { Err(MemberError::Io) } else { Ok(()) }
        }));
        loop {
            rig.drive();
            if rig.pending.is_empty() {
                break;
            }
            rig.answer(0);
        }
        let failed = !rig.volume.in_sync(0).contains(0);
        assert_eq!(rig.completions.is_empty(), failed, "acknowledged on borrowed time");
        if failed {
            assert!(rig.queues[0].poll_completion().is_none(), "acknowledged on borrowed time");
            let failure = rig.held_metadata.take().expect("the failure is to be recorded");
            assert!(!failure.in_sync.contains(0));
            rig.queues[0].handle_metadata(&failure, &SlotSet::new());
            rig.drive();
        }
        assert_eq!(rig.completions.len(), 1);
        assert!(rig.completions[0].1.result.is_ok());
    }
}

/// Superblocks that cannot be written cost their members, and in the end the array's writes, never
/// a false promise.
#[test]
fn unwritable_metadata_stops_writes() {
    let geometry = geometry(Level::Raid5, Layout::default_for(Level::Raid5), 3, 4096, 8 * 4096);
    let mut rig = Rig::new(&geometry, blank(&geometry), RigOptions::default());
    rig.hold_metadata = true;
    rig.memories[0].requests.insert(0, vec![7; 4096]);
    let request = Request { tag: 0, kind: RequestKind::Write, offset: 0, len: 4096, fua: false };
    rig.queues[0].submit(request).expect("acceptable");
    rig.drive();
    let update = rig.held_metadata.take().expect("the dirty mark");
    rig.queues[0].handle_metadata(&update, &SlotSet::one(1));
    rig.drive();
    assert!(rig.pending.is_empty() && rig.completions.is_empty());
    let update = rig.held_metadata.take().expect("the dirty mark on the rest");
    assert!(!update.in_sync.contains(1));
    rig.queues[0].handle_metadata(&update, &SlotSet::one(2));
    rig.drive();
    assert!(rig.volume.is_stopped(0));
    assert!(rig.completions[0].1.result.is_err());
    rig.completions.clear();
    rig.hold_metadata = false;
    let (completion, bytes) = rig.read(0, 4096);
    assert!(completion.result.is_ok() && bytes == [0; 4096], "reads go on");
    assert!(rig.write(0, &[1; 512]).result.is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, ..ProptestConfig::default() })]

    /// With a bitmap: every write finds its bit on the members first (the rig checks), bits go
    /// again when writes have ended, and after a crash at any point a resync of the set bits
    /// alone makes all redundancy right.
    #[test]
    fn the_bitmap_covers_every_write(
        seed in any::<u64>(),
        shape in 1usize..23,
        queues in 1usize..4,
    ) {
        let mut random = Random::new(seed);
        let (_, geometry) = &shapes()[shape];
        let granule = 4096 << random.below(3);
        let options = RigOptions { queues, granule: Some(granule), ..RigOptions::default() };
        let mut world = World::new(Rig::new(geometry, blank(geometry), options));
        for _ in 0..1500 {
            if world.flying.len() < 12 && random.below(3) == 0 {
                world.submit(&mut random);
            }
            world.rig.drive();
            world.collect(false);
            if !world.rig.pending.is_empty() && random.below(4) != 0 {
                let index = random.below(world.rig.pending.len() as u64) as usize;
                world.rig.answer(index);
            }
            if random.below(40) == 0 {
                world.rig.volume.age_intent(0);
            }
        }
        // The crash: what was answered is on the members, the rest is not.
        let (_, words) = world.rig.bitmap.clone().expect("a bitmap");
        let members = world.rig.members.clone();
        let registers = std::mem::take(&mut world.registers);
        drop(world);

        let after = RigOptions { trust: Trust::Unsynced, ..options };
        let mut rig = Rig::new(geometry, members, after);
        rig.reload_bitmap(geometry, words, after);
        let suspicion = rig.volume.suspicion(0);
        let mut from = 0;
        while let Some((start, end)) = rig.volume.next_unsynced(0, from) {
            let kind = RequestKind::Resync { group: 0 };
            let (completion, _) = rig.request(kind, start, end - start, Vec::new());
            prop_assert!(completion.result.is_ok());
            prop_assert!(rig.volume.note_region_synced(0, start, end, suspicion));
            from = end;
        }
        check_redundancy(geometry, &rig.members, &geometry.slots());
        prop_assert!(rig.volume.is_trusted(0));
        let (completion, bytes) = rig.read(0, geometry.array_bytes());
        prop_assert!(completion.result.is_ok());
        for (block, register) in bytes.chunks(BLOCK).zip(&registers) {
            let value = u64::from_le_bytes(block[..8].try_into().expect("eight bytes"));
            prop_assert!(register.may_return(value, u64::MAX));
        }
        // Quiet periods take every bit back.
        for _ in 0..3 {
            prop_assert!(rig.volume.age_intent(0));
            rig.drive();
        }
        prop_assert_eq!(rig.volume.intent_counts(0), Some((0, 0)));
        prop_assert!(rig.bitmap.expect("a bitmap").1.iter().all(|&word| word == 0));
    }
}
