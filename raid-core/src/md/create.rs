//! Planning a new array: sizes and offsets as mdadm chooses them, and the superblock of each member.

use alloc::vec::Vec;

use crate::md::superblock::Minor;
use crate::md::{MdTime, MdUuid, Superblock};

/// What the array shall be.
#[derive(Clone, Debug)]
pub struct CreateOptions<'a> {
    /// Where the superblocks go. Only [`Minor::V1_2`] and [`Minor::V1_1`] and [`Minor::V1_0`] exist.
    pub minor: Minor,
    /// md's number of the level: -1 linear, 0, 1, 4, 5, 6, 10.
    pub level: i32,
    /// md's number of the layout (RAID 0: 1 original, 2 alternate).
    pub layout: u32,
    /// Chunk size in bytes; 0 for RAID 1.
    pub chunk_bytes: u64,
    /// Slot count.
    pub slot_count: usize,
    /// Name of the array, without a host.
    pub name: &'a str,
    /// Put before the name as `host:` where the 32 bytes have room for it, as mdadm does.
    pub host: Option<&'a str>,
    /// Identity of the array.
    pub array_uuid: MdUuid,
    /// Now.
    pub time: MdTime,
    /// Used size of each member in bytes (mdadm `--size`); `None` for all that the smallest one has.
    pub size_bytes: Option<u64>,
    /// Data offset in bytes for every member (mdadm `--data-offset`); `None` for the choice of mdadm.
    pub data_offset_bytes: Option<u64>,
    /// Whether redundancy has to be made.
    pub initial: Initial,
}

/// Whether the redundancy of a new array has to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initial {
    /// The members agree already, or nobody cares (mdadm `--assume-clean`).
    AssumeClean,
    /// A resync has to run: the array starts dirty. Levels without redundancy are always clean.
    Resync,
}

/// A member of the array to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewMember {
    /// Its size.
    pub member_bytes: u64,
    /// Its identity.
    pub device_uuid: MdUuid,
    /// Its place.
    pub place: NewPlace,
    /// `device_flags` of its superblock: 1 write-mostly, 2 fail fast.
    pub device_flags: u8,
}

/// What a new member is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewPlace {
    /// A slot. Slots without a member are created missing (degraded).
    Slot(u16),
    /// A spare.
    Spare,
}

/// What is to be written, and the numbers behind it.
#[derive(Clone, Debug)]
pub struct CreatePlan {
    /// One for each member, in the order they were given; `dev_number` is that index.
    pub superblocks: Vec<Superblock>,
    /// Used bytes of each member; 0 for level 0 and linear, where each uses its whole data area.
    pub component_bytes: u64,
    /// The largest data offset.
    pub data_offset_bytes: u64,
}

/// Why no array can be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// Not a level that can be made.
    #[error("level {level} cannot be created")]
    Level {
        /// What was asked for.
        level: i32,
    },
    /// Any rule of the superblock that the wishes break.
    #[error(transparent)]
    Superblock(#[from] crate::md::SuperblockError),
    /// A member is too small.
    #[error("member {index} has {member_bytes} bytes, {need_bytes} are needed")]
    MemberTooSmall {
        /// Index among the members given.
        index: usize,
        /// Its size.
        member_bytes: u64,
        /// The least that would do.
        need_bytes: u64,
    },
    /// The data offset asked for leaves no room for the metadata, or is no multiple of 4 KiB.
    #[error("data offset {data_offset_bytes} is not a multiple of 4096 of at least {min_bytes}")]
    DataOffset {
        /// What was asked for.
        data_offset_bytes: u64,
        /// The least.
        min_bytes: u64,
    },
    /// The used size asked for is no multiple of the chunk size (or of 4 KiB).
    #[error("size {size_bytes} is not a multiple of {unit_bytes} above 0")]
    Size {
        /// What was asked for.
        size_bytes: u64,
        /// The chunk size, or 4 KiB.
        unit_bytes: u64,
    },
    /// A slot given twice, or beyond the slot count.
    #[error("slot {slot} is given twice, or is not below the slot count {slot_count}")]
    Slot {
        /// Which.
        slot: u16,
        /// How many there are.
        slot_count: usize,
    },
    /// More slots without a member than the level can bear.
    #[error("{missing} slots have no member, level {level} can bear {max_degraded}")]
    TooManyMissing {
        /// Slots without a member.
        missing: usize,
        /// The level.
        level: i32,
        /// What it bears.
        max_degraded: usize,
    },
    /// The name does not fit.
    #[error("name of {len} bytes > 31")]
    Name {
        /// Its length.
        len: usize,
    },
}

/// Plans a new array.
///
/// # Errors
///
/// [`CreateError`] with the numbers of the rule that the wishes break.
pub fn plan(options: &CreateOptions<'_>, members: &[NewMember]) -> Result<CreatePlan, CreateError> {
    let _ = (options, members);
    unimplemented!()
}
