//! Superblocks that nobody should write, with the checksum made right: an error or a safe value,
//! and never a panic or a length taken from the bytes.

use raid_core::md::fuzz::fuzz_superblock;
use raid_core::md::superblock::{
    AREA_BYTES, Context, Features, Minor, WriteObstacle, decode, find,
};
use raid_core::md::{AssembleError, Superblock, SuperblockError, assemble};

use crate::assemble::{FORCE, READ_ONLY, READ_WRITE};
use crate::images::{self, Image, Members, Noise};

/// Makes the checksum right, the way a hostile hand would: `max_dev` may say anything.
fn fix_checksum(area: &mut [u8]) {
    let max_dev = u32::from_le_bytes(*area[220..].first_chunk::<4>().unwrap()) as usize;
    let end = (256 + 2 * max_dev.min(AREA_BYTES)).min(area.len());
    area[216..220].fill(0);
    let mut sum = 0_u64;
    for word in area[..end].chunks(4) {
        let mut bytes = [0; 4];
        bytes[..word.len()].copy_from_slice(word);
        sum += u64::from(u32::from_le_bytes(bytes));
    }
    let sum = ((sum & 0xffff_ffff) + (sum >> 32)) as u32;
    area[216..220].copy_from_slice(&sum.to_le_bytes());
}

/// What must hold of anything that is accepted.
fn check_safe(superblock: &Superblock, context: Context, area: &[u8]) {
    assert!(superblock.encode()[..] == area[..], "encode changes bytes");
    assert!(superblock.data_bytes().end <= context.member_bytes);
    assert!(superblock.component_bytes() <= context.member_bytes);
    assert!((1..=255).contains(&superblock.slot_count));
    assert!(superblock.roles().len() <= 1920);
    assert!(superblock.recovered_bytes().is_none_or(|bytes| bytes <= context.member_bytes));
    assert!(superblock.events < u64::MAX - 1);
    let _ = (superblock.name(), superblock.bitmap(), superblock.ppl(), superblock.role());
}

/// Decodes, checks what is accepted, and tries to assemble with it.
fn try_area(image: &Image, area: &[u8]) {
    let context = image.members[0].context;
    let result = decode(area, context);
    if let Ok(superblock) = &result {
        check_safe(superblock, context, area);
    }
    let mut members = Members::of(image);
    members.0[0].2 = result;
    for options in [READ_ONLY, READ_WRITE, FORCE] {
        // Whatever it says, it says it in words.
        match assemble(&members.candidates(), options) {
            Ok(assembly) => assert!(assembly.slots.len() <= 255),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

const IMAGES: [&str; 4] = [
    "raid5-n4-c64k-v1.2",
    "raid10-n4-midrecovery-v1.2",
    "raid5-n4-ppl-v1.2",
    "raid5-n4to5-midreshape-v1.2",
];

/// Each field of the head at the ends of its range and between; fields are four bytes or parts and
/// pairs of that.
#[test]
fn ends_of_ranges() {
    let mut noise = Noise(1);
    for name in IMAGES {
        let image = images::named(name);
        for offset in 0..256 {
            for width in [1, 2, 4, 8] {
                if offset % width != 0 {
                    continue;
                }
                let max = u64::MAX >> (64 - 8 * width);
                let sign = max / 2;
                let ends = [0, 1, 2, 7, 8, 255, 256, sign - 1, sign, sign + 1, max - 1, max];
                let between: [u64; 6] = noise.some();
                for value in ends.into_iter().chain(between) {
                    let mut area = image.members[0].area.clone();
                    area[offset..offset + width].copy_from_slice(&value.to_le_bytes()[..width]);
                    fix_checksum(&mut area);
                    try_area(&image, &area);
                }
            }
        }
    }
}

/// Every single bit of the superblock, its roles included, with the checksum right and not.
#[test]
fn bit_flips() {
    let image = images::named(IMAGES[0]);
    for bit in 0..(256 + 2 * 128) * 8 {
        let mut area = image.members[0].area.clone();
        area[bit / 8] ^= 1 << (bit % 8);
        // Without the right checksum nothing is believed.
        decode(&area, image.members[0].context).unwrap_err();
        fix_checksum(&mut area);
        try_area(&image, &area);
    }
}

/// The cases that parsers of this format have tripped over, and the exact answer.
#[test]
fn known_traps() {
    type Case = (usize, Vec<u8>, fn(&SuperblockError) -> bool);
    let u32 = |value: u32| value.to_le_bytes().to_vec();
    let u64 = |value: u64| value.to_le_bytes().to_vec();
    let cases: Vec<Case> = vec![
        (0, u32(0), |e| matches!(e, SuperblockError::Magic { magic: 0 })),
        (4, u32(2), |e| matches!(e, SuperblockError::Version { major: 2 })),
        // Lengths: beyond the area, negative when read as signed, zero.
        (220, u32(1921), |e| matches!(e, SuperblockError::MaxDev { max_dev: 1921, limit: 1920 })),
        (220, u32(u32::MAX), |e| matches!(e, SuperblockError::MaxDev { .. })),
        (220, u32(0x8000_0000), |e| matches!(e, SuperblockError::MaxDev { .. })),
        (220, u32(0), |e| matches!(e, SuperblockError::DevNumber { max_dev: 0, .. })),
        (160, u32(128), |e| matches!(e, SuperblockError::DevNumber { dev_number: 128, .. })),
        (160, u32(u32::MAX), |e| matches!(e, SuperblockError::DevNumber { .. })),
        (72, u32(7), |e| matches!(e, SuperblockError::Level { level: 7 })),
        (72, (-4_i32).to_le_bytes().to_vec(), |e| {
            matches!(e, SuperblockError::Level { level: -4 })
        }),
        (76, u32(6), |e| matches!(e, SuperblockError::Layout { layout: 6, .. })),
        (88, u32(0), |e| matches!(e, SuperblockError::Chunk { chunk_sectors: 0 })),
        (88, u32(4), |e| matches!(e, SuperblockError::Chunk { .. })),
        (88, u32(129), |e| matches!(e, SuperblockError::Chunk { .. })),
        (88, u32(1 << 31), |e| matches!(e, SuperblockError::Chunk { .. })),
        (92, u32(0), |e| matches!(e, SuperblockError::SlotCount { slot_count: 0, .. })),
        (92, u32(256), |e| matches!(e, SuperblockError::SlotCount { slot_count: 256, .. })),
        // Fewer slots than there are roles.
        (92, u32(3), |e| matches!(e, SuperblockError::Role { dev_number: 3, role: 3, .. })),
        (256, vec![0xfc, 0xff], |e| matches!(e, SuperblockError::Role { role: 0xfffc, .. })),
        (258, vec![0, 0, 0, 0], |e| {
            matches!(e, SuperblockError::DuplicateRole { slot: 0, count: 3 })
        }),
        (80, u64(0), |e| matches!(e, SuperblockError::Size { size_sectors: 0, level: 5 })),
        (80, u64(6145), |e| matches!(e, SuperblockError::SizeOverData { .. })),
        // The member has 8192 sectors.
        (136, u64(6145), |e| {
            matches!(e, SuperblockError::MemberShort { end_sectors: 8193, member_sectors: 8192 })
        }),
        (128, u64(u64::MAX), |e| matches!(e, SuperblockError::MemberShort { .. })),
        (128, u64(0), |e| {
            matches!(e, SuperblockError::Overlap { first: "superblock", second: "data" })
        }),
        (144, u64(16), |e| {
            matches!(e, SuperblockError::SuperOffset { super_offset: 16, found: 8, .. })
        }),
        // The bad-block log in the superblock, in the data, before the member.
        (188, u32(0), |e| {
            matches!(e, SuperblockError::Overlap { first: "superblock", second: "bad-block log" })
        }),
        (188, u32(2040), |e| {
            matches!(e, SuperblockError::Overlap { first: "data", second: "bad-block log" })
        }),
        (188, (-16_i32).to_le_bytes().to_vec(), |e| matches!(e, SuperblockError::Outside { .. })),
        (188, i32::MIN.to_le_bytes().to_vec(), |e| matches!(e, SuperblockError::Outside { .. })),
        (185, vec![63], |e| matches!(e, SuperblockError::BadBlockShift { shift: 63, .. })),
        (200, u64(u64::MAX), |e| matches!(e, SuperblockError::Events { .. })),
        (224, u32(513), |e| matches!(e, SuperblockError::LogicalBlock { bytes: 513 })),
        (8, u32(Features::PPL | Features::BITMAP), |e| {
            matches!(e, SuperblockError::Features { .. })
        }),
        // A bitmap at the superblock itself.
        (8, u32(Features::BITMAP), |e| {
            matches!(e, SuperblockError::Overlap { first: "superblock", second: "bitmap" })
        }),
    ];
    let image = images::named(IMAGES[0]);
    for (offset, bytes, is_expected) in cases {
        let mut area = image.members[0].area.clone();
        area[offset..offset + bytes.len()].copy_from_slice(&bytes);
        fix_checksum(&mut area);
        let error = decode(&area, image.members[0].context).unwrap_err();
        assert!(is_expected(&error), "{offset} {bytes:x?}: {error:?}");
        assert!(!error.to_string().is_empty());
    }
}

/// Each unknown feature bit, and a nonzero reserved byte: readable, never writable, and the bit is
/// named.
#[test]
fn unknown_features() {
    let image = images::named(IMAGES[0]);
    let cases = (13..32).map(|bit| (8, 1_u32 << bit)).chain([(12, 1), (228, 512), (252, 1)]);
    for (offset, value) in cases {
        let mut members = Members::of(&image);
        for (index, member) in image.members.iter().enumerate() {
            let mut area = member.area.clone();
            area[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
            fix_checksum(&mut area);
            members.0[index].2 = decode(&area, member.context);
        }
        let obstacle = members.superblock(0).write_obstacle().unwrap();
        if offset == 8 {
            assert_eq!(obstacle, WriteObstacle::UnknownFeatures { bits: value });
            assert!(obstacle.to_string().contains(&format!("{value:x}")));
        } else {
            assert_eq!(obstacle, WriteObstacle::ReservedBytes);
        }
        let error = assemble(&members.candidates(), READ_WRITE).unwrap_err();
        assert!(matches!(error, AssembleError::WriteObstacle { .. }), "{error:?}");
        assert_eq!(assemble(&members.candidates(), FORCE).unwrap_err(), error);
        let assembly = assemble(&members.candidates(), READ_ONLY).unwrap();
        assert_eq!(assembly.warnings.len(), 4);
    }
}

/// Bytes that are too few, members that are too small, and random ones.
#[test]
fn sizes_and_noise() {
    let image = images::named(IMAGES[0]);
    let area = &image.members[0].area;
    for len in [0, 1, 255, 256, 512, 4095] {
        let error = decode(&area[..len], image.members[0].context).unwrap_err();
        assert_eq!(error, SuperblockError::TooShort { len, need: 4096 });
    }
    for member_bytes in [0, 1, 512, 4096, 8191] {
        let error = decode(area, Context { minor: Minor::V1_2, member_bytes }).unwrap_err();
        assert_eq!(error, SuperblockError::MemberTooSmall { minor: Minor::V1_2, member_bytes });
    }
    // A member that has shrunk by 2117 sectors: said in sectors.
    let member_bytes = image.members[0].context.member_bytes - 2117 * 512;
    let error = decode(area, Context { minor: Minor::V1_2, member_bytes }).unwrap_err();
    assert!(error.to_string().ends_with("2117 sectors short"), "{error}");

    let mut state = 1_u64;
    let mut noise = vec![0; AREA_BYTES];
    for round in 0..2000 {
        for byte in &mut noise {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
        noise[..8].copy_from_slice(&area[..8]);
        if round % 2 == 0 {
            noise[220..224].copy_from_slice(&128_u32.to_le_bytes());
        }
        fix_checksum(&mut noise);
        fuzz_superblock(&noise);
        fuzz_superblock(&noise[..round]);
    }
}

/// A superblock found at another place than it was written for is a remnant, not a superblock.
#[test]
fn other_places() {
    let image = images::named(IMAGES[0]);
    let member_bytes = image.members[0].context.member_bytes;
    for minor in [Minor::V1_0, Minor::V1_1] {
        let error = decode(&image.members[0].area, Context { minor, member_bytes }).unwrap_err();
        assert!(matches!(error, SuperblockError::SuperOffset { super_offset: 8, .. }), "{error:?}");
    }
}

/// FC-11: a device that was used twice has two valid superblocks: refused until the array is named.
/// What is damaged is told from what never was.
#[test]
fn several_superblocks() {
    let image = images::named(IMAGES[0]);
    let member_bytes = image.members[0].context.member_bytes;
    let new = &image.members[0].area;
    let old = &images::named("raid5-n4-c64k-v1.0").members[0];
    assert_eq!(old.context.member_bytes, member_bytes);
    let (new_uuid, old_uuid) =
        (image.members[0].decode().unwrap().array_uuid, old.decode().unwrap().array_uuid);
    let zeros = vec![0; AREA_BYTES];
    let areas: [(Minor, &[u8]); 3] =
        [(Minor::V1_2, new), (Minor::V1_1, &zeros), (Minor::V1_0, &old.area)];
    let error = find(&areas, member_bytes, None).unwrap_err();
    assert_eq!(error, SuperblockError::Several { first: Minor::V1_2, second: Minor::V1_0 });
    let by_uuid = |uuid| find(&areas, member_bytes, Some(uuid)).map(|found| found.minor);
    assert_eq!(by_uuid(new_uuid), Ok(Minor::V1_2));
    assert_eq!(by_uuid(old_uuid), Ok(Minor::V1_0));
    assert_eq!(by_uuid(Default::default()), Err(SuperblockError::OtherArray { uuid: old_uuid }));
    assert_eq!(find(&areas[..2], member_bytes, None).unwrap().array_uuid, new_uuid);

    let mut damaged = new.clone();
    damaged[300] ^= 1;
    let error = find(&[(Minor::V1_1, &zeros), (Minor::V1_2, &damaged)], member_bytes, None);
    assert!(matches!(error, Err(SuperblockError::Checksum { .. })), "{error:?}");
    assert_eq!(find(&areas[1..2], member_bytes, None), Err(SuperblockError::Magic { magic: 0 }));
    assert_eq!(find(&[], member_bytes, None), Err(SuperblockError::Magic { magic: 0 }));
}
