//! Version 0.90: every line of mdadm's, the way back to the same bytes, updates, creation, and
//! bytes that nobody should write.

use raid_core::layout::{Layout, Level};
use raid_core::md::assemble::SlotState;
use raid_core::md::create::{CreateError, CreateOptions, plan, plan_spare};
use raid_core::md::superblock::{ALL_SECTORS, AREA_BYTES, Context, Features, Minor, Role, decode};
use raid_core::md::update::{Change, apply};
use raid_core::md::{AssembleError, MdTime, MdUuid, Superblock, SuperblockError, assemble};

use crate::assemble::{FORCE, READ_ONLY, READ_WRITE};
use crate::create::{members, options};
use crate::examine::date;
use crate::images::{self, MemberArea, Members};

fn word(area: &[u8], index: usize) -> u32 {
    u32::from_le_bytes(*area[4 * index..].first_chunk::<4>().unwrap())
}

fn set_word(area: &mut [u8], index: usize, value: u32) {
    area[4 * index..][..4].copy_from_slice(&value.to_le_bytes());
}

/// The sum of all words but itself, folded.
fn fix_checksum(area: &mut [u8]) {
    let sum: u64 =
        (0..1024).filter(|&index| index != 38).map(|index| u64::from(word(area, index))).sum();
    set_word(area, 38, ((sum & 0xffff_ffff) + (sum >> 32)) as u32);
}

/// What mdadm prints behind `key`; the words that are only counted are read from the area.
fn expected(area: &[u8], superblock: &Superblock, key: &str) -> Option<String> {
    let level = Level::from_md(superblock.level).unwrap();
    let slots = u64::from(superblock.slot_count);
    let size = superblock.size_sectors / 2;
    let before = superblock.slot_count as i32 - superblock.reshape.delta_slots;
    Some(match key {
        "Magic" => "a92b4efc".into(),
        "Version" => format!("0.{}.{:02}", word(area, 2), word(area, 3)),
        "UUID" => superblock.array_uuid.to_string(),
        "Creation Time" => date(superblock.created),
        "Update Time" => date(superblock.updated),
        "Raid Level" => level.to_string(),
        "Used Dev Size" => size.to_string(),
        "Array Size" => match superblock.level {
            1 => size,
            5 => size * (slots - 1),
            _ => size * slots / 2,
        }
        .to_string(),
        "Raid Devices" => slots.to_string(),
        "Total Devices" => word(area, 9).to_string(),
        "Preferred Minor" => word(area, 11).to_string(),
        "State" => if superblock.is_clean() { "clean" } else { "active" }.into(),
        "Active Devices" => word(area, 34).to_string(),
        "Working Devices" => word(area, 35).to_string(),
        "Failed Devices" => word(area, 36).to_string(),
        "Spare Devices" => word(area, 37).to_string(),
        "Checksum" => format!("{:x} - correct", word(area, 38)),
        "Internal Bitmap" => {
            assert!(superblock.bitmap().is_some());
            "present".into()
        }
        "Events" => superblock.events.to_string(),
        "Layout" => Layout::from_md(level, superblock.layout).unwrap().to_string(),
        "Chunk Size" => format!("{}K", superblock.chunk_sectors / 2),
        "Reshape pos'n" => (superblock.reshape.position_sectors / 2).to_string(),
        "Delta Devices" => {
            let delta = superblock.reshape.delta_slots;
            format!("{delta} ({before}->{})", superblock.slot_count)
        }
        _ => return None,
    })
}

#[test]
fn every_line() {
    let mut count = 0;
    for image in images::all_old() {
        let blocks = image.examine.split("### ").skip(1);
        for (block, member) in blocks.zip(&image.members) {
            let superblock = member.decode().unwrap_or_else(|e| panic!("{}: {e}", image.name));
            assert!(superblock.encode()[..] == member.area[..], "{}", image.name);
            assert_eq!(superblock.write_obstacle(), None, "{}", image.name);
            for (key, value) in block.lines().filter_map(|line| line.split_once(" : ")) {
                let ours = expected(&member.area, &superblock, key.trim());
                let ours = ours.unwrap_or_else(|| panic!("mdadm prints {key:?}"));
                let value = value.split(" (").next().unwrap().trim();
                assert_eq!(ours.split(" (").next().unwrap(), value, "{}: {key}", image.name);
                count += 1;
            }
            // "this 0 7 0 0 active sync": number, major, minor, slot.
            let this = block.lines().find(|line| line.starts_with("this")).unwrap();
            let numbers: Vec<u32> =
                this.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            assert_eq!(superblock.dev_number, numbers[0]);
            assert_eq!(superblock.role(), Role::Active(numbers[3] as u16));
        }
    }
    assert!(count > 200, "{count}");
}

/// Decided like any other array; the one that is being reshaped is refused.
#[test]
fn assembled() {
    for image in images::all_old() {
        let members = Members::of(&image);
        for options in [READ_ONLY, READ_WRITE] {
            let decided = assemble(&members.candidates(), options);
            if image.name.contains("midreshape") {
                assert!(matches!(decided, Err(AssembleError::Unsupported { .. })), "{decided:?}");
                continue;
            }
            let assembly = decided.unwrap();
            let failed = usize::from(image.name.contains("failed1"));
            assert_eq!((assembly.resynced_bytes, assembly.rejected.len()), (None, failed));
            assert_eq!(assembly.slots.len(), image.members.len());
            let SlotState::Member(first) = &assembly.slots[0] else {
                panic!("{}", image.name);
            };
            assert_eq!(first.data.start, 0);
            assert_eq!(first.data.end, image.members[0].context.member_bytes - 65536);
        }
    }
    // A copy is told as long as it is still the same.
    let mut members = Members::of(&images::named("raid5-n4-c64k-v0.90"));
    members.0.push(members.0[2].clone());
    let error = assemble(&members.candidates(), FORCE).unwrap_err();
    assert!(matches!(error, AssembleError::DuplicateDevice { .. }), "{error:?}");
}

fn apply_to(members: &mut Members, taking_part: &[usize], changes: &[Change]) {
    let mut superblocks: Vec<&mut Superblock> = Vec::new();
    for (index, member) in members.0.iter_mut().enumerate() {
        if taking_part.contains(&index) {
            superblocks.extend(member.2.as_mut().ok());
        }
    }
    apply(&mut superblocks, changes, MdTime(1_800_000_000)).unwrap();
}

/// What would be read back after writing.
fn again(members: &mut Members, context: Context) {
    for member in &mut members.0 {
        let area = member.2.as_ref().unwrap().encode();
        member.2 = decode(&area[..], context);
        assert!(member.2.as_ref().unwrap().encode() == area);
    }
}

/// Dirty, failed, a resync position, clean: said in the words of 0.90 and understood again.
#[test]
fn life() {
    let image = images::named("raid5-n4-c64k-v0.90");
    let context = image.members[0].context;
    let mut members = Members::of(&image);
    let all = [0, 1, 2, 3];
    apply_to(&mut members, &all, &[Change::MarkDirty]);
    again(&mut members, context);
    assert_eq!(members.superblock(2).resync_offset_sectors, 0);
    let position = Change::MarkClean { resynced_bytes: Some(65536) };
    apply_to(&mut members, &all, &[position]);
    again(&mut members, context);
    assert_eq!(members.superblock(2).resync_offset_sectors, 128);
    apply_to(&mut members, &[0, 2, 3], &[Change::Fail { dev_number: 1 }, Change::MarkDirty]);
    again(&mut members, context);
    let area = members.superblock(0).encode();
    let counts: Vec<u32> =
        [9, 34, 35, 36, 37].iter().map(|&index| word(&area[..], index)).collect();
    assert_eq!(counts, [3, 3, 3, 1, 0]);
    apply_to(&mut members, &[0, 2, 3], &[Change::MarkClean { resynced_bytes: None }]);
    again(&mut members, context);
    let assembly = assemble(&members.candidates(), READ_WRITE).unwrap();
    assert_eq!((assembly.rejected.len(), assembly.rejected[0].member), (1, 1));
    assert_eq!((assembly.resynced_bytes, assembly.events), (None, 18 + 4));
}

/// A spare joins, is recovered (listed as a spare all the while), and gets the number of its slot.
#[test]
fn recovery() {
    let image = images::named("raid5-n4-c64k-v0.90");
    let context = image.members[0].context;
    let mut members = Members::of(&image);
    let peer = members.superblock(0).clone();
    let spare = plan_spare(&peer, 4, MdUuid::default(), context.member_bytes).unwrap();
    members.0.push(("spare".into(), context.member_bytes, Ok(spare)));
    let taking_part = [0, 2, 3, 4];
    let add = Change::SetRole { dev_number: 4, role: Role::Spare };
    apply_to(&mut members, &taking_part, &[Change::Fail { dev_number: 1 }, add]);
    again(&mut members, context);
    assert_eq!(word(&members.superblock(0).encode()[..], 37), 1);
    let start = [
        Change::SetRole { dev_number: 4, role: Role::Active(1) },
        Change::Recovered { dev_number: 4, recovered_bytes: Some(4096) },
    ];
    apply_to(&mut members, &taking_part, &start);
    // A crash here: it starts again as a spare.
    let mut crashed = Members(members.0.clone());
    again(&mut crashed, context);
    let assembly = assemble(&crashed.candidates(), READ_WRITE).unwrap();
    assert_eq!(assembly.spares, [4]);
    let end = [Change::Recovered { dev_number: 4, recovered_bytes: None }];
    apply_to(&mut members, &taking_part, &end);
    assert_eq!(members.superblock(4).dev_number, 1);
    again(&mut members, context);
    let assembly = assemble(&members.candidates(), READ_WRITE).unwrap();
    assert_eq!((assembly.spares.len(), assembly.rejected[0].member), (0, 1));
    assert_eq!(members.superblock(4).role(), Role::Active(1));
    let area = members.superblock(0).encode();
    let counts: Vec<u32> =
        [9, 34, 35, 36, 37].iter().map(|&index| word(&area[..], index)).collect();
    assert_eq!(counts, [4, 4, 4, 0, 0]);
}

/// A superblock of a big-endian machine says the same, and is written back in its order.
#[test]
fn big_endian() {
    let image = images::named("raid5-n3to4-midreshape-v0.90");
    let context = image.members[0].context;
    let ours = image.members[0].decode().unwrap();
    let mut area = image.members[0].area.clone();
    area.as_chunks_mut::<4>().0.iter_mut().for_each(|word| word.reverse());
    for low in [39, 41, 44] {
        let [first, second] = [low * 4, low * 4 + 4];
        for byte in 0..4 {
            area.swap(first + byte, second + byte);
        }
    }
    let mut theirs = decode(&area, context).unwrap();
    assert!(theirs.encode()[..] == area[..]);
    assert_eq!(theirs.array_uuid, ours.array_uuid);
    assert_eq!(theirs.array_uuid_bytes(), theirs.array_uuid.0);
    assert_ne!(ours.array_uuid_bytes(), ours.array_uuid.0);
    assert_eq!((theirs.events, theirs.reshape), (ours.events, ours.reshape));
    theirs.events = (7 << 32) + 5;
    let again = decode(&theirs.encode()[..], context).unwrap();
    assert_eq!(again.events, (7 << 32) + 5);
}

/// New arrays: as mdadm made them, but for what the running array and the host's name have changed.
#[test]
fn created() {
    for image in images::all_old().iter().filter(|image| image.name.contains("-c64k-")) {
        let originals: Vec<Superblock> =
            image.members.iter().map(|member| member.decode().unwrap()).collect();
        let first = &originals[0];
        let wishes = CreateOptions {
            minor: Minor::V0_90,
            level: first.level,
            layout: first.layout,
            chunk_bytes: u64::from(first.chunk_sectors) * 512,
            slot_count: first.slot_count as usize,
            array_uuid: first.array_uuid,
            time: first.created,
            initial: raid_core::md::create::Initial::AssumeClean,
            ..options()
        };
        let sizes = vec![image.members[0].context.member_bytes; originals.len()];
        let made = plan(&wishes, &members(&sizes, originals.len())).unwrap();
        for (made, original) in made.superblocks.iter().zip(&originals) {
            let (ours, theirs) = (made.encode(), original.encode());
            for index in 0..1024 {
                // Update time, checksum, events, the preferred minor number, device numbers.
                let is_changed = matches!(index, 32 | 38..=43 | 11)
                    || index >= 128 && matches!(index % 32, 1 | 2);
                if !is_changed {
                    let (ours, theirs) = (word(&ours[..], index), word(&theirs[..], index));
                    assert_eq!(ours, theirs, "{} word {index}", image.name);
                }
            }
        }
    }
    let old = CreateOptions { minor: Minor::V0_90, ..options() };
    let error = |wishes: &CreateOptions<'_>, count| {
        plan(wishes, &members(&vec![8 << 20; count], wishes.slot_count)).unwrap_err()
    };
    assert_eq!(
        error(&CreateOptions { level: 0, layout: 1, ..old.clone() }, 3),
        CreateError::OldRaid0
    );
    let many = CreateOptions { slot_count: 27, ..old.clone() };
    assert!(plan(&many, &members(&[8 << 20; 27], 27)).is_ok());
    assert!(matches!(error(&many, 28), CreateError::Superblock(SuperblockError::SlotCount { .. })));
    // Beyond 4 TiB nothing is used, and small members are refused.
    let made = plan(&old, &members(&[6 << 40; 3], 3)).unwrap();
    assert!(made.component_bytes <= 4 << 40, "{}", made.component_bytes);
    for step in 0..64 {
        let size = 4096 * step;
        if let Ok(made) = plan(&old, &members(&[size; 3], 3)) {
            let context = Context { minor: Minor::V0_90, member_bytes: size };
            decode(&made.superblocks[0].encode()[..], context).unwrap();
        }
    }
}

fn try_area(member: &MemberArea, area: &[u8]) -> Result<Superblock, SuperblockError> {
    let result = decode(area, member.context);
    if let Ok(superblock) = &result {
        assert!(superblock.encode()[..] == area[..], "encode changes bytes");
        assert!(superblock.data_bytes().end <= member.context.member_bytes);
        assert!(superblock.component_bytes() <= member.context.member_bytes);
        let mut next = superblock.clone();
        apply(&mut [&mut next], &[Change::MarkDirty], MdTime(1)).unwrap();
        if next.events <= 1 << 62 {
            assert!(decode(&next.encode()[..], member.context).unwrap() == next);
        }
    }
    raid_core::md::fuzz::fuzz_superblock(area);
    result
}

/// Every word at the ends of its range, and every bit flipped: an error or a safe value.
#[test]
fn malformed() {
    let mut noise = images::Noise(2);
    for name in ["raid5-n4-c64k-v0.90", "raid5-n3to4-midreshape-v0.90"] {
        let member = &images::named(name).members[0];
        for index in 0..1024 {
            let word = word(&member.area, index);
            let bits = (0..32).map(|bit| word ^ 1 << bit);
            let values = [0, 1, 2, 26, 27, 28, 255, 1 << 31, (1 << 31) - 1, u32::MAX - 1, u32::MAX];
            // The descriptors are all alike, and the reserved words too.
            let is_one_of_many = (192..992).contains(&index) || index % 32 > 8 && index >= 68;
            let values = values.into_iter().chain(noise.some::<u32, 4>());
            for value in values.chain(bits.filter(|_| !is_one_of_many)) {
                let mut area = member.area.clone();
                set_word(&mut area, index, value);
                // A folded sum does not tell 0 from all ones.
                let is_same_sum = matches!((word, value), (0, u32::MAX) | (u32::MAX, 0));
                if area != member.area && index != 38 && index != 0 && !is_same_sum {
                    let error = decode(&area, member.context).unwrap_err();
                    let is_expected = matches!(
                        error,
                        SuperblockError::Checksum { .. } | SuperblockError::OldVersion { .. }
                    );
                    assert!(is_expected, "{error:?}");
                }
                fix_checksum(&mut area);
                let _ = try_area(member, &area);
            }
        }
    }
}

/// Named refusals.
#[test]
fn known_traps() {
    type Case = (usize, u32, fn(&SuperblockError) -> bool);
    let cases: [Case; 14] = [
        (0, 0, |e| matches!(e, SuperblockError::Magic { magic: 0 })),
        (1, 1, |e| matches!(e, SuperblockError::OldVersion { major: 1, minor: 90 })),
        (2, 92, |e| matches!(e, SuperblockError::OldVersion { major: 0, minor: 92 })),
        (7, 7, |e| matches!(e, SuperblockError::Level { level: 7 })),
        (8, 0, |e| matches!(e, SuperblockError::Size { size_sectors: 0, .. })),
        (8, 4033, |e| matches!(e, SuperblockError::SizeOverData { .. })),
        (10, 28, |e| matches!(e, SuperblockError::SlotCount { slot_count: 28, .. })),
        (10, u32::MAX, |e| matches!(e, SuperblockError::SlotCount { .. })),
        (10, 3, |e| matches!(e, SuperblockError::Role { dev_number: 3, role: 3, .. })),
        (64, 6, |e| matches!(e, SuperblockError::Layout { layout: 6, .. })),
        (65, 65537, |e| matches!(e, SuperblockError::Chunk { .. })),
        (65, 0, |e| matches!(e, SuperblockError::Chunk { chunk_sectors: 0 })),
        (992, 27, |e| matches!(e, SuperblockError::DevNumber { dev_number: 27, max_dev: 27 })),
        (131, 0x1_0000, |e| matches!(e, SuperblockError::Role { role: 0xff00, .. })),
    ];
    let member = &images::named("raid5-n4-c64k-v0.90").members[0];
    for (index, value, is_expected) in cases {
        let mut area = member.area.clone();
        set_word(&mut area, index, value);
        fix_checksum(&mut area);
        let error = decode(&area, member.context).unwrap_err();
        assert!(is_expected(&error), "{index} {value}: {error:?}");
    }
    // Words that md writes as zero: a newer format.
    for index in [16, 31, 50, 63, 68, 127] {
        let mut area = member.area.clone();
        set_word(&mut area, index, 1);
        fix_checksum(&mut area);
        let superblock = try_area(member, &area).unwrap();
        assert!(superblock.write_obstacle().is_some(), "{index}");
    }
    assert_eq!(AREA_BYTES, 4096);
    assert_eq!(ALL_SECTORS, u64::MAX);
    // The bitmap bit and its fixed place.
    let mut area = member.area.clone();
    let state = word(&area, 33) | 1 << 8;
    set_word(&mut area, 33, state);
    fix_checksum(&mut area);
    let superblock = try_area(member, &area).unwrap();
    assert!(superblock.features.has(Features::BITMAP));
    let start = member.context.member_bytes - 65536 + 4096;
    assert_eq!(superblock.bitmap_room(member.context.member_bytes), Some(start..start + 61440));
}
