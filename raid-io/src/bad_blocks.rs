//! Ranges of a member whose content is lost, by its own bad-block log.
//!
//! A read that touches one fails without the device being asked: what is there is not what was
//! written. The engine answers it as any failed read, from the other members. A write goes to the
//! device, and heals what it covers: in memory as soon as it has ended, in the log when the array
//! is stopped, after a flush. Until then the log says too much, never too little.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use raid_core::md::Superblock;
use raid_core::md::bad_blocks::BadBlocks;
use raid_core::md::superblock::Features;

use crate::Error;
use crate::member::Member;

/// The ranges of one member that is in use.
pub(crate) struct BadRanges {
    ranges: RwLock<BadBlocks>,
    /// Fewer than the log says.
    is_healed: AtomicBool,
}

impl BadRanges {
    /// Reads a member's log. `None` when it lists nothing.
    ///
    /// # Errors
    /// Returns an error if the log cannot be read or makes no sense: then nothing is known of the
    /// member's content.
    pub(crate) fn load(member: &Member, superblock: &Superblock) -> Result<Option<Self>, Error> {
        if !superblock.features.has(Features::BAD_BLOCKS) {
            return Ok(None);
        }
        let log = match BadBlocks::log_bytes(superblock) {
            Some(range) => member.read_range(range.start, (range.end - range.start) as usize)?,
            None => Vec::new(),
        };
        let ranges = BadBlocks::decode(superblock, member.device().size_bytes(), &log);
        let ranges = ranges.map_err(|error| member.unsuited(error.to_string()))?;
        for range in ranges.ranges() {
            tracing::warn!("{}: bytes {range:?} are listed as lost", member.name().display());
        }
        let is_healed = AtomicBool::new(false);
        Ok((!ranges.is_empty()).then(|| Self { ranges: RwLock::new(ranges), is_healed }))
    }

    /// Says whether some byte of a range of the member is lost.
    pub(crate) fn touches(&self, range: Range<u64>) -> bool {
        self.ranges.read().unwrap_or_else(PoisonError::into_inner).touches(range)
    }

    /// Notes that a range has been written.
    pub(crate) fn heal(&self, range: Range<u64>) {
        self.ranges.write().unwrap_or_else(PoisonError::into_inner).remove(range);
        self.is_healed.store(true, Ordering::Release);
    }

    /// Writes the log, if it says too much; the data that healed it must be durable. The superblock
    /// is changed and not written.
    ///
    /// # Errors
    /// Returns an error if the log cannot be written.
    pub(crate) fn store(&self, member: &Member, superblock: &mut Superblock) -> Result<(), Error> {
        if !self.is_healed.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner).clone();
        let log = ranges.encode(superblock).map_err(|error| member.unsuited(error.to_string()))?;
        if let Some(place) = BadBlocks::log_bytes(superblock) {
            member.write_range(place.start, &log)?;
            member.flush()?;
            superblock.set_bad_blocks(&ranges);
        }
        Ok(())
    }
}
