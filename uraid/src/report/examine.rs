//! One superblock in the words and the frame of `mdadm --examine`.

use std::fmt::Write;
use std::path::Path;

use raid_core::layout::{Layout, Level};
use raid_core::md::Superblock;
use raid_core::md::superblock::{Features, MAGIC, Minor, Role};
use serde::Serialize;

use super::detail::{layout, time};
use crate::size;

/// What is shown of a superblock; also its JSON form.
#[derive(Debug, Serialize)]
pub(crate) struct View {
    path: String,
    member_bytes: u64,
    version: String,
    feature_map: u32,
    features: String,
    array_uuid: String,
    name: String,
    creation_time: u64,
    level: String,
    layout: String,
    chunk_bytes: u64,
    slot_count: u32,
    component_bytes: u64,
    data_offset_bytes: u64,
    data_bytes: u64,
    super_offset_bytes: u64,
    device_uuid: String,
    device_number: u32,
    role: String,
    slot: Option<u16>,
    clean: bool,
    resynced_bytes: Option<u64>,
    recovered_bytes: Option<u64>,
    update_time: u64,
    events: u64,
    checksum: String,
    bitmap_offset_sectors: Option<i32>,
    bad_block_log: Option<BadBlockLog>,
    array_bytes: Option<u64>,
    array_state: String,
}

/// Where the log of unreadable ranges lies, and what it says.
#[derive(Debug, Serialize)]
struct BadBlockLog {
    offset_sectors: i32,
    entry_count_max: u32,
    /// Not empty.
    in_use: bool,
}

impl View {
    /// Picks what to show of `superblock`, found on the member at `path`.
    pub(crate) fn new(path: &Path, superblock: &Superblock, member_bytes: u64) -> Self {
        let data = superblock.data_bytes();
        let (role, slot) = match superblock.role() {
            Role::Active(slot) => (format!("Active device {slot}"), Some(slot)),
            Role::Spare => ("spare".to_owned(), None),
            Role::Journal => ("Journal".to_owned(), None),
            Role::Faulty => ("faulty".to_owned(), None),
        };
        let sectors = |count: u64| count.saturating_mul(512);
        Self {
            path: path.display().to_string(),
            member_bytes,
            version: superblock.minor.to_string(),
            feature_map: superblock.features.0,
            features: superblock.features.to_string(),
            array_uuid: superblock.array_uuid.to_string(),
            name: superblock.name(),
            creation_time: superblock.created.unix_seconds(),
            level: level_name(superblock.level),
            layout: layout_name(superblock.level, superblock.layout),
            chunk_bytes: sectors(superblock.chunk_sectors.into()),
            slot_count: superblock.slot_count,
            component_bytes: sectors(superblock.size_sectors),
            data_offset_bytes: data.start,
            data_bytes: data.end - data.start,
            super_offset_bytes: superblock.super_offset_bytes(),
            device_uuid: superblock.device_uuid.to_string(),
            device_number: superblock.dev_number,
            role,
            slot,
            clean: superblock.is_clean(),
            resynced_bytes: (!superblock.is_clean())
                .then(|| sectors(superblock.resync_offset_sectors)),
            recovered_bytes: superblock.recovered_bytes(),
            update_time: superblock.updated.unix_seconds(),
            events: superblock.events,
            checksum: checksum(superblock),
            bitmap_offset_sectors: superblock.bitmap().map(|bitmap| bitmap.offset_sectors),
            bad_block_log: bad_block_log(superblock),
            array_bytes: array_bytes(superblock),
            array_state: array_state(superblock),
        }
    }
}

/// The checksum as it is stored.
fn checksum(superblock: &Superblock) -> String {
    let area = superblock.encode();
    // Word 38 of version 0.90, in the byte order of its machine.
    let at = if superblock.minor == Minor::V0_90 { 152 } else { 216 };
    let bytes = area.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; 4]);
    let is_big = area[..4] == MAGIC.to_be_bytes();
    let sum = if is_big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) };
    format!("{sum:x}")
}

fn bad_block_log(superblock: &Superblock) -> Option<BadBlockLog> {
    let log = superblock.bad_block_log;
    (log.size_sectors > 0).then(|| BadBlockLog {
        offset_sectors: log.offset_sectors,
        // Eight bytes for each.
        entry_count_max: log.size_sectors * 64,
        in_use: superblock.features.has(Features::BAD_BLOCKS),
    })
}

/// The array's size as far as one superblock tells it; levels that use all of each member do not.
fn array_bytes(superblock: &Superblock) -> Option<u64> {
    let slots = u64::from(superblock.slot_count);
    let (whole, part) = match superblock.level {
        1 => (1, 1),
        4 | 5 => (slots - 1, 1),
        6 => (slots - 2, 1),
        10 => {
            let layout = superblock.layout;
            (slots, u64::from((layout & 0xff) * (layout >> 8 & 0xff)).max(1))
        }
        _ => return None,
    };
    Some((u128::from(superblock.component_bytes()) * u128::from(whole) / u128::from(part)) as u64)
}

fn level_name(number: i32) -> String {
    Level::from_md(number).map_or_else(|_| format!("level {number}"), |level| level.to_string())
}

/// Empty for levels that know one layout only.
fn layout_name(level: i32, number: u32) -> String {
    let layout = Level::from_md(level).and_then(|level| Layout::from_md(level, number));
    match layout {
        Ok(Layout::None) => String::new(),
        Ok(layout) => layout.to_string(),
        Err(_) => format!("unknown ({number})"),
    }
}

/// One letter for each slot: A active, R being replaced, . missing.
fn array_state(superblock: &Superblock) -> String {
    let slots = u16::try_from(superblock.slot_count).unwrap_or(u16::MAX);
    let letter = |slot| match superblock.active_in(slot).count() {
        0 => '.',
        1 => 'A',
        _ => 'R',
    };
    (0..slots).map(letter).collect()
}

/// Renders one member.
pub(crate) fn render(view: &View) -> String {
    let mut text = format!("{}:\n", view.path);
    let is_old = view.version.starts_with("0.");
    line(&mut text, "Magic", &format!("{MAGIC:x}"));
    line(&mut text, "Version", &version(view));
    if is_old {
        line(&mut text, "UUID", &view.array_uuid);
    } else {
        line(&mut text, "Feature Map", &format!("{:#x}", view.feature_map));
        line(&mut text, "Array UUID", &view.array_uuid);
        line(&mut text, "Name", &view.name);
    }
    line(&mut text, "Creation Time", &time(view.creation_time));
    line(&mut text, "Raid Level", &view.level);
    if is_old {
        line(&mut text, "Used Dev Size", &kibibytes(view.component_bytes, ""));
        if let Some(bytes) = view.array_bytes {
            line(&mut text, "Array Size", &kibibytes(bytes, ""));
        }
    }
    line(&mut text, "Raid Devices", &view.slot_count.to_string());
    text.push('\n');
    if !is_old {
        places(&mut text, view);
    }
    state(&mut text, view);
    text.push('\n');
    if !view.layout.is_empty() {
        line(&mut text, "Layout", layout(&view.layout));
    }
    if view.chunk_bytes != 0 {
        line(&mut text, "Chunk Size", &size::short(view.chunk_bytes));
    }
    text.push('\n');
    line(&mut text, "Device Role", &view.role);
    let key = "('A' == active, '.' == missing, 'R' == replacing)";
    line(&mut text, "Array State", &format!("{} {key}", view.array_state));
    text
}

/// Version 0.90 calls itself 0.91 while it is reshaped, so that old kernels leave it alone.
fn version(view: &View) -> String {
    let is_old = view.version.starts_with("0.");
    match view.feature_map & Features::RESHAPE {
        0 if is_old => "0.90.00".to_owned(),
        _ if is_old => "0.91.00".to_owned(),
        _ => view.version.clone(),
    }
}

fn line(text: &mut String, label: &str, value: &str) {
    let _ = writeln!(text, "{label:>15} : {value}");
}

fn sectors(bytes: u64) -> String {
    format!("{} sectors{}", bytes / 512, size::human(bytes))
}

fn kibibytes(bytes: u64, unit: &str) -> String {
    format!("{}{unit}{}", bytes >> 10, size::human(bytes))
}

/// Where things lie on the member.
fn places(text: &mut String, view: &View) {
    line(text, "Avail Dev Size", &sectors(view.data_bytes));
    if let Some(bytes) = view.array_bytes {
        line(text, "Array Size", &kibibytes(bytes, " KiB"));
    }
    if view.array_bytes.is_some() && view.component_bytes != view.data_bytes {
        line(text, "Used Dev Size", &sectors(view.component_bytes));
    }
    line(text, "Data Offset", &format!("{} sectors", view.data_offset_bytes / 512));
    line(text, "Super Offset", &format!("{} sectors", view.super_offset_bytes / 512));
    if let Some(bytes) = view.recovered_bytes {
        line(text, "Recovery Offset", &format!("{} sectors", bytes / 512));
    }
}

fn state(text: &mut String, view: &View) {
    let is_old = view.version.starts_with("0.");
    if !is_old {
        line(text, "State", if view.clean { "clean" } else { "active" });
        if let Some(bytes) = view.resynced_bytes {
            line(text, "Resync Offset", &sectors(bytes));
        }
        line(text, "Device UUID", &view.device_uuid);
        text.push('\n');
    }
    if let Some(offset) = view.bitmap_offset_sectors {
        let place =
            if is_old { "present".to_owned() } else { format!("{offset} sectors from superblock") };
        line(text, "Internal Bitmap", &place);
    }
    line(text, "Update Time", &time(view.update_time));
    if is_old {
        line(text, "State", if view.clean { "clean" } else { "active" });
    }
    if let Some(log) = &view.bad_block_log {
        let BadBlockLog { offset_sectors, entry_count_max, in_use } = log;
        let in_use = if *in_use { " - bad blocks present." } else { "" };
        let place =
            format!("{entry_count_max} entries available at offset {offset_sectors} sectors");
        line(text, "Bad Block Log", &(place + in_use));
    }
    line(text, "Checksum", &format!("{} - correct", view.checksum));
    line(text, "Events", &view.events.to_string());
}
