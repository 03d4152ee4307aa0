//! Which parts of an array may be out of sync, at the granularity of a write-intent bitmap.
//!
//! # What is counted
//!
//! md counts *sync bytes*: what a resync goes through from 0 to the end. [`sync_bytes`] is how many
//! there are, [`sync_range`] which of them an access to the array concerns.
//!
//! ```text
//!   level      sync bytes are                    so a region is
//!   1          bytes of the members' data areas  the same range of every member, and of the array
//!   4, 5, 6    bytes of the members' data areas  the same range of every member: rows of stripes
//!   10         bytes of the array                a range of the array, with all its copies
//! ```

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use crate::geometry::Geometry;
use crate::layout::Level;
use crate::md::bits;

/// How many sync bytes an array has; 0 for levels without redundancy.
#[must_use]
pub fn sync_bytes(geometry: &Geometry) -> u64 {
    match geometry.level() {
        Level::Linear | Level::Raid0 => 0,
        Level::Raid10 => geometry.array_bytes(),
        Level::Raid1 | Level::Raid4 | Level::Raid5 | Level::Raid6 => geometry.component_bytes(),
    }
}

/// The sync bytes that an access to the array bytes `range` concerns; empty for levels without
/// redundancy.
///
/// Inside one stripe only the rows that are touched count; over several stripes, all rows of them.
#[must_use]
pub fn sync_range(geometry: &Geometry, range: Range<u64>) -> Range<u64> {
    let range = range.start..range.end.min(geometry.array_bytes());
    if range.is_empty() {
        return 0..0;
    }
    match geometry.level() {
        Level::Linear | Level::Raid0 => 0..0,
        Level::Raid1 | Level::Raid10 => range,
        Level::Raid4 | Level::Raid5 | Level::Raid6 => {
            let (first, last) = (geometry.locate(range.start), geometry.locate(range.end - 1));
            let chunk = geometry.chunk_bytes();
            let start = geometry.member_offset_of_stripe(first.stripe);
            if (first.stripe, first.data) == (last.stripe, last.data) {
                start + first.chunk_offset..start + last.chunk_offset + 1
            } else {
                start..geometry.member_offset_of_stripe(last.stripe) + chunk
            }
        }
    }
}

/// Regions of an array that may be out of sync.
#[derive(Clone, PartialEq, Eq)]
pub struct DirtyRegions {
    granule_bytes: u64,
    sync_bytes: u64,
    bits: Vec<u8>,
}

impl fmt::Debug for DirtyRegions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "DirtyRegions({} of {} of {} bytes)",
            self.dirty_count(),
            self.count(),
            self.granule_bytes
        )
    }
}

impl DirtyRegions {
    /// Nothing is dirty. `granule_bytes` (at least 1) is the size of a region; memory is one bit
    /// for each.
    #[must_use]
    pub fn clean(sync_bytes: u64, granule_bytes: u64) -> Self {
        Self::of_bytes(sync_bytes, granule_bytes, |len| vec![0; len])
    }

    /// Everything is dirty.
    #[must_use]
    pub fn dirty(sync_bytes: u64, granule_bytes: u64) -> Self {
        Self::of_bytes(sync_bytes, granule_bytes, |len| vec![0xff; len])
    }

    fn of_bytes(sync_bytes: u64, granule_bytes: u64, bits: impl Fn(usize) -> Vec<u8>) -> Self {
        let granule_bytes = granule_bytes.max(1);
        let count = sync_bytes.div_ceil(granule_bytes);
        Self { granule_bytes, sync_bytes, bits: bits(count.div_ceil(8) as usize) }
    }

    /// From the bits of a bitmap: as many bytes of `stored` as there are bits, which may be
    /// followed by others.
    pub(super) fn from_bits(sync_bytes: u64, granule_bytes: u64, stored: &[u8]) -> Self {
        let take = |len: usize| {
            let mut bits = stored[..len.min(stored.len())].to_vec();
            // What is not there is dirty.
            bits.resize(len, 0xff);
            bits
        };
        Self::of_bytes(sync_bytes, granule_bytes, take)
    }

    /// Bytes of a region; the last one may be shorter.
    #[must_use]
    pub fn granule_bytes(&self) -> u64 {
        self.granule_bytes
    }

    /// Sync bytes in all; see [`sync_bytes`].
    #[must_use]
    pub fn sync_bytes(&self) -> u64 {
        self.sync_bytes
    }

    /// Regions in all.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.sync_bytes.div_ceil(self.granule_bytes)
    }

    /// Dirty regions.
    #[must_use]
    pub fn dirty_count(&self) -> u64 {
        bits::count(&self.bits, 0..self.count())
    }

    /// Nothing is dirty.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        bits::find(&self.bits, 0..self.count(), true).is_none()
    }

    /// Some byte of `range` may be out of sync.
    #[must_use]
    pub fn is_dirty(&self, range: Range<u64>) -> bool {
        bits::find(&self.bits, self.touched(range), true).is_some()
    }

    /// Marks every region that `range` touches. Returns whether any was clean.
    pub fn mark(&mut self, range: Range<u64>) -> bool {
        let touched = self.touched(range);
        !bits::fill(&mut self.bits, touched, true).is_empty()
    }

    /// Clears the regions that lie wholly inside `range`. Returns whether any was dirty.
    pub fn clear(&mut self, range: Range<u64>) -> bool {
        let inside = self.inside(range);
        !bits::fill(&mut self.bits, inside, false).is_empty()
    }

    /// The first run of dirty regions that ends behind the sync byte `from`, as a range of sync
    /// bytes that does not start before `from`.
    #[must_use]
    pub fn next_dirty(&self, from: u64) -> Option<Range<u64>> {
        if from >= self.sync_bytes {
            return None;
        }
        let count = self.count();
        let first = bits::find(&self.bits, from / self.granule_bytes..count, true)?;
        let end = bits::find(&self.bits, first..count, false).unwrap_or(count);
        let start = (first * self.granule_bytes).max(from);
        Some(start..end.saturating_mul(self.granule_bytes).min(self.sync_bytes))
    }

    /// All runs of dirty regions, ascending.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut from = 0;
        core::iter::from_fn(move || {
            let run = self.next_dirty(from)?;
            from = run.end;
            Some(run)
        })
    }

    /// Marks what is dirty in `other`, whatever its granule.
    pub fn join(&mut self, other: &Self) {
        for run in other.runs() {
            self.mark(run);
        }
    }

    /// The regions that `range` touches.
    fn touched(&self, range: Range<u64>) -> Range<u64> {
        let end = range.end.min(self.sync_bytes);
        if range.start >= end {
            return 0..0;
        }
        range.start / self.granule_bytes..end.div_ceil(self.granule_bytes)
    }

    /// The regions that `range` covers.
    fn inside(&self, range: Range<u64>) -> Range<u64> {
        let first = range.start.div_ceil(self.granule_bytes);
        let end = if range.end >= self.sync_bytes {
            self.count()
        } else {
            range.end / self.granule_bytes
        };
        first..end.max(first)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::{DirtyRegions, sync_bytes, sync_range};
    use crate::geometry::{Geometry, GeometrySpec};
    use crate::layout::{Layout, Level};

    /// Marks widen, clears narrow, the last region is shorter.
    #[test]
    fn marks_and_clears() {
        let mut regions = DirtyRegions::clean(1050, 100);
        assert_eq!((regions.count(), regions.is_clean()), (11, true));
        assert!(regions.mark(199..201));
        assert!(!regions.mark(100..300));
        assert!(regions.mark(1049..u64::MAX));
        assert!(!regions.mark(1050..2000) && !regions.mark(5..5));
        assert_eq!(regions.runs().collect::<Vec<_>>(), [100..300, 1000..1050]);
        assert_eq!(regions.next_dirty(150), Some(150..300));
        assert_eq!(regions.next_dirty(300), Some(1000..1050));
        assert_eq!(regions.next_dirty(1050), None);
        assert!(!regions.clear(101..299) && !regions.clear(1001..1050));
        assert!(regions.is_dirty(299..300) && !regions.is_dirty(300..1000));
        assert!(regions.clear(150..300) && regions.clear(1000..1050));
        assert_eq!((regions.dirty_count(), regions.clear(0..200)), (1, true));
        assert!(regions.is_clean());
        let mut coarse = DirtyRegions::clean(1050, 300);
        coarse.join(&DirtyRegions::dirty(1050, 7));
        assert_eq!(coarse.dirty_count(), 4);
        assert_eq!(DirtyRegions::dirty(0, 0).next_dirty(0), None);
    }

    fn geometry(level: Level, layout: u32, slot_count: usize) -> Geometry {
        Geometry::new(GeometrySpec {
            level,
            layout: Layout::from_md(level, layout).unwrap(),
            slot_count,
            chunk_bytes: 4096,
            member_data_bytes: &alloc::vec![1 << 20; slot_count],
        })
        .unwrap()
    }

    /// What is counted on each level.
    #[test]
    fn units() {
        let mirror = geometry(Level::Raid1, 0, 2);
        assert_eq!((sync_bytes(&mirror), sync_range(&mirror, 5..9)), (1 << 20, 5..9));
        let parity = geometry(Level::Raid5, 2, 4);
        assert_eq!(sync_bytes(&parity), 1 << 20);
        // Rows 5..9 of the second chunk of stripe 1; two chunks; the last byte of stripe 0 and on.
        let stripe = 3 * 4096;
        assert_eq!(sync_range(&parity, stripe + 4101..stripe + 4105), 4101..4105);
        assert_eq!(sync_range(&parity, stripe + 4095..stripe + 4097), 4096..8192);
        assert_eq!(sync_range(&parity, stripe - 1..stripe + 1), 0..8192);
        assert_eq!(sync_range(&parity, 0..u64::MAX), 0..1 << 20);
        let ten = geometry(Level::Raid10, 0x102, 4);
        assert_eq!((sync_bytes(&ten), sync_range(&ten, 7..9)), (2 << 20, 7..9));
        let stripes = geometry(Level::Raid0, 1, 2);
        assert_eq!((sync_bytes(&stripes), sync_range(&stripes, 7..9)), (0, 0..0));
        assert_eq!(sync_range(&ten, 3 << 20..4 << 20), 0..0);
    }
}
