//! Members that still work are copied to their successors while an array of files runs.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(
    clippy::field_reassign_with_default,
    reason = "options cannot be built outside their crate"
)]

use std::path::Path;

use raid_core::md::superblock::Features;
use raid_io::{Array, BitmapChoice, Level, MetadataVersion, OpenOptions, Status};

mod common;

use common::*;

/// Bytes of the member that a walk which goes on has filled.
fn filled(status: &Status) -> u64 {
    let group = &status.groups[0];
    if group.sync_action == "recover" { group.sync_done_bytes } else { 0 }
}

#[test]
fn a_member_is_replaced_under_load() {
    for (level, count) in [
        (Level::Raid1, 2),
        (Level::Raid4, 3),
        (Level::Raid5, 4),
        (Level::Raid6, 5),
        (Level::Raid10, 4),
    ] {
        for bitmap in [BitmapChoice::None, BitmapChoice::Internal] {
            let lab = Lab::new(count);
            let mut options = lab.options(level);
            options.bitmap = bitmap;
            let array = Array::create(&options, &lab.members).unwrap();
            let mut expected = content(3, array.limits().size_bytes as usize);
            array.write_at(&expected, 0).unwrap();
            let newer = lab.blank("newer");
            array.set_speed(None, Some(8 << 20));
            array.replace(&lab.members[1], Some(&newer)).unwrap();
            let status = array.status();
            assert_eq!(state_of(&status, &newer), "replacement");
            assert_eq!(state_of(&status, &lab.members[1]), "in_sync");
            assert_eq!(status.degraded, 0);
            let error = array.replace(&lab.members[1], None).unwrap_err().to_string();
            assert!(error.contains("being replaced already"), "{error}");
            for (turn, at) in (0..expected.len() - 5000).step_by(700_001).enumerate() {
                let piece = content(turn as u64 + 9, 5000);
                array.write_at(&piece, at as u64).unwrap();
                expected[at..at + 5000].copy_from_slice(&piece);
            }
            array.set_speed(None, Some(u64::MAX));
            let taken_over = |status: &Status| state_of(status, &newer) == "in_sync";
            let status = wait_for(&array, "the replacement", taken_over);
            assert_eq!(state_of(&status, &lab.members[1]), "faulty");
            array.remove(&lab.members[1]).unwrap();
            wait_for(&array, "the end", is_whole);
            array.stop().unwrap();
            let mut members = lab.members.clone();
            members[1] = newer;
            judge(&members, &expected);
            let features = superblock_of(&members[1]).features;
            assert!(!features.has(Features::REPLACEMENT));
        }
    }
}

/// A replacement goes on after a stop, and after a crash from the start.
#[test]
fn a_replacement_goes_on_after_a_stop() {
    let lab = Lab::new(4);
    let array = Array::create(&lab.options(Level::Raid5), &lab.members).unwrap();
    let expected = content(4, array.limits().size_bytes as usize);
    array.write_at(&expected, 0).unwrap();
    let newer = lab.blank("newer");
    array.set_speed(None, Some(4 << 20));
    array.replace(&lab.members[2], Some(&newer)).unwrap();
    wait_for(&array, "progress", |status| filled(status) >= 2 << 20);
    array.stop().unwrap();
    let superblock = superblock_of(&newer);
    assert!(superblock.features.has(Features::REPLACEMENT));
    let kept = superblock.recovered_bytes().unwrap();
    assert!(kept >= 2 << 20, "kept {kept}");

    let mut members = lab.members.clone();
    members.push(newer.clone());
    let mut options = OpenOptions::default();
    options.speed_max = Some(1 << 20);
    let array = Array::open(&members, &options).unwrap();
    let status = array.status();
    assert_eq!(state_of(&status, &newer), "replacement");
    assert_eq!(state_of(&status, &lab.members[2]), "in_sync");
    let begun = wait_for(&array, "a step", |status| filled(status) > 0);
    assert!(filled(&begun) >= kept, "from {} of {kept}: {begun:#?}", filled(&begun));
    array.set_speed(None, Some(u64::MAX));
    wait_for(&array, "the replacement", |status| state_of(status, &newer) == "in_sync");
    array.stop().unwrap();
    members[2] = newer;
    members.truncate(4);
    judge(&members, &expected);
}

/// The member fails while it is copied: its replacement is recovered to the end, from where it was.
#[test]
fn a_replacement_takes_over_from_a_member_that_fails() {
    for level in [Level::Raid1, Level::Raid5] {
        let lab = Lab::new(3);
        let array = Array::create(&lab.options(level), &lab.members).unwrap();
        let expected = content(5, array.limits().size_bytes as usize);
        array.write_at(&expected, 0).unwrap();
        let newer = lab.blank("newer");
        array.set_speed(None, Some(4 << 20));
        array.replace(&lab.members[0], Some(&newer)).unwrap();
        wait_for(&array, "progress", |status| filled(status) >= 2 << 20);
        array.fail(&lab.members[0]).unwrap();
        let status = array.status();
        assert_eq!(state_of(&status, &newer), "recovering", "{status:#?}");
        assert_eq!(state_of(&status, &lab.members[0]), "faulty");
        array.set_speed(None, Some(u64::MAX));
        wait_for(&array, "the recovery", is_whole);
        array.stop().unwrap();
        let mut members = lab.members.clone();
        members[0] = newer;
        judge(&members, &expected);
    }
}

/// The replacement fails: nothing has happened to the array.
#[test]
fn a_replacement_that_fails_leaves_the_array_as_it_was() {
    let lab = Lab::new(3);
    let array = Array::create(&lab.options(Level::Raid5), &lab.members).unwrap();
    let expected = content(6, array.limits().size_bytes as usize);
    array.write_at(&expected, 0).unwrap();
    let newer = lab.blank("newer");
    array.set_speed(None, Some(4 << 20));
    array.replace(&lab.members[0], Some(&newer)).unwrap();
    array.fail(&newer).unwrap();
    let status = array.status();
    assert_eq!(state_of(&status, &newer), "faulty", "{status:#?}");
    assert_eq!(state_of(&status, &lab.members[0]), "in_sync");
    assert_eq!(status.degraded, 0);
    array.remove(&newer).unwrap();
    array.stop().unwrap();
    judge(&lab.members, &expected);
}

#[test]
fn what_cannot_be_replaced_is_refused_in_words() {
    let lab = Lab::new(3);
    let mut options = lab.options(Level::Raid5);
    options.metadata = MetadataVersion::V0_90;
    let array = Array::create(&options, &lab.members).unwrap();
    let refused = |member: &Path, with: Option<&Path>, word: &str| {
        let error = array.replace(member, with).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    refused(&lab.members[0], None, "0.90 have no room");
    refused(&lab.path.join("nobody"), None, "not a member");
    array.stop().unwrap();

    let lab = Lab::new(3);
    let array = Array::create(&lab.options(Level::Raid5), &lab.members).unwrap();
    let refused = |member: &Path, with: Option<&Path>, word: &str| {
        let error = array.replace(member, with).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    refused(&lab.members[0], None, "no spare");
    refused(&lab.members[0], Some(&lab.members[1]), "same as");
    array.fail(&lab.members[0]).unwrap();
    refused(&lab.members[0], None, "not a member");
    array.stop().unwrap();
}
