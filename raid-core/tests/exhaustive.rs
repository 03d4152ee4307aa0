//! Every request range on every small geometry with every tolerated loss, executed on a model:
//! bytes right, redundancy right, no absent member touched (the rig panics if one is).

mod common;

use common::*;
use raid_core::geometry::Geometry;
use raid_core::plan::Trust;
use raid_core::request::RequestKind;
use raid_core::slots::SlotSet;

/// An array with random content whose members agree, written through the engine itself, healthy.
fn filled(geometry: &Geometry, block: u32) -> (Vec<Vec<u8>>, Vec<u8>) {
    let size = (DATA_OFFSET + geometry.component_bytes()) as usize;
    let blank = vec![vec![0; size]; geometry.slot_count()];
    let mut rig = Rig::new(geometry, blank, RigOptions { block, ..RigOptions::default() });
    let content = Random::new(geometry.array_bytes()).bytes(geometry.array_bytes() as usize);
    assert!(rig.write(0, &content).result.is_ok());
    check_redundancy(geometry, &rig.members, &geometry.slots());
    (rig.members, content)
}

/// Destroys what absent members hold, so that any use of it shows.
fn without(members: &[Vec<u8>], absent: &SlotSet) -> Vec<Vec<u8>> {
    let mut members = members.to_vec();
    for slot in absent.iter() {
        members[slot].fill(0xdb);
    }
    members
}

/// Reads, writes, zeroes and discards one range and compares the whole array with a flat model each
/// time.
fn try_range(
    geometry: &Geometry,
    start: &[Vec<u8>],
    content: &[u8],
    options: RigOptions,
    offset: u64,
    len: u64,
) {
    let range = offset as usize..(offset + len) as usize;
    let fresh = Random::new(offset << 32 | len).bytes(len as usize);
    let zeroes = RequestKind::WriteZeroes { unmap: true };
    for kind in [RequestKind::Read, RequestKind::Write, zeroes, RequestKind::Discard] {
        let mut rig = Rig::new(geometry, start.to_vec(), options);
        let mut model = content.to_vec();
        let (completion, buffer) = rig.request(kind, offset, len, fresh.clone());
        assert!(completion.result.is_ok(), "{kind:?} {offset}+{len}: {completion:?}");
        match kind {
            RequestKind::Read => {
                assert!(buffer == content[range.clone()], "read {offset}+{len}");
                assert!(rig.members == start, "a read writes");
                continue;
            }
            RequestKind::Write => model[range.clone()].copy_from_slice(&fresh),
            RequestKind::WriteZeroes { .. } => model[range.clone()].fill(0),
            RequestKind::Check { .. }
            | RequestKind::Discard
            | RequestKind::Flush
            | RequestKind::Recover { .. }
            | RequestKind::Resync { .. } => {}
        }
        let (completion, found) = rig.read(0, geometry.array_bytes());
        assert!(completion.result.is_ok());
        if kind == RequestKind::Discard {
            for (at, (&found, &old)) in found.iter().zip(content).enumerate() {
                let inside = range.contains(&at);
                assert!(found == old || inside && found == 0, "discard {offset}+{len} at {at}");
            }
        } else {
            assert!(found == model, "{kind:?} {offset}+{len} with {:?} absent", options.absent);
        }
        let present = geometry.slots().difference(options.absent);
        check_redundancy(geometry, &rig.members, &present);
    }
}

/// Chunks of one block: every range of blocks, every tolerated loss.
#[test]
fn every_range_of_blocks() {
    for (name, geometry) in small_geometries(4096, 3) {
        println!("{name}");
        let (members, content) = filled(&geometry, 4096);
        let blocks = geometry.array_bytes() / 4096;
        for absent in tolerated_losses(&geometry) {
            let start = without(&members, &absent);
            let options = RigOptions { block: 4096, absent, ..RigOptions::default() };
            for first in 0..blocks {
                for count in 1..=blocks - first {
                    try_range(&geometry, &start, &content, options, first * 4096, count * 4096);
                }
            }
        }
    }
}

/// Chunks of eight blocks: ranges that start and end at and beside every interesting border, down
/// to single bytes.
#[test]
fn ranges_with_ragged_edges() {
    for (name, geometry) in small_geometries(4096, 2) {
        println!("{name}");
        let (members, content) = filled(&geometry, 512);
        let size = geometry.array_bytes();
        let near = |border: u64| [border, border + 1, border + 512, border + 700];
        let mut edges: Vec<u64> = (0..size).step_by(4096).flat_map(near).chain([size]).collect();
        edges.retain(|&edge| edge <= size);
        let mut random = Random::new(7);
        for absent in tolerated_losses(&geometry) {
            let start = without(&members, &absent);
            let options = RigOptions { absent, ..RigOptions::default() };
            for _ in 0..60 {
                let mut pick = || edges[random.below(edges.len() as u64) as usize];
                let (a, b) = (pick(), pick());
                let (from, to) = (a.min(b), a.max(b));
                if from < to {
                    try_range(&geometry, &start, &content, options, from, to - from);
                }
            }
        }
    }
}

/// Where a resync is due parity is never read: garbage in it does no harm, and written rows are
/// right afterwards.
#[test]
fn unsynced_parity_is_never_a_source() {
    for (name, geometry) in small_geometries(4096, 3) {
        if geometry.parity_count() == 0 {
            continue;
        }
        println!("{name}");
        let (mut members, content) = filled(&geometry, 4096);
        for index in 0..geometry.stripe_count() {
            let stripe = geometry.stripe(index);
            let start = (DATA_OFFSET + geometry.member_offset_of_stripe(index)) as usize;
            for slot in [stripe.p, stripe.q].into_iter().flatten() {
                members[slot][start..start + 4096].fill(0x66);
            }
        }
        let options = RigOptions { block: 4096, trust: Trust::Unsynced, ..RigOptions::default() };
        let mut rig = Rig::new(&geometry, members, options);
        // One block of each stripe: reconstruct-write makes the whole row true.
        let step = geometry.data_slots() as u64 * 4096;
        let mut model = content;
        for offset in (0..geometry.array_bytes()).step_by(step as usize) {
            let bytes = Random::new(offset).bytes(4096);
            assert!(rig.write(offset, &bytes).result.is_ok());
            model[offset as usize..offset as usize + 4096].copy_from_slice(&bytes);
        }
        check_redundancy(&geometry, &rig.members, &geometry.slots());
        assert!(rig.read(0, geometry.array_bytes()).1 == model);
    }
}
