//! What a volume is made of, and why something is not one.

use crate::geometry::Geometry;
use crate::intent::{IntentConfig, IntentImage};
use crate::plan::Trust;
use crate::slots::SlotSet;
use alloc::vec::Vec;

/// One md array: the whole volume, or a part of a RAID 50 or 60.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// Its geometry.
    pub geometry: Geometry,
    /// Where each slot's data starts on its member, in bytes.
    pub data_offsets: Vec<u64>,
    /// Slots that are fully up to date.
    pub in_sync: SlotSet,
    /// Whether parity and copies may be believed everywhere.
    pub trust: Trust,
    /// True if the superblocks already say that writes may be under way.
    pub dirty: bool,
    /// The write-intent bitmap, if the array keeps one. With [`Trust::Unsynced`] its set bits are
    /// what is not to be believed, and all else is. The embedder makes sure that every member in
    /// sync has these bits durably before the volume is used: after a crash their bitmaps differ.
    pub intent: Option<IntentConfig>,
    /// Slots, not in sync, whose members were found partly filled: they take writes from the start.
    pub recovering: Vec<RecoveringConfig>,
    /// The group was started by force, degraded and without knowing that its parity is right:
    /// reads regenerate from it for want of anything better, but what was regenerated is never
    /// stored in place of what cannot be read.
    pub doubtful: bool,
}

/// A member that was being filled when the array was last stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveringConfig {
    /// Its slot.
    pub slot: usize,
    /// Group bytes from 0 on that it holds, in whole lock units.
    pub recovered: u64,
    /// It misses only what the group's write-intent bitmap has set.
    pub by_bitmap: bool,
}

/// The stripes over the groups of a RAID 50 or 60: a RAID 0 whose members are the groups.
#[derive(Clone, Debug)]
pub struct OuterConfig {
    /// RAID 0 over the groups' sizes less `data_offsets`.
    pub geometry: Geometry,
    /// Where the outer array's data starts within each group, in bytes.
    pub data_offsets: Vec<u64>,
}

/// What a [`Volume`](super::Volume) is made of.
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// One group, or as many as the outer geometry has slots.
    pub groups: Vec<GroupConfig>,
    /// Present for nested levels.
    pub outer: Option<OuterConfig>,
    /// Granularity of member I/O in bytes: 512 or 4096, the coarsest of the members.
    pub block_bytes: u32,
    /// Refuse every modifying request.
    pub read_only: bool,
}

/// Why a [`VolumeConfig`] is not a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// The block size is not 512 or 4096.
    #[error("block size {0} is neither 512 nor 4096")]
    BlockSize(u32),
    /// The number of groups does not fit the outer geometry.
    #[error("{groups} groups for an outer geometry of {slots} slots")]
    GroupCount {
        /// Groups given.
        groups: usize,
        /// Slots of the outer geometry, or 1 without one.
        slots: usize,
    },
    /// A list has not one entry for each slot.
    #[error("{got} data offsets for {slots} slots")]
    DataOffsets {
        /// Entries given.
        got: usize,
        /// Slots.
        slots: usize,
    },
    /// Too many members are missing.
    #[error("group {group}: {missing} of {slots} slots are missing, more than the level can bear")]
    NotEnoughMembers {
        /// The group.
        group: usize,
        /// Slots not in sync.
        missing: usize,
        /// Slots in all.
        slots: usize,
    },
    /// A slot cannot be one that is being recovered.
    #[error(
        "group {group}: slot {slot} cannot be recovering: it is in sync or out of range, or \
        nothing can tell what it lacks"
    )]
    Recovering {
        /// The group.
        group: usize,
        /// The slot.
        slot: usize,
    },
    /// The write-intent bitmap does not fit the group.
    #[error("bitmap granule of {granule} bytes with {words} words where {needed} are needed")]
    Bitmap {
        /// Bytes that one bit stands for.
        granule: u64,
        /// Words given.
        words: usize,
        /// Words needed.
        needed: u64,
    },
    /// A member's data does not start on a block border.
    #[error("data offset {offset} is not a multiple of the block size {block_bytes}")]
    Unaligned {
        /// The data offset in bytes.
        offset: u64,
        /// The block size in bytes.
        block_bytes: u32,
    },
    /// The outer stripes end past a group's size.
    #[error("outer data of group {group} ends past the group's {size} bytes")]
    OuterSize {
        /// The group.
        group: usize,
        /// The group's size in bytes.
        size: u64,
    },
}

/// Superblocks and bitmap words that must become durable before writes go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataUpdate {
    /// The group concerned.
    pub group: usize,
    /// The epoch that becomes durable with it; give it back to `handle_metadata`.
    pub epoch: u64,
    /// The superblocks are to be written; false if only the bitmap is.
    pub superblocks: bool,
    /// What the members' write-intent bitmaps must say, if that changed. It is durable no later
    /// than the superblocks. Words may take bits back: each member is flushed before it is told, so
    /// that what was written to those regions is stable there.
    pub intent: Option<IntentImage>,
    /// Mark the array dirty (writes may be under way) or clean.
    pub dirty: bool,
    /// Slots in sync. Their members' superblocks are written.
    pub in_sync: SlotSet,
    /// Slots whose members are being filled; theirs are written as well, with a position that is no
    /// more than what is durable there. All slots in neither set are recorded as faulty.
    pub recovering: SlotSet,
    /// Slots with a replacement that is being filled, recorded likewise.
    pub replacing: SlotSet,
}
