//! Blocks that cannot be read are regenerated, written and read back; checks find what does not
//! agree, name who is wrong where that can be told, and write only what they were told to.

mod common;

use common::*;
use raid_core::geometry::{Geometry, Layout, Level};
use raid_core::plan::IoKind;
use raid_core::queue::MemberError;
use raid_core::request::{Repair, Request, RequestErrorKind, RequestKind};
use raid_core::slots::SlotSet;
use raid_core::volume::{Finding, Join, Loss};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

const BLOCK: u64 = 512;

/// Bad blocks of members: `(member, block)`. They heal when they are written, unless `sticky`.
type Bad = Rc<RefCell<BTreeSet<(usize, u64)>>>;

fn redundant() -> impl Iterator<Item = (String, Geometry)> {
    small_geometries(4096, 5)
        .into_iter()
        .filter(|(_, geometry)| !matches!(geometry.level(), Level::Raid0 | Level::Linear))
}

/// A filled array, its content, and the bad blocks that its members are going to have.
fn filled(geometry: &Geometry, sticky: bool) -> (Rig, Vec<u8>, Bad) {
    let bytes = (DATA_OFFSET + geometry.component_bytes()) as usize;
    let members = vec![vec![0; bytes]; geometry.slot_count()];
    let mut rig = Rig::new(geometry, members, RigOptions::default());
    let mut random = Random::new(geometry.slot_count() as u64);
    let content: Vec<u8> = (0..geometry.array_bytes()).map(|_| random.below(256) as u8).collect();
    assert!(rig.write(0, &content).result.is_ok());
    let bad = Bad::default();
    let seen = Rc::clone(&bad);
    rig.fault = Some(Box::new(move |io| {
        let blocks = io.offset / BLOCK..(io.offset + io.len).div_ceil(BLOCK);
        let mut bad = seen.borrow_mut();
        let hit: Vec<_> =
            blocks.map(|block| (io.member, block)).filter(|at| bad.contains(at)).collect();
        match io.kind {
            IoKind::Read if !hit.is_empty() => Err(MemberError::Io),
            IoKind::Write | IoKind::WriteZeroes { .. } if sticky && !hit.is_empty() => {
                Err(MemberError::Io)
            }
            IoKind::Write | IoKind::WriteZeroes { .. } => {
                hit.iter().for_each(|at| {
                    bad.remove(at);
                });
                Ok(())
            }
            _ => Ok(()),
        }
    }));
    (rig, content, bad)
}

fn read_all(rig: &mut Rig, content: &[u8], name: &str) {
    // In pieces, so that direct reads of each member are among them.
    for offset in (0..content.len()).step_by(2048) {
        let (completion, bytes) = rig.read(offset as u64, 2048);
        assert!(completion.result.is_ok(), "{name}: {completion:?} at {offset}");
        assert!(bytes == content[offset..offset + 2048], "{name}: wrong bytes at {offset}");
    }
}

#[test]
fn a_bad_block_is_answered_rewritten_and_its_member_stays() {
    for (name, geometry) in redundant() {
        for slot in 0..geometry.slot_count() {
            let (mut rig, content, bad) = filled(&geometry, false);
            let before = rig.members.clone();
            let used = geometry.component_bytes() / BLOCK;
            let first = (DATA_OFFSET / BLOCK) + (used / 2);
            bad.borrow_mut().extend([(slot, first), (slot, first + 1), (slot, first + 9)]);
            // What is found damaged must have been written anew: the old bytes are gone.
            for &(member, block) in bad.borrow().iter() {
                let at = (block * BLOCK) as usize;
                rig.members[member][at..at + BLOCK as usize].fill(0xdd);
            }
            read_all(&mut rig, &content, &name);
            check_all(&mut rig, Repair::None);
            assert!(bad.borrow().is_empty(), "{name} slot {slot}: {:?}", bad.borrow());
            assert_eq!(rig.volume.in_sync(0), geometry.slots(), "{name}");
            assert!(rig.members == before, "{name} slot {slot}: not what was there");
            let counters = rig.volume.counters().members[slot];
            assert!(counters.read_errors > 0 && counters.rewritten > 0, "{name}: {counters:?}");
        }
    }
}

#[test]
fn a_member_that_cannot_be_written_where_it_could_not_be_read_leaves() {
    for (name, geometry) in redundant() {
        let (mut rig, content, bad) = filled(&geometry, true);
        bad.borrow_mut().insert((1, DATA_OFFSET / BLOCK + 3));
        read_all(&mut rig, &content, &name);
        check_all(&mut rig, Repair::None);
        let mut rest = geometry.slots();
        rest.remove(1);
        assert_eq!(rig.volume.in_sync(0), rest, "{name}");
        read_all(&mut rig, &content, &name);
    }
}

/// A member that says that it has written, and has not, is found out.
#[test]
fn a_member_that_reads_back_something_else_leaves() {
    let geometry = geometry(Level::Raid5, Layout::default_for(Level::Raid5), 3, 4096, 5 * 4096);
    let (mut rig, content, bad) = filled(&geometry, false);
    bad.borrow_mut().insert((1, DATA_OFFSET / BLOCK));
    let kind = RequestKind::Check { group: 0, repair: Repair::None };
    let len = geometry.array_bytes();
    let request = Request { tag: 9, kind, offset: 0, len, fua: false };
    rig.queues[0].submit(request).expect("acceptable");
    loop {
        rig.drive();
        let Some(io) = rig.pending.first().cloned() else { break };
        rig.answer(0);
        if io.kind == IoKind::Write {
            // It was lost on the way.
            assert_eq!(io.member, 1);
            rig.members[1][io.offset as usize + 5] ^= 1;
        }
    }
    assert!(rig.completions.pop().expect("one").1.result.is_ok());
    assert!(!rig.volume.in_sync(0).contains(1));
    read_all(&mut rig, &content, "raid5");
}

/// Two members with bad blocks in one stripe, but not in the same rows: nothing is lost.
#[test]
fn bad_blocks_of_two_members_in_different_rows_lose_nothing() {
    for (name, geometry) in redundant().filter(|(_, geometry)| geometry.parity_count() > 0) {
        let (mut rig, content, bad) = filled(&geometry, false);
        let first = DATA_OFFSET / BLOCK;
        bad.borrow_mut().extend([(0, first), (1, first + 1), (0, first + 2), (1, first + 5)]);
        let (completion, bytes) = rig.read(0, geometry.array_bytes());
        assert!(completion.result.is_ok(), "{name}: {completion:?}");
        assert!(bytes == content, "{name}");
        check_all(&mut rig, Repair::None);
        assert!(bad.borrow().is_empty(), "{name}");
        // The same for a write that needs old data of both.
        bad.borrow_mut().extend([(0, first), (1, first + 1)]);
        let mut content = content;
        content[256..2048 + 256].fill(0x31);
        assert!(rig.write(256, &[0x31; 2048]).result.is_ok(), "{name}");
        read_all(&mut rig, &content, &name);
        check_redundancy(&geometry, &rig.members, &geometry.slots());
    }
}

/// Beyond what can be regenerated only the rows concerned fail, and nothing is written to them.
#[test]
fn bad_blocks_beyond_redundancy_cost_their_own_rows() {
    let geometry = geometry(Level::Raid5, Layout::default_for(Level::Raid5), 3, 4096, 5 * 4096);
    let (mut rig, content, bad) = filled(&geometry, false);
    let row = 2;
    let slots = [0, 1, 2].map(|slot| (slot, DATA_OFFSET / BLOCK + row));
    bad.borrow_mut().extend(slots.iter().take(2));
    let stripe = geometry.stripe(0);
    for offset in (0..geometry.array_bytes()).step_by(BLOCK as usize) {
        let (completion, bytes) = rig.read(offset, BLOCK);
        let (chunk, within) = (offset / 4096, offset % 4096 / BLOCK);
        let lost = chunk < 2 && within == row && stripe.data_slot(chunk as usize) < 2;
        assert_eq!(completion.result.is_err(), lost, "at {offset}");
        if !lost {
            assert!(bytes == content[offset as usize..(offset + BLOCK) as usize]);
        }
    }
    assert_eq!(bad.borrow().len(), 2, "nothing was invented for them");
    assert_eq!(rig.volume.in_sync(0), geometry.slots());
}

/// Checks all of group 0; returns what was found.
fn check_all(rig: &mut Rig, repair: Repair) -> Vec<Finding> {
    let len = rig.volume.geometry(0).array_bytes();
    let kind = RequestKind::Check { group: 0, repair };
    let request = Request { tag: 9, kind, offset: 0, len, fua: false };
    rig.queues[0].submit(request).expect("acceptable");
    rig.settle(&mut Random::new(3));
    assert!(rig.completions.pop().expect("one").1.result.is_ok());
    std::iter::from_fn(|| rig.volume.poll_finding()).collect()
}

#[test]
fn a_check_finds_nothing_in_what_agrees_and_writes_nothing() {
    for (name, geometry) in redundant() {
        let (mut rig, ..) = filled(&geometry, false);
        let (before, sent) = (rig.members.clone(), rig.sent.1);
        for repair in [Repair::None, Repair::Proven, Repair::TrustData] {
            assert_eq!(check_all(&mut rig, repair), [], "{name}");
        }
        assert!(rig.members == before && rig.sent.1 == sent, "{name}");
    }
}

/// Damages one block of each slot in turn: it is found, with its place; named where two parities or
/// a majority name it; repaired where that proves it.
#[test]
fn a_check_names_and_repairs_what_can_be_proven() {
    for (name, geometry) in redundant() {
        let copies = geometry.copy_count();
        let provable = geometry.parity_count() == 2 || geometry.parity_count() == 0 && copies > 2;
        for slot in 0..geometry.slot_count() {
            let (mut rig, content, _) = filled(&geometry, false);
            let good = rig.members.clone();
            let at = (DATA_OFFSET + 4096 + 1024) as usize;
            rig.members[slot][at..at + 512].iter_mut().for_each(|byte| *byte ^= 0x5a);
            let damaged = rig.members.clone();
            let found = check_all(&mut rig, Repair::None);
            assert!(rig.members == damaged, "{name}: a check writes");
            assert_eq!(found.len(), 1, "{name} slot {slot}: {found:?}");
            let Finding { len, slot: named, repaired, member_offset, .. } = found[0];
            assert_eq!((len, named, repaired), (512, provable.then_some(slot), false), "{name}");
            if provable || geometry.parity_count() > 0 {
                assert_eq!(member_offset, 4096 + 1024, "{name}");
            }
            assert_eq!(rig.volume.mismatch_sectors(0), 1);
            let found = check_all(&mut rig, Repair::Proven);
            assert_eq!((found.len(), found[0].repaired), (1, provable), "{name}: {found:?}");
            assert!(rig.members == if provable { good } else { damaged }, "{name} slot {slot}");
            if provable {
                assert_eq!(check_all(&mut rig, Repair::None), [], "{name}");
                read_all(&mut rig, &content, &name);
            }
        }
    }
}

/// A handful of wrong bytes is named and not believed: two wrong chunks can look like that.
#[test]
fn little_evidence_repairs_nothing() {
    let geometry = geometry(Level::Raid6, Layout::default_for(Level::Raid6), 5, 4096, 5 * 4096);
    let (mut rig, ..) = filled(&geometry, false);
    rig.members[2][DATA_OFFSET as usize + 7] ^= 1;
    let damaged = rig.members.clone();
    let found = check_all(&mut rig, Repair::Proven);
    assert_eq!((found.len(), found[0].slot, found[0].repaired), (1, Some(2), false));
    assert!(rig.members == damaged);
    // Two wrong chunks in one sector: nobody is named.
    let start = DATA_OFFSET as usize;
    for slot in [1, 3] {
        rig.members[slot][start..start + 64].iter_mut().zip(1..).for_each(|(b, n)| *b ^= n);
    }
    assert!(check_all(&mut rig, Repair::Proven).iter().all(|f| f.slot.is_none() && !f.repaired));
}

/// Told to believe the data, a repair makes everything agree with what reads return.
#[test]
fn a_repair_that_trusts_the_data_makes_all_agree() {
    for (name, geometry) in redundant() {
        for slot in 0..geometry.slot_count() {
            let (mut rig, ..) = filled(&geometry, false);
            let at = (DATA_OFFSET + 4096) as usize;
            rig.members[slot][at + 10] ^= 0xff;
            rig.members[slot][at + 3000] ^= 0xff;
            let (_, seen) = rig.read(0, geometry.array_bytes());
            let found = check_all(&mut rig, Repair::TrustData);
            assert!(found.iter().all(|found| found.repaired), "{name} slot {slot}: {found:?}");
            check_redundancy(&geometry, &rig.members, &geometry.slots());
            // RAID 6 and three copies know better than the first copy, in part.
            if geometry.parity_count() == 1 {
                assert!(rig.read(0, geometry.array_bytes()).1 == seen, "{name} slot {slot}");
            }
        }
    }
}

/// A recovery that meets a bad block tells exactly what it could not get, and gets the rest.
#[test]
fn a_recovery_tells_what_it_cannot_get() {
    for (name, geometry) in redundant() {
        if geometry.parity_count() != 1 {
            continue;
        }
        let (mut rig, content, bad) = filled(&geometry, true);
        rig.volume.fail_member(0).expect("bearable");
        bad.borrow_mut().insert((1, DATA_OFFSET / BLOCK + 11));
        rig.members.push(vec![0xee; rig.members[0].len()]);
        let member = rig.volume.reserve_member().expect("room");
        let join = Join { member, data_offset: DATA_OFFSET, recovered: 0, by_bitmap: false };
        rig.volume.join(0, 0, join).expect("empty");
        let membership = rig.volume.membership(0);
        let len = geometry.array_bytes();
        let kind = RequestKind::Recover { group: 0 };
        let request = Request { tag: 9, kind, offset: 0, len, fua: false };
        rig.queues[0].submit(request).expect("acceptable");
        rig.settle(&mut Random::new(3));
        assert!(rig.completions.pop().expect("one").1.result.is_ok(), "{name}");
        let losses: Vec<Loss> = std::iter::from_fn(|| rig.volume.poll_loss()).collect();
        let loss = Loss { group: 0, slot: 0, member_offset: 11 * BLOCK, len: BLOCK };
        assert_eq!(losses, [loss], "{name}");
        assert!(rig.volume.note_recovered(0, 0, len, membership));
        assert_eq!(rig.volume.finish_recovery(0), SlotSet::one(0));
        // The driver now knows that block as lost.
        bad.borrow_mut().insert((member, DATA_OFFSET / BLOCK + 11));
        let stripe = geometry.stripe(1);
        for offset in (0..len).step_by(BLOCK as usize) {
            let (completion, bytes) = rig.read(offset, BLOCK);
            let at = geometry.locate(offset);
            let slot = stripe_slot(&geometry, offset);
            let lost = at.stripe == 1 && at.chunk_offset == 3 * BLOCK && slot < 2;
            assert_eq!(completion.result.is_err(), lost, "{name} at {offset} {stripe:?}");
            if !lost {
                assert!(bytes == content[offset as usize..(offset + BLOCK) as usize], "{name}");
            }
        }
    }
}

fn stripe_slot(geometry: &Geometry, offset: u64) -> usize {
    let location = geometry.locate(offset);
    geometry.stripe(location.stripe).data_slot(location.data)
}

/// A member that never answers: the operation is given up, redundancy serves, and the memory that
/// the member may still fill is nobody else's until it has answered after all.
#[test]
fn an_operation_that_is_given_up_keeps_its_memory() {
    for (name, geometry) in redundant() {
        let (mut rig, content, _) = filled(&geometry, false);
        let has_parity = geometry.parity_count() > 0;
        let slot = if has_parity { stripe_slot(&geometry, 0) } else { 0 };
        // An unaligned read goes through scratch memory.
        let (mut hung, mut added) = (Vec::new(), 0);
        for (tag, offset) in (0..geometry.array_bytes() - 1024).step_by(1500).take(40).enumerate() {
            let tag = tag as u32;
            rig.memories[0].requests.insert(tag, vec![0; 700]);
            let kind = RequestKind::Read;
            let request = Request { tag, kind, offset: offset + 3, len: 700, fua: false };
            rig.queues[0].submit(request).expect("acceptable");
        }
        loop {
            rig.drive();
            let late = rig.pending.iter().position(|io| io.member == slot);
            match late {
                Some(index) => {
                    let io = rig.pending.swap_remove(index);
                    rig.queues[0].abandon_io(io.token);
                    let stuck = rig.queues[0].scratch_stuck();
                    if added < stuck {
                        let start = rig.queues[0].add_scratch((stuck - added) as u32) as usize;
                        let end = start + (stuck - added) as usize;
                        rig.memories[0].scratch.resize(end, 0xa5);
                        added = stuck;
                    }
                    hung.push(io);
                }
                None if rig.pending.is_empty() => break,
                None => rig.answer(0),
            }
        }
        assert!(!hung.is_empty(), "{name}");
        assert!(!rig.volume.in_sync(0).contains(slot), "{name}");
        for (_, completion) in std::mem::take(&mut rig.completions) {
            assert!(completion.result.is_ok(), "{name}: {completion:?}");
            let offset = 1500 * completion.tag as usize + 3;
            let bytes = &rig.memories[0].requests[&completion.tag];
            assert!(bytes[..] == content[offset..offset + 700], "{name}");
        }
        // Late answers fall where nobody looks, whatever goes on meanwhile.
        for io in hung {
            for segment in &io.segments {
                rig.memories[0].put(segment, &vec![0x66; segment.len as usize]);
            }
            let (completion, bytes) = rig.read(5, 1000);
            assert!(completion.result.is_ok() && bytes == content[5..1005], "{name}");
            rig.queues[0].release_io(io.token);
        }
        read_all(&mut rig, &content, &name);
    }
}

#[test]
fn a_loss_beyond_redundancy_is_an_error_and_not_a_guess() {
    let geometry = geometry(Level::Raid5, Layout::default_for(Level::Raid5), 4, 4096, 5 * 4096);
    let (mut rig, content, _) = filled(&geometry, false);
    rig.volume.fail_member(3).expect("bearable");
    rig.fault = Some(Box::new(|io| if io.member == 2 { Err(MemberError::Gone) } else { Ok(()) }));
    for offset in (0..geometry.array_bytes()).step_by(4096) {
        let (completion, bytes) = rig.read(offset, 4096);
        let lost = stripe_slot(&geometry, offset) >= 2;
        match completion.result {
            Ok(()) => {
                assert!(!lost && bytes == content[offset as usize..offset as usize + 4096]);
            }
            Err(error) => assert!(lost && error.kind == RequestErrorKind::Io),
        }
        assert!(rig.write(offset, &[1; 512]).result.is_err() || !lost);
    }
    assert_eq!(rig.volume.in_sync(0).len(), 3, "the last ones are not given up");
}
