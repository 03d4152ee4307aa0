//! Reading the log, block by block, as far as it is whole.

use alloc::vec::Vec;

use zerocopy::FromBytes;

use super::{
    BLOCK_BYTES, BLOCK_SECTORS, JournalPlace, MAGIC, META_HEAD_BYTES, RawMeta, RawPayload,
    TYPE_DATA, TYPE_FLUSH, TYPE_PARITY, VERSION,
};
use crate::md::SECTOR_BYTES;

/// A block of data or parity in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its position in the ring, in sectors.
    pub position: u64,
    /// Its checksum, which it has been found to have.
    pub checksum: u32,
}

/// One payload of a meta block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Data of the array, one block.
    Data {
        /// Array byte of the block.
        offset: u64,
        /// The block.
        block: Block,
    },
    /// Parity of one row of blocks.
    Parity {
        /// Where, from the start of each member's data, in bytes.
        offset: u64,
        /// P, and Q where the array has it.
        blocks: Vec<Block>,
    },
    /// Rows that are on the members, so that what is in the log before means nothing.
    Flush {
        /// Where, from the start of each member's data, in bytes.
        offsets: Vec<u64>,
    },
}

/// A meta block whose own checksum is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaBlock {
    /// Its number.
    pub sequence: u64,
    /// Its position in the ring, in sectors.
    pub position: u64,
    /// What it lists; empty when one of its blocks is not whole, as then the write had not been
    /// acknowledged.
    pub payloads: Vec<Payload>,
    /// Whether all of its blocks are whole.
    pub is_whole: bool,
}

/// The log as far as it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Its meta blocks, oldest first. None when the journal was never used.
    pub blocks: Vec<MetaBlock>,
    /// Where the next meta block would be.
    pub end_position: u64,
    /// The number that it would have.
    pub end_sequence: u64,
}

/// Why a journal cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The member could not be read.
    #[error("the journal could not be read at sector {position}")]
    Unreadable {
        /// Where, in its ring.
        position: u64,
    },
    /// There is a log, but not one that starts here: it is damaged, and what was in it is lost.
    #[error("the journal has no valid block at its tail, sector {position}: {what}")]
    Tail {
        /// The tail, in its ring.
        position: u64,
        /// What is wrong.
        what: &'static str,
    },
}

/// Reads the log from its tail on.
///
/// `read` fills a buffer of [`BLOCK_BYTES`] from the given byte of the journal member and says
/// whether it could. The log ends at the first block that is not the next meta block, which is how
/// it always ends; memory grows with the log that is really there.
///
/// # Errors
///
/// [`JournalError`] when a block cannot be read, or when the first one is neither valid nor all
/// zeros.
pub fn scan(
    place: &JournalPlace,
    parity_count: usize,
    read: &mut dyn FnMut(u64, &mut [u8; BLOCK_BYTES]) -> bool,
) -> Result<Log, JournalError> {
    let mut scanner = Scanner { place, parity_count, read };
    let tail = place.tail_sectors;
    let mut log = Log { blocks: Vec::new(), end_position: tail, end_sequence: 0 };
    let first = scanner.block(tail)?;
    if first.iter().all(|&byte| byte == 0) {
        return Ok(log);
    }
    let mut next = scanner.meta(&first, tail, None);
    if let Err(what) = next {
        return Err(JournalError::Tail { position: tail, what });
    }
    let mut seen_sectors = 0;
    while let Ok((sequence, meta_bytes, block)) = next {
        let (meta, sectors) = scanner.payloads(&block[..meta_bytes], log.end_position, sequence)?;
        log.blocks.push(meta);
        log.end_position = place.advance(log.end_position, sectors);
        log.end_sequence = sequence.wrapping_add(1);
        seen_sectors += sectors;
        // Once round the ring: there is no more.
        if seen_sectors >= place.ring_sectors {
            break;
        }
        let block = scanner.block(log.end_position)?;
        next = scanner.meta(&block, log.end_position, Some(log.end_sequence));
    }
    Ok(log)
}

struct Scanner<'a> {
    place: &'a JournalPlace,
    parity_count: usize,
    read: &'a mut dyn FnMut(u64, &mut [u8; BLOCK_BYTES]) -> bool,
}

/// Sequence number, bytes of meta data, the block.
type Meta = (u64, usize, [u8; BLOCK_BYTES]);

impl Scanner<'_> {
    fn block(&mut self, position: u64) -> Result<[u8; BLOCK_BYTES], JournalError> {
        let mut block = [0; BLOCK_BYTES];
        if (self.read)(self.place.offset(position), &mut block) {
            Ok(block)
        } else {
            Err(JournalError::Unreadable { position })
        }
    }

    /// Checks a meta block; any sequence number will do for the first.
    fn meta(
        &self,
        block: &[u8; BLOCK_BYTES],
        position: u64,
        sequence: Option<u64>,
    ) -> Result<Meta, &'static str> {
        let Ok((raw, _)) = RawMeta::read_from_prefix(block) else { return Err("too short") };
        let meta_bytes = raw.meta_size.get() as usize;
        let checks = [
            (raw.magic.get() == MAGIC, "the magic number"),
            (raw.version == VERSION, "the version"),
            (raw.position.get() == position, "the position"),
            (sequence.is_none_or(|sequence| raw.seq.get() == sequence), "the sequence number"),
            ((META_HEAD_BYTES..=BLOCK_BYTES).contains(&meta_bytes), "the size"),
            (raw.checksum.get() == self.place.meta_checksum(block), "the checksum"),
        ];
        match checks.into_iter().find(|&(is_right, _)| !is_right) {
            Some((_, what)) => Err(what),
            None => Ok((raw.seq.get(), meta_bytes, *block)),
        }
    }

    /// Everything that a meta block lists, and the sectors from it to the next one.
    fn payloads(
        &mut self,
        meta: &[u8],
        position: u64,
        sequence: u64,
    ) -> Result<(MetaBlock, u64), JournalError> {
        let mut sectors = BLOCK_SECTORS;
        let mut payloads = Vec::new();
        let mut is_whole = true;
        let mut rest = &meta[META_HEAD_BYTES..];
        while is_whole && !rest.is_empty() {
            match self.payload(rest, position, &mut sectors)? {
                Some((payload, len)) => {
                    payloads.push(payload);
                    rest = &rest[len..];
                }
                None => is_whole = false,
            }
        }
        if !is_whole {
            payloads.clear();
            sectors = self.listed_sectors(meta);
        }
        Ok((MetaBlock { sequence, position, payloads, is_whole }, sectors))
    }

    /// The sectors that a meta block with a torn payload takes: as much as can be understood of it.
    fn listed_sectors(&self, meta: &[u8]) -> u64 {
        let mut sectors = BLOCK_SECTORS;
        let mut rest = &meta[META_HEAD_BYTES..];
        while let Some((raw, len)) = self.shape(rest) {
            if raw.kind.get() != TYPE_FLUSH {
                sectors += u64::from(raw.size.get());
            }
            rest = &rest[len..];
        }
        sectors
    }

    /// The head of the payload and its length, when it has a shape that md writes.
    fn shape(&self, rest: &[u8]) -> Option<(RawPayload, usize)> {
        let (raw, _) = RawPayload::read_from_prefix(rest).ok()?;
        let size = raw.size.get() as usize;
        let is_discard = raw.flags.get() & 1 != 0;
        let len = match raw.kind.get() {
            TYPE_DATA if size == BLOCK_SECTORS as usize && !is_discard => 16 + 4,
            TYPE_PARITY if size == BLOCK_SECTORS as usize * self.parity_count => {
                16 + 4 * self.parity_count
            }
            TYPE_FLUSH if size.is_multiple_of(8) => 8_usize.checked_add(size)?,
            _ => return None,
        };
        (len <= rest.len()).then_some((raw, len))
    }

    /// Decodes the payload at the start of `rest` and checks its blocks, which lie `sectors` behind
    /// the meta block; `None` when one is not whole.
    fn payload(
        &mut self,
        rest: &[u8],
        position: u64,
        sectors: &mut u64,
    ) -> Result<Option<(Payload, usize)>, JournalError> {
        let Some((raw, len)) = self.shape(rest) else { return Ok(None) };
        let u64_at = |at: usize| rest.get(at..).and_then(|rest| rest.first_chunk::<8>());
        let u64_at = |at: usize| u64_at(at).map_or(0, |bytes| u64::from_le_bytes(*bytes));
        if raw.kind.get() == TYPE_FLUSH {
            let offsets = (8..len).step_by(8).filter_map(|at| u64_at(at).checked_mul(SECTOR_BYTES));
            return Ok(Some((Payload::Flush { offsets: offsets.collect() }, len)));
        }
        let Some(offset) = u64_at(8).checked_mul(SECTOR_BYTES) else { return Ok(None) };
        let mut blocks = Vec::new();
        for stored in rest[16..len].as_chunks::<4>().0 {
            let checksum = u32::from_le_bytes(*stored);
            let at = self.place.advance(position, *sectors);
            let block = self.block(at)?;
            if self.place.checksum(&block) != checksum {
                return Ok(None);
            }
            blocks.push(Block { position: at, checksum });
            *sectors += BLOCK_SECTORS;
        }
        let payload = match (raw.kind.get(), blocks.as_slice()) {
            (TYPE_DATA, &[block]) => Payload::Data { offset, block },
            _ => Payload::Parity { offset, blocks },
        };
        Ok(Some((payload, len)))
    }
}
