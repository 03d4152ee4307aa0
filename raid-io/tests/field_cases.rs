//! What has gone wrong in the field, in other products and in this one's model, with the right
//! outcome. Each test names what users did.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(
    clippy::field_reassign_with_default,
    reason = "options cannot be built outside their crate"
)]

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use raid_io::{
    Array, BitmapChoice, Buffer, Error, Level, MemberDevice, MemoryDevice, MemoryOptions,
    OpenOptions, Operation,
};

mod common;

use common::*;

const CHUNK: u64 = 64 << 10;
const DEVICE_BYTES: u64 = 4 << 20;

/// Memory with unreadable places, which writing makes good, and a cable that can be pulled.
struct Faulty {
    inner: MemoryDevice,
    unreadable: Mutex<Vec<Range<u64>>>,
    /// Unreadable places stay what they are.
    is_sticky: AtomicBool,
    is_gone: AtomicBool,
    writes: AtomicU64,
}

impl Faulty {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryDevice::new(DEVICE_BYTES, 512),
            unreadable: Mutex::default(),
            is_sticky: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            writes: AtomicU64::new(0),
        })
    }

    fn spoil(&self, range: Range<u64>) {
        self.unreadable.lock().unwrap().push(range);
    }

    fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    fn check(&self) -> io::Result<()> {
        let enodev = || io::Error::from_raw_os_error(19);
        if self.is_gone.load(Ordering::Relaxed) { Err(enodev()) } else { Ok(()) }
    }
}

impl MemberDevice for Faulty {
    fn size_bytes(&self) -> u64 {
        DEVICE_BYTES
    }

    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        self.check()?;
        let len: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let end = offset + len as u64;
        if self.unreadable.lock().unwrap().iter().any(|bad| bad.start < end && offset < bad.end) {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.inner.read_at(buffers, offset)
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.check()?;
        self.writes.fetch_add(1, Ordering::Relaxed);
        let len: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let end = offset + len as u64;
        if !self.is_sticky.load(Ordering::Relaxed) {
            let mut unreadable = self.unreadable.lock().unwrap();
            unreadable.retain(|bad| !(offset <= bad.start && bad.end <= end));
        }
        self.inner.write_at(buffers, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.check()
    }
}

fn over(devices: &[Arc<Faulty>], level: Level, set: impl FnOnce(&mut OpenOptions)) -> Array {
    let mut options = MemoryOptions::default();
    options.level = level;
    set(&mut options.open);
    let devices =
        devices.iter().map(|one| Some(Arc::clone(one) as Arc<dyn MemberDevice>)).collect();
    Array::over_devices(devices, &options).unwrap()
}

fn filled(array: &Array, seed: u64) -> Vec<u8> {
    let expected = content(seed, array.limits().size_bytes as usize);
    array.write_at(&expected, 0).unwrap();
    expected
}

/// FC-02: members vanish one after the other; whoever saw the most is the truth, in any order.
#[test]
fn fc02_the_oldest_never_overwrites_the_newest() {
    let lab = Lab::new(3);
    let mut options = lab.options(Level::Raid1);
    options.bitmap = BitmapChoice::Internal;
    let array = Array::create(&options, &lab.members).unwrap();
    let mut expected = filled(&array, 1);
    let mut write = |seed: u64, at: usize| {
        let piece = content(seed, 100_000);
        array.write_at(&piece, at as u64).unwrap();
        expected[at..at + piece.len()].copy_from_slice(&piece);
    };
    array.fail(&lab.members[0]).unwrap();
    write(2, 300_000);
    array.fail(&lab.members[1]).unwrap();
    write(3, 350_000);
    array.stop().unwrap();
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let members: Vec<PathBuf> = order.iter().map(|n| lab.members[*n].clone()).collect();
        let mut look = OpenOptions::default();
        look.read_only = true;
        let array = Array::open(&members, &look).unwrap();
        assert_eq!(array.status().degraded, 2, "{order:?}");
        assert!(read_all(&array) == expected, "{order:?}");
        array.stop().unwrap();
    }
    let array = Array::open(&lab.members, &OpenOptions::default()).unwrap();
    array.add(&lab.members[0], false).unwrap();
    array.add(&lab.members[1], false).unwrap();
    wait_for(&array, "the recovery", is_whole);
    array.stop().unwrap();
    judge(&lab.members, &expected);
}

/// FC-20: each group of a RAID 50 bears one loss; a second one in a group is refused by hand.
#[test]
fn fc20_losses_count_in_each_group() {
    let lab = Lab::new(9);
    let mut options = lab.options(Level::Raid5);
    options.groups = 3;
    let array = Array::create(&options, &lab.members).unwrap();
    let mut expected = filled(&array, 4);
    for group in 0..3 {
        array.fail(&lab.members[3 * group + group]).unwrap();
        let second = &lab.members[3 * group + (group + 1) % 3];
        let error = array.fail(second).unwrap_err().to_string();
        assert!(error.contains("needed"), "{error}");
        let at = 500_000 * (group + 1);
        let piece = content(5, 70_000);
        array.write_at(&piece, at as u64).unwrap();
        expected[at..at + piece.len()].copy_from_slice(&piece);
        assert!(read_all(&array) == expected, "after {group}");
    }
    assert_eq!(array.status().degraded, 3);
    array.stop().unwrap();
}

/// FC-25: an unreadable sector while another member is rebuilt: a RAID 6 loses nothing; a member
/// that is replaced still has what cannot be regenerated. (RAID 5: `lost_sectors.rs`.)
#[test]
fn fc25_one_unreadable_sector_ends_no_rebuild() {
    let place = 5 * CHUNK..5 * CHUNK + 4096;
    let lab = Lab::new(5);
    let array = Array::create(&lab.options(Level::Raid6), &lab.members).unwrap();
    let expected = filled(&array, 6);
    array.stop().unwrap();
    lose(&lab.members[0], std::slice::from_ref(&place));
    let array = Array::open(&lab.members, &OpenOptions::default()).unwrap();
    array.fail(&lab.members[3]).unwrap();
    let spare = lab.blank("spare");
    array.add(&spare, false).unwrap();
    wait_for(&array, "the recovery", is_whole);
    array.stop().unwrap();
    let mut members = lab.members.clone();
    members[3] = spare;
    // What one member lists stays its own.
    assert_eq!(lost_of(&members[3]), []);
    judge(&members, &expected);

    let lab = Lab::new(4);
    let array = Array::create(&lab.options(Level::Raid5), &lab.members).unwrap();
    let expected = filled(&array, 7);
    array.stop().unwrap();
    lose(&lab.members[0], &[place]);
    let array = Array::open(&lab.members, &OpenOptions::default()).unwrap();
    let newer = lab.blank("newer");
    array.replace(&lab.members[2], Some(&newer)).unwrap();
    wait_for(&array, "the replacement", |status| state_of(status, &newer) == "in_sync");
    assert!(unreadable(&array, &expected).is_empty());
    array.stop().unwrap();
    assert_eq!(lost_of(&newer), []);
}

/// FC-26: an entry is its member's own, and goes when its place is written.
#[test]
fn fc26_a_bad_block_list_is_one_members_own() {
    let lab = Lab::new(3);
    let array = Array::create(&lab.options(Level::Raid1), &lab.members).unwrap();
    let expected = filled(&array, 8);
    array.stop().unwrap();
    let place = 3 * CHUNK..3 * CHUNK + 4096;
    lose(&lab.members[0], std::slice::from_ref(&place));
    let array = Array::open(&lab.members, &OpenOptions::default()).unwrap();
    array.fail(&lab.members[1]).unwrap();
    let spare = lab.blank("spare");
    array.add(&spare, false).unwrap();
    wait_for(&array, "the recovery", is_whole);
    array.write_at(&expected[place.start as usize..place.end as usize], place.start).unwrap();
    array.stop().unwrap();
    assert_eq!((lost_of(&lab.members[0]), lost_of(&spare)), (vec![], vec![]));
    judge(&[lab.members[0].clone(), spare, lab.members[2].clone()], &expected);
}

/// FC-27: a second member is lost while the first one is rebuilt, early, late and right behind it.
#[test]
fn fc27_a_second_loss_during_a_rebuild_is_rebuilt_too() {
    for percent in [0, 30, 60, 95, 100] {
        let lab = Lab::new(6);
        let mut options = lab.options(Level::Raid6);
        options.spares = vec![lab.path.join("s0"), lab.path.join("s1")];
        let array = Array::create(&options, &lab.members).unwrap();
        let expected = filled(&array, 9);
        array.set_speed(None, Some(24 << 20));
        array.fail(&lab.members[1]).unwrap();
        wait_for(&array, "progress", |status| {
            let group = &status.groups[0];
            let passed = group.sync_done_bytes * 100 >= group.sync_total_bytes * percent;
            status.degraded == 0 || group.sync_action == "recover" && passed
        });
        array.fail(&lab.members[2]).unwrap();
        array.set_speed(None, Some(u64::MAX));
        wait_for(&array, "both", is_whole);
        array.stop().unwrap();
        let mut members = lab.members.clone();
        (members[1], members[2]) = (options.spares[0].clone(), options.spares[1].clone());
        judge(&members, &expected);
    }
}

/// FC-28: blank members do not bring an array back that has lost too much; a real one does.
#[test]
fn fc28_blank_members_bring_nothing_back() {
    let lab = Lab::new(4);
    let array = Array::create(&lab.options(Level::Raid5), &lab.members).unwrap();
    let expected = filled(&array, 10);
    array.stop().unwrap();
    let given = [lab.members[0].clone(), lab.members[1].clone(), lab.blank("b0"), lab.blank("b1")];
    for force in [false, true] {
        let mut options = OpenOptions::default();
        options.force = force;
        assert!(Array::open(&given, &options).is_err(), "force {force}");
    }
    let three = &lab.members[..3];
    let array = Array::open(three, &OpenOptions::default()).unwrap();
    assert_eq!(array.status().groups[0].members[3].state, "missing");
    assert!(read_all(&array) == expected);
    array.add(&given[2], false).unwrap();
    wait_for(&array, "the recovery", is_whole);
    array.stop().unwrap();
    judge(&[three, &given[2..3]].concat(), &expected);
}

/// FC-33: a member vanishes under 250 requests: each is completed once, none fails; with all
/// members gone nothing is acknowledged. (Members that hang: `hanging.rs`.)
#[test]
fn fc33_requests_under_way_end_once_when_members_vanish() {
    for level in [Level::Raid1, Level::Raid5, Level::Raid6] {
        let devices: Vec<Arc<Faulty>> = (0..4).map(|_| Faulty::new()).collect();
        let array = over(&devices, level, |open| open.request_count_max = 256);
        let expected = filled(&array, 11);
        let mut queue = array.queue().unwrap();
        let count = 250;
        let run = |queue: &mut raid_io::Queue| {
            for tag in 0..count {
                let offset = tag * 7919 * 512 % (expected.len() as u64 - 8192) / 4096 * 4096;
                let operation = if tag % 2 == 0 {
                    Operation::Read { offset, buffer: queue.buffer(8192) }
                } else {
                    let range = offset as usize..offset as usize + 8192;
                    let buffer = Buffer::copy_of(&expected[range]);
                    Operation::Write { offset, buffer, fua: tag % 4 == 1 }
                };
                queue.submit(operation, tag).unwrap();
                if tag == count / 2 {
                    queue.run();
                    devices[1].is_gone.store(true, Ordering::Relaxed);
                }
            }
            let mut ended = vec![0; count as usize];
            let mut failed = 0;
            for _ in 0..count {
                let completion = loop {
                    match queue.poll() {
                        Some(completion) => break completion,
                        None => queue.wait(Some(Duration::from_secs(20))).unwrap(),
                    }
                };
                ended[completion.user_data as usize] += 1;
                failed += u32::from(completion.result.is_err());
            }
            assert!(queue.poll().is_none());
            assert!(ended.iter().all(|count| *count == 1), "{ended:?}");
            failed
        };
        assert_eq!(run(&mut queue), 0, "{level}");
        assert!(read_all(&array) == expected, "{level}");
        devices.iter().for_each(|device| device.is_gone.store(true, Ordering::Relaxed));
        assert_eq!(run(&mut queue), count as u32, "{level}: with nobody left all fail");
    }
}

/// FC-34: an unreadable place is answered, written once, and the member stays.
#[test]
fn fc34_an_unreadable_place_is_made_good_once() {
    for level in [Level::Raid4, Level::Raid5, Level::Raid6] {
        let devices: Vec<Arc<Faulty>> = (0..4).map(|_| Faulty::new()).collect();
        let array = over(&devices, level, |_| {});
        let expected = filled(&array, 12);
        // Data at each of these levels.
        devices[0].spoil(CHUNK + 8192..CHUNK + 12288);
        let before = devices[0].writes();
        for _ in 0..3 {
            assert!(read_all(&array) == expected, "{level}");
        }
        assert_eq!(devices[0].writes() - before, 1, "{level}: one write back");
        let status = array.status();
        assert_eq!((status.degraded, status.statistics.rewritten), (0, 1), "{level}");
        assert!(devices[0].unreadable.lock().unwrap().is_empty());
    }
}

/// FC-34: read-only, nothing is written back.
#[test]
fn fc34_a_read_only_array_writes_nothing_back() {
    let devices: Vec<Arc<Faulty>> = (0..3).map(|_| Faulty::new()).collect();
    let array = over(&devices, Level::Raid5, |_| {});
    let expected = filled(&array, 13);
    array.stop().unwrap();
    devices[1].spoil(0..4096);
    let before: u64 = devices.iter().map(|device| device.writes()).sum();
    let array = over(&devices, Level::Raid5, |open| open.read_only = true);
    assert!(read_all(&array) == expected);
    assert_eq!(devices.iter().map(|device| device.writes()).sum::<u64>(), before);
    assert_eq!(array.status().degraded, 0);
}

/// FC-34: a member with thousands of unreadable places leaves at the limit, and data is right all
/// the time; below the limit it stays.
#[test]
fn fc34_a_member_that_errs_all_the_time_leaves() {
    for (places, leaves) in [(15, false), (900, true)] {
        let devices: Vec<Arc<Faulty>> = (0..3).map(|_| Faulty::new()).collect();
        // The limit is looked at four times in this time.
        let array = over(&devices, Level::Raid5, |open| open.io_timeout = Duration::from_secs(4));
        let expected = filled(&array, 14);
        for place in 0..places {
            devices[0].spoil(CHUNK + place * 4096..CHUNK + place * 4096 + 512);
        }
        assert_eq!(unreadable(&array, &expected), [0; 0]);
        let errors = array.status().groups[0].members[0].read_errors;
        // Some of the places are parity, which is not read.
        assert_eq!(errors > 20, leaves, "{errors} of {places}");
        assert!(errors >= places / 3, "{errors} of {places}");
        if leaves {
            wait_for(&array, "the end of it", |status| status.degraded == 1);
            assert_eq!(array.status().groups[0].members[0].state, "faulty");
        } else {
            std::thread::sleep(Duration::from_millis(2500));
            assert_eq!(array.status().degraded, 0);
        }
        assert!(read_all(&array) == expected);
        let piece = content(15, 100_000);
        array.write_at(&piece, 1000).unwrap();
        let mut bytes = vec![0; piece.len()];
        array.read_at(&mut bytes, 1000).unwrap();
        assert!(bytes == piece);
    }
}

/// FC-34: a place that writing does not make good takes its member out; nothing is lost.
#[test]
fn fc34_a_place_that_stays_unreadable_takes_its_member_out() {
    let devices: Vec<Arc<Faulty>> = (0..3).map(|_| Faulty::new()).collect();
    let array = over(&devices, Level::Raid5, |_| {});
    let expected = filled(&array, 16);
    devices[1].is_sticky.store(true, Ordering::Relaxed);
    devices[1].spoil(4096..8192);
    assert!(read_all(&array) == expected);
    assert_eq!(array.status().groups[0].members[1].state, "faulty");
    let error = array.fail(&PathBuf::from("nobody")).unwrap_err();
    assert!(matches!(error, Error::UnsuitableMember { .. }), "{error}");
    assert!(read_all(&array) == expected);
}
