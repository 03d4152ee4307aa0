//! A member's bad-block log: ranges of it whose content is lost.
//!
//! ```text
//!   8 bytes, little-endian, for each range:
//!       bits 10..64   first unit, from the start of the member
//!       bits  0..10   units, 1..=512
//!   the first entry of all ones ends the list; a unit is 512 << bad_block_shift bytes
//! ```
//!
//! A bad block was unreadable on the source of a rebuild, or unwritable. Reading it gives an error,
//! never the bytes that happen to be there; a successful write of it heals it. The log is in use
//! only while the superblock has
//! [`Features::BAD_BLOCKS`](crate::md::superblock::Features::BAD_BLOCKS).

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::md::superblock::Features;
use crate::md::{SECTOR_BYTES, Superblock};

/// Longest log: the kernel reads no more than a page.
pub const LOG_SECTORS_MAX: u32 = 8;
/// Units that one entry can hold, as md writes them.
const ENTRY_UNITS_MAX: u64 = 512;
/// Bits of an entry that count units.
const COUNT_BITS: u32 = 10;
/// The first unit that no entry can hold.
const UNIT_END: u64 = 1 << (64 - COUNT_BITS);

/// Why a log cannot be used. The member it belongs to must not be read then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadBlocksError {
    /// The log is longer than any that md makes.
    #[error("a bad-block log of {sectors} sectors is longer than 8")]
    TooLong {
        /// Its length.
        sectors: u32,
    },
    /// There is no room for a log.
    #[error("the superblock has bad blocks, but no log of them")]
    NoLog,
    /// The log could not be read.
    #[error("the bad-block log could not be read")]
    Unreadable,
    /// An entry outside of the member, or empty.
    #[error(
        "entry {index} of the bad-block log, {units} units from unit {first}, is no part of the \
            member"
    )]
    Entry {
        /// Which.
        index: usize,
        /// Its first unit.
        first: u64,
        /// Its length.
        units: u64,
    },
    /// More ranges than the log has entries: the member has to be given up.
    #[error("{need} bad-block entries do not fit into the {room} of the log")]
    Full {
        /// Entries needed.
        need: usize,
        /// Entries there are.
        room: usize,
    },
}

/// Ranges of a member whose content is lost, in bytes from the start of the member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BadBlocks {
    /// Ascending, apart from each other, none empty.
    ranges: Vec<Range<u64>>,
}

impl BadBlocks {
    /// The bytes of a member that hold its log, to be read and given to [`decode`](Self::decode);
    /// `None` when there is no log.
    #[must_use]
    pub fn log_bytes(superblock: &Superblock) -> Option<Range<u64>> {
        let log = superblock.bad_block_log;
        if log.size_sectors == 0 {
            return None;
        }
        // `decode` of the superblock has made sure that it lies inside the member.
        let start =
            superblock.super_offset_sectors.checked_add_signed(log.offset_sectors.into())?;
        Some(start * SECTOR_BYTES..(start + u64::from(log.size_sectors)) * SECTOR_BYTES)
    }

    /// Decodes the log of a member. Empty without the superblock's feature bit, whatever `log`
    /// holds.
    ///
    /// # Errors
    ///
    /// [`BadBlocksError`]: what can be read of the member is not known.
    pub fn decode(
        superblock: &Superblock,
        member_bytes: u64,
        log: &[u8],
    ) -> Result<Self, BadBlocksError> {
        if !superblock.features.has(Features::BAD_BLOCKS) {
            return Ok(Self::default());
        }
        let sectors = superblock.bad_block_log.size_sectors;
        if sectors == 0 {
            return Err(BadBlocksError::NoLog);
        }
        if sectors > LOG_SECTORS_MAX {
            return Err(BadBlocksError::TooLong { sectors });
        }
        let len = sectors as usize * SECTOR_BYTES as usize;
        let Some(log) = log.get(..len) else { return Err(BadBlocksError::Unreadable) };
        let unit_bytes = SECTOR_BYTES << superblock.bad_block_shift.min(12);
        let mut bad = Self::default();
        for (index, entry) in log.as_chunks::<8>().0.iter().enumerate() {
            let entry = u64::from_le_bytes(*entry);
            if entry == u64::MAX {
                break;
            }
            let (first, units) = (entry >> COUNT_BITS, entry & ((1 << COUNT_BITS) - 1));
            let range = first.checked_mul(unit_bytes).and_then(|start| {
                let end = start.checked_add(units * unit_bytes)?;
                (units > 0 && end <= member_bytes).then_some(start..end)
            });
            let Some(range) = range else {
                return Err(BadBlocksError::Entry { index, first, units });
            };
            bad.add(range);
        }
        Ok(bad)
    }

    /// The log as it is to be written, for [`log_bytes`](Self::log_bytes) of the member; the
    /// superblock has to have its feature bit exactly when there is a range
    /// ([`Superblock::set_bad_blocks`]).
    ///
    /// Ranges are widened to whole units.
    ///
    /// # Errors
    ///
    /// [`BadBlocksError::Full`] when there are too many, [`BadBlocksError::NoLog`] without a log.
    pub fn encode(&self, superblock: &Superblock) -> Result<Vec<u8>, BadBlocksError> {
        let sectors = superblock.bad_block_log.size_sectors;
        if sectors > LOG_SECTORS_MAX {
            return Err(BadBlocksError::TooLong { sectors });
        }
        if sectors == 0 {
            return Err(BadBlocksError::NoLog);
        }
        let unit_bytes = SECTOR_BYTES << superblock.bad_block_shift.min(12);
        let entries = self.entries(unit_bytes)?;
        let room = sectors as usize * SECTOR_BYTES as usize / 8;
        if entries.len() > room {
            return Err(BadBlocksError::Full { need: entries.len(), room });
        }
        let mut log = vec![0xff; room * 8];
        for (place, entry) in log.as_chunks_mut::<8>().0.iter_mut().zip(entries) {
            *place = entry.to_le_bytes();
        }
        Ok(log)
    }

    fn entries(&self, unit_bytes: u64) -> Result<Vec<u64>, BadBlocksError> {
        let mut entries = Vec::new();
        let mut last = 0;
        for range in &self.ranges {
            let end = range.end.div_ceil(unit_bytes);
            // Two ranges may share a unit.
            let mut first = (range.start / unit_bytes).max(last);
            last = end;
            while first < end {
                let units = (end - first).min(ENTRY_UNITS_MAX);
                if first + units > UNIT_END {
                    return Err(BadBlocksError::Entry { index: entries.len(), first, units });
                }
                entries.push(first << COUNT_BITS | units);
                first += units;
            }
        }
        Ok(entries)
    }

    /// Nothing is lost.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// All ranges, ascending.
    #[must_use]
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// The first part of `range` that is lost.
    #[must_use]
    pub fn first_in(&self, range: Range<u64>) -> Option<Range<u64>> {
        let index = self.ranges.partition_point(|bad| bad.end <= range.start);
        let bad = self.ranges.get(index)?;
        let (start, end) = (bad.start.max(range.start), bad.end.min(range.end));
        (start < end).then_some(start..end)
    }

    /// Some byte of `range` is lost.
    #[must_use]
    pub fn touches(&self, range: Range<u64>) -> bool {
        self.first_in(range).is_some()
    }

    /// Notes that `range` is lost.
    pub fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // Those that touch it, neighbours included, become one with it.
        let from = self.ranges.partition_point(|bad| bad.end < range.start);
        let to = self.ranges.partition_point(|bad| bad.start <= range.end);
        let start =
            self.ranges.get(from).filter(|_| from < to).map_or(range.start, |bad| bad.start);
        let end = if from < to { self.ranges[to - 1].end } else { range.end };
        let joined = start.min(range.start)..end.max(range.end);
        self.ranges.splice(from..to, [joined]);
    }

    /// Notes that `range` has been written and can be read again.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let from = self.ranges.partition_point(|bad| bad.end <= range.start);
        let to = self.ranges.partition_point(|bad| bad.start < range.end);
        if from >= to {
            return;
        }
        let before = self.ranges[from].start..range.start;
        let after = range.end..self.ranges[to - 1].end;
        let rest: Vec<_> = [before, after].into_iter().filter(|rest| !rest.is_empty()).collect();
        self.ranges.splice(from..to, rest);
    }
}

impl Superblock {
    /// Sets or clears the feature bit that says whether the bad-block log holds anything.
    pub fn set_bad_blocks(&mut self, bad: &BadBlocks) {
        self.features.0 &= !Features::BAD_BLOCKS;
        if !bad.is_empty() {
            self.features.0 |= Features::BAD_BLOCKS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::BadBlocks;

    /// Adding and removing, against bytes one by one.
    #[test]
    fn against_single_bytes() {
        let mut state = 1_u64;
        let mut random = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % bound
        };
        let mut bad = BadBlocks::default();
        let mut model = [false; 64];
        for _ in 0..5000 {
            let start = random(64);
            let range = start..start + random(64 - start + 1);
            let is_add = random(2) == 0;
            if is_add {
                bad.add(range.clone())
            } else {
                bad.remove(range.clone())
            }
            model[range.start as usize..range.end as usize].fill(is_add);
            for pair in bad.ranges().windows(2) {
                assert!(pair[0].end < pair[1].start, "{bad:?}");
            }
            for (byte, &is_bad) in (0..).zip(&model) {
                assert_eq!(bad.touches(byte..byte + 1), is_bad, "{byte} {bad:?}");
            }
            let (from, to) = (random(64), random(65));
            let expected = (from..to.max(from)).find(|&byte| model[byte as usize]);
            assert_eq!(bad.first_in(from..to.max(from)).map(|range| range.start), expected);
        }
    }
}
