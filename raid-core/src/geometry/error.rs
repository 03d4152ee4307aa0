//! Refusals of [`super::Geometry::new`].

use super::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, Layout, Level, SLOT_COUNT_MAX};

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
