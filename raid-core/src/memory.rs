//! Buffers by name: the core says which bytes, the executor owns the memory.
//!
//! A plan never holds a pointer. It names a buffer ([`BufferName`]) and a range in it
//! ([`Segment`]); whoever executes the plan resolves the name through [`Memory`]. So the same plan
//! runs on pinned memory under io_uring, on vectors in a test and on a model in the simulator.

/// Bytes of the constant zero buffer: the longest [`Segment`] that may name [`BufferName::Zero`].
///
/// 512 KiB, the greatest height of a lock unit ([`crate::volume::SLICE_BYTES_MAX`]), so that a
/// write of zeroes never needs more than one segment for each member and lock unit.
pub const ZERO_BYTES: u32 = 512 * 1024;

/// Alignment in bytes of every scratch range that a plan uses: a page, so that direct I/O accepts
/// it.
pub const SCRATCH_ALIGN: u32 = 4096;

/// Whose memory a [`Segment`] lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BufferName {
    /// The buffer of the request with this tag; the embedder owns it.
    Request(u32),
    /// The queue's scratch arena.
    Scratch,
    /// Constant zeroes, [`ZERO_BYTES`] long; only ever read.
    Zero,
}

/// A byte range within one named buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// The buffer.
    pub buffer: BufferName,
    /// First byte within the buffer.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
}

impl Segment {
    /// The empty segment, which stands for a lost source of a recovery.
    pub const EMPTY: Self = Self { buffer: BufferName::Zero, offset: 0, len: 0 };

    /// `len` bytes of constant zeroes.
    pub fn zero(len: u32) -> Self {
        assert!(len <= ZERO_BYTES, "zero segment of {len} bytes > {ZERO_BYTES}");
        Self { buffer: BufferName::Zero, offset: 0, len }
    }

    /// True for constant zeroes.
    pub fn is_zero(&self) -> bool {
        self.buffer == BufferName::Zero
    }

    /// The `len` bytes that start `start` bytes into this segment.
    ///
    /// # Panics
    /// If the range leaves the segment.
    pub fn slice(&self, start: u32, len: u32) -> Self {
        assert!(start + len <= self.len, "slice {start}+{len} leaves a segment of {}", self.len);
        // All zero bytes are alike: keeping offset 0 lets neighbouring zero segments stay in
        // bounds.
        let offset = if self.is_zero() { 0 } else { self.offset + start };
        Self { buffer: self.buffer, offset, len }
    }

    /// True if `next` starts in memory where `self` ends.
    pub(crate) fn touches(&self, next: &Self) -> bool {
        self.buffer == next.buffer && !self.is_zero() && self.offset + self.len == next.offset
    }
}

/// A compute step: what it does with the memory of its sources and targets.
pub type ComputeStep<'a> = dyn FnMut(&[&[u8]], &mut [&mut [u8]]) + 'a;

/// Resolves named buffers to memory while a compute step runs.
///
/// The contract of [`Memory::with`]: `f` is called exactly once, with one slice for each segment in
/// the same order; an empty segment gives an empty slice; targets never overlap each other or a
/// source (the planner guarantees it, an implementation may rely on it only after checking).
pub trait Memory {
    /// Calls `f` with the memory of `sources` and `targets`.
    fn with(&mut self, sources: &[Segment], targets: &[Segment], f: &mut ComputeStep<'_>);
}
