//! Why bytes are not a superblock that can be used.

use super::Minor;
use crate::md::MdUuid;

/// The comparison that failed, with its numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SuperblockError {
    /// The member ends before the superblock would.
    #[error("a member of {member_bytes} bytes has no room for a {minor} superblock")]
    MemberTooSmall {
        /// The place looked at.
        minor: Minor,
        /// Size of the member.
        member_bytes: u64,
    },
    /// The caller gave too few bytes.
    #[error("{len} bytes given, a superblock area has {need}")]
    TooShort {
        /// Bytes given.
        len: usize,
        /// Bytes needed.
        need: usize,
    },
    /// No superblock here: the usual answer for a member that never was one.
    #[error("no md superblock: magic 0x{magic:08x} is not 0xa92b4efc")]
    Magic {
        /// What is there instead.
        magic: u32,
    },
    /// Not a version-1 superblock.
    #[error("superblock version {major} is not 1")]
    Version {
        /// What it says.
        major: u32,
    },
    /// Another version where that of 0.90 would lie.
    #[error("superblock version {major}.{minor} is not 0.90 or 0.91")]
    OldVersion {
        /// What it says.
        major: u32,
        /// What it says.
        minor: u32,
    },
    /// More roles than the area can hold.
    #[error("max_dev {max_dev} > {limit}, the roles that fit into the superblock area")]
    MaxDev {
        /// What it says.
        max_dev: u32,
        /// What fits.
        limit: u32,
    },
    /// Damaged or not written completely.
    #[error("superblock checksum 0x{computed:08x} is not the stored 0x{stored:08x}")]
    Checksum {
        /// What it says.
        stored: u32,
        /// What its bytes give.
        computed: u32,
    },
    /// It was not written for this place: a remnant, a copy, or a member that has changed its size.
    #[error(
        "superblock of a {minor} member says it lies at sector {super_offset}, but was found at \
            sector {found}"
    )]
    SuperOffset {
        /// The place looked at.
        minor: Minor,
        /// What it says.
        super_offset: u64,
        /// Where it is.
        found: u64,
    },
    /// More than one valid superblock: the device was used twice, and only a person knows which one
    /// counts.
    #[error(
        "superblocks of version {first} and {second} are both valid: name the array that is meant"
    )]
    Several {
        /// One.
        first: Minor,
        /// Another.
        second: Minor,
    },
    /// A valid superblock, but not of the array that was asked for.
    #[error("it belongs to array {uuid}")]
    OtherArray {
        /// Its array.
        uuid: MdUuid,
    },
    /// Not a level of md, or not one that this engine knows.
    #[error("level {level} is not one of -1, 0, 1, 4, 5, 6, 10")]
    Level {
        /// What it says.
        level: i32,
    },
    /// Not a layout of this level.
    #[error("layout {layout} is not one of level {level} with {slot_count} slots")]
    Layout {
        /// Its level.
        level: i32,
        /// What it says.
        layout: u32,
        /// Its slot count.
        slot_count: u32,
    },
    /// Slot count out of range.
    #[error("slot count {slot_count} is not in {min}..={max}")]
    SlotCount {
        /// What it says.
        slot_count: u32,
        /// Least for the level.
        min: u32,
        /// Most.
        max: u32,
    },
    /// Chunk size out of range for the level.
    #[error(
        "chunk size of {chunk_sectors} sectors is not a power of two (for RAID 0: a multiple of \
            8) in 8..=2097152"
    )]
    Chunk {
        /// What it says.
        chunk_sectors: u32,
    },
    /// This member's number has no place among the roles.
    #[error("dev_number {dev_number} >= max_dev {max_dev}")]
    DevNumber {
        /// What it says.
        dev_number: u32,
        /// Length of the table.
        max_dev: u32,
    },
    /// A role that is neither a slot nor one of the special numbers.
    #[error("role {role} of member number {dev_number} >= slot count {slot_count}")]
    Role {
        /// Whose role.
        dev_number: u32,
        /// The role.
        role: u16,
        /// Slots there are.
        slot_count: u32,
    },
    /// One slot taken more often than a replacement explains.
    #[error("slot {slot} is listed for {count} members")]
    DuplicateRole {
        /// The slot.
        slot: u16,
        /// How often it is listed.
        count: u32,
    },
    /// The used size is missing or wrong for the level.
    #[error("used size of {size_sectors} sectors is not possible for level {level}")]
    Size {
        /// What it says.
        size_sectors: u64,
        /// Its level.
        level: i32,
    },
    /// The used size exceeds the data area.
    #[error("used size of {size_sectors} sectors > data size of {data_size_sectors} sectors")]
    SizeOverData {
        /// Used size.
        size_sectors: u64,
        /// Data size.
        data_size_sectors: u64,
    },
    /// The data area ends beyond the member: it has shrunk, or this is a copy on something smaller.
    #[error(
        "data ends at sector {end_sectors}, but the member has {member_sectors} sectors: {} \
            sectors short",
        end_sectors - member_sectors
    )]
    MemberShort {
        /// Where the data ends.
        end_sectors: u64,
        /// Where the member ends.
        member_sectors: u64,
    },
    /// Two areas of the member share sectors.
    #[error("{first} and {second} overlap")]
    Overlap {
        /// One area.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// An area outside the member.
    #[error(
        "{area} at sector {start_sectors}, {size_sectors} sectors long, is outside the member of \
            {member_sectors} sectors"
    )]
    Outside {
        /// Which one.
        area: &'static str,
        /// Its first sector.
        start_sectors: i128,
        /// Its length.
        size_sectors: u64,
        /// The member.
        member_sectors: u64,
    },
    /// A recovery position behind the data.
    #[error("recovery offset {recovery_offset_sectors} > data size of {data_size_sectors} sectors")]
    RecoveryOffset {
        /// What it says.
        recovery_offset_sectors: u64,
        /// The data size.
        data_size_sectors: u64,
    },
    /// The bad-block log has an impossible unit.
    #[error("bad-block shift {shift} > {max}")]
    BadBlockShift {
        /// What it says.
        shift: u8,
        /// Most.
        max: u8,
    },
    /// An event count that no array reaches: adding to it could overflow.
    #[error("event count {events} > {max}")]
    Events {
        /// What it says.
        events: u64,
        /// Most.
        max: u64,
    },
    /// A logical block size that no device has.
    #[error("logical block size of {bytes} bytes is not 0 or a power of two in 512..=65536")]
    LogicalBlock {
        /// What it says.
        bytes: u32,
    },
    /// Two features that exclude each other.
    #[error("features {first} and {second} exclude each other")]
    Features {
        /// One.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// Reshape fields that make no sense.
    #[error("reshape field {field} is out of range: {value}")]
    Reshape {
        /// Which.
        field: &'static str,
        /// Its value.
        value: i64,
    },
}
