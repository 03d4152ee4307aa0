//! Bitmaps that Linux md wrote: each line of mdadm's, the same bytes again, which one is believed,
//! where the dirty regions are, new ones where mdadm puts them, and bytes that nobody should write.

use raid_core::geometry::{Geometry, GeometrySpec};
use raid_core::layout::{Layout, Level};
use raid_core::md::assemble::{Abilities, AssembleOptions, Consistency};
use raid_core::md::bitmap::{
    BitmapContext, BitmapError, BitmapImage, BitmapWishes, MemberBitmap, believe, can_readd,
};
use raid_core::md::create::{CreateError, CreateOptions, Initial, plan};
use raid_core::md::regions::{sync_bytes, sync_range};
use raid_core::md::superblock::{Minor, decode};
use raid_core::md::{AssembleError, Superblock, assemble, fuzz};

use crate::assemble::READ_WRITE;
use crate::create::{members, options};
use crate::images::{self, Image, Members};

/// A member failed, then a known range of the array was written: each level, each version.
const WRITTEN: [&str; 6] = [
    "raid1-n2-bitmap-failed1-v1.2",
    "raid10-n3-f2-bitmap-failed1-v1.2",
    "raid10-n3-o2-bitmap-failed1-v1.1",
    "raid10-n4-n2-bitmap-failed1-v1.2",
    "raid5-n3-bitmap-failed1-v0.90",
    "raid6-n4-bitmap-failed1-v1.0",
];

const IMAGES: [&str; 7] = [
    "dirty-raid10-n4-bitmap-v1.2",
    "dirty-raid5-n3-bitmap-v1.2",
    "raid1-n2-bitmap-v1.2",
    "raid1-n3-writemostly-v1.2",
    "raid10-n4-bitmap-v1.2",
    "raid5-n4-bitmap-removed1-v1.2",
    "raid5-n4-bitmap-v1.0",
];

pub(crate) fn geometry_of(superblock: &Superblock) -> Geometry {
    let level = Level::from_md(superblock.level).unwrap();
    Geometry::new(GeometrySpec {
        level,
        layout: Layout::from_md(level, superblock.layout_in_use()).unwrap(),
        slot_count: superblock.slot_count as usize,
        chunk_bytes: u64::from(superblock.chunk_sectors) * 512,
        member_data_bytes: &vec![superblock.component_bytes(); superblock.slot_count as usize],
    })
    .unwrap()
}

/// A member's bitmap as it lies there.
fn stored(image: &Image, index: usize) -> (BitmapContext, Vec<u8>) {
    let superblock = image.members[index].decode().unwrap();
    let member_bytes = image.members[index].context.member_bytes;
    let sync_bytes = sync_bytes(&geometry_of(&superblock));
    let context = BitmapContext::new(&superblock, member_bytes, sync_bytes).unwrap();
    let room = superblock.bitmap_room(member_bytes).unwrap();
    (context, image.whole(index)[room.start as usize..room.end as usize].to_vec())
}

fn size(kib: u64) -> String {
    if kib < 4096 { kib.to_string() } else { format!("{kib} (") }
}

fn expected(image: &BitmapImage, uuid: &str, key: &str) -> Option<String> {
    let head = image.head();
    let (count, dirty) = (image.regions().count(), image.regions().dirty_count());
    Some(match key {
        "" => return None,
        "Magic" => "6d746962".into(),
        "Version" => head.version.to_string(),
        "UUID" => uuid.into(),
        "Events" => head.events.to_string(),
        "Events Cleared" => head.events_cleared.to_string(),
        "State" => if head.is_stale() { "Out of date" } else { "OK" }.into(),
        "Chunksize" if head.chunk_bytes < 1 << 20 => format!("{} KB", head.chunk_bytes >> 10),
        "Chunksize" => format!("{} MB", head.chunk_bytes >> 20),
        "Daemon" => format!("{}s flush period", head.daemon_sleep_seconds),
        "Write Mode" if head.write_behind == 0 => "Normal".into(),
        "Write Mode" => format!("Allow write behind, max {}", head.write_behind),
        "Sync Size" => size(head.sync_sectors / 2),
        "Bitmap" => {
            let percent = 100.0 * dirty as f64 / count as f64;
            format!("{count} bits (chunks), {dirty} dirty ({percent:.1}%)")
        }
        _ => panic!("mdadm prints {key:?}, which this test does not know"),
    })
}

#[test]
fn every_line() {
    let mut line_count = 0;
    for name in IMAGES.into_iter().chain(WRITTEN).chain(["raid5-n4-bitmap-v1.2"]) {
        let image = images::named(name);
        let text = image.text("bitmap.txt");
        for (index, block) in text.split("Filename").skip(1).enumerate() {
            let uuid = image.members[index].decode().unwrap().array_uuid.to_string();
            let (context, bytes) = stored(&image, index);
            let bitmap = BitmapImage::decode(&bytes, &context, 512).unwrap();
            for (key, value) in block.lines().filter_map(|line| line.split_once(" : ")) {
                let Some(ours) = expected(&bitmap, &uuid, key.trim()) else { continue };
                assert!(value.trim().starts_with(&ours), "{name} {key}: {value} {ours}");
                line_count += 1;
            }
            assert!(bitmap.bytes() == &bytes[..bitmap.bytes().len()], "{name}");
            assert!(bitmap.head().encode()[..] == bytes[..256], "{name}");
        }
    }
    assert!(line_count > 250, "{line_count}");
}

/// What a region is on each level: the dirty ones are exactly those of the array sectors that were
/// written while a member was away, in sync bytes.
#[test]
fn regions_of_each_level() {
    for name in WRITTEN {
        let image = images::named(name);
        let geometry = geometry_of(&image.members[0].decode().unwrap());
        let written = sync_range(&geometry, 5120 * 512..6144 * 512);
        for index in (0..image.members.len()).filter(|&index| index != 1) {
            let (context, bytes) = stored(&image, index);
            let bitmap = BitmapImage::decode(&bytes, &context, 512).unwrap();
            assert_eq!(
                bitmap.regions().runs().collect::<Vec<_>>(),
                std::slice::from_ref(&written),
                "{name}"
            );
            let left_at = image.members[1].decode().unwrap().events;
            assert!(can_readd(&bitmap, left_at), "{name}");
        }
    }
}

/// The array sectors 6144..12288 were written while a member was away: exactly their regions are
/// dirty on those that stayed, and the member can come back by the bitmap alone.
#[test]
fn regions_of_what_was_written() {
    let image = images::named("raid5-n4-bitmap-removed1-v1.2");
    let geometry = geometry_of(&image.members[0].decode().unwrap());
    let written = sync_range(&geometry, 6144 * 512..12288 * 512);
    for index in [0, 2, 3] {
        let (context, bytes) = stored(&image, index);
        let bitmap = BitmapImage::decode(&bytes, &context, 512).unwrap();
        assert_eq!(bitmap.regions().runs().collect::<Vec<_>>(), std::slice::from_ref(&written));
        assert!(bitmap.is_dirty(written.clone()) && !bitmap.needs_mark(written.clone()));
        assert!(!bitmap.is_dirty(0..written.start));
        let left_at = image.members[1].decode().unwrap().events;
        assert!(can_readd(&bitmap, left_at) && !can_readd(&bitmap, left_at - 1));
    }
    // What differs between the members' data and their parity lies inside the dirty regions only:
    // the member that was away holds older data there, and nowhere else.
    let areas: Vec<Vec<u8>> = (0..4)
        .map(|index| {
            let data = image.members[index].decode().unwrap().data_bytes();
            image.whole(index)[data.start as usize..data.end as usize].to_vec()
        })
        .collect();
    let mut wrong = Vec::new();
    for offset in (0..areas[0].len()).step_by(4096) {
        let is_wrong =
            (offset..offset + 4096).any(|at| areas.iter().fold(0, |sum, area| sum ^ area[at]) != 0);
        if is_wrong {
            wrong.push(offset as u64);
        }
    }
    assert!(!wrong.is_empty());
    assert!(wrong.iter().all(|offset| written.contains(offset)), "{written:?}: {wrong:?}");
}

/// After the power was cut: the array's own bitmaps are believed, and only with somebody who keeps
/// them is it written. In the RAID 10 every region of the *array* has a bit.
#[test]
fn after_a_crash() {
    for name in ["dirty-raid5-n3-bitmap-v1.2", "dirty-raid10-n4-bitmap-v1.2"] {
        let image = images::named(name);
        let candidates = Members::of(&image);
        let error = assemble(&candidates.candidates(), READ_WRITE).unwrap_err();
        assert!(matches!(error, AssembleError::Unsupported { can_read: true, .. }), "{error:?}");
        let options = AssembleOptions { abilities: Abilities::ALL, ..READ_WRITE };
        let assembly = assemble(&candidates.candidates(), options).unwrap();
        assert_eq!((assembly.consistency, assembly.resynced_bytes), (Consistency::Bitmap, Some(0)));
        let bitmaps: Vec<_> = (0..image.members.len())
            .map(|index| {
                let (context, bytes) = stored(&image, index);
                BitmapImage::decode(&bytes, &context, 512)
            })
            .collect();
        let named: Vec<_> = bitmaps
            .iter()
            .map(|bitmap| MemberBitmap { name: "member", bitmap: bitmap.as_ref() })
            .collect();
        let geometry = geometry_of(&image.members[0].decode().unwrap());
        let belief = believe(&named, assembly.events, sync_bytes(&geometry));
        assert_eq!((belief.base, belief.notes.len()), (Some(0), 0), "{name}");
        assert_eq!(belief.dirty.granule_bytes(), 65536);
        assert_eq!(belief.dirty.sync_bytes(), sync_bytes(&geometry));
        // One event later they would be out of date: everything, in one region.
        let belief = believe(&named, assembly.events + 1, sync_bytes(&geometry));
        assert_eq!((belief.base, belief.dirty.count()), (None, 1));
    }
}

/// Every field of the header at the ends of its range, and every bit flipped: an error (everything
/// is dirty) or a bitmap that stays inside its room.
#[test]
fn malformed() {
    let mut noise = images::Noise(3);
    for name in ["raid5-n4-bitmap-removed1-v1.2", "raid5-n4-bitmap-v1.0"] {
        let image = images::named(name);
        let (context, bytes) = stored(&image, 0);
        let check = |bytes: &[u8]| {
            fuzz::fuzz_bitmap(bytes);
            let Ok(bitmap) = BitmapImage::decode(bytes, &context, 512) else { return };
            assert!(bitmap.bytes().len() as u64 <= context.room_bytes);
            assert_eq!(bitmap.regions().sync_bytes(), context.sync_sectors * 512);
            assert!(bitmap.head().encode()[..] == bytes[..256]);
        };
        for offset in 0..256 {
            for width in [1, 2, 4, 8] {
                if offset % width != 0 {
                    continue;
                }
                let max = u64::MAX >> (64 - 8 * width);
                let sign = max / 2;
                let ends = [0, 1, 2, 511, 512, 513, sign, sign + 1, max - 1, max];
                for value in ends.into_iter().chain(noise.some::<u64, 6>()) {
                    let mut bytes = bytes.clone();
                    bytes[offset..offset + width].copy_from_slice(&value.to_le_bytes()[..width]);
                    check(&bytes);
                }
            }
        }
        for bit in 0..(256 + 8) * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            check(&bytes);
        }
        for len in [0, 1, 255, 256] {
            BitmapImage::decode(&bytes[..len], &context, 512).unwrap_err();
            fuzz::fuzz_bitmap(&bytes[..len]);
        }
    }
}

/// The cases that parsers of this format have tripped over, and the exact answer.
#[test]
fn known_traps() {
    type Case = (usize, Vec<u8>, fn(&BitmapError) -> bool);
    let u32 = |value: u32| value.to_le_bytes().to_vec();
    let u64 = |value: u64| value.to_le_bytes().to_vec();
    let cases: Vec<Case> = vec![
        (0, u32(0), |e| matches!(e, BitmapError::Magic { magic: 0 })),
        (4, u32(2), |e| matches!(e, BitmapError::Version { version: 2 })),
        (4, u32(5), |e| matches!(e, BitmapError::Cluster)),
        (68, u32(1), |e| matches!(e, BitmapError::Cluster)),
        (8, u32(0), |e| matches!(e, BitmapError::OtherArray)),
        (24, u64(u64::MAX), |e| matches!(e, BitmapError::Events { .. })),
        (32, u64(25), |e| matches!(e, BitmapError::Events { events: 24, events_cleared: 25 })),
        // R13: sizes of regions that overflow, and so many regions that their bits leave the room.
        (52, u32(0), |e| matches!(e, BitmapError::Chunk { chunk_bytes: 0 })),
        (52, u32(256), |e| matches!(e, BitmapError::Chunk { .. })),
        (52, u32(65537), |e| matches!(e, BitmapError::Chunk { .. })),
        (52, u32(u32::MAX), |e| matches!(e, BitmapError::Chunk { .. })),
        (40, u64(u64::MAX), |e| matches!(e, BitmapError::SyncSize { .. })),
        (40, u64(0), |e| matches!(e, BitmapError::SyncSize { stored: 0, expected: 6144 })),
        (56, u32(0), |e| matches!(e, BitmapError::Field { field: "flush period", .. })),
        (56, u32(u32::MAX), |e| matches!(e, BitmapError::Field { .. })),
        (60, u32(16384), |e| matches!(e, BitmapError::Field { field: "write-behind limit", .. })),
    ];
    let image = images::named("raid5-n4-bitmap-removed1-v1.2");
    let (context, bytes) = stored(&image, 0);
    for (offset, value, is_expected) in cases {
        let mut bytes = bytes.clone();
        bytes[offset..offset + value.len()].copy_from_slice(&value);
        let error = BitmapImage::decode(&bytes, &context, 512).unwrap_err();
        assert!(is_expected(&error), "{offset} {value:x?}: {error:?}");
        assert!(!error.to_string().is_empty());
    }
    // R15: no more than what is kept for it, and not beyond its neighbour.
    let mut reserved = bytes.clone();
    reserved[52..56].copy_from_slice(&512_u32.to_le_bytes());
    reserved[64..68].copy_from_slice(&1_u32.to_le_bytes());
    let error = BitmapImage::decode(&reserved, &context, 512).unwrap_err();
    assert_eq!(error, BitmapError::TooLong { need_bytes: 256 + 768, room_bytes: 512 });
    let narrow = BitmapContext { room_bytes: 261, ..context };
    let error = BitmapImage::decode(&bytes, &narrow, 512).unwrap_err();
    assert_eq!(error, BitmapError::TooLong { need_bytes: 262, room_bytes: 261 });
}

/// New bitmaps of every level and version lie inside their room and are read again; before the
/// first sync everything is dirty.
#[test]
fn created() {
    for minor in Minor::ALL {
        for (level, layout) in [(1, 0), (4, 0), (5, 2), (6, 2), (10, 0x102), (10, 0x201)] {
            for size in [4 << 20, 300 << 20, 3 << 40_u64] {
                for initial in [Initial::Resync, Initial::AssumeClean] {
                    let bitmap = Some(BitmapWishes::default());
                    let wishes = CreateOptions {
                        minor,
                        level,
                        layout,
                        slot_count: 4,
                        initial,
                        bitmap,
                        ..options()
                    };
                    let made = plan(&wishes, &members(&[size; 4], 4)).unwrap();
                    let image = made.bitmap.unwrap();
                    let superblock = &made.superblocks[0];
                    let context = raid_core::md::superblock::Context { minor, member_bytes: size };
                    let again = decode(&superblock.encode()[..], context).unwrap();
                    let sync = sync_bytes(&geometry_of(&again));
                    let context = BitmapContext::new(&again, size, sync).unwrap();
                    let room = again.bitmap_room(size).unwrap();
                    image.place(room.start, room.end - room.start).unwrap();
                    let read = BitmapImage::decode(image.bytes(), &context, 4096).unwrap();
                    assert_eq!(read.regions(), image.regions());
                    assert_eq!(read.regions().is_clean(), initial == Initial::AssumeClean);
                    assert_eq!(superblock.write_obstacle(), None);
                }
            }
        }
    }
    let bitmap = Some(BitmapWishes::default());
    let wishes = CreateOptions { level: 0, layout: 1, bitmap, ..options() };
    let error = plan(&wishes, &members(&[4 << 20; 3], 3)).unwrap_err();
    assert_eq!(error, CreateError::NoBitmap { level: 0 });
}
