//! Members fail, return and are replaced while an array of files runs; what is on them afterwards
//! is looked at with the array opened anew, and without each of the others.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use raid_io::{Added, Array, BitmapChoice, Error, Level, OpenOptions, Repair};

mod common;

use common::*;

#[test]
fn a_spare_steps_in_by_itself() {
    for (level, count) in
        [(Level::Raid1, 2), (Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid10, 4)]
    {
        let lab = Lab::new(count);
        let mut options = lab.options(level);
        options.spares = vec![lab.path.join("spare")];
        let array = Array::create(&options, &lab.members).unwrap();
        let mut expected = content(1, array.limits().size_bytes as usize);
        array.write_at(&expected, 0).unwrap();
        array.fail(&lab.members[1]).unwrap();
        // Written while it is filled.
        for (turn, at) in (0..expected.len() - 5000).step_by(700_001).enumerate() {
            let piece = content(turn as u64 + 9, 5000);
            array.write_at(&piece, at as u64).unwrap();
            expected[at..at + 5000].copy_from_slice(&piece);
        }
        let status = wait_for(&array, "the recovery", is_whole);
        assert_eq!(state_of(&status, &lab.path.join("spare")), "in_sync");
        assert_eq!(state_of(&status, &lab.members[1]), "faulty");
        assert!(read_all(&array) == expected);
        let extents = array.allocation(0, expected.len() as u64).unwrap();
        assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), expected.len() as u64);
        assert!(extents.iter().all(|extent| !extent.hole_and_zero));
        array.remove(&lab.members[1]).unwrap();
        array.stop().unwrap();
        let mut members = lab.members.clone();
        members[1] = lab.path.join("spare");
        judge(&members, &expected);
        // The one that failed is not taken for a member any more.
        members.push(lab.members[1].clone());
        let array = Array::open(&members, &OpenOptions::default()).unwrap();
        assert_eq!(state_of(&array.status(), &lab.members[1]), "faulty");
        assert!(read_all(&array) == expected);
        array.stop().unwrap();
    }
}

#[test]
fn a_new_member_fills_an_empty_slot() {
    let lab = Lab::new(4);
    let array = Array::create(&lab.options(Level::Raid5), &lab.members).unwrap();
    let expected = content(2, array.limits().size_bytes as usize);
    array.write_at(&expected, 0).unwrap();
    array.stop().unwrap();
    // It was lost while nobody looked.
    let array = Array::open(&lab.members[1..], &OpenOptions::default()).unwrap();
    assert_eq!(array.add(&lab.blank("new"), false).unwrap(), Added::Spare);
    wait_for(&array, "the recovery", is_whole);
    array.stop().unwrap();
    let mut members = lab.members.clone();
    members[0] = lab.path.join("new");
    judge(&members, &expected);
}

#[test]
fn a_member_comes_back_by_the_bitmap_and_gets_what_it_missed() {
    for level in [Level::Raid1, Level::Raid5, Level::Raid6, Level::Raid10] {
        let lab = Lab::new(4);
        let mut options = lab.options(level);
        options.bitmap = BitmapChoice::Internal;
        options.bitmap_chunk_bytes = Some(64 << 10);
        let array = Array::create(&options, &lab.members).unwrap();
        let mut expected = content(3, array.limits().size_bytes as usize);
        array.write_at(&expected, 0).unwrap();
        array.stop().unwrap();
        let array = Array::open(&lab.members, &OpenOptions::default()).unwrap();
        array.fail(&lab.members[2]).unwrap();
        let piece = content(4, 300_000);
        array.write_at(&piece, 1_000_001).unwrap();
        expected[1_000_001..1_300_001].copy_from_slice(&piece);
        array.flush().unwrap();
        let before = array.status().statistics.member_writes;
        array.remove(&lab.members[2]).unwrap();
        let added = array.add(&lab.members[2], false).unwrap();
        assert_eq!(added, Added::ReAdded { slot: 2 });
        let status = wait_for(&array, "the recovery", is_whole);
        assert_eq!(state_of(&status, &lab.members[2]), "in_sync");
        // In operations of 64 KiB and more: far fewer than for all of it.
        let written = status.statistics.member_writes - before;
        assert!(written > 0 && written < 40, "{level}: {written} writes");
        array.stop().unwrap();
        judge(&lab.members, &expected);
    }
}

/// Without a bitmap nothing says what it missed: it gets everything, whatever was on it.
#[test]
fn a_member_comes_back_without_a_bitmap_and_gets_everything() {
    let lab = Lab::new(3);
    let array = Array::create(&lab.options(Level::Raid5), &lab.members).unwrap();
    array.write_at(&content(5, array.limits().size_bytes as usize), 0).unwrap();
    array.fail(&lab.members[0]).unwrap();
    let expected = content(6, array.limits().size_bytes as usize);
    array.write_at(&expected, 0).unwrap();
    assert_eq!(array.add(&lab.members[0], false).unwrap(), Added::Spare);
    let status = wait_for(&array, "the recovery", is_whole);
    assert_eq!(state_of(&status, &lab.members[0]), "in_sync");
    array.stop().unwrap();
    judge(&lab.members, &expected);
}

/// A recovery that was stopped goes on where it was, and one that was cut off goes on safely.
#[test]
fn a_recovery_goes_on_after_a_stop() {
    let lab = Lab::new(4);
    let array = Array::create(&lab.options(Level::Raid5), &lab.members).unwrap();
    let expected = content(7, array.limits().size_bytes as usize);
    array.write_at(&expected, 0).unwrap();
    array.fail(&lab.members[3]).unwrap();
    array.stop().unwrap();
    let mut slow = OpenOptions::default();
    slow.speed_max = Some(8 << 20);
    let array = Array::open(&lab.members[..3], &slow).unwrap();
    array.add(&lab.blank("new"), false).unwrap();
    wait_for(&array, "a step", |status| {
        status.groups[0].sync_action == "recover" && status.groups[0].sync_done_bytes > 0
    });
    array.stop().unwrap();
    let mut members = lab.members.clone();
    members[3] = lab.path.join("new");
    let mut options = OpenOptions::default();
    options.resync = false;
    let array = Array::open(&members, &options).unwrap();
    assert_eq!(state_of(&array.status(), &members[3]), "recovering");
    // It takes writes already.
    let piece = content(8, 100_000);
    array.write_at(&piece, 0).unwrap();
    array.stop().unwrap();
    let mut expected = expected;
    expected[..100_000].copy_from_slice(&piece);
    let array = Array::open(&members, &OpenOptions::default()).unwrap();
    wait_for(&array, "the recovery", is_whole);
    array.stop().unwrap();
    judge(&members, &expected);
}

#[test]
fn what_makes_no_sense_is_refused_with_the_reason() {
    let lab = Lab::new(3);
    let array = Array::create(&lab.options(Level::Raid5), &lab.members).unwrap();
    let refused = |result: Result<(), Error>, word: &str| {
        let error = result.expect_err(word).to_string();
        assert!(error.contains(word), "{error}");
    };
    array.fail(&lab.members[0]).unwrap();
    refused(array.fail(&lab.members[1]), "data would be lost");
    refused(array.fail(Path::new("/no/such")), "not a member");
    refused(array.remove(&lab.members[1]), "in use");
    refused(array.remove(Path::new("/no/such")), "not a member");
    refused(array.add(&lab.members[1], false).map(drop), "is the same as");
    let small = lab.path.join("small");
    File::create(&small).unwrap().set_len(1 << 20).unwrap();
    refused(array.add(&small, false).map(drop), "too small");
    let foreign = lab.blank("foreign");
    std::fs::write(&foreign, vec![0x55; 4096]).unwrap();
    File::options().write(true).open(&foreign).unwrap().set_len(MEMBER_BYTES).unwrap();
    let ext4 = lab.blank("ext4");
    let mut head = vec![0; 2048];
    head[1024 + 56..1024 + 58].copy_from_slice(&[0x53, 0xef]);
    std::fs::write(&ext4, head).unwrap();
    File::options().write(true).open(&ext4).unwrap().set_len(MEMBER_BYTES).unwrap();
    refused(array.add(&ext4, false).map(drop), "--force");
    array.stop().unwrap();
    // A member of another time of this array: it has seen more.
    let array = Array::open(&lab.members[1..], &OpenOptions::default()).unwrap();
    array.stop().unwrap();
}

/// A mirror that was served alone meanwhile has a history of its own: neither the bitmap nor a full
/// recovery decides for its owner which side is lost.
#[test]
fn a_member_that_went_on_alone_is_refused() {
    let lab = Lab::new(2);
    let mut options = lab.options(Level::Raid1);
    options.bitmap = BitmapChoice::Internal;
    options.bitmap_chunk_bytes = Some(64 << 10);
    let array = Array::create(&options, &lab.members).unwrap();
    array.write_at(&content(1, 1 << 20), 0).unwrap();
    array.fail(&lab.members[1]).unwrap();
    array.remove(&lab.members[1]).unwrap();
    for turn in 0..20 {
        // Its events run ahead of what the other side will have.
        array.write_at(&content(turn, 4096), 0).unwrap();
        wait_for(&array, "the clean mark", |status| status.state == "clean");
    }
    let mut force = OpenOptions::default();
    force.force = true;
    let alone = Array::open(&lab.members[1..], &force).unwrap();
    alone.write_at(&[9; 4096], 5 << 20).unwrap();
    alone.stop().unwrap();
    let error = array.add(&lab.members[1], false).unwrap_err().to_string();
    assert!(error.contains("went on without"), "{error}");
    assert!(array.re_add(&lab.members[1]).is_err());
    assert_eq!(array.status().degraded, 1);
    array.stop().unwrap();
}

/// A spare that was taken for broken stays out, after a restart as well.
#[test]
fn a_spare_that_was_failed_does_not_step_in_later() {
    let lab = Lab::new(3);
    let mut options = lab.options(Level::Raid5);
    let spare = lab.path.join("spare");
    options.spares = vec![spare.clone()];
    let array = Array::create(&options, &lab.members).unwrap();
    array.write_at(&[1; 4096], 0).unwrap();
    array.fail(&spare).unwrap();
    array.stop().unwrap();
    let mut members = lab.members.clone();
    members.push(spare.clone());
    let array = Array::open(&members, &OpenOptions::default()).unwrap();
    assert_eq!(state_of(&array.status(), &spare), "faulty");
    array.fail(&lab.members[0]).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(array.status().degraded, 1, "it stays out");
    array.stop().unwrap();
}

/// One member more is lost than the level bears: reads of what is there go on, all else is an
/// error, and the superblocks do not change, so that force brings it all back.
#[test]
fn beyond_redundancy_nothing_is_made_worse() {
    let lab = Lab::new(4);
    let array = Array::create(&lab.options(Level::Raid5), &lab.members).unwrap();
    let expected = content(11, array.limits().size_bytes as usize);
    array.write_at(&expected, 0).unwrap();
    array.fail(&lab.members[0]).unwrap();
    assert!(array.fail(&lab.members[1]).is_err());
    array.stop().unwrap();
    assert!(Array::open(&lab.members[2..], &OpenOptions::default()).is_err());
    let array = Array::open(&lab.members[1..], &OpenOptions::default()).unwrap();
    assert!(read_all(&array) == expected);
    array.stop().unwrap();
}

#[test]
fn a_check_counts_what_does_not_agree_and_a_repair_makes_it_agree() {
    use std::os::unix::fs::FileExt;
    let lab = Lab::new(5);
    let array = Array::create(&lab.options(Level::Raid6), &lab.members).unwrap();
    let expected = content(12, array.limits().size_bytes as usize);
    array.write_at(&expected, 0).unwrap();
    array.stop().unwrap();
    // Behind its back.
    let file = File::options().write(true).open(&lab.members[2]).unwrap();
    file.write_all_at(&content(13, 512), MEMBER_BYTES - (2 << 20)).unwrap();
    let array = Array::open(&lab.members, &OpenOptions::default()).unwrap();
    for (repair, found) in [(Repair::None, 1), (Repair::Proven, 1), (Repair::None, 0)] {
        let before = array.status().statistics.scrubs;
        array.scrub(repair).unwrap();
        let status = wait_for(&array, "a check", |status| status.statistics.scrubs > before);
        assert_eq!(status.groups[0].mismatch_sectors, found, "{repair:?}");
    }
    array.stop().unwrap();
    judge(&lab.members, &expected);
}

#[test]
fn an_idle_array_is_clean_on_its_members() {
    let lab = Lab::new(3);
    let array = Array::create(&lab.options(Level::Raid5), &lab.members).unwrap();
    array.write_at(&[7; 4096], 0).unwrap();
    assert_eq!(array.status().state, "active");
    wait_for(&array, "the clean mark", |status| status.state == "clean");
    array.write_at(&[8; 4096], 0).unwrap();
    assert_eq!(array.status().state, "active");
    array.stop().unwrap();
}

/// Who waits for a member to be filled may look at once: what is about to begin shows already.
#[test]
fn what_is_about_to_begin_shows() {
    for round in 0..12 {
        let lab = Lab::new(3);
        let array = Array::create(&lab.options(Level::Raid5), &lab.members).unwrap();
        array.fail(&lab.members[1]).unwrap();
        array.add(&lab.blank("spare"), false).unwrap();
        let status = wait_for(&array, "rest", |s| s.groups[0].sync_action == "idle");
        assert_eq!(status.degraded, 0, "round {round}: it was idle before the spare was filled");
        let newer = lab.blank("newer");
        array.replace(&lab.members[0], Some(&newer)).unwrap();
        let status = wait_for(&array, "rest", |s| s.groups[0].sync_action == "idle");
        assert_eq!(state_of(&status, &newer), "in_sync", "round {round}");
        array.stop().unwrap();
        // And when an array is opened that was not stopped cleanly.
        let members = [lab.path.join("newer"), lab.path.join("spare"), lab.members[2].clone()];
        let mut options = OpenOptions::default();
        options.idle_after = Duration::ZERO;
        let array = Array::open(&members, &options).unwrap();
        array.write_at(&[7; 100_000], 5000).unwrap();
        drop(array);
        let array = Array::open(&members, &options).unwrap();
        let status = wait_for(&array, "rest", |s| s.groups[0].sync_action == "idle");
        assert!(status.groups[0].in_sync, "round {round}: it was idle before the resync");
        array.stop().unwrap();
    }
}
