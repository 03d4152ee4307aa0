//! Opening members: what is refused and in which words, what alignment is found, what locks hold.

use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::symlink;

use rustix::fs::FileType;

use super::*;
use crate::Buffer;
use crate::member::Member;
use crate::testing::LoopDevice;

fn reason(result: Result<MemberFile, Error>) -> String {
    result.err().map(|error| error.to_string()).unwrap_or_default()
}

fn file_of(folder: &Path, name: &str, size: u64) -> PathBuf {
    let path = folder.join(name);
    fs::File::create(&path).unwrap().set_len(size).unwrap();
    path
}

#[test]
fn what_is_no_member_is_refused_in_plain_words() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, mode, 0).unwrap();
    let cases = [
        (folder.path().to_owned(), "is a directory"),
        (folder.path().join("missing"), "cannot open: No such file"),
        (PathBuf::from("/dev/null"), "is neither a file nor a block device"),
        (pipe, "is neither a file nor a block device"),
    ];
    for (path, text) in cases {
        for access in [Access::ReadOnly, Access::Exclusive] {
            let reason = reason(MemberFile::open(&path, access, true));
            assert!(reason.contains(text), "{reason}");
            assert!(reason.starts_with(&*path.to_string_lossy()), "{reason}");
        }
    }
}

#[test]
fn a_file_is_opened_for_use_once_and_for_looking_always() {
    let folder = tempfile::tempdir().unwrap();
    let path = file_of(folder.path(), "a", 1 << 20);
    let first = MemberFile::open(&path, Access::Exclusive, true).unwrap();
    let second = reason(MemberFile::open(&path, Access::Exclusive, true));
    assert!(second.ends_with("is in use by another process"), "{second}");
    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    let look = MemberFile::open(&link, Access::ReadOnly, true).unwrap();
    assert_eq!(look.identity(), first.identity());
    drop(first);
    MemberFile::open(&link, Access::Exclusive, true).unwrap();
}

#[test]
fn a_made_file_is_sparse_private_and_never_replaces_one() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new");
    let made = MemberFile::create(&path, 64 << 20, true).unwrap();
    assert_eq!(made.size_bytes(), 64 << 20);
    assert_eq!(made.extent(0), (true, 64 << 20));
    let stat = fs::metadata(&path).unwrap();
    assert_eq!((stat.mode() & 0o777, stat.blocks()), (0o600, 0));
    let again = reason(MemberFile::create(&path, 1 << 20, true));
    assert!(again.contains("cannot create: File exists"), "{again}");
    assert_eq!(fs::metadata(&path).unwrap().len(), 64 << 20);
}

#[test]
fn a_member_to_look_at_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = file_of(folder.path(), "a", 1 << 20);
    let file = MemberFile::open(&path, Access::ReadOnly, true).unwrap();
    let block = Buffer::zeroed(4096);
    assert!(file.write_at(&[IoSlice::new(&block)], 0).is_err());
    assert!(file.write_zeroes(0, 4096, true).is_err());
}

#[test]
fn zeroes_and_holes_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = MemberFile::create(&folder.path().join("a"), 1 << 20, true).unwrap();
    let mut bytes = Buffer::zeroed(256 << 10);
    bytes.fill(7);
    assert_eq!(file.write_at(&[IoSlice::new(&bytes)], 64 << 10).unwrap(), 256 << 10);
    assert_eq!(file.extent(0), (true, 64 << 10));
    assert_eq!(file.extent(64 << 10), (false, 320 << 10));
    assert_eq!(file.extent(320 << 10), (true, 1 << 20));
    file.write_zeroes(128 << 10, 64 << 10, true).unwrap();
    assert_eq!(file.extent(128 << 10), (true, 192 << 10));
    file.write_zeroes(64 << 10, 4096, false).unwrap();
    file.read_at(&mut [IoSliceMut::new(&mut bytes[..8192])], 64 << 10).unwrap();
    assert!(bytes[..4096].iter().all(|b| *b == 0) && bytes[4096..8192].iter().all(|b| *b == 7));
}

/// A refused way is tried once; the next ones follow.
#[test]
fn refusals_are_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let file = MemberFile::create(&folder.path().join("a"), 1 << 20, true).unwrap();
    assert_eq!(file.zeroing(true), Some(Zeroing::PunchHole));
    assert!(!file.refuse(Zeroing::PunchHole, Errno::IO));
    assert!(file.refuse(Zeroing::PunchHole, Errno::OPNOTSUPP));
    assert_eq!(file.zeroing(true), Some(Zeroing::ZeroRange));
    assert!(file.refuse(Zeroing::ZeroRange, Errno::OPNOTSUPP));
    assert_eq!(file.zeroing(true), None);
    assert!(file.write_zeroes(0, 4096, false).is_err());
}

#[test]
fn block_devices_state_their_block_and_are_held_exclusively() {
    let folder = tempfile::tempdir().unwrap();
    for sector in [512, 4096] {
        let Some(device) = LoopDevice::new(folder.path(), 8 << 20, sector) else { return };
        let file = MemberFile::open(&device.path, Access::Exclusive, true).unwrap();
        assert!(file.is_direct());
        assert_eq!((file.block_bytes(), file.size_bytes()), (sector, 8 << 20));
        assert!(file.device_numbers().is_some_and(|(major, _)| major == 7));
        let second = reason(MemberFile::open(&device.path, Access::Exclusive, true));
        assert!(second.contains("is in use"), "{second}");
        MemberFile::open(&device.path, Access::ReadOnly, true).unwrap();
        file.write_zeroes(0, 1 << 20, true).unwrap();
        // A range inside one block of a superblock, on both block sizes.
        let member = Member::file(file);
        member.write_range(4096 + 100, b"superblock").unwrap();
        assert_eq!(member.read_range(4096 + 100, 10).unwrap(), b"superblock");
        assert_eq!(member.read_range(4096, 100).unwrap(), [0; 100]);
    }
}
