//! One superblock in the words and the frame of `mdadm --examine`.

use std::fmt::Write;
use std::path::Path;

use raid_core::layout::{Layout, Level};
use raid_core::md::Superblock;
use raid_core::md::superblock::{MAGIC, Role};
use serde::Serialize;

use super::detail::time;
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
    array_state: String,
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
            array_state: array_state(superblock),
        }
    }
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
    let mut line = |label: &str, value: &str| {
        let _ = writeln!(text, "{label:>15} : {value}");
    };
    let sectors = |bytes: u64| format!("{} sectors{}", bytes / 512, size::human(bytes));
    line("Magic", &format!("{MAGIC:x}"));
    line("Version", &view.version);
    line("Feature Map", &format!("{:#x}", view.feature_map));
    line("Array UUID", &view.array_uuid);
    line("Name", &view.name);
    line("Creation Time", &time(view.creation_time));
    line("Raid Level", &view.level);
    line("Raid Devices", &view.slot_count.to_string());
    line("Avail Dev Size", &sectors(view.data_bytes));
    line("Used Dev Size", &sectors(view.component_bytes));
    line("Data Offset", &format!("{} sectors", view.data_offset_bytes / 512));
    line("Super Offset", &format!("{} sectors", view.super_offset_bytes / 512));
    line("State", if view.clean { "clean" } else { "active" });
    if let Some(bytes) = view.resynced_bytes {
        line("Resync Offset", &sectors(bytes));
    }
    if let Some(bytes) = view.recovered_bytes {
        line("Recovery Offset", &sectors(bytes));
    }
    line("Device UUID", &view.device_uuid);
    line("Update Time", &time(view.update_time));
    line("Checksum", "correct");
    line("Events", &view.events.to_string());
    if !view.layout.is_empty() {
        line("Layout", &view.layout);
    }
    if view.chunk_bytes != 0 {
        line("Chunk Size", &size::short(view.chunk_bytes));
    }
    line("Device Role", &view.role);
    let key = "('A' == active, '.' == missing, 'R' == replacing)";
    line("Array State", &format!("{} {key}", view.array_state));
    text
}
