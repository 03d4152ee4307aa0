//! Geometry of an array: what its members and its bytes have to do with each other. Immutable, pure arithmetic.
//!
//! ```text
//!   array byte --+-- levels 4, 5, 6: locate() -> stripe, data chunk k --- stripe().data_slot(k) --+
//!                |                                                                                 +-> slot, offset
//!                +-- every level: place(), copy(n) ------------------------------------------------+   on the member
//!   slot, offset on the member --- logical_of() ---> array byte, or parity, or nothing
//! ```
//!
//! Offsets on a member are relative to its data offset. Everything is in bytes.
//!
//! Invariants, from the one constructor on:
//! - every size is a multiple of 512; `array_bytes` is at most `i64::MAX`, so sums of two offsets cannot overflow;
//! - the layout belongs to the level, and the slot count is between the level's least and 255;
//! - the chunk is a power of two where the level is not linear, 0 or 1; on RAID 0 it is a multiple of 4 KiB;
//! - `logical_of(place(x)) == x` for every byte of the array, and no two bytes share a place;
//! - copies of a byte are on places of their own.
//!
//! Not here: data offsets and superblocks ([`crate::md`]), member states, I/O. Tests: `tests/layout.rs` (exhaustive,
//! small), `tests/golden_layout.rs` (arrays made by md).

use crate::layout::divider::Divider;
use crate::layout::parity::ParityMap;
use crate::layout::raid0::ZoneMap;
use crate::layout::raid10::CopyMap;
use crate::slots::SlotSet;
use alloc::boxed::Box;
use alloc::vec::Vec;

pub use crate::layout::parity::{ChunkKind, ParityLayout, Stripe};
pub use crate::layout::{FarSets, Layout, LayoutError, Level, Raid0Layout, Raid10Layout};

/// md's unit, in bytes.
pub const SECTOR_BYTES: u64 = 512;
/// The smallest chunk: a page of the machines md was written for.
pub const CHUNK_BYTES_MIN: u64 = 4096;
/// The largest chunk: md's field holds more, nothing useful does.
pub const CHUNK_BYTES_MAX: u64 = 1 << 30;
/// The most slots of an array: one byte per slot in every table, and 255 means "none" nowhere.
pub const SLOT_COUNT_MAX: usize = 255;

/// A lock unit of the levels without stripes: large enough that a typical request takes one lock, small enough that
/// two requests seldom meet in one.
const UNIT_BYTES_GOAL: u64 = 256 << 10;

/// What a [`Geometry`] is made from.
#[derive(Clone, Copy, Debug)]
pub struct GeometrySpec<'a> {
    /// The level.
    pub level: Level,
    /// The layout; must belong to the level.
    pub layout: Layout,
    /// Members of the complete array.
    pub slot_count: usize,
    /// The chunk size. RAID 1 ignores it; on linear it is md's rounding, and 0 is none.
    pub chunk_bytes: u64,
    /// The usable data size of the member of each slot. RAID 0 and linear use all of each, the others the least.
    pub member_data_bytes: &'a [u64],
}

/// The immutable shape of an array.
///
/// ```
/// use raid_core::geometry::{Geometry, GeometrySpec, Layout, Level, ParityLayout};
/// let geometry = Geometry::new(GeometrySpec {
///     level: Level::Raid5,
///     layout: Layout::Parity(ParityLayout::LeftSymmetric),
///     slot_count: 4,
///     chunk_bytes: 64 << 10,
///     member_data_bytes: &[1 << 30; 4],
/// })?;
/// assert_eq!(geometry.array_bytes(), 3 << 30);
/// let stripe = geometry.stripe(1);
/// assert_eq!((stripe.p, stripe.data_slot(0)), (Some(2), 3));
/// # Ok::<(), raid_core::geometry::GeometryError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    level: Level,
    layout: Layout,
    slot_count: usize,
    chunk_bytes: u64,
    array_bytes: u64,
    component_bytes: u64,
    unit_bytes: u64,
    max_degraded: usize,
    map: Map,
}

/// The arithmetic of a level.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Map {
    /// Where each member ends in the array.
    Linear(Box<[u64]>),
    Zones(ZoneMap),
    Mirror,
    Parity {
        map: ParityMap,
        chunk_shift: u32,
        data_count: Divider,
        stripe_count: u64,
    },
    Copies(CopyMap),
}

/// Where a byte is, and how many bytes from there on lie side by side both in the array and on the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The slot.
    pub slot: usize,
    /// Offset from the member's data offset.
    pub member_offset: u64,
    /// Bytes to the end of the chunk (of the member, where the level has no chunks); at least 1.
    pub contiguous_bytes: u64,
}

/// What byte of the array is at some place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logical {
    /// Offset in the array.
    pub offset: u64,
    /// Which copy of it; 0 where there is one only.
    pub copy: usize,
}

/// Where a byte of a parity array is, in terms of stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The index of the stripe.
    pub stripe: u64,
    /// The data chunk in the stripe.
    pub data: usize,
    /// Offset inside the chunk.
    pub chunk_offset: u64,
}

/// Why a shape is refused. Each says the comparison that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// The array would be larger than an offset can say.
    #[error("array size > {} bytes", i64::MAX)]
    ArrayTooLarge,
    /// The chunk is not a multiple of the unit that the level needs.
    #[error("{level}: chunk size {chunk_bytes} is not a multiple of {unit_bytes}")]
    ChunkNotMultiple {
        /// The level.
        level: Level,
        /// The chunk size asked for.
        chunk_bytes: u64,
        /// What it must be a multiple of.
        unit_bytes: u64,
    },
    /// The level needs a power of two.
    #[error("{level}: chunk size {chunk_bytes} is not a power of two")]
    ChunkNotPowerOfTwo {
        /// The level.
        level: Level,
        /// The chunk size asked for.
        chunk_bytes: u64,
    },
    /// The chunk is too large.
    #[error("chunk size {chunk_bytes} > {CHUNK_BYTES_MAX}")]
    ChunkTooLarge {
        /// The chunk size asked for.
        chunk_bytes: u64,
    },
    /// The chunk is too small.
    #[error("{level}: chunk size {chunk_bytes} < {CHUNK_BYTES_MIN}")]
    ChunkTooSmall {
        /// The level.
        level: Level,
        /// The chunk size asked for.
        chunk_bytes: u64,
    },
    /// The layout is one of another level.
    #[error("{level} has no layout {layout}")]
    LayoutMismatch {
        /// The level.
        level: Level,
        /// The layout asked for.
        layout: Layout,
    },
    /// The list of member sizes has another length than the slot count.
    #[error("{size_count} member sizes for {slot_count} slots")]
    MemberSizeCount {
        /// Sizes given.
        size_count: usize,
        /// Slots of the array.
        slot_count: usize,
    },
    /// A member cannot hold what the layout needs at least.
    #[error("slot {slot}: member data size {member_bytes} < {needed_bytes}")]
    MemberTooSmall {
        /// The slot of the member.
        slot: usize,
        /// Its usable size.
        member_bytes: u64,
        /// The least size.
        needed_bytes: u64,
    },
    /// RAID 10 that keeps less than two copies.
    #[error("{layout}: copies {copy_count} < 2")]
    NoRedundancy {
        /// The layout asked for.
        layout: Layout,
        /// Copies it keeps.
        copy_count: usize,
    },
    /// RAID 10 whose copies of different chunks would fall on one place.
    #[error("{layout} puts different chunks on one place with {slot_count} slots")]
    OverlappingCopies {
        /// The layout asked for.
        layout: Layout,
        /// Slots of the array.
        slot_count: usize,
    },
    /// RAID 0 over unequal members that does not say which rule it was written with.
    #[error("raid0 with {zone_count} zones needs a layout, original or alternate")]
    Raid0LayoutUnspecified {
        /// Zones that the members' sizes make.
        zone_count: usize,
    },
    /// Too many slots.
    #[error("slot count {slot_count} > {SLOT_COUNT_MAX}")]
    SlotCountTooLarge {
        /// Slots asked for.
        slot_count: usize,
    },
    /// Too few slots for the level.
    #[error("{level}: slot count {slot_count} < {slot_count_min}")]
    SlotCountTooSmall {
        /// The level.
        level: Level,
        /// Slots asked for.
        slot_count: usize,
        /// The level's least.
        slot_count_min: usize,
    },
    /// RAID 10 with more copies than slots.
    #[error("{layout}: copies {copy_count} > slot count {slot_count}")]
    TooManyCopies {
        /// The layout asked for.
        layout: Layout,
        /// Copies it keeps.
        copy_count: usize,
        /// Slots of the array.
        slot_count: usize,
    },
}

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
        // md cuts bits off where a chunk is no power of two, so such an array ends before its zones do. It is the
        // size that partitions and file systems on the array were made for, hence it is ours (md: `raid0_size`).
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

    /// The level.
    #[must_use]
    pub const fn level(&self) -> Level {
        self.level
    }

    /// The layout.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Members of the complete array.
    #[must_use]
    #[inline]
    pub const fn slot_count(&self) -> usize {
        self.slot_count
    }

    /// Every slot of the array.
    #[must_use]
    pub fn slots(&self) -> SlotSet {
        SlotSet::first(self.slot_count)
    }

    /// The chunk size as given; RAID 1 has no use for it, and linear takes it as rounding, so there it may be 0.
    #[must_use]
    #[inline]
    pub const fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// The size of the array.
    #[must_use]
    #[inline]
    pub const fn array_bytes(&self) -> u64 {
        self.array_bytes
    }

    /// The bytes used of each member: md's `size`. On RAID 0 and linear, whose members differ (md writes 0 there), the
    /// shortest member's.
    #[must_use]
    #[inline]
    pub const fn component_bytes(&self) -> u64 {
        self.component_bytes
    }

    /// Data chunks in a stripe (parity levels); the slots a full row is spread over on RAID 0 and 10, copies included;
    /// 1 on RAID 1 and linear.
    #[must_use]
    #[inline]
    pub fn data_slots(&self) -> usize {
        match &self.map {
            Map::Parity { map, .. } => map.data_count(),
            Map::Zones(_) | Map::Copies(_) => self.slot_count,
            Map::Linear(_) | Map::Mirror => 1,
        }
    }

    /// Parity chunks in a stripe: 0, 1 or 2.
    #[must_use]
    #[inline]
    pub const fn parity_count(&self) -> usize {
        self.level.parity_count()
    }

    /// The number of members that may be lost, whichever they are.
    #[must_use]
    #[inline]
    pub const fn max_degraded(&self) -> usize {
        self.max_degraded
    }

    /// Whether everything can still be read without the slots of `missing`.
    ///
    /// On RAID 10 this can be true for more than [`Geometry::max_degraded`] slots: one copy of each chunk is enough.
    #[must_use]
    pub fn tolerates(&self, missing: &SlotSet) -> bool {
        let missing = missing.intersection(self.slots());
        match &self.map {
            Map::Copies(map) => map.copy_sets().all(|copies| !copies.is_subset(&missing)),
            _ => missing.len() <= self.max_degraded,
        }
    }

    /// Array bytes of one lock unit: a stripe's data on parity levels, elsewhere whole chunks, about 256 KiB. Units
    /// start at multiples of it; the last one may be shorter.
    #[must_use]
    #[inline]
    pub const fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// Lock units of the array.
    #[must_use]
    pub const fn unit_count(&self) -> u64 {
        self.array_bytes.div_ceil(self.unit_bytes)
    }

    /// Stripes of the array.
    ///
    /// # Panics
    /// When the level has no parity.
    #[must_use]
    #[inline]
    pub fn stripe_count(&self) -> u64 {
        let (_, _, _, stripe_count) = self.parity();
        stripe_count
    }

    /// Who holds what in the stripe `index`.
    ///
    /// # Panics
    /// When the level has no parity.
    #[must_use]
    #[inline]
    pub fn stripe(&self, index: u64) -> Stripe {
        let (map, _, _, stripe_count) = self.parity();
        debug_assert!(index < stripe_count, "stripe {index} >= {stripe_count}");
        map.stripe(index)
    }

    /// The stripe, data chunk and offset in it of the array's byte `offset`.
    ///
    /// # Panics
    /// When the level has no parity.
    #[must_use]
    #[inline]
    pub fn locate(&self, offset: u64) -> Location {
        let (_, chunk_shift, data_count, _) = self.parity();
        let (stripe, data) = data_count.div_rem(offset >> chunk_shift);
        // Below the slot count.
        Location { stripe, data: data as usize, chunk_offset: offset & (self.chunk_bytes - 1) }
    }

    /// Where the stripe begins on every member, relative to its data offset.
    #[must_use]
    #[inline]
    pub const fn member_offset_of_stripe(&self, index: u64) -> u64 {
        index * self.chunk_bytes
    }

    /// Where the array's byte `offset` is: its first copy, or its data chunk on a parity level.
    ///
    /// # Panics
    /// When `offset` is not below [`Geometry::array_bytes`].
    #[must_use]
    #[inline]
    pub fn place(&self, offset: u64) -> Place {
        self.copy(offset, 0)
    }

    /// Copies of every byte; 1 on levels without mirrors.
    #[must_use]
    #[inline]
    pub fn copy_count(&self) -> usize {
        match (&self.map, self.layout) {
            (Map::Mirror, _) => self.slot_count,
            (_, Layout::Raid10(layout)) => layout.copy_count(),
            _ => 1,
        }
    }

    /// Where copy `copy` of the array's byte `offset` is. Copy 0 is [`Geometry::place`].
    ///
    /// # Panics
    /// When `offset` is not below [`Geometry::array_bytes`]; in debug builds also when `copy` is not below
    /// [`Geometry::copy_count`].
    #[must_use]
    #[inline]
    pub fn copy(&self, offset: u64, copy: usize) -> Place {
        assert!(offset < self.array_bytes, "offset {offset} >= array size {}", self.array_bytes);
        debug_assert!(copy < self.copy_count(), "copy {copy} >= {}", self.copy_count());
        let to_array_end = self.array_bytes - offset;
        match &self.map {
            Map::Zones(map) => match map.place(offset) {
                Some((slot, member_offset, to_chunk_end)) => {
                    let contiguous_bytes = to_chunk_end.min(to_array_end);
                    Place { slot, member_offset, contiguous_bytes }
                }
                None => unreachable!("the zones cover the array"),
            },
            Map::Mirror => {
                Place { slot: copy, member_offset: offset, contiguous_bytes: to_array_end }
            }
            Map::Parity { map, chunk_shift, .. } => {
                let Location { stripe, data, chunk_offset } = self.locate(offset);
                let slot = map.stripe(stripe).data_slot(data);
                let member_offset = (stripe << chunk_shift) + chunk_offset;
                Place { slot, member_offset, contiguous_bytes: self.chunk_bytes - chunk_offset }
            }
            Map::Copies(map) => {
                let (slot, member_offset) = map.copy(offset, copy);
                let contiguous_bytes = self.chunk_bytes - (offset & (self.chunk_bytes - 1));
                Place { slot, member_offset, contiguous_bytes }
            }
            Map::Linear(ends) => {
                let slot = ends.partition_point(|&end| end <= offset);
                let start = if slot == 0 { 0 } else { ends[slot - 1] };
                let contiguous_bytes = ends[slot] - offset;
                Place { slot, member_offset: offset - start, contiguous_bytes }
            }
        }
    }

    /// The array's byte at `member_offset` (relative to the data offset) of `slot`. None where parity or nothing is.
    #[must_use]
    pub fn logical_of(&self, slot: usize, member_offset: u64) -> Option<Logical> {
        if slot >= self.slot_count {
            return None;
        }
        let (offset, copy) = match &self.map {
            Map::Zones(map) => (map.logical_of(slot, member_offset)?, 0),
            Map::Mirror => (member_offset, slot),
            Map::Parity { map, chunk_shift, stripe_count, data_count } => {
                let index = member_offset >> chunk_shift;
                let inside = member_offset & (self.chunk_bytes - 1);
                match map.stripe(index).kind_of(slot) {
                    ChunkKind::Data(k) if index < *stripe_count => {
                        let chunk = index * data_count.divisor() + k as u64;
                        ((chunk << chunk_shift) + inside, 0)
                    }
                    _ => return None,
                }
            }
            Map::Copies(map) => map.logical_of(slot, member_offset)?,
            Map::Linear(ends) => {
                let start = if slot == 0 { 0 } else { ends[slot - 1] };
                (start.checked_add(member_offset).filter(|&offset| offset < ends[slot])?, 0)
            }
        };
        (offset < self.array_bytes).then_some(Logical { offset, copy })
    }

    #[inline]
    fn parity(&self) -> (&ParityMap, u32, Divider, u64) {
        match &self.map {
            Map::Parity { map, chunk_shift, data_count, stripe_count } => {
                (map, *chunk_shift, *data_count, *stripe_count)
            }
            _ => panic!("{} has no stripes with parity", self.level),
        }
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

/// The least member in whole chunks (whole sectors on RAID 1); every one holds `needed_bytes` at least.
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
