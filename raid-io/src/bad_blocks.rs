//! Ranges of a member whose content is lost, by its own bad-block log.
//!
//! A read that touches one fails without the device being asked: what is there is not what was
//! written. The engine answers it as any failed read, from the other members. A write goes to the
//! device, and heals what it covers: in memory as soon as it has ended, in the log when the array
//! is stopped, after a flush. Until then the log says too much, never too little.
//!
//! A recovery that cannot get a sector, because its sources are unreadable, lists it here before
//! the member counts as filled there: the log is durable before the superblock says that there is
//! one, and that before the position of the recovery goes on.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use raid_core::md::Superblock;
use raid_core::md::bad_blocks::BadBlocks;
use raid_core::md::superblock::Features;

use crate::Error;
use crate::member::Member;
use crate::metadata::Script;

/// The ranges of one member that is in use.
pub(crate) struct BadRanges {
    ranges: RwLock<BadBlocks>,
    /// There may be some.
    is_any: AtomicBool,
    /// Others than the log says.
    is_changed: AtomicBool,
    /// Reads that were not sent to the member.
    refused: AtomicU64,
}

impl BadRanges {
    /// Reads a member's log. `None` when it has none.
    ///
    /// # Errors
    /// Returns an error if the log cannot be read or makes no sense: then nothing is known of the
    /// member's content.
    pub(crate) fn load(member: &Member, superblock: &Superblock) -> Result<Option<Self>, Error> {
        let place = BadBlocks::log_bytes(superblock);
        let is_any = superblock.features.has(Features::BAD_BLOCKS);
        let log = match place.clone().filter(|_| is_any) {
            Some(range) => member.read_range(range.start, (range.end - range.start) as usize)?,
            None => Vec::new(),
        };
        let ranges = BadBlocks::decode(superblock, member.device().size_bytes(), &log);
        let ranges = ranges.map_err(|error| member.unsuited(error.to_string()))?;
        for range in ranges.ranges() {
            tracing::warn!("{}: bytes {range:?} are listed as lost", member.name().display());
        }
        let is_any = AtomicBool::new(!ranges.is_empty());
        let is_changed = AtomicBool::new(false);
        let refused = AtomicU64::new(0);
        Ok(place.map(|_| Self { ranges: RwLock::new(ranges), is_any, is_changed, refused }))
    }

    /// Says whether some byte of a range of the member is lost.
    pub(crate) fn touches(&self, range: Range<u64>) -> bool {
        // Members without lost ranges, which are nearly all, cost no lock.
        self.is_any.load(Ordering::Acquire)
            && self.ranges.read().unwrap_or_else(PoisonError::into_inner).touches(range)
    }

    /// Says that nothing is lost.
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_any.load(Ordering::Acquire)
            || self.ranges.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Counts a read that was not sent to the member.
    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many reads were not sent to the member.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Notes that a range is lost: reads of it fail from now on.
    pub(crate) fn add(&self, range: Range<u64>) {
        self.ranges.write().unwrap_or_else(PoisonError::into_inner).add(range);
        self.is_any.store(true, Ordering::Release);
        self.is_changed.store(true, Ordering::Release);
    }

    /// Notes that a range has been written.
    pub(crate) fn heal(&self, range: Range<u64>) {
        self.ranges.write().unwrap_or_else(PoisonError::into_inner).remove(range);
        self.is_changed.store(true, Ordering::Release);
    }

    /// Returns what writes the log, if that says something else, and what it will say then. What
    /// was written to the member is made durable first: the log may say less afterwards.
    ///
    /// # Errors
    /// Returns an error if the log has no room for that.
    pub(crate) fn changed(
        &self,
        member: &Member,
        superblock: &Superblock,
    ) -> Result<Option<(Script, BadBlocks)>, Error> {
        if !self.is_changed.swap(false, Ordering::AcqRel) {
            return Ok(None);
        }
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner).clone();
        let log = ranges.encode(superblock).map_err(|error| member.unsuited(error.to_string()))?;
        let parts = BadBlocks::log_bytes(superblock).map(|place| (place.start, log));
        let parts = parts.into_iter().collect();
        Ok(Some((Script { flush_first: true, parts, superblock: None }, ranges)))
    }
}
