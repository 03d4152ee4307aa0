//! Geometry of an array: what its members and its bytes have to do with each other. Immutable, pure
//! arithmetic.
//!
//! ```text
//! array byte -+- levels 4, 5, 6: locate() -> stripe, data k -> stripe().data_slot(k) -+
//!             |                                                                       +-> slot,
//!             +- every level: place(), copy(n) ---------------------------------------+   offset
//! slot, offset --- logical_of() ---> array byte, or None where parity or nothing is
//! ```
//!
//! Offsets on a member are relative to its data offset. Everything is in bytes.
//!
//! Invariants, from the one constructor on:
//! - every size is a multiple of 512; `array_bytes` is at most `i64::MAX`, so sums of two offsets
//!   cannot overflow;
//! - the layout belongs to the level, and the slot count is between the level's least and 255;
//! - the chunk is a power of two where the level is not linear, 0 or 1; on RAID 0 it is a multiple
//!   of 4 KiB;
//! - `logical_of(place(x)) == x` for every byte of the array, and no two bytes share a place;
//! - the copies of a byte are on slots of their own, but for a RAID 10 with [`FarSets::Divided`]
//!   sets that are too small: there `max_degraded` says how little it bears.
//!
//! Not here: data offsets and superblocks ([`crate::md`]), member states, I/O. Tests:
//! `tests/layout.rs` (exhaustive, small), `tests/layout_tables.rs` (md's tables and names),
//! `tests/golden_layout.rs` (arrays made by md).

use crate::layout::divider::Divider;
use crate::layout::parity::ParityMap;
use crate::layout::raid0::ZoneMap;
use crate::layout::raid10::CopyMap;
use crate::slots::SlotSet;
use alloc::boxed::Box;

mod build;
mod error;

pub use error::GeometryError;

pub use crate::layout::parity::{ChunkKind, ParityLayout, Stripe};
pub use crate::layout::{FarSets, Layout, LayoutError, Level, Raid0Layout, Raid10Layout};

/// md's unit, in bytes.
pub const SECTOR_BYTES: u64 = 512;
/// The smallest chunk: a page of the machines md was written for.
pub const CHUNK_BYTES_MIN: u64 = 4096;
/// The largest chunk: md's field holds more, nothing useful does.
pub const CHUNK_BYTES_MAX: u64 = 1 << 30;
/// The most slots of an array, so that a slot and a number of slots both fit a byte.
pub const SLOT_COUNT_MAX: usize = 255;

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
    /// The usable data size of the member of each slot. RAID 0 and linear use all of each, the
    /// others the least.
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

/// Where a byte is, and how many bytes from there on lie side by side both in the array and on the
/// member.
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

impl Geometry {
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

    /// The chunk size as given; RAID 1 has no use for it, and linear takes it as rounding, so there
    /// it may be 0.
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

    /// The bytes used of each member: md's `size`. On RAID 0 and linear, whose members differ (md
    /// writes 0 there), the shortest member's.
    #[must_use]
    #[inline]
    pub const fn component_bytes(&self) -> u64 {
        self.component_bytes
    }

    /// Data chunks in a stripe (parity levels); the slots a full row is spread over on RAID 0 and
    /// 10, copies included; 1 on RAID 1 and linear.
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
    /// On RAID 10 this can be true for more than [`Geometry::max_degraded`] slots: one copy of each
    /// chunk is enough.
    #[must_use]
    pub fn tolerates(&self, missing: &SlotSet) -> bool {
        let missing = missing.intersection(self.slots());
        match &self.map {
            Map::Copies(map) => map.copy_sets().all(|copies| !copies.is_subset(&missing)),
            _ => missing.len() <= self.max_degraded,
        }
    }

    /// Array bytes of one lock unit: a stripe's data on parity levels, elsewhere whole chunks,
    /// about 256 KiB. Units start at multiples of it; the last one may be shorter.
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
    /// When `offset` is not below [`Geometry::array_bytes`]; in debug builds also when `copy` is
    /// not below [`Geometry::copy_count`].
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
                let slot = map.data_slot(stripe, data);
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

    /// The array's byte at `member_offset` (relative to the data offset) of `slot`. None where
    /// parity or nothing is.
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
