//! Each signature alone on a blank device is found where it is, at any size of device, and nothing
//! panics.

use alloc::vec;
use alloc::vec::Vec;

use super::table::{Place, SIGNATURES};
use super::{Finding, HEAD_BYTES, Kind, TAIL_BYTES, probe, ranges};

const DEVICE: usize = 4 << 20;

/// Probes a whole device the way a caller does.
fn look(device: &[u8]) -> Vec<Finding> {
    let (head, tail) = ranges(device.len() as u64);
    let part = |range: core::ops::Range<u64>| &device[range.start as usize..range.end as usize];
    probe(device.len() as u64, part(head), part(tail))
}

fn write(device: &mut [u8], offset: usize, bytes: &[u8]) {
    device[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// Every entry of the table, one after the other.
#[test]
fn table() {
    let mut device = vec![0; DEVICE];
    for &(kind, place, magic) in SIGNATURES {
        let offset = match place {
            Place::Start(offset) => offset as usize,
            Place::End(distance) => DEVICE - distance as usize,
        };
        write(&mut device, offset, magic);
        let findings = look(&device);
        assert_eq!(findings, [Finding { kind, offset: offset as u64 }], "{kind}");
        write(&mut device, offset, &vec![0; magic.len()]);
    }
    assert_eq!(look(&device), []);
}

/// The signatures that need more than a comparison.
#[test]
fn others() {
    let magic = 0xa92b_4efc_u32.to_le_bytes();
    let mut mbr = vec![0; 512];
    write(&mut mbr, 446, &[0x80, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0, 1, 0]);
    write(&mut mbr, 510, &[0x55, 0xaa]);
    let cases: &[(&[u8], usize, Kind, usize)] = &[
        (&magic, 0, Kind::Md, 0),
        (&magic, 4096, Kind::Md, 4096),
        (&magic, DEVICE - 16 * 512, Kind::Md, DEVICE - 16 * 512),
        (&magic, DEVICE - 65536, Kind::Md, DEVICE - 65536),
        (&mbr, 0, Kind::PartitionTable("DOS"), 510),
        (
            b"\x0c\xb1\xba\0\0\0\0\0",
            131_072 + 5 * 1024,
            Kind::FileSystem("zfs"),
            131_072 + 5 * 1024,
        ),
        (b"\0\0\0\0\0\xba\xb1\x0c", DEVICE - 1024, Kind::FileSystem("zfs"), DEVICE - 1024),
        (b"\x02\0\0\0\0\0\x34\x34\x18\x01", 1024, Kind::FileSystem("nilfs2"), 1030),
        (b"\x83\x74\x02\x6d", DEVICE - 4096 + 60, Kind::Container("DRBD metadata"), DEVICE - 4036),
        (b"x", 700_000, Kind::NonZero, 700_000),
        (b"x", DEVICE - 1, Kind::NonZero, DEVICE - 1),
        // What is not looked at is not found.
    ];
    for &(bytes, at, kind, offset) in cases {
        let mut device = vec![0; DEVICE];
        write(&mut device, at, bytes);
        assert_eq!(look(&device), [Finding { kind, offset: offset as u64 }], "{kind}");
    }
}

/// Remnants beside each other are all reported, and a boot sector is not taken for a partition
/// table.
#[test]
fn several() {
    let mut device = vec![0; DEVICE];
    write(&mut device, 1080, &[0x53, 0xef]);
    write(&mut device, 4096, &0xa92b_4efc_u32.to_le_bytes());
    write(&mut device, 510, &[0x55, 0xaa]);
    let kinds: Vec<Kind> = look(&device).iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [Kind::FileSystem("ext2/3/4"), Kind::Md]);
}

/// Any size from nothing to beyond both windows: no panic, and a full device is never called empty.
#[test]
fn sizes() {
    let window = (HEAD_BYTES + TAIL_BYTES) as usize;
    let around = [4096, 8192, 65536, 131_072, 262_144, 1 << 20, HEAD_BYTES as usize, window];
    let sizes = around.iter().flat_map(|&size| size - 2..size + 3).chain(0..2048);
    for size in sizes {
        for fill in [0, 0xff] {
            let device = vec![fill; size];
            assert_eq!(look(&device).is_empty(), fill == 0 || size == 0, "{size}");
        }
    }
    // Slices that do not fit the size given.
    assert_eq!(probe(10, &[0; 4096], &[0; 4096]), []);
    assert_eq!(probe(u64::MAX, &[], &[]), []);
}
