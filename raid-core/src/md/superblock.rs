//! The superblock: what it says, checked; and back to bytes.
//!
//! ```text
//!   version  where the superblock starts                               data
//!   0.90   the end: 64 KiB, then down to a multiple of 64 KiB          before it
//!   1.0    the end: (sectors - 16) rounded down to 8                   before it
//!   1.1    0                                                           after it
//!   1.2    4096                                                        after it
//!
//!   0          128         192        256                    256 + 2 * max_dev          4096
//!   | array     | this      | state    | role of each member   | kept as it was found      |
//!   | constants | member    | (events) | by dev_number         |                           |
//! ```
//!
//! [`decode`] checks in this order: length, magic, version, length bound, checksum, features, each
//! field, arithmetic between fields. Only after the checksum is any value used, and no length is
//! taken from the bytes before it has been bounded. A checksum is not authentication: a planted
//! superblock passes.
//!
//! [`Superblock::encode`] starts from the 4096 bytes that were read, so that bytes which mean
//! nothing to this code survive an update.

mod check;
mod decode;
mod error;
mod find;
mod raw;
mod v0;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

pub(in crate::md) use check::check_shape;
pub use check::{EVENTS_MAX, WriteObstacle};
pub use decode::decode;
pub(in crate::md) use decode::fix_checksum;
pub use error::SuperblockError;
pub use find::find;
pub(in crate::md) use v0::{
    BITMAP_OFFSET as OLD_BITMAP_OFFSET, BITMAP_SECTORS as OLD_BITMAP_SECTORS,
    SIZE_SECTORS_MAX as OLD_SIZE_SECTORS_MAX,
};

pub use crate::geometry::SLOT_COUNT_MAX;
use crate::md::{MdTime, MdUuid, SECTOR_BYTES};

/// The first four bytes of a superblock, little-endian.
pub const MAGIC: u32 = 0xa92b_4efc;
/// Bytes of the superblock area: what is read, kept and written.
pub const AREA_BYTES: usize = 4096;
/// Members a superblock can name: two bytes for each between byte 256 and the end of the area.
pub const MAX_DEV_MAX: usize = (AREA_BYTES - raw::HEAD_BYTES) / 2;
/// `resync_offset`, `recovery_offset`: everything is in sync.
pub const ALL_SECTORS: u64 = u64::MAX;

/// Which version. Those of 1 differ only in where the superblock lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Minor {
    /// 0.90: before the last 64 KiB of the member; another format, for at most 27 members of 4 TiB.
    V0_90,
    /// 1.0: near the end of the member.
    V1_0,
    /// 1.1: at the start of the member.
    V1_1,
    /// 1.2: 4 KiB from the start of the member.
    V1_2,
}

impl Minor {
    /// All of them, in the order in which they should be looked for.
    pub const ALL: [Self; 4] = [Self::V1_2, Self::V1_1, Self::V1_0, Self::V0_90];
    /// Those of version 1.
    pub const VERSION_1: [Self; 3] = [Self::V1_2, Self::V1_1, Self::V1_0];

    /// Members that a superblock of this version can name.
    #[must_use]
    pub fn role_count_max(self) -> usize {
        if self == Self::V0_90 { v0::MEMBER_COUNT_MAX } else { MAX_DEV_MAX }
    }

    /// Where the superblock area of a member of `member_bytes` starts, in bytes, or `None` when the
    /// member is too small to hold one.
    #[must_use]
    pub fn super_offset_bytes(self, member_bytes: u64) -> Option<u64> {
        let offset = match self {
            // md counts in sectors: 8 KiB from the end, then down to a multiple of 4 KiB.
            Self::V1_0 => (member_bytes / SECTOR_BYTES).checked_sub(16)? / 8 * 8 * SECTOR_BYTES,
            Self::V0_90 => (member_bytes / 65536).checked_sub(1)? * 65536,
            Self::V1_1 => 0,
            Self::V1_2 => 4096,
        };
        let end = offset.checked_add(AREA_BYTES as u64)?;
        (end <= member_bytes).then_some(offset)
    }
}

impl fmt::Display for Minor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V0_90 => "0.90",
            Self::V1_0 => "1.0",
            Self::V1_1 => "1.1",
            Self::V1_2 => "1.2",
        })
    }
}

/// Where the bytes given to [`decode`] came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The place they were read from.
    pub minor: Minor,
    /// Size of the member.
    pub member_bytes: u64,
}

/// The feature bits of a superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features(pub u32);

impl Features {
    /// There is a write-intent bitmap at `bitmap_offset`.
    pub const BITMAP: u32 = 1;
    /// `recovery_offset` must be honoured: the member is filled only up to there.
    pub const RECOVERY_OFFSET: u32 = 2;
    /// A reshape is under way.
    pub const RESHAPE: u32 = 4;
    /// The bad-block log is not empty.
    pub const BAD_BLOCKS: u32 = 8;
    /// This member is replacing an active one that has the same role.
    pub const REPLACEMENT: u32 = 16;
    /// The reshape goes backwards.
    pub const RESHAPE_BACKWARDS: u32 = 32;
    /// `new_offset` must be honoured.
    pub const NEW_OFFSET: u32 = 64;
    /// The recovery under way is guided by the bitmap.
    pub const RECOVERY_BITMAP: u32 = 128;
    /// A clustered array.
    pub const CLUSTERED: u32 = 256;
    /// There is a journal member.
    pub const JOURNAL: u32 = 512;
    /// There is a partial parity log.
    pub const PPL: u32 = 1024;
    /// There are several partial parity logs on each member.
    pub const MULTIPLE_PPLS: u32 = 2048;
    /// `layout` is meaningful for RAID 0.
    pub const RAID0_LAYOUT: u32 = 4096;
    /// Every bit that md of Linux 6.1 knows.
    pub const KNOWN: u32 = 8191;

    const NAMES: [&'static str; 13] = [
        "bitmap",
        "recovery-offset",
        "reshape",
        "bad-blocks",
        "replacement",
        "reshape-backwards",
        "new-offset",
        "recovery-bitmap",
        "clustered",
        "journal",
        "ppl",
        "multiple-ppls",
        "raid0-layout",
    ];

    /// Says whether any of `bits` is set.
    #[must_use]
    pub fn has(self, bits: u32) -> bool {
        self.0 & bits != 0
    }

    /// The bits that have no meaning for this code.
    #[must_use]
    pub fn unknown(self) -> u32 {
        self.0 & !Self::KNOWN
    }
}

impl fmt::Display for Features {
    /// Names of the set bits, `none` when there are none; unknown ones by number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for bit in (0..32).filter(|bit| self.0 >> bit & 1 == 1) {
            f.write_str(separator)?;
            match Self::NAMES.get(bit) {
                Some(name) => f.write_str(name)?,
                None => write!(f, "unknown bit 0x{:x}", 1_u32 << bit)?,
            }
            separator = ", ";
        }
        if self.0 == 0 { f.write_str("none") } else { Ok(()) }
    }
}

/// What the superblock says of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Active in a slot (with `recovery_offset`: being recovered into it).
    Active(u16),
    /// Failed.
    Faulty,
    /// The journal of the array.
    Journal,
    /// A spare; also what stands for numbers that are not in use, and for members that were
    /// removed.
    Spare,
}

impl Role {
    const SPARE: u16 = 0xffff;
    const FAULTY: u16 = 0xfffe;
    const JOURNAL: u16 = 0xfffd;

    /// From the stored number. Numbers that are no slot are refused by [`decode`].
    #[must_use]
    pub fn from_md(role: u16) -> Self {
        match role {
            Self::SPARE => Self::Spare,
            Self::FAULTY => Self::Faulty,
            Self::JOURNAL => Self::Journal,
            slot => Self::Active(slot),
        }
    }

    /// The stored number.
    #[must_use]
    pub fn to_md(self) -> u16 {
        match self {
            Self::Spare => Self::SPARE,
            Self::Faulty => Self::FAULTY,
            Self::Journal => Self::JOURNAL,
            Self::Active(slot) => slot,
        }
    }
}

/// The reshape fields; meaningful with [`Features::RESHAPE`] alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reshape {
    /// The level after it.
    pub new_level: i32,
    /// Next array sector.
    pub position_sectors: u64,
    /// Change of the slot count.
    pub delta_slots: i32,
    /// The layout after it.
    pub new_layout: u32,
    /// The chunk size after it, in sectors.
    pub new_chunk_sectors: u32,
    /// Added to `data_offset_sectors` in the new layout.
    pub new_offset_sectors: i32,
}

/// Where the write-intent bitmap, the partial parity log or the bad-block log lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogArea {
    /// From the start of the superblock; may be negative.
    pub offset_sectors: i32,
    /// Its length; 0 when the superblock does not tell (a bitmap has its own header).
    pub size_sectors: u32,
}

/// A superblock that passed every check of [`decode`], or that this engine made.
///
/// It lives as long as its member is in use: decoded (or planned) once, changed by
/// [`crate::md::update::apply`], encoded and written at each update. The public fields are plain
/// facts; [`encode`](Self::encode) writes whatever they hold, so whoever changes one keeps the
/// rules of [`decode`] (the functions of [`crate::md::update`] do).
#[derive(Clone)]
pub struct Superblock {
    /// Where it lies.
    pub minor: Minor,
    /// What is in use.
    pub features: Features,
    /// Identity of the array.
    pub array_uuid: MdUuid,
    /// Name of the array, 32 bytes, zero-padded; usually `host:name`.
    pub name_bytes: [u8; 32],
    /// When the array was made.
    pub created: MdTime,
    /// md's number of the level: -1 linear, 0, 1, 4, 5, 6, 10.
    pub level: i32,
    /// md's number of the layout; its meaning depends on the level.
    pub layout: u32,
    /// Used size of each member; 0 for level 0 and linear, which use all of `data_size_sectors`.
    pub size_sectors: u64,
    /// Chunk size; 0 where the level has none.
    pub chunk_sectors: u32,
    /// Slot count.
    pub slot_count: u32,
    /// The bitmap's place (feature bitmap) or PPL offset and size (feature ppl), raw: see
    /// [`bitmap`](Self::bitmap) and [`ppl`](Self::ppl).
    pub bitmap_or_ppl: u32,
    /// A reshape under way.
    pub reshape: Reshape,
    /// Where the data of this member starts.
    pub data_offset_sectors: u64,
    /// Sectors of this member that can be used for data.
    pub data_size_sectors: u64,
    /// Where this superblock starts, as it says itself.
    pub super_offset_sectors: u64,
    /// With [`Features::RECOVERY_OFFSET`]: sectors of this member that are filled. On a journal:
    /// its tail.
    pub recovery_offset_sectors: u64,
    /// Permanent number of this member, index into the roles.
    pub dev_number: u32,
    /// Read errors that were corrected by rewriting.
    pub corrected_read_count: u32,
    /// Identity of this member; zero in version 0.90, which has none.
    pub device_uuid: MdUuid,
    /// 1: write-mostly, 2: fail fast.
    pub device_flags: u8,
    /// Unit of the bad-block log: `512 << shift` bytes.
    pub bad_block_shift: u8,
    /// Bad-block log; size 0 when there is none.
    pub bad_block_log: LogArea,
    /// When this superblock was written last.
    pub updated: MdTime,
    /// Incremented at each update.
    pub events: u64,
    /// Array sectors known in sync: [`ALL_SECTORS`] clean, 0 dirty, else the position of a resync.
    pub resync_offset_sectors: u64,
    /// Logical block size of the array; 0 when it is not said, as by older kernels. It changes
    /// nothing about where bytes lie, but the array must not be offered with a smaller one.
    pub logical_block_bytes: u32,
    /// Role of each member, by `dev_number`; numbers not in use have md's spare role.
    roles: Vec<u16>,
    /// The area as it was read; zeros for a new one.
    area: Box<[u8; AREA_BYTES]>,
}

/// Equal when the same bytes would be written to the same place.
impl PartialEq for Superblock {
    fn eq(&self, other: &Self) -> bool {
        self.minor == other.minor && self.encode() == other.encode()
    }
}

impl Eq for Superblock {}

impl fmt::Debug for Superblock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Superblock")
            .field("minor", &self.minor)
            .field("array_uuid", &self.array_uuid)
            .field("name", &self.name())
            .field("level", &self.level)
            .field("dev_number", &self.dev_number)
            .field("role", &self.role())
            .field("events", &self.events)
            .field("resync_offset_sectors", &self.resync_offset_sectors)
            .finish_non_exhaustive()
    }
}

impl Superblock {
    /// Name of the array as text; what is not UTF-8 or not printable is shown as U+FFFD.
    #[must_use]
    pub fn name(&self) -> String {
        let end = self.name_bytes.iter().position(|&byte| byte == 0).unwrap_or(32);
        let text = String::from_utf8_lossy(&self.name_bytes[..end]);
        text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
    }

    /// Role of this member, by its own word.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role_of(self.dev_number)
    }

    /// Role of the member `dev_number`, by this superblock's word; a number beyond its table is one
    /// of the many that are not in use, which md lists as spares.
    #[must_use]
    pub fn role_of(&self, dev_number: u32) -> Role {
        let role = usize::try_from(dev_number).ok().and_then(|index| self.roles.get(index));
        role.map_or(Role::Spare, |&role| Role::from_md(role))
    }

    /// Every member number with its role. Numbers not in use are listed as spares (by md) or
    /// faulty.
    pub fn roles(&self) -> impl ExactSizeIterator<Item = Role> + '_ {
        self.roles.iter().map(|&role| Role::from_md(role))
    }

    /// Sets the role of member `dev_number`; the table grows as needed, with spares, as md does.
    ///
    /// # Errors
    ///
    /// [`SuperblockError::DevNumber`] when the number is [`Minor::role_count_max`] or more.
    pub fn set_role(&mut self, dev_number: u32, role: Role) -> Result<(), SuperblockError> {
        let index = dev_number as usize;
        let limit = self.minor.role_count_max();
        if index >= limit {
            return Err(SuperblockError::DevNumber { dev_number, max_dev: limit as u32 });
        }
        if index >= self.roles.len() {
            self.roles.resize(index + 1, Role::Spare.to_md());
        }
        self.roles[index] = role.to_md();
        Ok(())
    }

    /// Takes over the table of roles of another superblock of the same array; it never gets
    /// shorter.
    pub(in crate::md) fn take_roles(&mut self, other: &Self) {
        let shared = other.roles.len().min(self.roles.len());
        self.roles[..shared].copy_from_slice(&other.roles[..shared]);
        self.roles.extend_from_slice(&other.roles[shared..]);
        for role in &mut self.roles[other.roles.len()..] {
            // Beyond the other's table nobody is active.
            *role = Role::Spare.to_md();
        }
    }

    /// Member numbers listed as active in `slot`; two when a replacement is under way.
    pub fn active_in(&self, slot: u16) -> impl Iterator<Item = u32> + '_ {
        (0_u32..).zip(&self.roles).filter(move |&(_, &role)| role == slot).map(|(number, _)| number)
    }

    /// The layout where it means something, else 0: md ignores the field for some levels, and for
    /// level 0 without [`Features::RAID0_LAYOUT`] (an array whose unequal members cannot be
    /// placed then).
    #[must_use]
    pub fn layout_in_use(&self) -> u32 {
        match self.level {
            0 if self.features.has(Features::RAID0_LAYOUT) => self.layout,
            5 | 6 | 10 => self.layout,
            _ => 0,
        }
    }

    /// Nothing was being written and no resync is pending.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.resync_offset_sectors == ALL_SECTORS
    }

    /// Where the write-intent bitmap lies, when there is one.
    #[must_use]
    pub fn bitmap(&self) -> Option<LogArea> {
        let offset_sectors = self.bitmap_or_ppl.cast_signed();
        self.features.has(Features::BITMAP).then_some(LogArea { offset_sectors, size_sectors: 0 })
    }

    /// Where the partial parity log lies, when there is one.
    #[must_use]
    pub fn ppl(&self) -> Option<LogArea> {
        let [a, b, c, d] = self.bitmap_or_ppl.to_le_bytes();
        let area = LogArea {
            offset_sectors: i16::from_le_bytes([a, b]).into(),
            size_sectors: u16::from_le_bytes([c, d]).into(),
        };
        self.features.has(Features::PPL | Features::MULTIPLE_PPLS).then_some(area)
    }

    /// How much of this member is filled, in bytes, when it is being recovered.
    #[must_use]
    pub fn recovered_bytes(&self) -> Option<u64> {
        let partial = self.features.has(Features::RECOVERY_OFFSET)
            && self.recovery_offset_sectors != ALL_SECTORS;
        partial.then(|| self.recovery_offset_sectors.saturating_mul(SECTOR_BYTES))
    }

    /// Used bytes of each member; 0 for level 0 and linear, where each uses its whole data area.
    #[must_use]
    pub fn component_bytes(&self) -> u64 {
        self.size_sectors.saturating_mul(SECTOR_BYTES)
    }

    /// The data area of this member, in bytes. [`decode`] has made sure that it fits.
    #[must_use]
    pub fn data_bytes(&self) -> Range<u64> {
        let start = self.data_offset_sectors.saturating_mul(SECTOR_BYTES);
        start..start.saturating_add(self.data_size_sectors.saturating_mul(SECTOR_BYTES))
    }

    /// The array's identity as its superblock stores it, which bitmap, PPL and journal refer to.
    #[must_use]
    pub fn array_uuid_bytes(&self) -> [u8; 16] {
        if self.minor == Minor::V0_90 { v0::stored_uuid(self) } else { self.array_uuid.0 }
    }

    /// Where the superblock area starts, in bytes.
    #[must_use]
    pub fn super_offset_bytes(&self) -> u64 {
        self.super_offset_sectors.saturating_mul(SECTOR_BYTES)
    }

    /// Nonzero bytes where md writes zeros: a field of a newer format, so never read-write.
    #[must_use]
    pub fn has_reserved_bytes(&self) -> bool {
        match self.minor {
            Minor::V0_90 => v0::has_reserved_words(&self.area),
            _ => decode::has_reserved_bytes(&self.area),
        }
    }
}
