//! The scratch arena's bookkeeping: which ranges are free. The driver owns the memory itself.

use crate::memory::SCRATCH_ALIGN;
use alloc::vec::Vec;

/// A range of the arena in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) offset: u32,
    pub(super) len: u32,
}

/// First fit over a list of free ranges, sorted by offset, neighbours joined.
///
/// Parts are short-lived and alike in size, so the list stays short and first fit does not fragment
/// much.
#[derive(Debug)]
pub(super) struct Scratch {
    free: Vec<Range>,
    /// Length of the first piece, which any part fits into.
    len: u32,
    /// Where the last piece ends.
    end: u32,
}

impl Scratch {
    pub(super) fn new(len: u32) -> Self {
        let len = len - len % SCRATCH_ALIGN;
        Self { free: alloc::vec![Range { offset: 0, len }], len, end: len }
    }

    /// Adds memory for parts of any size; returns where it begins. It does not touch what was there
    /// before, so that no range ever reaches from one into the other.
    pub(super) fn grow(&mut self, len: u32) -> u32 {
        let start = self.end + SCRATCH_ALIGN;
        let len = len.next_multiple_of(SCRATCH_ALIGN);
        self.end = start.checked_add(len).expect("scratch memory stays far below 4 GiB");
        self.free.push(Range { offset: start, len });
        start
    }

    /// Bytes of the whole arena.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Takes `len` bytes, rounded up to pages.
    pub(super) fn take(&mut self, len: u32) -> Option<Range> {
        let len = len.next_multiple_of(SCRATCH_ALIGN);
        assert!(len > 0 && len <= self.len, "scratch of {len} bytes in an arena of {}", self.len);
        let index = self.free.iter().position(|range| range.len >= len)?;
        let range = &mut self.free[index];
        let taken = Range { offset: range.offset, len };
        range.offset += len;
        range.len -= len;
        if range.len == 0 {
            self.free.remove(index);
        }
        Some(taken)
    }

    /// Gives a range back.
    pub(super) fn give(&mut self, range: Range) {
        let index = self.free.partition_point(|free| free.offset < range.offset);
        let end = range.offset + range.len;
        let joins_next = self.free.get(index).is_some_and(|next| next.offset == end);
        let before = index.checked_sub(1).map(|before| self.free[before]);
        let joins_before = before.is_some_and(|free| free.offset + free.len == range.offset);
        assert!(
            before.is_none_or(|free| free.offset + free.len <= range.offset)
                && self.free.get(index).is_none_or(|next| end <= next.offset),
            "scratch range {range:?} is given back twice"
        );
        match (joins_before, joins_next) {
            (true, true) => {
                self.free[index - 1].len += range.len + self.free[index].len;
                self.free.remove(index);
            }
            (true, false) => self.free[index - 1].len += range.len,
            (false, true) => {
                self.free[index].offset = range.offset;
                self.free[index].len += range.len;
            }
            (false, false) => self.free.insert(index, range),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Ranges in use never overlap, and everything given back is whole again.
        #[test]
        fn ranges_are_disjoint(steps in prop::collection::vec((0u32..9, 1u32..20_000), 1..200)) {
            let mut scratch = Scratch::new(256 * 1024);
            let mut used: Vec<Range> = Vec::new();
            for (choice, len) in steps {
                if choice < 5 {
                    if let Some(range) = scratch.take(len) {
                        prop_assert!(range.len >= len);
                        for other in &used {
                            let apart = range.offset + range.len <= other.offset
                                || other.offset + other.len <= range.offset;
                            prop_assert!(apart, "{range:?} meets {other:?}");
                        }
                        used.push(range);
                    }
                } else if !used.is_empty() {
                    let index = len as usize % used.len();
                    scratch.give(used.swap_remove(index));
                }
            }
            for range in used.drain(..) {
                scratch.give(range);
            }
            prop_assert_eq!(scratch.free, [Range { offset: 0, len: 256 * 1024 }]);
        }
    }
}
