//! The partial parity log (PPL) of RAID 5: what closes the write hole for blocks that were not
//! written.
//!
//! ```text
//!   member's PPL area (`Superblock::ppl_bytes`), one log or several, one behind the other:
//!
//!   | header 4 KiB | partial parity of entry 0 | of entry 1 | ... | header 4 KiB | ...
//!
//!   header   0      512         516 520          528       532        536
//!           | 0xff | signature | 0 | generation | entries | checksum | entries, 24 bytes each
//!
//!   entry    0             8         12          16            20
//!           | data sector | pp size | data size | parity slot | checksum of its partial parity |
//! ```
//!
//! The log lies on the member that holds the parity of the stripes concerned. An entry is written
//! before data and parity are: the XOR of the chunks of a row that will *not* be written. After a
//! crash, parity is that XOR the chunks that may have been written, whichever of them were: so the
//! parity is right again without a resync, and what was not written is safe even if a member is
//! lost with the crash. A row whose chunks all are written needs no partial parity.
//!
//! An entry covers rows of one stripe: `rows` bytes from the same offset in `n` neighbouring data
//! chunks, the first of which is at array sector `data sector`.
//!
//! ```text
//!   pp size    rows                      n
//!   0          data size / all chunks    all chunks
//!   < chunk    pp size                   data size / pp size
//!   chunk      the whole chunk           as far as data size reaches from the data sector on
//! ```
//!
//! Only the newest log of a member counts. All of this is recovered only when the array was not
//! stopped cleanly; the logs of a clean one mean nothing.

mod recover;

use alloc::vec::Vec;
use core::ops::Range;

pub use recover::{Damage, Recovery, RowFix, is_clean_after, recover};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::md::crc::crc32c;
use crate::md::{SECTOR_BYTES, Superblock};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 4096;
/// Entries of a header.
pub const ENTRY_COUNT_MAX: usize = (HEADER_BYTES - ENTRIES_AT) / size_of::<RawEntry>();
/// Longest PPL area: its size has 16 bits of sectors.
pub const AREA_BYTES_MAX: u64 = u16::MAX as u64 * SECTOR_BYTES;

const RESERVED_BYTES: usize = 512;
const ENTRIES_AT: usize = 536;
const CHECKSUM_AT: usize = 532;

/// Facts: the kernel's uapi `linux/raid/md_p.h`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    reserved: [u8; RESERVED_BYTES],
    signature: U32,
    padding: U32,
    generation: U64,
    entries_count: U32,
    checksum: U32,
}

const _: () = assert!(size_of::<RawHeader>() == ENTRIES_AT);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    data_sector: U64,
    pp_size: U32,
    data_size: U32,
    parity_disk: U32,
    checksum: U32,
}

/// One entry, as it is stored; [`recover`] checks it against the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Array sector of the first byte that may have been written.
    pub data_sector: u64,
    /// Bytes of partial parity; 0 for none, when all chunks of the rows are written.
    pub partial_bytes: u32,
    /// Bytes of data, over all chunks.
    pub data_bytes: u32,
    /// Slot of the parity.
    pub parity_slot: u32,
    /// CRC-32C of the partial parity.
    pub checksum: u32,
}

/// A log of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Counts up; the newest log of a member has the greatest.
    pub generation: u64,
    /// What was being written.
    pub entries: Vec<Entry>,
}

/// Why there is no usable log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PplError {
    /// The log could not be read.
    #[error("the partial parity log could not be read")]
    Unreadable,
    /// Too short for a header.
    #[error("a partial parity log of {len} bytes has no room for a header")]
    TooShort {
        /// Bytes there are.
        len: usize,
    },
    /// Damaged, or never written.
    #[error(
        "partial parity log: header checksum 0x{computed:08x} is not the stored 0x{stored:08x}"
    )]
    Checksum {
        /// What it says.
        stored: u32,
        /// What its bytes give.
        computed: u32,
    },
    /// Another array's.
    #[error("partial parity log: signature 0x{stored:08x} is not the array's 0x{expected:08x}")]
    Signature {
        /// What it says.
        stored: u32,
        /// The array's.
        expected: u32,
    },
    /// More entries than a header can hold.
    #[error("partial parity log: {count} entries do not fit into a header")]
    EntryCount {
        /// What it says.
        count: u32,
    },
}

/// The signature of an array's logs: the CRC-32C of its identity.
#[must_use]
pub fn signature(uuid_bytes: &[u8; 16]) -> u32 {
    crc32c(&[uuid_bytes])
}

impl Header {
    /// Decodes a header.
    ///
    /// # Errors
    ///
    /// The first comparison that fails.
    pub fn decode(bytes: &[u8], expected_signature: u32) -> Result<Self, PplError> {
        let too_short = PplError::TooShort { len: bytes.len() };
        let Some(area) = bytes.first_chunk::<HEADER_BYTES>() else { return Err(too_short) };
        let Ok((raw, _)) = RawHeader::read_from_prefix(area) else { return Err(too_short) };
        let (stored, computed) = (raw.checksum.get(), checksum(area));
        if stored != computed {
            return Err(PplError::Checksum { stored, computed });
        }
        let (stored, expected) = (raw.signature.get(), expected_signature);
        if stored != expected {
            return Err(PplError::Signature { stored, expected });
        }
        let count = raw.entries_count.get();
        if count as usize > ENTRY_COUNT_MAX {
            return Err(PplError::EntryCount { count });
        }
        let raw_entries = area[ENTRIES_AT..].chunks_exact(size_of::<RawEntry>());
        let entries = raw_entries.take(count as usize).filter_map(|bytes| {
            let raw = RawEntry::read_from_bytes(bytes).ok()?;
            Some(Entry {
                data_sector: raw.data_sector.get(),
                partial_bytes: raw.pp_size.get(),
                data_bytes: raw.data_size.get(),
                parity_slot: raw.parity_disk.get(),
                checksum: raw.checksum.get(),
            })
        });
        Ok(Self { generation: raw.generation.get(), entries: entries.collect() })
    }

    /// The header's bytes. Entries beyond [`ENTRY_COUNT_MAX`] are left out.
    #[must_use]
    pub fn encode(&self, signature: u32) -> [u8; HEADER_BYTES] {
        let mut area = [0; HEADER_BYTES];
        let entries = &self.entries[..self.entries.len().min(ENTRY_COUNT_MAX)];
        if let Ok((raw, _)) = RawHeader::mut_from_prefix(&mut area) {
            raw.reserved = [0xff; RESERVED_BYTES];
            raw.signature.set(signature);
            raw.generation.set(self.generation);
            raw.entries_count.set(entries.len() as u32);
        }
        let places = area[ENTRIES_AT..].chunks_exact_mut(size_of::<RawEntry>());
        for (place, entry) in places.zip(entries) {
            let raw = RawEntry {
                data_sector: entry.data_sector.into(),
                pp_size: entry.partial_bytes.into(),
                data_size: entry.data_bytes.into(),
                parity_disk: entry.parity_slot.into(),
                checksum: entry.checksum.into(),
            };
            place.copy_from_slice(raw.as_bytes());
        }
        let sum = checksum(&area);
        area[CHECKSUM_AT..][..4].copy_from_slice(&sum.to_le_bytes());
        area
    }

    /// The header that stands for "nothing is being written": what a member gets when the array
    /// starts.
    #[must_use]
    pub fn empty() -> Self {
        Self { generation: 0, entries: Vec::new() }
    }
}

/// The checksum of a header, its own field taken as zero.
fn checksum(area: &[u8; HEADER_BYTES]) -> u32 {
    crc32c(&[&area[..CHECKSUM_AT], &[0; 4], &area[CHECKSUM_AT + 4..]])
}

/// The checksum of an entry's partial parity.
#[must_use]
pub fn partial_checksum(partial: &[u8]) -> u32 {
    crc32c(&[partial])
}

/// The newest log of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newest {
    /// Its header.
    pub header: Header,
    /// Where its header starts in the area; the partial parity follows it.
    pub offset: usize,
}

/// Finds the newest log in the PPL area of a member, all of which is given.
///
/// The first log is at the start; each of the others lies right behind the one before and has no
/// smaller generation, or it is a remnant.
///
/// # Errors
///
/// What is wrong with the first log: then there is none.
pub fn newest(area: &[u8], signature: u32) -> Result<Newest, PplError> {
    let mut found: Option<Newest> = None;
    let mut offset = 0;
    loop {
        // As in the kernel, a header in the very last place is not looked for.
        let rest = area.get(offset..).filter(|rest| rest.len() > HEADER_BYTES || offset == 0);
        let decoded = match rest {
            Some(rest) => Header::decode(rest, signature),
            None => Err(PplError::TooShort { len: 0 }),
        };
        match (decoded, found) {
            (Err(error), None) => return Err(error),
            (Err(_), Some(newest)) => return Ok(newest),
            (Ok(header), Some(newest)) if header.generation < newest.header.generation => {
                return Ok(newest);
            }
            (Ok(header), _) => {
                let partial: u64 =
                    header.entries.iter().map(|entry| u64::from(entry.partial_bytes)).sum();
                let start = offset;
                let next =
                    (offset as u64).saturating_add(HEADER_BYTES as u64 + partial / 512 * 512);
                offset = usize::try_from(next).unwrap_or(usize::MAX);
                found = Some(Newest { header, offset: start });
            }
        }
    }
}

impl Superblock {
    /// The bytes of a member that hold its partial parity logs.
    #[must_use]
    pub fn ppl_bytes(&self) -> Option<Range<u64>> {
        let area = self.ppl()?;
        // `decode` has made sure that it lies inside the member.
        let start = self.super_offset_sectors.checked_add_signed(area.offset_sectors.into())?;
        Some(start * SECTOR_BYTES..(start + u64::from(area.size_sectors)) * SECTOR_BYTES)
    }
}
