//! The bitmap of a running array, in memory as on the members.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use super::{BitmapContext, BitmapError, BitmapHead, HEAD_BYTES};
use crate::md::bits;
use crate::md::regions::DirtyRegions;

/// The bits before the first region's.
const HEAD_BITS: u64 = HEAD_BYTES as u64 * 8;

/// A whole bitmap: header, bits, and which blocks differ from what is on the members.
///
/// One image serves all members of an array; only where it lies differs ([`BitmapImage::place`]).
#[derive(Clone, PartialEq, Eq)]
pub struct BitmapImage {
    head: BitmapHead,
    /// Header, bits, padding to a whole block.
    bytes: Vec<u8>,
    block_bytes: usize,
    /// One bit for each block that has to be written.
    changed: Vec<u8>,
}

impl fmt::Debug for BitmapImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BitmapImage({:?}, {:?})", self.head, self.regions())
    }
}

impl BitmapImage {
    /// From the bytes of a member: those of [`BitmapImage::padded_bytes`] of its header, or at
    /// least those of [`BitmapHead::file_bytes`].
    ///
    /// `block_bytes` (a power of two, 512 or 4096 as a rule) is what the members are written in.
    ///
    /// # Errors
    ///
    /// [`BitmapError`]: everything has to be taken for dirty.
    pub fn decode(
        bytes: &[u8],
        context: &BitmapContext,
        block_bytes: u32,
    ) -> Result<Self, BitmapError> {
        let head = BitmapHead::decode(bytes, context)?;
        let need = head.file_bytes();
        if (bytes.len() as u64) < need {
            return Err(BitmapError::TooShort { len: bytes.len(), need });
        }
        let padded = Self::padded_bytes(&head, block_bytes) as usize;
        let mut own = bytes[..bytes.len().min(padded)].to_vec();
        own.resize(padded, 0);
        Ok(Self::of(head, own, block_bytes))
    }

    /// A new one in which everything or nothing is dirty; all of it has to be written.
    #[must_use]
    pub fn new(head: BitmapHead, is_dirty: bool, block_bytes: u32) -> Self {
        let padded = Self::padded_bytes(&head, block_bytes) as usize;
        // Ones behind the last region, as mdadm leaves them.
        let mut bytes = vec![0xff; padded];
        let area = head.encode();
        bytes[..HEAD_BYTES].copy_from_slice(&area);
        let mut image = Self::of(BitmapHead { area, ..head }, bytes, block_bytes);
        if !is_dirty {
            image.clear(0..u64::MAX);
        }
        image.change(0..padded);
        image
    }

    fn of(head: BitmapHead, bytes: Vec<u8>, block_bytes: u32) -> Self {
        let block_bytes = block_bytes.max(1) as usize;
        let changed = vec![0; bytes.len().div_ceil(block_bytes).div_ceil(8)];
        Self { head, bytes, block_bytes, changed }
    }

    /// Bytes of the bitmap in whole blocks: what is read and written of a member.
    #[must_use]
    pub fn padded_bytes(head: &BitmapHead, block_bytes: u32) -> u64 {
        head.file_bytes().next_multiple_of(block_bytes.max(1).into())
    }

    /// The member's bytes that hold this bitmap, when it starts at `offset` with `room_bytes` for
    /// it.
    ///
    /// # Errors
    ///
    /// [`BitmapError::Unaligned`] or [`BitmapError::TooLong`] when writing whole blocks would reach
    /// outside of the bitmap's room; smaller blocks may do, or the bitmap must not be written.
    pub fn place(&self, offset: u64, room_bytes: u64) -> Result<Range<u64>, BitmapError> {
        let block_bytes = self.block_bytes as u64;
        if !offset.is_multiple_of(block_bytes) {
            return Err(BitmapError::Unaligned { offset, block_bytes });
        }
        let need_bytes = self.bytes.len() as u64;
        if need_bytes > room_bytes {
            return Err(BitmapError::TooLong { need_bytes, room_bytes });
        }
        Ok(offset..offset + need_bytes)
    }

    /// The header.
    #[must_use]
    pub fn head(&self) -> &BitmapHead {
        &self.head
    }

    /// Bytes of a region.
    #[must_use]
    pub fn granule_bytes(&self) -> u64 {
        self.head.chunk_bytes.into()
    }

    fn sync_bytes(&self) -> u64 {
        self.head.sync_sectors.saturating_mul(crate::md::SECTOR_BYTES)
    }

    /// The regions that are dirty here.
    #[must_use]
    pub fn regions(&self) -> DirtyRegions {
        DirtyRegions::from_bits(self.sync_bytes(), self.granule_bytes(), &self.bytes[HEAD_BYTES..])
    }

    /// Some region that `range` (in sync bytes) touches is clean, so that a write there has to wait
    /// for [`mark`](Self::mark) to be durable.
    #[must_use]
    pub fn needs_mark(&self, range: Range<u64>) -> bool {
        bits::find(&self.bytes, self.touched(range), false).is_some()
    }

    /// Some region that `range` touches is dirty.
    #[must_use]
    pub fn is_dirty(&self, range: Range<u64>) -> bool {
        bits::find(&self.bytes, self.touched(range), true).is_some()
    }

    /// Marks every region that `range` touches. Returns whether any was clean, so that blocks have
    /// to be written (and flushed, on every member) before the data is.
    pub fn mark(&mut self, range: Range<u64>) -> bool {
        let touched = self.touched(range);
        let bytes = bits::fill(&mut self.bytes, touched, true);
        self.change(bytes)
    }

    /// Clears the regions that lie wholly inside `range`. Returns whether blocks have to be
    /// written, which may wait, and which must not go on while the array is degraded: see
    /// [`BitmapHead::events_cleared`].
    pub fn clear(&mut self, range: Range<u64>) -> bool {
        let granule = self.granule_bytes();
        let end = if range.end >= self.sync_bytes() {
            self.head.bit_count()
        } else {
            range.end / granule
        };
        let first = range.start.div_ceil(granule);
        let bytes =
            bits::fill(&mut self.bytes, HEAD_BITS + first..HEAD_BITS + end.max(first), false);
        self.change(bytes)
    }

    /// Sets exactly the regions of `regions` dirty.
    pub fn set_regions(&mut self, regions: &DirtyRegions) {
        self.clear(0..u64::MAX);
        for run in regions.runs() {
            self.mark(run);
        }
    }

    /// Takes over the array's event count, as every update of the superblocks must: a bitmap that
    /// is behind its array is not believed.
    ///
    /// `is_whole` says that every slot has a member in sync, so that regions cleared from now on
    /// are on all of them.
    pub fn set_events(&mut self, events: u64, is_whole: bool) {
        self.head.events = events;
        if is_whole || self.head.events_cleared > events {
            self.head.events_cleared = events;
        }
        self.head.state &= !(BitmapHead::STALE | BitmapHead::WRITE_ERROR);
        self.head.area = self.head.encode();
        if self.bytes[..HEAD_BYTES] != self.head.area {
            self.bytes[..HEAD_BYTES].copy_from_slice(&self.head.area);
            self.change(0..HEAD_BYTES);
        }
    }

    /// The blocks that differ from what was decoded or taken before, as ascending ranges of bytes
    /// from the bitmap's start; neighbours are joined. They count as written from now on.
    pub fn take_changed(&mut self) -> Vec<Range<u64>> {
        let count = (self.bytes.len() / self.block_bytes) as u64;
        let mut ranges = Vec::new();
        let mut from = 0;
        while let Some(first) = bits::find(&self.changed, from..count, true) {
            let end = bits::find(&self.changed, first..count, false).unwrap_or(count);
            let block_bytes = self.block_bytes as u64;
            ranges.push(first * block_bytes..end * block_bytes);
            from = end;
        }
        self.changed.fill(0);
        ranges
    }

    /// All blocks have to be written: a member has joined, or one may have missed something.
    pub fn change_all(&mut self) {
        self.change(0..self.bytes.len());
    }

    /// What lies in a range that [`take_changed`](Self::take_changed) gave.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Notes that these bytes have changed; returns whether there are any.
    fn change(&mut self, bytes: Range<usize>) -> bool {
        if bytes.is_empty() {
            return false;
        }
        let blocks = bytes.start / self.block_bytes..bytes.end.div_ceil(self.block_bytes);
        bits::fill(&mut self.changed, blocks.start as u64..blocks.end as u64, true);
        true
    }

    /// The bits (counted from the header's first) of the regions that `range` touches.
    fn touched(&self, range: Range<u64>) -> Range<u64> {
        let end = range.end.min(self.sync_bytes());
        if range.start >= end {
            return HEAD_BITS..HEAD_BITS;
        }
        let granule = self.granule_bytes();
        HEAD_BITS + range.start / granule..HEAD_BITS + end.div_ceil(granule)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests_support::{context, head};
    use super::BitmapImage;
    use crate::md::bitmap::BitmapError;

    /// What has to be written for marks and clears, and nothing else.
    #[test]
    fn changed_blocks() {
        // 64 MiB in regions of 4 KiB: 16384 bits, 2048 bytes behind the header: 5 blocks of 512.
        let mut image = BitmapImage::new(head(64 << 20, 4096), false, 512);
        assert_eq!(image.bytes().len(), 2560);
        assert_eq!(image.take_changed(), [0..2560]);
        assert!(image.take_changed().is_empty());
        assert!(image.needs_mark(0..1) && image.mark(0..1) && !image.needs_mark(0..4096));
        // Bits 0..2048 lie in the first block, behind the header.
        assert!(image.mark(2047 * 4096..2049 * 4096));
        assert_eq!(image.take_changed(), [0..1024]);
        assert!(!image.mark(0..4096) && !image.mark(2048 * 4096..2048 * 4096 + 1));
        assert!(image.take_changed().is_empty());
        assert!(!image.clear(1..4096) && image.clear(0..4096));
        assert_eq!(image.take_changed(), [0..512]);
        assert!(!image.mark(u64::MAX - 1..u64::MAX) && image.mark((64 << 20) - 1..u64::MAX));
        assert_eq!(image.take_changed(), [2048..2560]);
        image.set_events(7, true);
        assert_eq!(image.take_changed(), [0..512]);
        assert_eq!(image.regions().runs().count(), 2);
        let again = BitmapImage::decode(image.bytes(), &context(64 << 20), 512).unwrap();
        assert!(again == image);
        image.change_all();
        assert_eq!(image.take_changed(), [0..2560]);
    }

    /// Bitmaps on devices with large blocks do not leave their room.
    #[test]
    fn room() {
        let image = BitmapImage::new(head(64 << 20, 4096), false, 4096);
        assert_eq!(image.place(8192, 4096), Ok(8192..12288));
        let error = BitmapError::TooLong { need_bytes: 4096, room_bytes: 3584 };
        assert_eq!(image.place(8192, 3584), Err(error));
        let error = BitmapError::Unaligned { offset: 8704, block_bytes: 4096 };
        assert_eq!(image.place(8704, 4096), Err(error));
        let image = BitmapImage::new(head(64 << 20, 4096), true, 512);
        assert_eq!(image.place(8704, 3584), Ok(8704..11264));
        assert_eq!(image.regions().dirty_count(), 16384);
    }

    /// The event counts that decide who may come back.
    #[test]
    fn events() {
        let mut image = BitmapImage::new(head(1 << 20, 4096), false, 512);
        image.set_events(10, true);
        image.set_events(12, false);
        assert_eq!((image.head().events, image.head().events_cleared), (12, 10));
        image.set_events(13, true);
        assert_eq!((image.head().events, image.head().events_cleared), (13, 13));
    }
}
