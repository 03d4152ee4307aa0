//! Plans are data: what to read, compute and write for one part of a request.
//!
//! ```text
//!   extents of one lock unit          Planner                    Plan
//!   (chunk, rows, buffer)  ---> which method moves least ---> [Read] [Compute] [Write] ...
//! ```
//!
//! A [`Plan`] is a list of [`Phase`]s. Operations of a phase run together; a phase starts when the
//! one before has ended. Nothing here performs I/O or touches memory, so the ordering rules are
//! laws about values, stated in [`Plan::check`] and tested exhaustively in `tests/plan.rs`.
//!
//! Offsets of member operations are relative to the member's data offset. Scratch segments are
//! relative to the scratch range that the queue gives the part.

mod check;
mod compute;
mod mapped;
mod parity_read;
mod parity_write;
mod sync;

pub(crate) use check::EVIDENCE_MIN;
pub use check::Mismatch;
pub(crate) use compute::rebase;
pub use compute::{Working, execute};
pub use mapped::MappedView;

use crate::geometry::{Geometry, Stripe};
use crate::memory::{BufferName, SCRATCH_ALIGN, Segment};
use crate::slots::SlotSet;
use alloc::vec::Vec;

/// What a member is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoKind {
    /// Make completed writes stable.
    Flush,
    /// Fill the segments.
    Read,
    /// Store the segments.
    Write,
    /// Store zeroes; no segments.
    WriteZeroes {
        /// The member may free the space, as long as it reads as zeroes.
        unmap: bool,
    },
}

/// One member operation of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOp {
    /// Slot of the member.
    pub slot: usize,
    /// What to do.
    pub kind: IoKind,
    /// First byte, relative to the member's data offset.
    pub offset: u64,
    /// The memory; for zeroes only its length counts.
    pub segment: Segment,
}

/// A range of indexes into one of the plan's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First index.
    pub start: usize,
    /// One past the last index.
    pub end: usize,
}

impl Span {
    /// As a range for slicing.
    pub fn range(self) -> core::ops::Range<usize> {
        self.start..self.end
    }

    fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// One step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Compute steps, one after the other: a span of [`Plan::computes`].
    Compute(Span),
    /// Member reads, together: a span of [`Plan::reads`].
    Read(Span),
    /// Member writes, together: a span of [`Plan::writes`].
    Write(Span),
}

/// One compute step. Lists of sources are spans of [`Plan::operands`](Plan#structfield.operands).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeOp {
    /// Compare copies of the same bytes.
    CheckCopies {
        /// The copies.
        copies: Span,
        /// Their slots: a span of [`Plan::slots`].
        slots: Span,
        /// The row that a mismatch is counted from.
        row: u32,
    },
    /// Compare parity with the sources.
    CheckParity {
        /// Sources in syndrome order.
        sources: Span,
        /// P, if it can be read.
        p: Option<Segment>,
        /// Q, if it can be read.
        q: Option<Segment>,
        /// Slots of the sources, then of P and Q: a span of [`Plan::slots`]; `usize::MAX` for none.
        slots: Span,
        /// The row that a mismatch is counted from.
        row: u32,
    },
    /// Copy bytes.
    Copy {
        /// Source.
        from: Segment,
        /// Target of the same length.
        to: Segment,
    },
    /// P = XOR of the sources; also regenerates one lost chunk from the others and P.
    GenP {
        /// Sources in any order.
        sources: Span,
        /// Target.
        p: Segment,
    },
    /// P and Q of the sources in syndrome order.
    GenPq {
        /// Sources; index i has the coefficient g^i.
        sources: Span,
        /// Target of P.
        p: Segment,
        /// Target of Q.
        q: Segment,
    },
    /// One lost chunk from Q.
    RecoverFromQ {
        /// Syndrome index of the lost chunk.
        lost: usize,
        /// Sources in syndrome order, the lost one empty.
        sources: Span,
        /// Q.
        q: Segment,
        /// Target.
        out: Segment,
    },
    /// Two lost chunks from P and Q.
    RecoverTwo {
        /// Syndrome indexes of the lost chunks, ascending.
        lost: [usize; 2],
        /// Sources in syndrome order, the lost ones empty.
        sources: Span,
        /// P.
        p: Segment,
        /// Q.
        q: Segment,
        /// Targets in the order of `lost`.
        out: [Segment; 2],
    },
    /// P ^= old ^ new.
    UpdateP {
        /// Old content.
        old: Segment,
        /// New content.
        new: Segment,
        /// P in place.
        p: Segment,
    },
    /// P ^= old ^ new, Q ^= g^index (old ^ new).
    UpdatePq {
        /// Syndrome index of the chunk.
        index: usize,
        /// Old content.
        old: Segment,
        /// New content.
        new: Segment,
        /// P in place.
        p: Segment,
        /// Q in place.
        q: Segment,
    },
    /// Q ^= g^index (old ^ new).
    UpdateQ {
        /// Syndrome index of the chunk.
        index: usize,
        /// Old content.
        old: Segment,
        /// New content.
        new: Segment,
        /// Q in place.
        q: Segment,
    },
}

/// How the parity of some rows is kept true by a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// No parity of these rows can be stored: the data alone is written.
    DataOnly,
    /// Every data chunk is overwritten; nothing is read.
    FullStripe,
    /// Old data and old parity are read; the difference is applied.
    ReadModifyWrite,
    /// The data that is not overwritten is read; parity is computed from all data.
    ReconstructWrite,
    /// Lost old data is regenerated first, then parity is computed from all data.
    Regenerate,
}

/// A byte range of one data chunk, and the memory it is read into or written from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Index of the data chunk in its stripe.
    pub chunk: usize,
    /// First byte within the chunk.
    pub row: u32,
    /// The memory; its length is the extent's length.
    pub segment: Segment,
}

impl Extent {
    /// One past the last byte within the chunk.
    pub fn row_end(&self) -> u32 {
        self.row + self.segment.len
    }

    /// True if rows and memory lie on borders of `block_bytes`.
    pub(crate) fn is_aligned(&self, block_bytes: u32) -> bool {
        let memory = if self.segment.is_zero() { 0 } else { self.segment.offset };
        (self.row | self.segment.len | memory) & (block_bytes - 1) == 0
    }
}

/// Whether the parity, or the other copies, may be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The stripe is in sync.
    InSync,
    /// A resync is due: parity is never used as a source.
    Unsynced,
}

/// What the planner must know of a stripe of a parity level.
#[derive(Clone, Copy, Debug)]
pub struct StripeView<'a> {
    /// The array's geometry.
    pub geometry: &'a Geometry,
    /// The stripe.
    pub stripe: Stripe,
    /// Slots that may be read here.
    pub readable: SlotSet,
    /// Slots that take writes.
    pub writable: SlotSet,
    /// Whether parity may be a source.
    pub trust: Trust,
    /// Granularity of member I/O in bytes.
    pub block_bytes: u32,
}

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// More slots are lost here than the remaining redundancy can replace.
    #[error("{lost} chunks lost > {spare} that can be regenerated")]
    Unavailable {
        /// Chunks that are needed and cannot be read or stored.
        lost: usize,
        /// Chunks that can be regenerated.
        spare: usize,
    },
}

/// What to do for one part of a request. Reused: [`Plan::clear`] keeps the capacity.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Member reads of all phases.
    pub reads: Vec<PlanOp>,
    /// Member writes of all phases.
    pub writes: Vec<PlanOp>,
    /// Compute steps of all phases.
    pub computes: Vec<ComputeOp>,
    /// Source lists of the compute steps.
    pub operands: Vec<Segment>,
    /// Slots that the comparing steps name.
    pub slots: Vec<usize>,
    /// The steps, in order.
    pub phases: Vec<Phase>,
    /// Bytes of scratch memory that the plan needs.
    pub scratch_bytes: u32,
    /// The method chosen for the rows with the most chunks written, for the statistics.
    pub method: Option<Method>,
    /// True if lost data is regenerated for a read.
    pub regenerates: bool,
    marks: Marks,
}

#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    reads: usize,
    computes: usize,
    writes: usize,
}

impl Plan {
    /// Empties the plan and keeps its memory.
    pub fn clear(&mut self) {
        self.reads.clear();
        self.writes.clear();
        self.computes.clear();
        self.operands.clear();
        self.slots.clear();
        self.phases.clear();
        self.scratch_bytes = 0;
        self.method = None;
        self.regenerates = false;
        self.marks = Marks::default();
    }

    /// Reserves page-aligned scratch memory.
    fn scratch(&mut self, len: u32) -> Segment {
        let offset = self.scratch_bytes;
        self.scratch_bytes += len.next_multiple_of(SCRATCH_ALIGN);
        Segment { buffer: BufferName::Scratch, offset, len }
    }

    fn read(&mut self, slot: usize, offset: u64, segment: Segment) {
        self.reads.push(PlanOp { slot, kind: IoKind::Read, offset, segment });
    }

    fn write(&mut self, slot: usize, kind: IoKind, offset: u64, segment: Segment) {
        self.writes.push(PlanOp { slot, kind, offset, segment });
    }

    fn operands(&mut self, sources: impl Iterator<Item = Segment>) -> Span {
        let start = self.operands.len();
        self.operands.extend(sources);
        Span { start, end: self.operands.len() }
    }

    /// Ends a stage: what was added since the last one becomes up to three phases.
    fn close_stage(&mut self) {
        let reads = Span { start: self.marks.reads, end: self.reads.len() };
        let computes = Span { start: self.marks.computes, end: self.computes.len() };
        let writes = Span { start: self.marks.writes, end: self.writes.len() };
        self.marks = Marks { reads: reads.end, computes: computes.end, writes: writes.end };
        let phases = [Phase::Read(reads), Phase::Compute(computes), Phase::Write(writes)];
        let filled = |phase: &Phase| match *phase {
            Phase::Compute(span) | Phase::Read(span) | Phase::Write(span) => !span.is_empty(),
        };
        self.phases.extend(phases.into_iter().filter(filled));
    }

    /// Checks the laws of any plan: it reads only readable slots, writes only writable ones, keeps
    /// to blocks, and its scratch ranges stay within what it asks for.
    ///
    /// # Panics
    /// If a law is broken, which is a defect of the planner.
    pub fn check(&self, readable: &SlotSet, writable: &SlotSet, block_bytes: u32) {
        let block = u64::from(block_bytes);
        for op in self.reads.iter().chain(&self.writes) {
            let allowed = if op.kind == IoKind::Read { readable } else { writable };
            assert!(allowed.contains(op.slot), "slot {} is not available: {op:?}", op.slot);
            assert!(op.offset % block == 0, "offset off the block border: {op:?}");
            assert!(u64::from(op.segment.len) % block == 0, "length off the block border: {op:?}");
            assert!(op.segment.len > 0, "empty operation: {op:?}");
            if op.segment.buffer == BufferName::Scratch {
                assert!(op.segment.offset + op.segment.len <= self.scratch_bytes, "{op:?}");
            }
        }
        for op in &self.reads {
            assert!(!op.segment.is_zero(), "read into constant zeroes: {op:?}");
        }
        let mut last_write = None;
        for (index, phase) in self.phases.iter().enumerate() {
            if matches!(phase, Phase::Write(_)) {
                last_write = Some(index);
            }
        }
        assert!(last_write.is_none_or(|index| index + 1 == self.phases.len()), "write is last");
    }
}

/// Makes plans; holds the working lists so that planning allocates nothing once warm.
#[derive(Debug, Default)]
pub struct Planner {
    /// Row borders at which the set of chunks concerned changes.
    cuts: Vec<u32>,
    /// For each data chunk, the memory concerned in the rows at hand.
    row: Vec<Option<Segment>>,
    /// For each data chunk, its old content in the rows at hand.
    old: Vec<Option<Segment>>,
    /// Data chunks of the rows at hand that cannot be read.
    lost: Vec<usize>,
    /// Aligned stand-ins for the caller's extents.
    aligned: Vec<Extent>,
    /// Blocks that must be read to complete an unaligned write.
    edges: Vec<Extent>,
    /// Sources in syndrome order.
    ordered: Vec<Segment>,
}

impl Planner {
    /// Finds the row borders of the extents.
    fn cut_rows(&mut self, extents: &[Extent]) {
        self.cuts.clear();
        for extent in extents {
            self.cuts.push(extent.row);
            self.cuts.push(extent.row_end());
        }
        self.cuts.sort_unstable();
        self.cuts.dedup();
    }

    /// Fills `row` with what the extents concern in rows `start..end`; returns how many chunks.
    fn load_row(&mut self, extents: &[Extent], data_count: usize, start: u32, end: u32) -> usize {
        self.row.clear();
        self.row.resize(data_count, None);
        let mut count = 0;
        for extent in extents {
            if extent.row <= start && end <= extent.row_end() {
                let piece = extent.segment.slice(start - extent.row, end - start);
                let before = self.row[extent.chunk].replace(piece);
                assert!(before.is_none(), "extents overlap in chunk {}", extent.chunk);
                count += 1;
            }
        }
        count
    }

    /// Puts `segments` (by data chunk) into syndrome order; holes are zeroes, lost ones empty.
    fn order(&mut self, stripe: &Stripe, segments: &[Option<Segment>], len: u32) {
        self.ordered.clear();
        self.ordered.resize(stripe.syndrome_width(), Segment::zero(len));
        for (chunk, segment) in segments.iter().enumerate() {
            self.ordered[stripe.syndrome_index(chunk)] = segment.unwrap_or(Segment::EMPTY);
        }
    }
}
