//! Names of buffers become memory: for member I/O as addresses, for parity as slices.
//!
//! The engine names memory ([`Segment`]); a queue owns it: the buffers of its requests in flight,
//! and its slab. All of it stays in place until the request has been handed back, and a request is
//! handed back only when no member operation that names it is under way.

use std::ptr::NonNull;
use std::slice;

use raid_core::memory::{BufferName, ComputeStep, Memory, Segment};

use crate::Buffer;
use crate::buffer::Slab;
use crate::transfer::Piece;

/// Sources and targets of most computations; more of them cost an allocation.
const COMMON: usize = 32;

/// One queue's memory, borrowed while names are resolved.
pub(crate) struct Resolver<'a> {
    slab: &'a Slab,
    /// The buffers of the requests in flight, by tag.
    buffers: &'a [Option<Buffer>],
}

impl<'a> Resolver<'a> {
    pub(crate) fn new(slab: &'a Slab, buffers: &'a [Option<Buffer>]) -> Self {
        Self { slab, buffers }
    }

    /// Returns the memory of a segment.
    ///
    /// # Panics
    /// Panics if the segment is not inside its buffer: the engine has lost its way, and nothing may
    /// be read or written by guess.
    pub(crate) fn piece(&self, segment: &Segment) -> Piece {
        let (start, size) = match segment.buffer {
            BufferName::Zero => self.slab.zeroes(),
            BufferName::Scratch => self.slab.scratch(),
            BufferName::Request(tag) => {
                let buffer = self.buffers.get(tag as usize).and_then(Option::as_ref);
                buffer.map_or((NonNull::dangling(), 0), |buffer| (buffer.pointer(), buffer.len()))
            }
        };
        let (offset, len) = (segment.offset as usize, segment.len as usize);
        assert!(offset + len <= size, "{segment:?} is outside its {size} bytes");
        // SAFETY: the offset is inside the buffer, by the assertion.
        let pointer = unsafe { start.add(offset) };
        Piece { pointer, len }
    }
}

impl Memory for Resolver<'_> {
    fn with(&mut self, sources: &[Segment], targets: &[Segment], f: &mut ComputeStep<'_>) {
        assert_apart(self, sources, targets);
        let read = |segment: &Segment| {
            let piece = self.piece(segment);
            // SAFETY: the piece is initialised memory that the queue owns while `self` borrows it;
            // no target overlaps it, which `assert_apart` has checked.
            unsafe { slice::from_raw_parts(piece.pointer.as_ptr().cast_const(), piece.len) }
        };
        let write = |segment: &Segment| {
            let piece = self.piece(segment);
            // SAFETY: as above; nothing else overlaps it, which `assert_apart` has checked.
            unsafe { slice::from_raw_parts_mut(piece.pointer.as_ptr(), piece.len) }
        };
        let mut few_targets: [&mut [u8]; 4] = [&mut [], &mut [], &mut [], &mut []];
        let mut many_targets: Vec<&mut [u8]> = Vec::new();
        let target_slices = if targets.len() <= few_targets.len() {
            for (slot, target) in few_targets.iter_mut().zip(targets) {
                *slot = write(target);
            }
            &mut few_targets[..targets.len()]
        } else {
            many_targets.extend(targets.iter().map(write));
            &mut many_targets[..]
        };
        if sources.len() <= COMMON {
            let mut few: [&[u8]; COMMON] = [&[]; COMMON];
            for (slot, source) in few.iter_mut().zip(sources) {
                *slot = read(source);
            }
            f(&few[..sources.len()], target_slices);
        } else {
            let many: Vec<&[u8]> = sources.iter().map(read).collect();
            f(&many, target_slices);
        }
    }
}

/// Checks that no target overlaps a source or another target, and that none is the zeroes.
fn assert_apart(memory: &Resolver<'_>, sources: &[Segment], targets: &[Segment]) {
    for (index, target) in targets.iter().enumerate() {
        assert!(target.len == 0 || target.buffer != BufferName::Zero, "the zeroes are a target");
        let place = memory.piece(target);
        for other in sources.iter().chain(&targets[..index]) {
            assert!(!meets(place, memory.piece(other)), "{target:?} overlaps {other:?}");
        }
    }
}

/// Says that two places have a byte in common.
fn meets(a: Piece, b: Piece) -> bool {
    let (start_a, start_b) = (a.pointer.as_ptr().addr(), b.pointer.as_ptr().addr());
    a.len > 0 && b.len > 0 && start_a < start_b + b.len && start_b < start_a + a.len
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(buffer: BufferName, offset: u32, len: u32) -> Segment {
        Segment { buffer, offset, len }
    }

    #[test]
    fn names_become_the_right_memory() {
        let slab = Slab::new(4096, 8192, 0).unwrap();
        let buffers = [None, Some(Buffer::copy_of(b"0123456789"))];
        let mut memory = Resolver::new(&slab, &buffers);
        let sources = [
            segment(BufferName::Request(1), 2, 3),
            segment(BufferName::Zero, 0, 2),
            Segment::EMPTY,
        ];
        let target = [segment(BufferName::Scratch, 4096, 3)];
        memory.with(&sources, &target, &mut |sources, targets| {
            assert_eq!(sources, [b"234".as_slice(), &[0, 0], &[]]);
            targets[0].copy_from_slice(sources[0]);
        });
        memory.with(&target, &[], &mut |sources, _| assert_eq!(sources[0], b"234"));
    }

    #[test]
    #[should_panic(expected = "overlaps")]
    fn overlapping_memory_is_not_handed_out() {
        let slab = Slab::new(4096, 8192, 0).unwrap();
        let source = [segment(BufferName::Scratch, 0, 100)];
        let target = [segment(BufferName::Scratch, 99, 100)];
        Resolver::new(&slab, &[]).with(&source, &target, &mut |_, _| {});
    }

    #[test]
    #[should_panic(expected = "is outside")]
    fn memory_outside_a_buffer_is_not_handed_out() {
        let slab = Slab::new(4096, 8192, 0).unwrap();
        let buffers = [Some(Buffer::zeroed(10))];
        Resolver::new(&slab, &buffers).piece(&segment(BufferName::Request(0), 5, 6));
    }
}
