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

/// Scratch memory behind that of the slab, in place of what operations that hang keep.
pub(crate) struct Scratch {
    /// Where it begins, by the engine's count.
    start: u32,
    memory: Buffer,
}

impl Scratch {
    /// Makes `bytes` that begin at `start` of the engine's scratch memory.
    pub(crate) fn new(start: u32, bytes: u32) -> Self {
        Self { start, memory: Buffer::zeroed(bytes as usize) }
    }

    pub(crate) fn len(&self) -> u64 {
        self.memory.len() as u64
    }
}

/// One queue's memory, borrowed while names are resolved.
pub(crate) struct Resolver<'a> {
    slab: &'a Slab,
    extra: &'a [Scratch],
    /// The buffers of the requests in flight, by tag.
    buffers: &'a [Option<Buffer>],
}

impl<'a> Resolver<'a> {
    pub(crate) fn new(slab: &'a Slab, extra: &'a [Scratch], buffers: &'a [Option<Buffer>]) -> Self {
        Self { slab, extra, buffers }
    }

    /// Returns the memory of a segment.
    ///
    /// # Panics
    /// Panics if the segment is not inside its buffer: the engine has lost its way, and nothing may
    /// be read or written by guess.
    pub(crate) fn piece(&self, segment: &Segment) -> Piece {
        let mut first = 0;
        let (start, size) = match segment.buffer {
            BufferName::Zero => self.slab.zeroes(),
            BufferName::Scratch => {
                let behind = |extra: &&Scratch| extra.start <= segment.offset;
                match self.extra.iter().rev().find(behind) {
                    None => self.slab.scratch(),
                    Some(extra) => {
                        first = extra.start;
                        (extra.memory.pointer(), extra.memory.len())
                    }
                }
            }
            BufferName::Request(tag) => {
                let buffer = self.buffers.get(tag as usize).and_then(Option::as_ref);
                buffer.map_or((NonNull::dangling(), 0), |buffer| (buffer.pointer(), buffer.len()))
            }
        };
        let (offset, len) = ((segment.offset - first) as usize, segment.len as usize);
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
        let mut memory = Resolver::new(&slab, &[], &buffers);
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
    fn more_scratch_lies_behind_the_slabs() {
        let slab = Slab::new(4096, 8192, 0).unwrap();
        let extra = [Scratch::new(16384, 4096), Scratch::new(32768, 8192)];
        let memory = Resolver::new(&slab, &extra, &[]);
        let at = |offset| memory.piece(&segment(BufferName::Scratch, offset, 100)).pointer;
        assert_eq!(at(4096), slab.scratch().0.map_addr(|a| a.checked_add(4096).unwrap()));
        assert_eq!(at(16384), extra[0].memory.pointer());
        assert_eq!(at(32768), extra[1].memory.pointer());
        assert_eq!(at(32868).addr().get() - at(32768).addr().get(), 100);
    }

    #[test]
    #[should_panic(expected = "is outside")]
    fn scratch_between_the_pieces_is_not_handed_out() {
        let slab = Slab::new(4096, 8192, 0).unwrap();
        let extra = [Scratch::new(16384, 4096), Scratch::new(32768, 8192)];
        Resolver::new(&slab, &extra, &[]).piece(&segment(BufferName::Scratch, 20480, 1));
    }

    #[test]
    #[should_panic(expected = "overlaps")]
    fn overlapping_memory_is_not_handed_out() {
        let slab = Slab::new(4096, 8192, 0).unwrap();
        let source = [segment(BufferName::Scratch, 0, 100)];
        let target = [segment(BufferName::Scratch, 99, 100)];
        Resolver::new(&slab, &[], &[]).with(&source, &target, &mut |_, _| {});
    }

    #[test]
    #[should_panic(expected = "is outside")]
    fn memory_outside_a_buffer_is_not_handed_out() {
        let slab = Slab::new(4096, 8192, 0).unwrap();
        let buffers = [Some(Buffer::zeroed(10))];
        Resolver::new(&slab, &[], &buffers).piece(&segment(BufferName::Request(0), 5, 6));
    }
}
