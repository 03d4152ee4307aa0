//! The write journal of RAID 4, 5 and 6: a member of its own that everything goes through.
//!
//! ```text
//!   data area of the journal member, a ring of 4 KiB blocks:
//!
//!   | meta block | data and parity blocks that it lists | meta block | ... | meta block |  garbage
//!     ^ tail, in the journal's own superblock              seq + 1              seq + n
//!
//!   meta block  0       4          8         9   12          16    24         32
//!              | magic | checksum | version | 0 | meta size | seq | position | payloads ...
//!
//!   payload     0      2       4               8                16
//!   data 0     | type | flags | sectors       | array sector   | checksum for each 4 KiB block
//!   parity 1   | type | flags | sectors       | member sector  | checksum of P (and of Q)
//!   flush 2    | type | flags | bytes         | member sector of each row that is on the members
//! ```
//!
//! Every checksum is CRC-32C over the array's identity and then the bytes, not inverted at the end.
//! Positions are sectors from the start of the data area.
//!
//! Data and parity of a write are durable in the journal before any of them goes to the other
//! members, so after a crash what is in the journal is written again, whole. In write-back mode
//! data may be in the journal *alone* for a long time: then the journal is part of the array, and
//! the array's superblocks say clean while it runs. So **the journal always has to be looked at**,
//! and an array whose journal is missing is not what its users left.

mod replay;
mod scan;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use replay::{BlockWrite, Replay, StripeReplay, replay};
pub use scan::{Block, JournalError, Log, MetaBlock, Payload, scan};

use crate::md::crc::crc32c;
use crate::md::{SECTOR_BYTES, Superblock};

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;
/// Sectors of a block.
pub const BLOCK_SECTORS: u64 = BLOCK_BYTES as u64 / SECTOR_BYTES;
/// The first four bytes of a meta block, little-endian.
pub const MAGIC: u32 = 0x6433_c509;
/// What the sequence number jumps by when a log is started anew behind another, so that what is
/// left of the old one is not taken for its continuation.
pub const SEQUENCE_JUMP: u64 = 10_000;

const VERSION: u8 = 1;
const META_HEAD_BYTES: usize = 32;
const CHECKSUM_AT: usize = 4;
const TYPE_DATA: u16 = 0;
const TYPE_PARITY: u16 = 1;
const TYPE_FLUSH: u16 = 2;

/// Facts: the kernel's uapi `linux/raid/md_p.h`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawMeta {
    magic: U32,
    checksum: U32,
    version: u8,
    zero_1: u8,
    zero_2: U16,
    meta_size: U32,
    seq: U64,
    position: U64,
}

const _: () = assert!(size_of::<RawMeta>() == META_HEAD_BYTES);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawPayload {
    kind: U16,
    flags: U16,
    size: U32,
}

/// Where the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalPlace {
    /// The array's identity as stored.
    pub uuid_bytes: [u8; 16],
    /// Where the ring starts on the member, in bytes.
    pub start: u64,
    /// Sectors of the ring, a multiple of [`BLOCK_SECTORS`].
    pub ring_sectors: u64,
    /// Position of the first meta block.
    pub tail_sectors: u64,
}

impl JournalPlace {
    /// From the superblock of the journal member; `None` when the ring is too small to hold
    /// anything. A tail outside of the ring is taken for its start, as by the kernel.
    #[must_use]
    pub fn new(journal: &Superblock) -> Option<Self> {
        let ring_sectors = journal.data_size_sectors / BLOCK_SECTORS * BLOCK_SECTORS;
        let tail = journal.recovery_offset_sectors;
        let is_inside = tail < ring_sectors && tail.is_multiple_of(BLOCK_SECTORS);
        (ring_sectors > BLOCK_SECTORS).then_some(Self {
            uuid_bytes: journal.array_uuid_bytes(),
            start: journal.data_bytes().start,
            ring_sectors,
            tail_sectors: if is_inside { tail } else { 0 },
        })
    }

    /// The position `sectors` behind `position`.
    #[must_use]
    pub fn advance(&self, position: u64, sectors: u64) -> u64 {
        // Both are below the ring's length, or a little more.
        (position + sectors) % self.ring_sectors
    }

    /// Where a position is on the member, in bytes.
    #[must_use]
    pub fn offset(&self, position: u64) -> u64 {
        self.start + position * SECTOR_BYTES
    }

    /// The checksum of a block.
    #[must_use]
    pub fn checksum(&self, block: &[u8]) -> u32 {
        !crc32c(&[&self.uuid_bytes, block])
    }

    fn meta_checksum(&self, block: &[u8; BLOCK_BYTES]) -> u32 {
        let (before, after) = (&block[..CHECKSUM_AT], &block[CHECKSUM_AT + 4..]);
        !crc32c(&[&self.uuid_bytes, before, &[0; 4], after])
    }

    /// A meta block without payloads: the start of a new log. It has to be durable at `position`
    /// before the journal's superblock says so.
    #[must_use]
    pub fn empty_block(&self, position: u64, sequence: u64) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        if let Ok((raw, _)) = RawMeta::mut_from_prefix(&mut block) {
            raw.magic.set(MAGIC);
            raw.version = VERSION;
            raw.meta_size.set(META_HEAD_BYTES as u32);
            raw.seq.set(sequence);
            raw.position.set(position);
        }
        let sum = self.meta_checksum(&block);
        block[CHECKSUM_AT..][..4].copy_from_slice(&sum.to_le_bytes());
        block
    }
}
