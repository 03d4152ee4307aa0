//! What raid-sim found in the engine, each as the smallest story with its right value.

mod common;

use common::*;
use raid_core::geometry::{Layout, Level};
use raid_core::intent::IntentConfig;
use raid_core::memory::Segment;
use raid_core::parity::Kernel;
use raid_core::plan::{IoKind, Trust};
use raid_core::queue::{Queue, QueueConfig};
use raid_core::request::{Request, RequestKind};
use raid_core::slots::SlotSet;
use raid_core::volume::{GroupConfig, Volume, VolumeConfig};
use std::sync::Arc;

/// A queue on a RAID 1 of two as an assembly after a crash finds it.
fn mirror(in_sync: &[usize], dirty: bool, words: Option<Vec<u64>>) -> Queue {
    let geometry = geometry(Level::Raid1, Layout::default_for(Level::Raid1), 2, 4096, 65536);
    let group = GroupConfig {
        geometry,
        data_offsets: vec![DATA_OFFSET; 2],
        in_sync: in_sync.iter().copied().collect(),
        trust: Trust::InSync,
        dirty,
        intent: words.map(|words| IntentConfig { granule_bytes: 4096, words }),
        recovering: Vec::new(),
        doubtful: false,
    };
    let config =
        VolumeConfig { groups: vec![group], outer: None, block_bytes: 512, read_only: false };
    let volume = Arc::new(Volume::new(config).expect("a valid volume"));
    let scratch_bytes = volume.scratch_bytes_min();
    let kernel = Kernel::named("portable").expect("always there");
    let config = QueueConfig { request_count_max: 4, scratch_bytes, kernel };
    Queue::new(volume, config).expect("a queue")
}

fn submit(queue: &mut Queue, kind: RequestKind) {
    let request = Request { tag: 0, kind, offset: 0, len: 512, fua: false };
    queue.submit(request).expect("acceptable");
}

/// Answers every operation that is there; says how many writes there were.
fn answer_all(queue: &mut Queue) -> usize {
    let mut tokens = Vec::new();
    let mut writes = 0;
    while let Some(io) = queue.poll_io() {
        writes += usize::from(io.kind == IoKind::Write);
        let total: u64 = io.segments.iter().map(|segment: &Segment| u64::from(segment.len)).sum();
        assert!(io.kind != IoKind::Write || total == 512);
        tokens.push(io.token);
    }
    tokens.into_iter().for_each(|token| queue.handle_io(token, Ok(())));
    writes
}

/// A dirty mark found at the assembly may be on one member alone, or in its cache (seed 5: the one
/// that had it was lost, and the array came back clean): the first write has it written anew.
#[test]
fn a_dirty_mark_that_was_found_is_written_again_before_the_first_write() {
    let mut queue = mirror(&[0, 1], true, None);
    submit(&mut queue, RequestKind::Write);
    assert_eq!(answer_all(&mut queue), 0, "written before the superblocks");
    let update = queue.poll_metadata().expect("superblocks first");
    assert!(update.superblocks && update.dirty);
    queue.handle_metadata(&update, &SlotSet::new());
    assert_eq!(answer_all(&mut queue), 2);
    assert!(queue.poll_completion().is_some_and(|completion| completion.result.is_ok()));
}

/// Dirty, and one member does not come back (seed 1): its absence is durable before a write or a
/// flush is acknowledged, or it would be taken for current when it returns.
#[test]
fn a_member_that_is_missing_after_a_crash_is_recorded_before_anything_is_acknowledged() {
    for kind in [RequestKind::Write, RequestKind::Flush] {
        let mut queue = mirror(&[1], true, None);
        submit(&mut queue, kind);
        answer_all(&mut queue);
        assert!(queue.poll_completion().is_none(), "{kind:?} acknowledged too early");
        let update = queue.poll_metadata().expect("superblocks first");
        assert_eq!(update.in_sync.iter().collect::<Vec<_>>(), [1]);
        queue.handle_metadata(&update, &SlotSet::new());
        answer_all(&mut queue);
        assert!(queue.poll_completion().is_some_and(|completion| completion.result.is_ok()));
    }
}

/// A member fails while bits are taken back from the bitmap, and a write wants one of them again
/// (seed 112): the members that are left have lost the bit and must be told of it anew.
#[test]
fn a_bit_taken_back_by_an_update_that_failed_is_set_again() {
    let mut queue = mirror(&[0, 1], true, Some(vec![1]));
    submit(&mut queue, RequestKind::Write);
    while let Some(update) = queue.poll_metadata() {
        queue.handle_metadata(&update, &SlotSet::new());
    }
    answer_all(&mut queue);
    assert!(queue.poll_completion().is_some());
    let volume = Arc::clone(queue.volume());
    assert!(volume.age_intent(0) && volume.age_intent(0) && volume.age_intent(0));
    let cleared = queue.poll_metadata().expect("the bit is taken back");
    assert_eq!(cleared.intent.as_ref().map(|image| image.words[0]), Some(0));
    submit(&mut queue, RequestKind::Write);
    queue.handle_metadata(&cleared, &SlotSet::one(0));
    let mut told = 0;
    while let Some(update) = queue.poll_metadata() {
        if let Some(image) = &update.intent {
            told |= image.changed.iter().map(|&index| image.words[index]).sum::<u64>();
        }
        queue.handle_metadata(&update, &SlotSet::new());
    }
    assert_eq!(told & 1, 1, "slot 1 is told of the bit that it lost");
    assert_eq!(answer_all(&mut queue), 1);
}

/// Small writes of different rows wait for one stripe of a degraded RAID 6 (seed 25380): joined
/// into one plan they wanted more scratch memory, in whole pages, than the arena has.
#[test]
fn writes_are_joined_only_as_far_as_their_plan_fits_the_scratch_arena() {
    let layout = Layout::default_for(Level::Raid6);
    let geometry = geometry(Level::Raid6, layout, 6, 4096, 4096 * 6);
    let absent: SlotSet = [4, 5].into_iter().collect();
    let members =
        vec![vec![0; (DATA_OFFSET + geometry.component_bytes()) as usize]; geometry.slot_count()];
    let mut rig = Rig::new(&geometry, members, RigOptions { absent, ..RigOptions::default() });
    // Where both missing slots hold data: the other one's is regenerated in every row.
    let has_both = |stripe: &u64| {
        let stripe = geometry.stripe(*stripe);
        absent.iter().all(|slot| Some(slot) != stripe.p && Some(slot) != stripe.q)
    };
    let stripe = (0..6).find(has_both).expect("there is one");
    let chunk = (0..4).find(|&k| geometry.stripe(stripe).data_slot(k) == 4).expect("it has data");
    let first = (stripe * 4 + chunk as u64) * 4096;
    for tag in 0..8_u32 {
        rig.memories[0].requests.insert(tag, vec![tag as u8 + 1; 512]);
        let offset = first + u64::from(tag) * 512;
        let kind = RequestKind::Write;
        let request = Request { tag, kind, offset, len: 512, fua: false };
        rig.queues[0].submit(request).expect("acceptable");
    }
    rig.settle(&mut Random::new(1));
    assert!(rig.completions.drain(..).all(|(_, completion)| completion.result.is_ok()));
    let (_, bytes) = rig.read(first, 4096);
    assert!((0..4096).all(|at| bytes[at] == (at / 512) as u8 + 1));
}
