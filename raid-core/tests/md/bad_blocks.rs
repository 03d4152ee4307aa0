//! Bad-block logs that Linux md wrote, the way back to the same bytes, and bytes that nobody should
//! write.

use raid_core::md::Superblock;
use raid_core::md::assemble::{Abilities, AssembleOptions};
use raid_core::md::bad_blocks::{BadBlocks, BadBlocksError};
use raid_core::md::superblock::Features;
use raid_core::md::{assemble, fuzz};

use crate::assemble::READ_WRITE;
use crate::images::{self, Image, Members};

fn log(image: &Image, index: usize) -> (Superblock, Vec<u8>) {
    let superblock = image.members[index].decode().unwrap();
    let range = BadBlocks::log_bytes(&superblock).unwrap();
    let log = image.whole(index)[range.start as usize..range.end as usize].to_vec();
    (superblock, log)
}

/// Each line of `mdadm --examine-badblocks`, and members without any.
#[test]
fn golden() {
    let mut count = 0;
    for name in ["raid1-n2-badblocks-v1.2", "raid5-n4-badblocks-v1.2"] {
        let image = images::named(name);
        let text = image.text("badblocks.txt");
        for (index, member) in image.members.iter().enumerate() {
            let (superblock, log) = log(&image, index);
            let bytes = member.context.member_bytes;
            let bad = BadBlocks::decode(&superblock, bytes, &log).unwrap();
            let ours: String = bad
                .ranges()
                .iter()
                .map(|range| {
                    format!(
                        "{} for {} sectors\n",
                        range.start / 512,
                        (range.end - range.start) / 512
                    )
                })
                .collect();
            let heading = format!("### {}\n", member.name);
            let theirs: String = text
                .split_once(&heading)
                .map_or("", |(_, rest)| rest.split("###").next().unwrap())
                .lines()
                .filter(|line| line.contains(" for "))
                .map(|line| format!("{}\n", line.trim()))
                .collect();
            assert_eq!(ours, theirs, "{name} {}", member.name);
            assert_eq!(bad.is_empty(), !superblock.features.has(Features::BAD_BLOCKS));
            if !bad.is_empty() {
                assert!(bad.encode(&superblock).unwrap() == log, "{name} {}", member.name);
            }
            count += bad.ranges().len();
        }
        // With somebody who honours them the array is used.
        let members = Members::of(&image);
        assemble(&members.candidates(), READ_WRITE).unwrap_err();
        let options = AssembleOptions { abilities: Abilities::ALL, ..READ_WRITE };
        assemble(&members.candidates(), options).unwrap();
    }
    assert_eq!(count, 4);
}

/// Ranges longer than an entry, healed ones, and too many.
#[test]
fn updates() {
    let image = images::named("raid5-n4-badblocks-v1.2");
    let (mut superblock, log) = log(&image, 1);
    let bytes = image.members[1].context.member_bytes;
    let mut bad = BadBlocks::decode(&superblock, bytes, &log).unwrap();
    let again = |bad: &BadBlocks, superblock: &Superblock| {
        BadBlocks::decode(superblock, bytes, &bad.encode(superblock).unwrap()).unwrap()
    };
    bad.add(1 << 20..3 << 20);
    bad.remove((1 << 20) + 4096..(1 << 20) + 8192);
    assert_eq!(again(&bad, &superblock), bad);
    // Half a sector is lost whole.
    bad.add(1000..1001);
    assert_eq!(again(&bad, &superblock).first_in(0..2048), Some(512..1024));
    bad.remove(0..u64::MAX);
    superblock.set_bad_blocks(&bad);
    assert!(!superblock.features.has(Features::BAD_BLOCKS));
    assert!(bad.encode(&superblock).unwrap().iter().all(|&byte| byte == 0xff));
    (0..513).for_each(|index| bad.add(index * 2048..index * 2048 + 512));
    assert_eq!(bad.encode(&superblock), Err(BadBlocksError::Full { need: 513, room: 512 }));
}

/// Entries outside of the member, logs that are too long or not there.
#[test]
fn malformed() {
    let image = images::named("raid5-n4-badblocks-v1.2");
    let (superblock, log) = log(&image, 1);
    let bytes = image.members[1].context.member_bytes;
    for entry in [0, 1 << 10, 1, 8192 << 10 | 1, 8191 << 10 | 2, u64::MAX - 1, 1023, 1 << 63] {
        let mut log = log.clone();
        log[8..16].copy_from_slice(&u64::to_le_bytes(entry));
        let result = BadBlocks::decode(&superblock, bytes, &log);
        let is_right = matches!(entry, 1 | 1023) == result.is_ok();
        assert!(is_right, "{entry:x}: {result:?}");
        fuzz::fuzz_bad_blocks(&log);
    }
    for bit in 0..3 * 64 {
        let mut log = log.clone();
        log[bit / 8] ^= 1 << (bit % 8);
        if let Ok(bad) = BadBlocks::decode(&superblock, bytes, &log) {
            assert!(bad.ranges().iter().all(|range| range.end <= bytes));
        }
        fuzz::fuzz_bad_blocks(&log);
    }
    assert_eq!(
        BadBlocks::decode(&superblock, bytes, &log[..4095]),
        Err(BadBlocksError::Unreadable)
    );
    let mut other = superblock.clone();
    other.bad_block_log.size_sectors = 9;
    let error = BadBlocksError::TooLong { sectors: 9 };
    assert_eq!(BadBlocks::decode(&other, bytes, &[0; 5000]), Err(error));
    other.bad_block_log.size_sectors = 0;
    assert_eq!(BadBlocks::decode(&other, bytes, &log), Err(BadBlocksError::NoLog));
    other.features.0 &= !Features::BAD_BLOCKS;
    assert!(BadBlocks::decode(&other, bytes, &[]).unwrap().is_empty());
}
