//! The rules for the values of a superblock, and for its areas against each other and the member.

use core::ops::Range;

use super::raw::HEAD_BYTES;
use super::{
    ALL_SECTORS, AREA_BYTES, Features, LogArea, Minor, OLD_BITMAP_SECTORS, Role, SLOT_COUNT_MAX,
};
use super::{Superblock, SuperblockError};
use crate::layout::{Layout, Level};
use crate::md::SECTOR_BYTES;

/// Least chunk size, in sectors: 4 KiB, md's page.
const CHUNK_SECTORS_MIN: u32 = 8;
/// Greatest chunk size, in sectors: 1 GiB.
const CHUNK_SECTORS_MAX: u32 = 1 << 21;
/// Greatest unit of the bad-block log, as a shift: 2 MiB. md itself writes 0.
const BAD_BLOCK_SHIFT_MAX: u8 = 12;

/// Greatest event count: no array reaches it, and one more is still a number.
pub const EVENTS_MAX: u64 = 1 << 62;

/// Checks all fields, then the areas; the checksum has been checked before.
pub(super) fn check(superblock: &Superblock, member_sectors: u64) -> Result<(), SuperblockError> {
    check_features(superblock)?;
    let events = superblock.events;
    if events > EVENTS_MAX {
        return Err(SuperblockError::Events { events, max: EVENTS_MAX });
    }
    let bytes = superblock.logical_block_bytes;
    if bytes != 0 && !(bytes.is_power_of_two() && (512..=65536).contains(&bytes)) {
        return Err(SuperblockError::LogicalBlock { bytes });
    }
    check_slots(superblock)?;
    check_layout(superblock.level, superblock.layout, superblock.slot_count, superblock.features)?;
    check_chunk(superblock.level, superblock.chunk_sectors)?;
    check_roles(superblock)?;
    if superblock.features.has(Features::RESHAPE) {
        check_reshape(superblock)?;
    }
    check_sizes(superblock, member_sectors)?;
    check_areas(superblock, member_sectors)
}

fn check_features(superblock: &Superblock) -> Result<(), SuperblockError> {
    let excluding = [
        (Features::PPL, "ppl", Features::MULTIPLE_PPLS, "multiple-ppls"),
        (Features::PPL, "ppl", Features::BITMAP, "bitmap"),
        (Features::PPL, "ppl", Features::JOURNAL, "journal"),
        (Features::MULTIPLE_PPLS, "multiple-ppls", Features::BITMAP, "bitmap"),
        (Features::MULTIPLE_PPLS, "multiple-ppls", Features::JOURNAL, "journal"),
    ];
    for (a, first, b, second) in excluding {
        if superblock.features.has(a) && superblock.features.has(b) {
            return Err(SuperblockError::Features { first, second });
        }
    }
    Ok(())
}

fn slot_count_min(level: i32) -> Result<u32, SuperblockError> {
    let known = Level::from_md(level).map_err(|_| SuperblockError::Level { level })?;
    Ok(known.slot_count_min() as u32)
}

/// Checks level, slot count, layout and chunk size against each other, for an array to be made.
pub(in crate::md) fn check_shape(
    level: i32,
    layout: u32,
    slot_count: u32,
    chunk_sectors: u32,
) -> Result<(), SuperblockError> {
    let (min, max) = (slot_count_min(level)?, SLOT_COUNT_MAX as u32);
    if !(min..=max).contains(&slot_count) {
        return Err(SuperblockError::SlotCount { slot_count, min, max });
    }
    check_layout(level, layout, slot_count, Features(Features::RAID0_LAYOUT))?;
    check_chunk(level, chunk_sectors)
}

fn check_slots(superblock: &Superblock) -> Result<(), SuperblockError> {
    let (slot_count, max) = (superblock.slot_count, SLOT_COUNT_MAX as u32);
    let min = slot_count_min(superblock.level)?;
    if !(min..=max).contains(&slot_count) {
        return Err(SuperblockError::SlotCount { slot_count, min, max });
    }
    Ok(())
}

/// Checks that `layout` belongs to `level`. Levels 1, 4 and linear have no layout: md ignores the
/// field.
fn check_layout(
    level: i32,
    layout: u32,
    slot_count: u32,
    features: Features,
) -> Result<(), SuperblockError> {
    let is_valid = match Level::from_md(level) {
        Err(_) => false,
        // Without the feature bit the field means nothing (arrays from before Linux 5.4).
        Ok(Level::Raid0) if !features.has(Features::RAID0_LAYOUT) => true,
        Ok(Level::Raid0) => matches!(layout, 1 | 2),
        Ok(level) => match Layout::from_md(level, layout) {
            Err(_) => false,
            Ok(Layout::Raid10(layout)) => (2..=slot_count as usize).contains(&layout.copy_count()),
            Ok(_) => true,
        },
    };
    if is_valid { Ok(()) } else { Err(SuperblockError::Layout { level, layout, slot_count }) }
}

fn check_chunk(level: i32, chunk_sectors: u32) -> Result<(), SuperblockError> {
    let is_valid = match level {
        // No chunks; mirrors have 0, linear its old rounding.
        -1 | 1 => chunk_sectors <= CHUNK_SECTORS_MAX,
        // md stripes without parity over any multiple of a page.
        0 => {
            chunk_sectors.is_multiple_of(CHUNK_SECTORS_MIN)
                && (CHUNK_SECTORS_MIN..=CHUNK_SECTORS_MAX).contains(&chunk_sectors)
        }
        _ => {
            chunk_sectors.is_power_of_two()
                && (CHUNK_SECTORS_MIN..=CHUNK_SECTORS_MAX).contains(&chunk_sectors)
        }
    };
    if is_valid { Ok(()) } else { Err(SuperblockError::Chunk { chunk_sectors }) }
}

fn check_roles(superblock: &Superblock) -> Result<(), SuperblockError> {
    let max_dev = superblock.roles.len() as u32;
    if superblock.dev_number >= max_dev {
        return Err(SuperblockError::DevNumber { dev_number: superblock.dev_number, max_dev });
    }
    // While slots are being removed the larger, old count still has members.
    let delta =
        if superblock.features.has(Features::RESHAPE) { superblock.reshape.delta_slots } else { 0 };
    let before = superblock.slot_count.saturating_add_signed(delta.saturating_neg());
    let slot_count = superblock.slot_count.max(before).min(SLOT_COUNT_MAX as u32);
    let mut counts = [0_u32; SLOT_COUNT_MAX];
    for (dev_number, role) in (0_u32..).zip(superblock.roles()) {
        let Role::Active(slot) = role else { continue };
        let count = counts.get_mut(usize::from(slot)).filter(|_| u32::from(slot) < slot_count);
        let Some(count) = count else {
            return Err(SuperblockError::Role { dev_number, role: slot, slot_count });
        };
        *count += 1;
        // Two while a replacement is being filled.
        if *count > 2 {
            return Err(SuperblockError::DuplicateRole { slot, count: *count });
        }
    }
    Ok(())
}

fn check_reshape(superblock: &Superblock) -> Result<(), SuperblockError> {
    let reshape = &superblock.reshape;
    let error = |field, value| Err(SuperblockError::Reshape { field, value });
    let before = i64::from(superblock.slot_count) - i64::from(reshape.delta_slots);
    if !(1..=SLOT_COUNT_MAX as i64).contains(&before) {
        return error("delta_disks", reshape.delta_slots.into());
    }
    if slot_count_min(reshape.new_level).is_err() {
        return error("new_level", reshape.new_level.into());
    }
    let slot_count = superblock.slot_count;
    if check_layout(reshape.new_level, reshape.new_layout, slot_count, superblock.features).is_err()
    {
        return error("new_layout", reshape.new_layout.into());
    }
    if check_chunk(reshape.new_level, reshape.new_chunk_sectors).is_err() {
        return error("new_chunk", reshape.new_chunk_sectors.into());
    }
    Ok(())
}

fn check_sizes(superblock: &Superblock, member_sectors: u64) -> Result<(), SuperblockError> {
    let Superblock { level, size_sectors, data_size_sectors, data_offset_sectors, .. } =
        *superblock;
    // Levels without redundancy use each member's own data size.
    if level > 0 && size_sectors == 0 {
        return Err(SuperblockError::Size { size_sectors, level });
    }
    let end_sectors = data_offset_sectors.saturating_add(data_size_sectors);
    if end_sectors > member_sectors {
        return Err(SuperblockError::MemberShort { end_sectors, member_sectors });
    }
    // A journal holds no slot's data, so the array's size does not concern it.
    if size_sectors > data_size_sectors && superblock.role() != Role::Journal {
        return Err(SuperblockError::SizeOverData { size_sectors, data_size_sectors });
    }
    let recovery_offset_sectors = superblock.recovery_offset_sectors;
    if superblock.features.has(Features::RECOVERY_OFFSET)
        && recovery_offset_sectors > data_size_sectors
        && recovery_offset_sectors != ALL_SECTORS
    {
        return Err(SuperblockError::RecoveryOffset { recovery_offset_sectors, data_size_sectors });
    }
    if superblock.bad_block_log.size_sectors > 0 && superblock.bad_block_shift > BAD_BLOCK_SHIFT_MAX
    {
        return Err(SuperblockError::BadBlockShift {
            shift: superblock.bad_block_shift,
            max: BAD_BLOCK_SHIFT_MAX,
        });
    }
    Ok(())
}

/// One area of a member, in sectors. `i128` holds every sum of the fields without a thought.
#[derive(Clone, Copy)]
struct Area {
    name: &'static str,
    start: i128,
    size: u64,
}

impl Area {
    fn end(&self) -> i128 {
        self.start + i128::from(self.size)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.size > 0 && other.size > 0 && self.start < other.end() && other.start < self.end()
    }
}

/// The areas of a member, the superblock first; absent ones are empty.
fn areas(superblock: &Superblock) -> [Area; 5] {
    let start = i128::from(superblock.super_offset_sectors);
    let relative = |name, area: LogArea| Area {
        name,
        start: start + i128::from(area.offset_sectors),
        size: area.size_sectors.into(),
    };
    // Only its own header tells how long a bitmap is; it has at least that one.
    let bitmap = superblock.bitmap().map(|area| LogArea { size_sectors: 1, ..area });
    [
        // What the kernel writes of it: 512-byte sectors up to the last role.
        Area {
            name: "superblock",
            start,
            size: match superblock.minor {
                Minor::V0_90 => AREA_BYTES as u64 / SECTOR_BYTES,
                _ => {
                    (HEAD_BYTES + 2 * superblock.roles.len()).div_ceil(SECTOR_BYTES as usize) as u64
                }
            },
        },
        Area {
            name: "data",
            start: superblock.data_offset_sectors.into(),
            size: superblock.data_size_sectors,
        },
        relative("bad-block log", superblock.bad_block_log),
        relative("bitmap", bitmap.unwrap_or_default()),
        relative("partial parity log", superblock.ppl().unwrap_or_default()),
    ]
}

fn check_areas(superblock: &Superblock, member_sectors: u64) -> Result<(), SuperblockError> {
    let areas = areas(superblock);
    for (index, first) in areas.iter().enumerate() {
        let is_inside = first.start >= 0 && first.end() <= i128::from(member_sectors);
        if first.size > 0 && !is_inside {
            return Err(SuperblockError::Outside {
                area: first.name,
                start_sectors: first.start,
                size_sectors: first.size,
                member_sectors,
            });
        }
        for second in &areas[index + 1..] {
            if first.overlaps(second) {
                return Err(SuperblockError::Overlap { first: first.name, second: second.name });
            }
        }
    }
    Ok(())
}

/// Why a superblock must never be written by this code, though it can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteObstacle {
    /// Feature bits that have no meaning for this code.
    #[error("it uses unknown features: 0x{bits:x}")]
    UnknownFeatures {
        /// Those bits.
        bits: u32,
    },
    /// Reserved bytes that are not zero: a field of a newer format.
    #[error("reserved bytes of the superblock are not zero, so a newer format is in use")]
    ReservedBytes,
    /// Something else lies in the 4 KiB of the superblock area.
    #[error("the {area} lies inside the 4 KiB of the superblock area")]
    Shared {
        /// What.
        area: &'static str,
    },
}

impl Superblock {
    /// Why this superblock must not be written back, if so; reading the array is fine.
    #[must_use]
    pub fn write_obstacle(&self) -> Option<WriteObstacle> {
        if self.features.unknown() != 0 {
            return Some(WriteObstacle::UnknownFeatures { bits: self.features.unknown() });
        }
        if self.has_reserved_bytes() {
            return Some(WriteObstacle::ReservedBytes);
        }
        let [superblock, others @ ..] = areas(self);
        // Old md tools put a bitmap 1 KiB behind the superblock.
        let whole = Area { size: AREA_BYTES as u64 / SECTOR_BYTES, ..superblock };
        let shared = others.iter().find(|other| other.overlaps(&whole));
        shared.map(|other| WriteObstacle::Shared { area: other.name })
    }

    /// The bytes of a member that its bitmap may take: from where the superblock says to whatever
    /// comes next, or to the end of the member. `None` without a bitmap.
    #[must_use]
    pub fn bitmap_room(&self, member_bytes: u64) -> Option<Range<u64>> {
        let start =
            i128::from(self.super_offset_sectors) + i128::from(self.bitmap()?.offset_sectors);
        let others = areas(self).into_iter().filter(|area| area.size > 0 && area.start > start);
        let end = others
            .map(|area| area.start)
            .min()
            .unwrap_or(i128::MAX)
            .min(i128::from(member_bytes / SECTOR_BYTES));
        let end = match self.minor {
            Minor::V0_90 => end.min(start + i128::from(OLD_BITMAP_SECTORS)),
            _ => end,
        };
        let bytes = |sectors: i128| u64::try_from(sectors).ok()?.checked_mul(SECTOR_BYTES);
        Some(bytes(start)?..bytes(end)?)
    }

    /// Checks a superblock that was made here by the same rules as one that was read.
    pub(in crate::md) fn check(&self, member_bytes: u64) -> Result<(), SuperblockError> {
        check(self, member_bytes / SECTOR_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use crate::md::superblock::Minor;

    /// The place of each minor version, and members too small for it.
    #[test]
    fn places() {
        assert_eq!(Minor::V1_2.super_offset_bytes(8192), Some(4096));
        assert_eq!(Minor::V1_2.super_offset_bytes(8191), None);
        assert_eq!(Minor::V1_1.super_offset_bytes(4096), Some(0));
        // mdadm: 4 MiB member, 8176 sectors.
        assert_eq!(Minor::V1_0.super_offset_bytes(4 << 20), Some(8176 * 512));
        assert_eq!(Minor::V1_0.super_offset_bytes(8191), None);
        assert_eq!(Minor::V1_0.super_offset_bytes((4 << 20) + 4095), Some(8176 * 512));
        assert_eq!(Minor::V1_0.super_offset_bytes(0), None);
        // mdadm: 3 MiB member, used size 3008 KiB.
        assert_eq!(Minor::V0_90.super_offset_bytes(3 << 20), Some(3008 << 10));
        assert_eq!(Minor::V0_90.super_offset_bytes((3 << 20) + 65535), Some(3008 << 10));
        assert_eq!(Minor::V0_90.super_offset_bytes(65536), Some(0));
        assert_eq!(Minor::V0_90.super_offset_bytes(65535), None);
    }
}
