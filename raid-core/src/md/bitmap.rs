//! The write-intent bitmap: which regions may differ between the members after a crash.
//!
//! ```text
//!   byte 0      256                                256 + bits / 8      to a whole block
//!   | header    | bit i: region i may be dirty      | padding            |
//!
//!   a bit is set durably on every member  before  the first data write into its region
//!   a bit is cleared some seconds         after   the last one, when all members have the data
//! ```
//!
//! Every member of the array has the same bitmap, near its superblock
//! ([`Superblock::bitmap_room`]). What a region is, depends on the level: see
//! [`crate::md::regions`].
//!
//! - [`BitmapImage`] is the bitmap of a running array: marks and clears regions, and says which
//!   blocks have to be written for that. The order of writes is the caller's duty.
//! - [`believe`] says after a start which regions have to be resynced.
//! - [`choose`] makes the header of a new bitmap, with the chunk size and place of mdadm.
//!
//! There is no checksum. A header that does not fit its array in any field is not believed, and
//! what is not believed means *everything is dirty*, never *nothing*.

mod believe;
mod choose;
mod error;
mod image;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use believe::{Belief, MemberBitmap, believe, can_readd};
pub use choose::{BitmapWishes, choose};
pub use error::BitmapError;
pub use image::BitmapImage;

use crate::md::superblock::EVENTS_MAX;
use crate::md::{SECTOR_BYTES, Superblock};

/// The first four bytes of a bitmap, little-endian: `bitm`.
pub const MAGIC: u32 = 0x6d74_6962;
/// Bytes of the header.
pub const HEAD_BYTES: usize = 256;
/// Longest bitmap that is used: 128 Mi regions. mdadm makes none beyond 128 KiB unless told to.
pub const BITMAP_BYTES_MAX: u64 = 16 << 20;
/// Least size of a region.
pub const CHUNK_BYTES_MIN: u32 = 512;
/// Greatest `write_behind`, md's 14-bit counter.
const WRITE_BEHIND_MAX: u32 = (1 << 14) - 1;

/// What the bitmap's header has to agree with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitmapContext {
    /// The array's identity, as its superblock stores it: [`Superblock::array_uuid_bytes`].
    pub uuid_bytes: [u8; 16],
    /// Sync sectors of the array: [`crate::md::regions::sync_bytes`].
    pub sync_sectors: u64,
    /// Bytes between the bitmap's start and whatever comes next on the member.
    pub room_bytes: u64,
}

impl BitmapContext {
    /// The context of one member; `None` when its superblock has no bitmap.
    #[must_use]
    pub fn new(superblock: &Superblock, member_bytes: u64, sync_bytes: u64) -> Option<Self> {
        let room = superblock.bitmap_room(member_bytes)?;
        Some(Self {
            uuid_bytes: superblock.array_uuid_bytes(),
            sync_sectors: sync_bytes / SECTOR_BYTES,
            room_bytes: room.end - room.start,
        })
    }
}

/// The bytes of the header (facts: what `mdadm --examine-bitmap` prints of real ones, kernel
/// documentation).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHead {
    magic: U32,
    version: U32,
    uuid: [u8; 16],
    events: U64,
    events_cleared: U64,
    sync_size: U64,
    state: U32,
    chunksize: U32,
    daemon_sleep: U32,
    write_behind: U32,
    sectors_reserved: U32,
    nodes: U32,
    cluster_name: [u8; 64],
    pad: [u8; 120],
}

const _: () = assert!(size_of::<RawHead>() == HEAD_BYTES);

/// A bitmap's header that fits its array.
#[derive(Clone, PartialEq, Eq)]
pub struct BitmapHead {
    /// 3 (in the byte order of the machine that made it; only little-endian is understood) or 4.
    pub version: u32,
    /// The array's identity as stored in its superblock.
    pub uuid_bytes: [u8; 16],
    /// Event count of the array when the bitmap's header was written last.
    pub events: u64,
    /// Event count up to which every member has had the regions that are clean: a member that left
    /// at this count or later needs only the dirty regions to come back.
    pub events_cleared: u64,
    /// Sync sectors of the array.
    pub sync_sectors: u64,
    /// State bits.
    pub state: u32,
    /// Size of a region, in bytes.
    pub chunk_bytes: u32,
    /// Seconds between two rounds of clearing.
    pub daemon_sleep_seconds: u32,
    /// Writes that may be outstanding on write-mostly members; 0 for no write-behind.
    pub write_behind: u32,
    /// Sectors kept for the bitmap; 0 when not said.
    pub sectors_reserved: u32,
    /// The header as it was read.
    area: [u8; HEAD_BYTES],
}

impl core::fmt::Debug for BitmapHead {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("BitmapHead")
            .field("version", &self.version)
            .field("events", &self.events)
            .field("events_cleared", &self.events_cleared)
            .field("sync_sectors", &self.sync_sectors)
            .field("state", &self.state)
            .field("chunk_bytes", &self.chunk_bytes)
            .finish_non_exhaustive()
    }
}

impl BitmapHead {
    /// State: the bitmap missed writes and means nothing.
    pub const STALE: u32 = 1 << 1;
    /// State: the bitmap could not be written.
    pub const WRITE_ERROR: u32 = 1 << 2;

    /// Decodes and checks a header.
    ///
    /// # Errors
    ///
    /// The first comparison that fails. In that case everything has to be taken for dirty.
    pub fn decode(bytes: &[u8], context: &BitmapContext) -> Result<Self, BitmapError> {
        let too_short = BitmapError::TooShort { len: bytes.len(), need: HEAD_BYTES as u64 };
        let Some(area) = bytes.first_chunk::<HEAD_BYTES>() else { return Err(too_short) };
        let Ok(raw) = RawHead::read_from_bytes(area) else { return Err(too_short) };
        if raw.magic.get() != MAGIC {
            return Err(BitmapError::Magic { magic: raw.magic.get() });
        }
        let version = raw.version.get();
        if version == 5 || raw.nodes.get() != 0 {
            return Err(BitmapError::Cluster);
        }
        if !matches!(version, 3 | 4) {
            return Err(BitmapError::Version { version });
        }
        let head = Self {
            version,
            uuid_bytes: raw.uuid,
            events: raw.events.get(),
            events_cleared: raw.events_cleared.get(),
            sync_sectors: raw.sync_size.get(),
            state: raw.state.get(),
            chunk_bytes: raw.chunksize.get(),
            daemon_sleep_seconds: raw.daemon_sleep.get(),
            write_behind: raw.write_behind.get(),
            sectors_reserved: raw.sectors_reserved.get(),
            area: *area,
        };
        head.check(context)?;
        Ok(head)
    }

    /// Each field, then the sizes against each other.
    fn check(&self, context: &BitmapContext) -> Result<(), BitmapError> {
        if self.uuid_bytes != context.uuid_bytes {
            return Err(BitmapError::OtherArray);
        }
        let chunk_bytes = self.chunk_bytes;
        if !chunk_bytes.is_power_of_two() || chunk_bytes < CHUNK_BYTES_MIN {
            return Err(BitmapError::Chunk { chunk_bytes });
        }
        let (events, events_cleared) = (self.events, self.events_cleared);
        if events > EVENTS_MAX || events_cleared > events {
            return Err(BitmapError::Events { events, events_cleared });
        }
        if self.daemon_sleep_seconds == 0 || self.daemon_sleep_seconds > i32::MAX.cast_unsigned() {
            let (field, value) = ("flush period", self.daemon_sleep_seconds);
            return Err(BitmapError::Field { field, value });
        }
        if self.write_behind > WRITE_BEHIND_MAX {
            let (field, value) = ("write-behind limit", self.write_behind);
            return Err(BitmapError::Field { field, value });
        }
        let (stored, expected) = (self.sync_sectors, context.sync_sectors);
        if stored != expected {
            return Err(BitmapError::SyncSize { stored, expected });
        }
        let need_bytes = self.file_bytes();
        let reserved = match self.sectors_reserved {
            0 => u64::MAX,
            sectors => u64::from(sectors) * SECTOR_BYTES,
        };
        let room_bytes = context.room_bytes.min(reserved).min(BITMAP_BYTES_MAX);
        if need_bytes > room_bytes {
            return Err(BitmapError::TooLong { need_bytes, room_bytes });
        }
        Ok(())
    }

    /// The header as it is to be written; bytes that have no meaning here are those that were read.
    #[must_use]
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut area = self.area;
        if let Ok((raw, _)) = RawHead::mut_from_prefix(&mut area) {
            raw.magic.set(MAGIC);
            raw.version.set(self.version);
            raw.uuid = self.uuid_bytes;
            raw.events.set(self.events);
            raw.events_cleared.set(self.events_cleared);
            raw.sync_size.set(self.sync_sectors);
            raw.state.set(self.state);
            raw.chunksize.set(self.chunk_bytes);
            raw.daemon_sleep.set(self.daemon_sleep_seconds);
            raw.write_behind.set(self.write_behind);
            raw.sectors_reserved.set(self.sectors_reserved);
        }
        area
    }

    /// Regions, which is how many bits there are.
    #[must_use]
    pub fn bit_count(&self) -> u64 {
        // At least 1 sector, as at least 512 bytes.
        let chunk_sectors = (u64::from(self.chunk_bytes) / SECTOR_BYTES).max(1);
        self.sync_sectors.div_ceil(chunk_sectors)
    }

    /// Bytes of header and bits.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        HEAD_BYTES as u64 + self.bit_count().div_ceil(8)
    }

    /// It says itself that it means nothing.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.state & (Self::STALE | Self::WRITE_ERROR) != 0
    }
}

#[cfg(test)]
mod tests_support {
    use super::{BitmapContext, BitmapHead, BitmapWishes, choose};

    /// A header for an array of `sync_bytes`.
    pub(super) fn head(sync_bytes: u64, chunk_bytes: u32) -> BitmapHead {
        let wishes = BitmapWishes { chunk_bytes: Some(chunk_bytes), ..BitmapWishes::default() };
        choose([7; 16], sync_bytes / 512, 1 << 20, wishes).unwrap()
    }

    /// What it has to agree with.
    pub(super) fn context(sync_bytes: u64) -> BitmapContext {
        BitmapContext { uuid_bytes: [7; 16], sync_sectors: sync_bytes / 512, room_bytes: 1 << 20 }
    }
}
