//! The one constructor of [`Geometry`]: every check, and the sizes with md's rounding.

use super::{
    CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, Geometry, GeometryError, GeometrySpec, Layout, Level, Map,
    ParityLayout, Raid0Layout, Raid10Layout, SECTOR_BYTES, SLOT_COUNT_MAX,
};
use crate::layout::divider::Divider;
use crate::layout::parity::ParityMap;
use crate::layout::raid0::ZoneMap;
use crate::layout::raid10::CopyMap;
use alloc::vec::Vec;

/// A lock unit of the levels without stripes: large enough that a typical request takes one lock,
/// small enough that two requests seldom meet in one.
const UNIT_BYTES_GOAL: u64 = 256 << 10;

impl Geometry {
    /// Checks a shape and prepares its arithmetic.
    ///
    /// # Errors
    /// The first comparison that fails; see [`GeometryError`].
    pub fn new(spec: GeometrySpec<'_>) -> Result<Self, GeometryError> {
        check_slots(&spec)?;
        check_chunk(spec.level, spec.chunk_bytes)?;
        let slot_count = u8::try_from(spec.slot_count)
            .map_err(|_| GeometryError::SlotCountTooLarge { slot_count: spec.slot_count })?;
        match (spec.level, spec.layout) {
            (Level::Linear, _) => Self::new_linear(&spec),
            (Level::Raid0, Layout::Raid0(layout)) => Self::new_raid0(&spec, layout),
            (Level::Raid1, _) => Self::new_raid1(&spec),
            (Level::Raid4, _) => Self::new_parity(&spec, ParityLayout::ParityLast, slot_count),
            (Level::Raid5 | Level::Raid6, Layout::Parity(layout)) => {
                Self::new_parity(&spec, layout, slot_count)
            }
            (Level::Raid10, Layout::Raid10(layout)) => Self::new_raid10(&spec, layout, slot_count),
            (level, layout) => Err(GeometryError::LayoutMismatch { level, layout }),
        }
    }

    fn new_linear(spec: &GeometrySpec<'_>) -> Result<Self, GeometryError> {
        let unit = spec.chunk_bytes.max(SECTOR_BYTES);
        let sizes = rounded_sizes(spec, unit)?;
        let mut end = 0u64;
        let mut ends = Vec::with_capacity(sizes.len());
        for size in &sizes {
            end = end.checked_add(*size).ok_or(GeometryError::ArrayTooLarge)?;
            ends.push(end);
        }
        let component = sizes.into_iter().min().unwrap_or(0);
        Self::finish(spec, Map::Linear(ends.into()), end, component, UNIT_BYTES_GOAL, 0)
    }

    fn new_raid0(spec: &GeometrySpec<'_>, layout: Raid0Layout) -> Result<Self, GeometryError> {
        let sizes = rounded_sizes(spec, spec.chunk_bytes)?;
        // No zone may overflow either, and the zones hold all of the members.
        let total = sizes.iter().try_fold(0u64, |sum, size| sum.checked_add(*size));
        if total.is_none_or(|total| i64::try_from(total).is_err()) {
            return Err(GeometryError::ArrayTooLarge);
        }
        // md cuts bits off where a chunk is no power of two, so such an array ends before its zones
        // do. It is the size that partitions and file systems on the array were made for, hence it
        // is ours (md: `raid0_size`).
        let masked = sizes.iter().map(|size| size & !(spec.chunk_bytes - SECTOR_BYTES));
        let array_bytes = masked.sum();
        let map = ZoneMap::new(layout, spec.chunk_bytes, &sizes);
        let zone_count = map.zone_count();
        if zone_count > 1 && layout == Raid0Layout::Unspecified {
            return Err(GeometryError::Raid0LayoutUnspecified { zone_count });
        }
        let component = sizes.into_iter().min().unwrap_or(0);
        let unit = unit_of_chunks(spec.chunk_bytes);
        Self::finish(spec, Map::Zones(map), array_bytes, component, unit, 0)
    }

    fn new_raid1(spec: &GeometrySpec<'_>) -> Result<Self, GeometryError> {
        let component = least_size(spec, SECTOR_BYTES)?;
        let max_degraded = spec.slot_count - 1;
        Self::finish(spec, Map::Mirror, component, component, UNIT_BYTES_GOAL, max_degraded)
    }

    fn new_parity(
        spec: &GeometrySpec<'_>,
        layout: ParityLayout,
        slot_count: u8,
    ) -> Result<Self, GeometryError> {
        let component = least_size(spec, spec.chunk_bytes)?;
        let parity_count = spec.level.parity_count();
        let data_count = (spec.slot_count - parity_count) as u64;
        let array_bytes = component.checked_mul(data_count).ok_or(GeometryError::ArrayTooLarge)?;
        let map = Map::Parity {
            map: ParityMap::new(layout, slot_count, if parity_count == 2 { 2 } else { 1 }),
            chunk_shift: spec.chunk_bytes.trailing_zeros(),
            data_count: Divider::new(data_count),
            stripe_count: component / spec.chunk_bytes,
        };
        let unit = spec.chunk_bytes * data_count;
        Self::finish(spec, map, array_bytes, component, unit, parity_count)
    }

    fn new_raid10(
        spec: &GeometrySpec<'_>,
        layout: Raid10Layout,
        slot_count: u8,
    ) -> Result<Self, GeometryError> {
        let copy_count = layout.copy_count();
        if copy_count < 2 {
            return Err(GeometryError::NoRedundancy { layout: spec.layout, copy_count });
        }
        if copy_count > spec.slot_count {
            let slot_count = spec.slot_count;
            return Err(GeometryError::TooManyCopies {
                layout: spec.layout,
                copy_count,
                slot_count,
            });
        }
        // Each member is cut into `far` parts, so it holds that many chunks at least.
        let needed = spec.chunk_bytes * u64::from(layout.far);
        let member_bytes = least_size(spec, needed)?;
        let chunk_shift = spec.chunk_bytes.trailing_zeros();
        let overlapping =
            GeometryError::OverlappingCopies { layout: spec.layout, slot_count: spec.slot_count };
        let rows = member_bytes >> chunk_shift;
        let map = CopyMap::new(layout, slot_count, chunk_shift, rows).ok_or(overlapping)?;
        let array_bytes = map.chunk_count().checked_mul(spec.chunk_bytes);
        let array_bytes = array_bytes.ok_or(GeometryError::ArrayTooLarge)?;
        let component = map.used_rows() << chunk_shift;
        let least_copies = map.copy_sets().map(|slots| slots.len()).min().unwrap_or(1);
        let unit = unit_of_chunks(spec.chunk_bytes);
        Self::finish(spec, Map::Copies(map), array_bytes, component, unit, least_copies - 1)
    }

    fn finish(
        spec: &GeometrySpec<'_>,
        map: Map,
        array_bytes: u64,
        component_bytes: u64,
        unit_bytes: u64,
        max_degraded: usize,
    ) -> Result<Self, GeometryError> {
        if i64::try_from(array_bytes).is_err() {
            return Err(GeometryError::ArrayTooLarge);
        }
        let &GeometrySpec { level, layout, slot_count, chunk_bytes, .. } = spec;
        Ok(Self {
            level,
            layout,
            slot_count,
            chunk_bytes,
            array_bytes,
            component_bytes,
            unit_bytes,
            max_degraded,
            map,
        })
    }
}

fn check_slots(spec: &GeometrySpec<'_>) -> Result<(), GeometryError> {
    let &GeometrySpec { level, layout, slot_count, .. } = spec;
    if !layout.fits(level) {
        return Err(GeometryError::LayoutMismatch { level, layout });
    }
    let slot_count_min = level.slot_count_min();
    if slot_count < slot_count_min {
        return Err(GeometryError::SlotCountTooSmall { level, slot_count, slot_count_min });
    }
    if slot_count > SLOT_COUNT_MAX {
        return Err(GeometryError::SlotCountTooLarge { slot_count });
    }
    let size_count = spec.member_data_bytes.len();
    if size_count != slot_count {
        return Err(GeometryError::MemberSizeCount { size_count, slot_count });
    }
    Ok(())
}

fn check_chunk(level: Level, chunk_bytes: u64) -> Result<(), GeometryError> {
    if level == Level::Raid1 {
        return Ok(());
    }
    if chunk_bytes > CHUNK_BYTES_MAX {
        return Err(GeometryError::ChunkTooLarge { chunk_bytes });
    }
    let unit_bytes = if level == Level::Linear { SECTOR_BYTES } else { CHUNK_BYTES_MIN };
    if level != Level::Linear && chunk_bytes < CHUNK_BYTES_MIN {
        return Err(GeometryError::ChunkTooSmall { level, chunk_bytes });
    }
    let may_be_any_multiple = matches!(level, Level::Linear | Level::Raid0);
    if !may_be_any_multiple && !chunk_bytes.is_power_of_two() {
        return Err(GeometryError::ChunkNotPowerOfTwo { level, chunk_bytes });
    }
    if !chunk_bytes.is_multiple_of(unit_bytes) {
        return Err(GeometryError::ChunkNotMultiple { level, chunk_bytes, unit_bytes });
    }
    Ok(())
}

/// Each member's size in whole units; every one holds a unit at least.
fn rounded_sizes(spec: &GeometrySpec<'_>, unit_bytes: u64) -> Result<Vec<u64>, GeometryError> {
    let sizes = spec.member_data_bytes.iter().enumerate().map(|(slot, &member_bytes)| {
        let rounded = member_bytes - member_bytes % unit_bytes;
        if rounded == 0 {
            let needed_bytes = unit_bytes;
            return Err(GeometryError::MemberTooSmall { slot, member_bytes, needed_bytes });
        }
        Ok(rounded)
    });
    sizes.collect()
}

/// The least member in whole chunks (whole sectors on RAID 1); every one holds `needed_bytes` at
/// least.
fn least_size(spec: &GeometrySpec<'_>, needed_bytes: u64) -> Result<u64, GeometryError> {
    let unit = if spec.level == Level::Raid1 { SECTOR_BYTES } else { spec.chunk_bytes };
    let mut least = u64::MAX;
    for (slot, &member_bytes) in spec.member_data_bytes.iter().enumerate() {
        if member_bytes < needed_bytes {
            return Err(GeometryError::MemberTooSmall { slot, member_bytes, needed_bytes });
        }
        least = least.min(member_bytes);
    }
    Ok(least - least % unit)
}

/// The largest multiple of the chunk up to 256 KiB, and a chunk at least.
const fn unit_of_chunks(chunk_bytes: u64) -> u64 {
    let chunks = UNIT_BYTES_GOAL / chunk_bytes;
    chunk_bytes * if chunks == 0 { 1 } else { chunks }
}
