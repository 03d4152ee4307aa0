//! Every line that `mdadm --examine` printed of every golden member, computed from the decoded
//! superblock and compared; and the way back to the same bytes.

use raid_core::geometry::{Geometry, GeometrySpec};
use raid_core::layout::{Layout, Level};
use raid_core::md::superblock::{Features, Minor, Role};
use raid_core::md::{MdTime, MdUuid, Superblock};

use crate::images::{self, MemberArea};

/// `Mon Nov 30 23:19:30 2026`, UTC (days to date: Howard Hinnant's algorithm).
pub(crate) fn date(time: MdTime) -> String {
    let (days, second) = (time.unix_seconds() / 86400, time.unix_seconds() % 86400);
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let months = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let weekdays = "ThuFriSatSunMonTueWed";
    let name = |names: &'static str, index: u64| &names[3 * index as usize..3 * index as usize + 3];
    format!(
        "{} {} {day:2} {:02}:{:02}:{:02} {year}",
        name(weekdays, days % 7),
        name(months, month - 1),
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

fn array_kib(superblock: &Superblock) -> u64 {
    let slots = u64::from(superblock.slot_count);
    let [near, far, ..] = superblock.layout.to_le_bytes();
    let (times, divided) = match superblock.level {
        4 | 5 => (slots - 1, 1),
        6 => (slots - 2, 1),
        10 => (slots, u64::from(near) * u64::from(far)),
        _ => (1, 1),
    };
    superblock.size_sectors * times / divided / 2
}

/// Free space before and after the data, as mdadm counts it for superblocks in front.
fn unused(superblock: &Superblock) -> (u64, u64) {
    let start = superblock.super_offset_sectors as i64;
    let log = superblock.bad_block_log;
    let log_end = start + i64::from(log.offset_sectors) + i64::from(log.size_sectors);
    let ppl = superblock.ppl().unwrap_or_default();
    let ppl_end = start + i64::from(ppl.offset_sectors) + i64::from(ppl.size_sectors);
    // mdadm leaves 36 KiB for superblock and bitmap.
    let first = (start + 72).max(log_end).max(ppl_end);
    let used = match (superblock.size_sectors, superblock.role()) {
        (0, _) | (_, Role::Journal) => superblock.data_size_sectors,
        (size, _) => size,
    };
    (superblock.data_offset_sectors - first as u64, superblock.data_size_sectors - used)
}

/// What mdadm prints behind `key` for this superblock, the sizes in brackets left out.
fn expected(member: &MemberArea, superblock: &Superblock, key: &str) -> String {
    let level = Level::from_md(superblock.level).unwrap();
    let reshape = &superblock.reshape;
    match key {
        "Magic" => "a92b4efc".into(),
        "Version" => superblock.minor.to_string(),
        "Feature Map" => format!("{:#x}", superblock.features.0),
        "Array UUID" => superblock.array_uuid.to_string(),
        "Name" => superblock.name(),
        "Creation Time" => date(superblock.created),
        "Update Time" => date(superblock.updated),
        "Raid Level" => level.to_string(),
        "Raid Devices" => superblock.slot_count.to_string(),
        "Avail Dev Size" => format!("{} sectors", superblock.data_size_sectors),
        "Used Dev Size" => format!("{} sectors", superblock.size_sectors),
        "Array Size" => format!("{} KiB", array_kib(superblock)),
        "Data Offset" => format!("{} sectors", superblock.data_offset_sectors),
        "Super Offset" => format!("{} sectors", superblock.super_offset_sectors),
        "New Offset" => {
            let offset = superblock.data_offset_sectors as i64;
            format!("{} sectors", offset + i64::from(reshape.new_offset_sectors))
        }
        "Recovery Offset" => format!("{} sectors", superblock.recovered_bytes().unwrap() / 512),
        "Unused Space" => {
            let (before, after) = unused(superblock);
            format!("before={before} sectors, after={after} sectors")
        }
        "State" => if superblock.is_clean() { "clean" } else { "active" }.into(),
        "Device UUID" => superblock.device_uuid.to_string(),
        "Flags" => {
            assert_eq!(superblock.device_flags, 1);
            "write-mostly".into()
        }
        "Internal Bitmap" => {
            format!("{} sectors from superblock", superblock.bitmap().unwrap().offset_sectors)
        }
        "PPL" => {
            let ppl = superblock.ppl().unwrap();
            let (size, offset) = (ppl.size_sectors, ppl.offset_sectors);
            format!("{size} sectors at offset {offset} sectors from superblock")
        }
        "Bad Block Log" => {
            let log = superblock.bad_block_log;
            let present = superblock.features.has(Features::BAD_BLOCKS);
            format!(
                "{} entries available at offset {} sectors{}",
                log.size_sectors * 64,
                log.offset_sectors,
                if present { " - bad blocks present." } else { "" }
            )
        }
        // Decoding has compared it; here it only has to be the stored one.
        "Checksum" => {
            let stored = u32::from_le_bytes(*member.area[216..].first_chunk::<4>().unwrap());
            format!("{stored:x} - correct")
        }
        "Events" => superblock.events.to_string(),
        "Layout" => {
            let layout = Layout::from_md(level, superblock.layout_in_use()).unwrap().to_string();
            // mdadm does not tell how far copies are grouped.
            layout.split(", far-sets").next().unwrap().to_owned()
        }
        "Chunk Size" | "Rounding" => format!("{}K", superblock.chunk_sectors / 2),
        "Reshape pos'n" => (reshape.position_sectors / 2).to_string(),
        "Delta Devices" => {
            let before = superblock.slot_count as i32 - reshape.delta_slots;
            format!("{} ({before}->{})", reshape.delta_slots, superblock.slot_count)
        }
        "New Chunksize" => format!("{}K", reshape.new_chunk_sectors / 2),
        "Device Role" => match superblock.role() {
            Role::Active(slot) => format!("Active device {slot}"),
            Role::Journal => "Journal".into(),
            Role::Spare => "spare".into(),
            Role::Faulty => "faulty".into(),
        },
        "Array State" => {
            let letter = |slot| if superblock.active_in(slot).count() == 1 { 'A' } else { '.' };
            let letters: String = (0..superblock.slot_count as u16).map(letter).collect();
            format!("{letters} ('A' == active, '.' == missing, 'R' == replacing)")
        }
        _ => panic!("mdadm prints {key:?}, which this test does not know"),
    }
}

/// Values without what mdadm adds for people: sizes in other units.
fn without_units(value: &str) -> &str {
    match value.find(" (") {
        Some(at) if value.ends_with("B)") => &value[..at],
        _ => value,
    }
}

/// Compares every line that mdadm printed of one member; returns how many there were.
pub(crate) fn check_lines(
    text: &str,
    member: &MemberArea,
    superblock: &Superblock,
    context: &str,
) -> usize {
    let mut count = 0;
    for (key, value) in text.lines().filter_map(|line| line.split_once(" : ")) {
        if (key.trim(), superblock.minor) == ("Unused Space", Minor::V1_0) {
            continue;
        }
        let ours = expected(member, superblock, key.trim());
        assert_eq!(ours, without_units(value.trim()), "{context}: {key}");
        count += 1;
    }
    count
}

#[test]
fn every_line() {
    let mut line_count = 0;
    for image in images::all() {
        let blocks = image.examine.split("### ").skip(1);
        for (block, member) in blocks.zip(&image.members) {
            let context = format!("{} {}", image.name, member.name);
            assert_eq!(block.lines().next(), Some(member.name.as_str()), "{context}");
            if block.contains("No md superblock") {
                member.decode().unwrap_err();
                continue;
            }
            let superblock = member.decode().unwrap_or_else(|error| panic!("{context}: {error}"));
            line_count += check_lines(block, member, &superblock, &context);
        }
    }
    // So that a loader that finds nothing is noticed.
    assert!(line_count > 6000, "{line_count}");
}

/// Decoding and encoding gives the same 4096 bytes, those without meaning included.
#[test]
fn same_bytes() {
    let mut count = 0;
    for image in images::all() {
        for member in &image.members {
            let Ok(superblock) = member.decode() else { continue };
            assert!(superblock.encode()[..] == member.area[..], "{} {}", image.name, member.name);
            assert!(!superblock.has_reserved_bytes(), "{} {}", image.name, member.name);
            assert_eq!(superblock.write_obstacle(), None, "{} {}", image.name, member.name);
            count += 1;
        }
    }
    assert!(count > 300, "{count}");
}

/// A uuid is printed as mdadm prints it and read back from every form that mdadm reads.
#[test]
fn uuids() {
    let superblock = images::named("raid5-n4-c64k-v1.2").members[0].decode().unwrap();
    let text = "62f693b1:8dff9239:f6ab7a70:323bb629";
    assert_eq!(superblock.array_uuid.to_string(), text);
    assert_eq!(superblock.array_uuid.0[..2], [0x62, 0xf6]);
    for text in [text, "62f693b1-8dff-9239-f6ab-7a70323bb629", "62F693B18DFF9239F6AB7A70323BB629"] {
        assert_eq!(text.parse(), Ok(superblock.array_uuid));
    }
    let bad = [
        "",
        "62f693b1",
        "62f693b1:8dff9239:f6ab7a70:323bb6290",
        "62f693b1:8dff9239:f6ab7a70:323bb62x",
    ];
    for text in bad {
        text.parse::<MdUuid>().unwrap_err();
    }
}

/// The size that the kernel settled on is the one that the geometry computes from the data sizes.
#[test]
fn used_sizes() {
    for image in images::all() {
        let superblocks: Vec<_> = image.members.iter().filter_map(|m| m.decode().ok()).collect();
        let first = &superblocks[0];
        if first.size_sectors == 0 || first.features.has(Features::RESHAPE) {
            continue;
        }
        let level = Level::from_md(first.level).unwrap();
        let sizes = vec![first.size_sectors * 512; first.slot_count as usize];
        let geometry = Geometry::new(GeometrySpec {
            level,
            layout: Layout::from_md(level, first.layout_in_use()).unwrap(),
            slot_count: first.slot_count as usize,
            chunk_bytes: u64::from(first.chunk_sectors) * 512,
            member_data_bytes: &sizes,
        });
        assert_eq!(geometry.unwrap().component_bytes(), first.component_bytes(), "{}", image.name);
    }
}
