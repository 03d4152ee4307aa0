//! New arrays: the same numbers as mdadm chose for the golden arrays, its data offsets for members
//! of any size, and refusals with numbers.

use raid_core::md::bitmap::BitmapWishes;
use raid_core::md::create::{
    CreateError, CreateOptions, Initial, NewMember, NewPlace, TAIL_SLACK_BYTES,
    default_data_offset_bytes, plan, plan_spare,
};
use raid_core::md::superblock::{ALL_SECTORS, Features, Minor, Role, decode};
use raid_core::md::{MdTime, MdUuid, Superblock, SuperblockError, assemble};

use crate::assemble::READ_WRITE;
use crate::images::{self, Image, Members};

pub(crate) const TIME: MdTime = MdTime(1_796_080_000);

/// A RAID 5 of three members, to be changed by the tests.
pub(crate) fn options() -> CreateOptions<'static> {
    CreateOptions {
        minor: Minor::V1_2,
        level: 5,
        layout: 2,
        chunk_bytes: 65536,
        slot_count: 3,
        name: "data",
        host: Some("host"),
        array_uuid: MdUuid([0x5a; 16]),
        time: TIME,
        size_bytes: None,
        data_offset_bytes: None,
        initial: Initial::Resync,
        bitmap: None,
    }
}

/// Members of these sizes, one for each slot in order, the rest as spares.
pub(crate) fn members(sizes: &[u64], slot_count: usize) -> Vec<NewMember> {
    let member = |(index, &member_bytes): (usize, &u64)| NewMember {
        member_bytes,
        device_uuid: MdUuid([index as u8 + 1; 16]),
        place: if index < slot_count { NewPlace::Slot(index as u16) } else { NewPlace::Spare },
        device_flags: 0,
    };
    sizes.iter().enumerate().map(member).collect()
}

/// Makes the same array again and compares every superblock, but for what a running array changes.
fn make_again(image: &Image) {
    let originals: Vec<Superblock> =
        image.members.iter().map(|member| member.decode().unwrap()).collect();
    let first = &originals[0];
    let name = first.name();
    let options = CreateOptions {
        minor: first.minor,
        level: first.level,
        layout: first.layout,
        chunk_bytes: u64::from(first.chunk_sectors) * 512,
        slot_count: first.slot_count as usize,
        name: name.trim_start_matches("lab:"),
        host: Some("lab"),
        array_uuid: first.array_uuid,
        time: first.created,
        size_bytes: None,
        data_offset_bytes: None,
        initial: Initial::AssumeClean,
        bitmap: first.bitmap().map(|_| BitmapWishes {
            chunk_bytes: image.bitmap_chunk_bytes(),
            ..BitmapWishes::default()
        }),
    };
    let new =
        |(index, (original, member)): (usize, (&Superblock, &images::MemberArea))| NewMember {
            member_bytes: member.context.member_bytes,
            device_uuid: original.device_uuid,
            place: if index < options.slot_count {
                NewPlace::Slot(index as u16)
            } else {
                NewPlace::Spare
            },
            device_flags: original.device_flags,
        };
    let new: Vec<NewMember> = originals.iter().zip(&image.members).enumerate().map(new).collect();
    let plan = plan(&options, &new).unwrap_or_else(|error| panic!("{}: {error}", image.name));
    for (made, original) in plan.superblocks.iter().zip(&originals) {
        let mut expected = original.clone();
        // What the running array has changed, and what mdadm 4.2 does not write yet for equal
        // members.
        expected.features.0 &= Features::RAID0_LAYOUT | Features::BITMAP;
        expected.features.0 |= if first.level == 0 { Features::RAID0_LAYOUT } else { 0 };
        expected.logical_block_bytes = 0;
        (expected.events, expected.updated) = (0, expected.created);
        (expected.resync_offset_sectors, expected.recovery_offset_sectors) = (ALL_SECTORS, 0);
        let count = originals.len() as u32;
        for number in 0..count {
            expected.set_role(number, made.role_of(number)).unwrap();
        }
        assert!(made.encode() == expected.encode(), "{}:\n{made:#?}\n{expected:#?}", image.name);
    }
}

#[test]
fn as_mdadm_made_them() {
    let mut count = 0;
    for image in images::all() {
        // Other shapes by now, other space in front by wish, or several arrays.
        let others = ["midreshape", "ppl", "dataoffset", "journal", "raid50-2x3", "sets"];
        let is_other = others.iter().any(|word| image.name.contains(word));
        if !is_other && image.members.iter().all(|member| member.decode().is_ok()) {
            make_again(&image);
            count += 1;
        }
    }
    assert!(count > 60, "{count}");
}

/// The data offset by member size and chunk size: mdadm's rule worked out by hand, with the value
/// that is known from disks of a terabyte and more.
#[test]
fn data_offsets() {
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    let cases = [
        (4 * MIB, 64 << 10, MIB),
        (256 * MIB, 64 << 10, MIB),
        // 0.1 % of 4 GiB is 4 MiB, and metadata comes on top.
        (4 * GIB, 64 << 10, 5 * MIB),
        (20 * GIB, 64 << 10, 17 * MIB),
        (100 * GIB, 512 << 10, 65 * MIB),
        (1000 * GIB, 512 << 10, 129 * MIB),
        (8000 * GIB, 512 << 10, 264_192 * 512),
        // Headroom is at least two chunks, and a mirror has none.
        (4 * MIB, 4 * MIB, 9 * MIB),
        (64 * MIB, 0, MIB),
    ];
    for (member_bytes, chunk_bytes, expected) in cases {
        let offset = default_data_offset_bytes(Minor::V1_2, member_bytes, chunk_bytes);
        assert_eq!(offset, expected, "{member_bytes} {chunk_bytes}");
        assert_eq!(default_data_offset_bytes(Minor::V1_0, member_bytes, chunk_bytes), 0);
    }
}

/// Every level and version: what is made passes the reader's checks and assembles, dirty where
/// redundancy has to be made.
#[test]
fn round_trip() {
    let shapes = [(-1, 0), (0, 2), (1, 0), (4, 0), (5, 2), (6, 2), (10, 0x102), (10, 0x1_0201)];
    for (level, layout) in shapes {
        for minor in Minor::VERSION_1 {
            let options = CreateOptions { minor, level, layout, slot_count: 4, ..options() };
            let sizes = [100 << 20, (100 << 20) + 512, 101 << 20, 100 << 20, 300 << 20];
            let new = members(&sizes, 4);
            let plan = plan(&options, &new).unwrap();
            let read = |(made, &member_bytes): (&Superblock, &u64)| {
                let context = raid_core::md::superblock::Context { minor, member_bytes };
                let read = decode(&made.encode()[..], context);
                assert_eq!(read.as_ref(), Ok(made));
                ("member".to_owned(), member_bytes, read)
            };
            let read = Members(plan.superblocks.iter().zip(&sizes).map(read).collect());
            let assembly = assemble(&read.candidates(), READ_WRITE).unwrap();
            assert_eq!(assembly.spares, [4]);
            assert_eq!(assembly.name, "host:data");
            assert_eq!(assembly.resynced_bytes, (level > 0).then_some(0));
            assert_eq!(assembly.component_bytes, plan.component_bytes);
            assert_eq!(assembly.layout, if matches!(level, 0 | 5..) { layout } else { 0 });
        }
    }
}

/// FC-14: a replacement that is 344 sectors shorter fits, one that is 2 MiB shorter is refused with
/// the number; FC-09: a spare that is too small for the peers' data offset gets one of its own.
#[test]
fn replacements_fit() {
    let size = 128 << 20;
    let made = plan(&options(), &members(&[size; 3], 3)).unwrap();
    let peer = &made.superblocks[0];
    assert_eq!(made.component_bytes, size - (1 << 20) - TAIL_SLACK_BYTES);
    let spare = |member_bytes| plan_spare(peer, 3, MdUuid([9; 16]), member_bytes);

    let shorter = spare(size - 344 * 512).unwrap();
    assert_eq!((shorter.data_offset_sectors, shorter.role()), (2048, Role::Spare));
    assert_eq!(shorter.dev_number, 3);
    // Just as large as it must be: superblock, log and the used size.
    let need_bytes = made.component_bytes + 12288;
    let least = spare(need_bytes).unwrap();
    assert_eq!(
        (least.data_offset_sectors, least.data_size_sectors * 512),
        (24, made.component_bytes)
    );
    let error = spare(need_bytes - 512).unwrap_err();
    let member_bytes = need_bytes - 512;
    assert_eq!(error, CreateError::MemberTooSmall { index: 0, member_bytes, need_bytes });
    spare(size - (2 << 20)).unwrap_err();
    for member_bytes in [0, 512, 4096, 8192] {
        spare(member_bytes).unwrap_err();
    }
}

/// Slots may be left out as far as the level bears it; numbers are those of mdadm.
#[test]
fn missing_slots() {
    let mut new = members(&[64 << 20; 4], 3);
    new.remove(1);
    let made = plan(&options(), &new).unwrap();
    let numbers: Vec<_> = made.superblocks.iter().map(|s| (s.dev_number, s.role())).collect();
    assert_eq!(numbers, [(0, Role::Active(0)), (2, Role::Active(2)), (3, Role::Spare)]);
    assert!(made.superblocks.iter().all(Superblock::is_clean));
    new.remove(0);
    let error = plan(&options(), &new).unwrap_err();
    assert_eq!(error, CreateError::TooManyMissing { slots: vec![0, 1], level: 5 });

    // RAID 6: one missing has nothing to start from, two have.
    let six = CreateOptions { level: 6, slot_count: 4, ..options() };
    let mut new = members(&[64 << 20; 4], 4);
    new.remove(2);
    assert_eq!(plan(&six, &new).unwrap_err(), CreateError::OneMissing);
    new.remove(2);
    assert!(plan(&six, &new).unwrap().superblocks[0].is_clean());
}

/// What cannot be made says why, in numbers.
#[test]
fn refusals() {
    let size = 64 << 20;
    let three = members(&[size; 3], 3);
    let try_options = |options: CreateOptions<'_>| plan(&options, &three).unwrap_err();
    assert_eq!(
        try_options(CreateOptions { level: 2, ..options() }),
        CreateError::Level { level: 2 }
    );
    assert_eq!(
        try_options(CreateOptions { chunk_bytes: 3000, ..options() }),
        CreateError::Chunk { chunk_bytes: 3000 }
    );
    for chunk_bytes in [0, 512, 1536 << 10, 2 << 30, 1 << 50] {
        let error = try_options(CreateOptions { chunk_bytes, ..options() });
        assert!(
            matches!(error, CreateError::Superblock(SuperblockError::Chunk { .. })),
            "{error:?}"
        );
    }
    let error = try_options(CreateOptions { layout: 17, ..options() });
    assert!(matches!(error, CreateError::Superblock(SuperblockError::Layout { .. })), "{error:?}");
    for slot_count in [0, 1, 256, usize::MAX] {
        let error = try_options(CreateOptions { slot_count, ..options() });
        let is_count = matches!(error, CreateError::Superblock(SuperblockError::SlotCount { .. }));
        assert!(is_count || matches!(error, CreateError::Slot { .. }), "{error:?}");
    }
    let name = "a name of more than thirty-one bytes";
    assert_eq!(try_options(CreateOptions { name, ..options() }), CreateError::Name { len: 36 });
    assert_eq!(
        try_options(CreateOptions { data_offset_bytes: Some(8192), ..options() }),
        CreateError::DataOffset { data_offset_bytes: 8192, min_bytes: 12288 }
    );
    for size_bytes in [0, 4096, 65537] {
        let error = try_options(CreateOptions { size_bytes: Some(size_bytes), ..options() });
        assert_eq!(error, CreateError::Size { size_bytes, unit_bytes: 65536 });
    }
    assert_eq!(
        try_options(CreateOptions { size_bytes: Some(size), ..options() }),
        CreateError::MemberTooSmall { index: 0, member_bytes: size, need_bytes: size + (1 << 20) }
    );
    let small = members(&[size, 1 << 20, size], 3);
    assert_eq!(
        plan(&options(), &small).unwrap_err(),
        CreateError::MemberTooSmall {
            index: 1,
            member_bytes: 1 << 20,
            need_bytes: (1 << 20) + 65536
        }
    );
    let mut twice = three.clone();
    twice[2].place = NewPlace::Slot(0);
    let error = plan(&options(), &twice).unwrap_err();
    assert_eq!(error, CreateError::Slot { slot: 0, slot_count: 3 });
}

/// Members of every small size, in every version: a refusal or an array that passes the reader's
/// checks.
#[test]
fn any_size() {
    for minor in Minor::VERSION_1 {
        for level in [0, 1, 5] {
            for step in 0..600 {
                let size = 0x1_0000 * (step / 4) + [0, 512, 4095, 4096][step as usize % 4];
                let layout = if level == 0 { 1 } else { 2 };
                let options = CreateOptions { minor, level, layout, ..options() };
                if let Ok(made) = plan(&options, &members(&[size; 3], 3)) {
                    let context = raid_core::md::superblock::Context { minor, member_bytes: size };
                    decode(&made.superblocks[0].encode()[..], context).unwrap();
                }
            }
        }
    }
}
