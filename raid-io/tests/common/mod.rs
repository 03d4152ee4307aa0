//! Arrays of small files, and the judgement of what is on them.
#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use raid_core::md::bad_blocks::BadBlocks;
use raid_core::md::superblock::{self, Superblock};
use raid_io::{Array, CreateOptions, Error, Level, OpenOptions, Status};

pub(crate) const MEMBER_BYTES: u64 = 12 << 20;

pub(crate) struct Lab {
    _folder: tempfile::TempDir,
    pub(crate) path: PathBuf,
    pub(crate) members: Vec<PathBuf>,
}

impl Lab {
    pub(crate) fn new(count: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let members = (0..count).map(|n| path.join(format!("m{n}"))).collect();
        Self { _folder: folder, path, members }
    }

    pub(crate) fn options(&self, level: Level) -> CreateOptions {
        let mut options = CreateOptions::new(level);
        options.member_bytes = Some(MEMBER_BYTES);
        options.chunk_bytes = 64 << 10;
        options
    }

    pub(crate) fn blank(&self, name: &str) -> PathBuf {
        let path = self.path.join(name);
        File::create(&path).unwrap().set_len(MEMBER_BYTES).unwrap();
        path
    }
}

pub(crate) fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

pub(crate) fn wait_for(array: &Array, what: &str, done: impl Fn(&Status) -> bool) -> Status {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let status = array.status();
        if done(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "{what} does not come: {status:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn is_whole(status: &Status) -> bool {
    status.degraded == 0 && status.groups.iter().all(|group| group.sync_action == "idle")
}

pub(crate) fn read_all(array: &Array) -> Vec<u8> {
    let mut bytes = vec![0; array.limits().size_bytes as usize];
    array.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// The array of these members holds this, whole, and without each of them that it can spare.
pub(crate) fn judge(members: &[PathBuf], expected: &[u8]) {
    let mut options = OpenOptions::default();
    options.read_only = true;
    let array = Array::open(members, &options).unwrap();
    let status = array.status();
    assert_eq!(status.degraded, 0, "{:#?}", status.groups[0].members);
    assert!(read_all(&array) == expected, "the whole array");
    array.stop().unwrap();
    for lost in 0..members.len() {
        let mut rest = members.to_vec();
        rest.remove(lost);
        let array = Array::open(&rest, &options).unwrap();
        assert!(read_all(&array) == expected, "without member {lost}");
        array.stop().unwrap();
    }
}

pub(crate) fn state_of(status: &Status, member: &Path) -> String {
    let name = member.display().to_string();
    let members = status.groups.iter().flat_map(|group| &group.members);
    members.filter(|one| one.path == name).map(|one| one.state.clone()).collect()
}

/// The superblock of a member, as far as `examine` reads it.
pub(crate) fn superblock_of(member: &Path) -> Superblock {
    let mut area = vec![0; superblock::AREA_BYTES];
    File::open(member).unwrap().read_exact_at(&mut area, 4096).unwrap();
    let context =
        superblock::Context { minor: superblock::Minor::V1_2, member_bytes: MEMBER_BYTES };
    superblock::decode(&area, context).unwrap()
}

/// Has a member's own log say that bytes of its data are lost.
pub(crate) fn lose(member: &Path, places: &[Range<u64>]) {
    let mut superblock = superblock_of(member);
    let start = superblock.data_bytes().start;
    let mut bad = BadBlocks::default();
    places.iter().for_each(|range| bad.add(start + range.start..start + range.end));
    let place = BadBlocks::log_bytes(&superblock).unwrap();
    let file = File::options().write(true).open(member).unwrap();
    file.write_all_at(&bad.encode(&superblock).unwrap(), place.start).unwrap();
    superblock.set_bad_blocks(&bad);
    file.write_all_at(&superblock.encode()[..], superblock.super_offset_bytes()).unwrap();
}

/// What a member's log lists, in bytes of its data.
pub(crate) fn lost_of(member: &Path) -> Vec<Range<u64>> {
    let superblock = superblock_of(member);
    let place = BadBlocks::log_bytes(&superblock).unwrap();
    let mut log = vec![0; (place.end - place.start) as usize];
    File::open(member).unwrap().read_exact_at(&mut log, place.start).unwrap();
    let start = superblock.data_bytes().start;
    let bad = BadBlocks::decode(&superblock, MEMBER_BYTES, &log).unwrap();
    bad.ranges().iter().map(|range| range.start - start..range.end - start).collect()
}

/// Bytes of the array that cannot be read, in steps of 4 KiB.
pub(crate) fn unreadable(array: &Array, expected: &[u8]) -> Vec<u64> {
    let mut lost = Vec::new();
    for at in (0..expected.len() as u64).step_by(4096) {
        let mut bytes = vec![0; 4096];
        match array.read_at(&mut bytes, at) {
            Ok(()) => assert!(bytes == expected[at as usize..][..4096], "byte {at}"),
            Err(Error::Io { .. }) => lost.push(at),
            Err(error) => panic!("byte {at}: {error}"),
        }
    }
    lost
}
