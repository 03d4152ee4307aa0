//! Sectors that nobody has any more: a recovery lists them and goes on, reads of them fail and only
//! they do, and writing them makes them good.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use raid_io::{Array, Level, OpenOptions};

mod common;

use common::*;

const CHUNK: u64 = 64 << 10;

fn listed_and_healed(level: Level, count: usize) {
    let lab = Lab::new(count);
    let array = Array::create(&lab.options(level), &lab.members).unwrap();
    let mut expected = content(7, array.limits().size_bytes as usize);
    array.write_at(&expected, 0).unwrap();
    array.stop().unwrap();
    // In chunk 3 and in chunk 20 of member 0.
    let places = [3 * CHUNK + 8192..3 * CHUNK + 12288, 20 * CHUNK..20 * CHUNK + 4096];
    lose(&lab.members[0], &places);
    assert_eq!(lost_of(&lab.members[0]), places);

    let array = Array::open(&lab.members, &OpenOptions::default()).unwrap();
    array.fail(&lab.members[1]).unwrap();
    let spare = lab.blank("spare");
    array.add(&spare, false).unwrap();
    wait_for(&array, "the recovery", is_whole);
    // Of each place what members 0 and 1 held, unless it was parity, or the same.
    let lost = unreadable(&array, &expected);
    assert!((2..=4).contains(&lost.len()), "{level}: {lost:?}");
    array.stop().unwrap();
    assert_eq!(lost_of(&spare), places, "{level}: the same rows on the member that was filled");
    let mut members = lab.members.clone();
    members[1] = spare.clone();

    let array = Array::open(&members, &OpenOptions::default()).unwrap();
    assert_eq!(unreadable(&array, &expected), lost, "{level}: after a stop and a start");
    // Whole stripes make both members good again.
    let stripe =
        (expected.len() as u64 / array.status().groups[0].sync_total_bytes * CHUNK) as usize;
    for range in &places {
        let at = (range.start / CHUNK) as usize * stripe;
        let piece = content(range.start, stripe);
        expected[at..at + stripe].copy_from_slice(&piece);
        array.write_at(&piece, at as u64).unwrap();
    }
    assert_eq!(unreadable(&array, &expected), [0; 0], "{level}");
    array.stop().unwrap();
    assert_eq!((lost_of(&members[0]), lost_of(&spare)), (vec![], vec![]), "{level}");
    judge(&members, &expected);
}

#[test]
fn a_recovery_lists_what_nobody_has_and_goes_on() {
    listed_and_healed(Level::Raid1, 2);
    listed_and_healed(Level::Raid5, 3);
    listed_and_healed(Level::Raid4, 4);
}
