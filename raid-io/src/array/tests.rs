//! Members that fail while the array is in use: the data stays right, and the superblocks say so
//! before the write that relies on it is acknowledged.

use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use super::*;
use crate::file::{Access, MemberFile};
use crate::member::Member;
use crate::open::{Loaded, load, start_loaded};
use crate::testing::{Fault, FaultyDevice, LoopDevice, without_uring};
use crate::{Backend, Level};

/// An array on files, the members behind faults that can be switched on.
fn rig(folder: &Path, level: Level, count: usize) -> (Array, Vec<Arc<FaultyDevice>>, Vec<PathBuf>) {
    let paths: Vec<PathBuf> = (0..count).map(|slot| folder.join(format!("m{slot}"))).collect();
    let mut options = CreateOptions::new(level);
    options.member_bytes = Some(4 << 20);
    options.chunk_bytes = 16 << 10;
    Array::create(&options, &paths).unwrap().stop().unwrap();
    let mut devices = Vec::new();
    let mut loaded: Vec<Loaded> = Vec::new();
    for path in &paths {
        let file = MemberFile::open(path, Access::Exclusive, false).unwrap();
        let device = FaultyDevice::over(Arc::new(file), Fault::None);
        devices.push(Arc::clone(&device));
        loaded.push(load(Member::other(path, device)).unwrap());
    }
    // What a crash finds is not to depend on how long a test takes.
    let options = OpenOptions { idle_after: Duration::ZERO, ..OpenOptions::default() };
    (start_loaded(&loaded, &options).unwrap(), devices, paths)
}

fn states(array: &Array) -> Vec<String> {
    array.status().groups[0].members.iter().map(|member| member.state.clone()).collect()
}

#[test]
fn a_failed_write_costs_the_member_and_is_recorded() {
    for errno in [Errno::IO, Errno::NODEV, Errno::TIMEDOUT] {
        let folder = tempfile::tempdir_in(".").unwrap();
        let (array, devices, paths) = rig(folder.path(), Level::Raid5, 3);
        array.write_at(&[1; 100_000], 0).unwrap();
        devices[1].set(Fault::WriteErrno(errno.raw_os_error()));
        array.write_at(&[2; 100_000], 50_000).unwrap();
        assert_eq!(states(&array), ["in_sync", "faulty", "in_sync"]);
        // No stop: what was acknowledged is on the members now.
        drop(array);
        drop(devices);
        let array = Array::open(&paths, &OpenOptions::default());
        let refused = array.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(refused.contains("not stopped cleanly"), "{refused}");
        let force = OpenOptions { force: true, ..OpenOptions::default() };
        let array = Array::open(&paths, &force).unwrap();
        assert_eq!(array.status().degraded, 1, "the failed member stays out");
        let mut bytes = vec![0; 150_000];
        array.read_at(&mut bytes, 0).unwrap();
        assert!(bytes[..50_000].iter().all(|byte| *byte == 1));
        assert!(bytes[50_000..].iter().all(|byte| *byte == 2));
        array.stop().unwrap();
    }
}

#[test]
fn a_failed_read_is_regenerated() {
    let folder = tempfile::tempdir_in(".").unwrap();
    for (level, count) in
        [(Level::Raid5, 4), (Level::Raid6, 4), (Level::Raid1, 2), (Level::Raid10, 4)]
    {
        let (array, devices, paths) = rig(folder.path(), level, count);
        let bytes: Vec<u8> = (0..400_000_u32).map(|byte| (byte % 251) as u8).collect();
        array.write_at(&bytes, 1000).unwrap();
        devices[0].set(Fault::Errno(Errno::IO.raw_os_error()));
        let mut read = vec![0; bytes.len()];
        array.read_at(&mut read, 1000).unwrap();
        assert!(read == bytes, "{level:?}");
        drop(array);
        drop(devices);
        paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }
}

/// More failures than the level can bear are errors, never wrong bytes, and the array survives
/// them.
#[test]
fn too_many_failures_are_errors() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let (array, devices, _) = rig(folder.path(), Level::Raid5, 3);
    array.write_at(&[1; 200_000], 0).unwrap();
    for device in &devices[..2] {
        device.set(Fault::Errno(Errno::IO.raw_os_error()));
    }
    let mut bytes = vec![0; 200_000];
    let error = array.read_at(&mut bytes, 0).unwrap_err();
    assert_eq!(error.errno(), Errno::IO.raw_os_error());
    assert!(array.write_at(&[2; 4096], 0).is_err());
    for device in &devices {
        device.set(Fault::None);
    }
    let _ = array.stop();
}

/// Room that runs out is told as such, and is no reason to throw a member out.
#[test]
fn no_room_is_no_failure() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let (array, devices, _) = rig(folder.path(), Level::Raid0, 3);
    devices[0].set(Fault::WriteErrno(Errno::NOSPC.raw_os_error()));
    let error = array.write_at(&[1; 200_000], 0).unwrap_err();
    assert!(matches!(error, Error::NoSpace), "{error}");
    assert_eq!(error.errno(), Errno::NOSPC.raw_os_error());
    devices[0].set(Fault::None);
    array.write_at(&[1; 200_000], 0).unwrap();
    array.stop().unwrap();
}

/// A write is not acknowledged when no superblock can say that a member was lost.
#[test]
fn a_failure_that_cannot_be_recorded_stops_writing() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let (array, devices, _) = rig(folder.path(), Level::Raid1, 2);
    for device in &devices {
        device.set(Fault::WriteErrno(Errno::IO.raw_os_error()));
    }
    assert!(array.write_at(&[1; 4096], 0).is_err());
    devices.iter().for_each(|device| device.set(Fault::None));
    let mut bytes = [9; 4096];
    array.read_at(&mut bytes, 0).unwrap();
}

/// Members that interrupt, hesitate and move little make the same array.
#[test]
fn awkward_members_make_the_same_array() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let (array, devices, paths) = rig(folder.path(), Level::Raid5, 3);
    devices.iter().for_each(|device| device.set(Fault::Awkward));
    let bytes: Vec<u8> = (0..100_000_u32).map(|byte| (byte % 253) as u8).collect();
    array.write_at(&bytes, 333).unwrap();
    let mut read = vec![0; bytes.len()];
    array.read_at(&mut read, 333).unwrap();
    assert!(read == bytes);
    array.stop().unwrap();
    drop(devices);
    let array = Array::open(&paths[1..], &OpenOptions::default()).unwrap();
    array.read_at(&mut read, 333).unwrap();
    assert!(read == bytes);
    array.stop().unwrap();
}

/// Block devices of 512 and 4096 bytes in one array: the coarser block counts.
#[test]
fn block_devices_of_both_blocks_make_an_array() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let sectors = [512, 4096, 4096];
    let mut loops = Vec::new();
    for (index, sector) in sectors.into_iter().enumerate() {
        let folder = folder.path().join(index.to_string());
        std::fs::create_dir(&folder).unwrap();
        let Some(device) = LoopDevice::new(&folder, 8 << 20, sector) else { return };
        loops.push(device);
    }
    let paths: Vec<PathBuf> = loops.iter().map(|device| device.path.clone()).collect();
    let mut options = CreateOptions::new(Level::Raid5);
    options.chunk_bytes = 64 << 10;
    options.assume_clean = true;
    let array = Array::create(&options, &paths).unwrap();
    assert_eq!(array.limits().block_bytes, 4096);
    assert!(array.status().groups[0].members.iter().all(|m| m.device.is_some_and(|d| d.0 == 7)));
    let second = Array::open(&paths, &OpenOptions::default()).err().map(|e| e.to_string());
    assert!(second.unwrap_or_default().contains("is in use"));
    let bytes: Vec<u8> = (0..300_000_u32).map(|byte| (byte % 251) as u8).collect();
    array.write_at(&bytes, 777).unwrap();
    array.write_zeroes(100_000, 50_000, true).unwrap();
    array.stop().unwrap();
    // Free at once, not some time later.
    let array = Array::open(&paths[..2], &OpenOptions::default()).unwrap();
    let mut read = vec![1; bytes.len()];
    array.read_at(&mut read, 777).unwrap();
    for (place, (now, was)) in read.iter().zip(&bytes).enumerate() {
        let zero = (100_000..150_000).contains(&(place + 777));
        assert_eq!(*now, if zero { 0 } else { *was }, "byte {}", place + 777);
    }
    array.stop().unwrap();
}

#[test]
fn without_io_uring_calls_block_instead() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let paths: Vec<PathBuf> = (0..3).map(|slot| folder.path().join(format!("m{slot}"))).collect();
    let mut options = CreateOptions::new(Level::Raid5);
    options.member_bytes = Some(4 << 20);
    without_uring(|| {
        options.open.backend = Backend::IoUring;
        let refused = Array::create(&options, &paths).err().map(|error| error.to_string());
        assert!(refused.is_some_and(|text| text.starts_with("cannot use io_uring: ")));
        assert!(!paths[0].exists(), "files of an array that was not made are not left behind");
        options.open.backend = Backend::Automatic;
        let array = Array::create(&options, &paths).unwrap();
        assert_eq!(array.status().backend, "blocking");
        array.write_at(&[5; 10_000], 1).unwrap();
        array.stop().unwrap();
    });
    let array = Array::open(&paths, &OpenOptions::default()).unwrap();
    let mut bytes = [0; 10_000];
    array.read_at(&mut bytes, 1).unwrap();
    assert_eq!(bytes, [5; 10_000]);
    array.stop().unwrap();
}
