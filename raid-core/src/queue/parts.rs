//! Parts: the piece of a request within one lock unit, from its lock to its end.
//!
//! Life of a part (`Stage`), each edge in one function:
//!
//! ```text
//!   Free -> Parked -> Locked -> Free          Parked is skipped when the lock is free
//!   Free -> Unlocked -> Free                  flushes, which need no lock
//! ```

use super::ops::{MemberError, Owner, Piece};
use super::scratch::Range;
use super::{NONE, Queue};
use crate::counters::Counter;
use crate::lock::{LockMode, LockTable};
use crate::memory::Segment;
use crate::plan::{Extent, IoKind, MappedView, Method, Phase, Plan, PlanError, StripeView};
use crate::request::{RequestError, RequestErrorKind};
use crate::slots::SlotSet;
use crate::volume::WriteGate;
use alloc::vec::Vec;

/// Index of a part in its queue.
pub(super) type PartId = u32;

/// Waiting writes that are joined into one plan at most. Bounds the time for which one plan holds
/// its stripe.
const JOINED_MAX: usize = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PartKind {
    #[default]
    Flush,
    Read,
    /// Redundancy of the unit is made to agree with its data; the extents say which rows.
    Resync,
    Write,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Free,
    Parked,
    Locked,
    Unlocked,
}

/// Why a part is on the list of those that wait for metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Gate {
    /// It finished its writes and waits to be acknowledged.
    #[default]
    Ack,
    /// It waits to be planned.
    Write,
}

/// What makes up a part when it is born.
#[derive(Clone, Copy, Debug)]
pub(super) struct Birth {
    pub(super) kind: PartKind,
    pub(super) group: usize,
    /// Stripe, or mapped unit.
    pub(super) unit: u64,
    /// Slice of the stripe.
    pub(super) slice: u32,
    pub(super) tag: u32,
    /// Array byte that an error is reported at.
    pub(super) array_offset: u64,
    pub(super) fua: bool,
    pub(super) unmap: bool,
}

#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) stage: Stage,
    pub(super) phase: usize,
    pub(super) plan: Plan,
    pub(super) scratch: Option<Range>,
    kind: PartKind,
    gate: Gate,
    group: usize,
    unit: u64,
    slice: u32,
    word: usize,
    fua: bool,
    unmap: bool,
    aligned: bool,
    /// The requests served, each with the array byte of its piece.
    requests: Vec<(u32, u64)>,
    /// Rows of data chunks; for mapped levels chunk is 0 and rows count from the unit's start.
    extents: Vec<Extent>,
    /// Slots that could not be read here.
    unreadable: SlotSet,
    /// The last read phase failed somewhere.
    replan: bool,
    /// Slots whose write failed in this phase.
    unwritten: SlotSet,
    no_space: bool,
    /// The bitmap period that this write began in.
    period: Option<u8>,
    outstanding: u32,
    next: PartId,
}

impl Part {
    pub(super) fn group(&self) -> usize {
        self.group
    }

    fn mode(&self) -> LockMode {
        match self.kind {
            PartKind::Resync | PartKind::Write => LockMode::Exclusive,
            PartKind::Flush | PartKind::Read => LockMode::Shared,
        }
    }

    /// True if `other` can be written by the same plan: same unit, and no byte in common.
    fn can_join(&self, other: &Self) -> bool {
        let same_unit =
            (self.group, self.unit, self.slice) == (other.group, other.unit, other.slice);
        let both_plain = self.kind == PartKind::Write
            && other.kind == PartKind::Write
            && self.aligned
            && other.aligned
            && self.unmap == other.unmap;
        let meets = |a: &Extent, b: &Extent| {
            a.chunk == b.chunk && a.row < b.row_end() && b.row < a.row_end()
        };
        same_unit
            && both_plain
            && !self.extents.iter().any(|a| other.extents.iter().any(|b| meets(a, b)))
    }
}

impl Queue {
    /// Makes a part of the extents in `self.extents` and starts it. `unreadable` slots are not
    /// read.
    pub(super) fn start_part(&mut self, birth: Birth, unreadable: SlotSet) {
        let id = self.free_parts.pop().unwrap_or_else(|| {
            self.parts.push(Part::default());
            self.parts.len() as PartId - 1
        });
        let block = self.volume.block_bytes;
        let part = &mut self.parts[id as usize];
        assert!(part.stage == Stage::Free, "part {id} is in use");
        part.kind = birth.kind;
        part.group = birth.group;
        part.unit = birth.unit;
        part.slice = birth.slice;
        part.fua = birth.fua;
        part.unmap = birth.unmap;
        part.requests.clear();
        part.requests.push((birth.tag, birth.array_offset));
        core::mem::swap(&mut part.extents, &mut self.extents);
        part.aligned = part.extents.iter().all(|extent| extent.is_aligned(block));
        part.unreadable = unreadable;
        part.replan = false;
        part.unwritten = SlotSet::new();
        part.no_space = false;
        part.outstanding = 0;
        part.next = NONE;
        self.requests[birth.tag as usize].outstanding += 1;
        if birth.kind == PartKind::Flush {
            part.stage = Stage::Unlocked;
            self.send_flushes(id);
            return;
        }
        part.word = LockTable::word_of(birth.group, birth.unit, birth.slice);
        let (word, mode) = (part.word, part.mode());
        if self.parked[word].0 == NONE && self.volume.locks.acquire(word, self.id, mode) {
            self.parts[id as usize].stage = Stage::Locked;
            self.pass_gate(id);
        } else {
            self.park(id);
        }
    }

    /// Puts a part at the end of its word's list.
    fn park(&mut self, id: PartId) {
        self.count(Counter::LockWaits);
        let part = &mut self.parts[id as usize];
        part.stage = Stage::Parked;
        let (head, tail) = &mut self.parked[part.word];
        if *head == NONE {
            *head = id;
        } else {
            self.parts[*tail as usize].next = id;
        }
        *tail = id;
    }

    /// Takes the first part off a word's list.
    fn unpark(&mut self, word: usize) -> Option<PartId> {
        let (head, tail) = &mut self.parked[word];
        let id = *head;
        if id == NONE {
            return None;
        }
        let part = &mut self.parts[id as usize];
        assert!(part.stage == Stage::Parked, "part {id} is not parked");
        *head = part.next;
        part.next = NONE;
        part.stage = Stage::Locked;
        if *head == NONE {
            *tail = NONE;
        }
        Some(id)
    }

    /// Starts parked parts of a word that this queue has just been handed.
    pub(super) fn admit_parked(&mut self, word: usize) {
        let Some(id) = self.unpark(word) else {
            self.release_word(word, LockMode::Exclusive);
            return;
        };
        let mode = self.parts[id as usize].mode();
        let mut admitted = Vec::new();
        if mode == LockMode::Shared {
            self.volume.locks.downgrade(word);
            while let (head, _) = self.parked[word]
                && head != NONE
                && self.parts[head as usize].mode() == LockMode::Shared
                && self.volume.locks.acquire(word, self.id, LockMode::Shared)
            {
                admitted.extend(self.unpark(word));
            }
        } else {
            self.join_parked(id, word);
        }
        if self.parked[word].0 != NONE {
            self.volume.locks.wait_again(word, self.id);
        }
        self.pass_gate(id);
        for id in admitted {
            self.pass_gate(id);
        }
    }

    /// Joins parked writes of the same unit into `id`, up to the first that cannot be.
    fn join_parked(&mut self, id: PartId, word: usize) {
        for _ in 1..JOINED_MAX {
            let (head, _) = self.parked[word];
            if head == NONE || !self.parts[id as usize].can_join(&self.parts[head as usize]) {
                return;
            }
            let joined = self.unpark(word);
            assert!(joined == Some(head), "the head of the list is taken");
            let mut other = core::mem::take(&mut self.parts[head as usize]);
            let part = &mut self.parts[id as usize];
            part.requests.append(&mut other.requests);
            part.extents.append(&mut other.extents);
            part.fua |= other.fua;
            other.stage = Stage::Free;
            self.parts[head as usize] = other;
            self.free_parts.push(head);
            self.count(Counter::Joined);
        }
    }

    /// Lets a locked part go on if the metadata allows it.
    fn pass_gate(&mut self, id: PartId) {
        let part = &mut self.parts[id as usize];
        if matches!(part.kind, PartKind::Resync | PartKind::Write) {
            part.gate = Gate::Write;
            let group = &self.volume.groups[part.group];
            let gate = match group.write_gate() {
                WriteGate::Open if group.intent.is_some() => {
                    part.period = part.period.or_else(|| Some(group.begin_write(self.id)));
                    group.intent_gate(part.unit)
                }
                gate => gate,
            };
            match gate {
                WriteGate::Open => {}
                WriteGate::Stopped => return self.finish_part(id, Some(RequestErrorKind::Io)),
                WriteGate::Wait => return self.metadata_waiting.push(id),
            }
        }
        self.make_plan(id);
    }

    fn make_plan(&mut self, id: PartId) {
        let part = &mut self.parts[id as usize];
        let group = &self.volume.groups[part.group];
        let in_sync = group.in_sync();
        let readable = in_sync.difference(part.unreadable);
        part.plan.clear();
        part.phase = 0;
        part.replan = false;
        let (trust, block_bytes) = (group.trust_unit(part.unit), self.volume.block_bytes);
        let planned: Result<(), PlanError> = if group.geometry.parity_count() > 0 {
            let view = StripeView {
                geometry: &group.geometry,
                stripe: group.geometry.stripe(part.unit),
                readable,
                writable: in_sync,
                trust,
                block_bytes,
            };
            match part.kind {
                PartKind::Write => {
                    let Part { extents, unmap, plan, .. } = part;
                    self.planner.write_stripe(&view, extents, *unmap, plan)
                }
                PartKind::Resync => {
                    let Part { extents, plan, .. } = part;
                    extents.iter().try_for_each(|extent| {
                        self.planner.resync_stripe(&view, extent.row, extent.segment.len, plan)
                    })
                }
                _ => self.planner.read_stripe(&view, &part.extents, &mut part.plan),
            }
        } else {
            let view = MappedView {
                geometry: &group.geometry,
                readable,
                writable: in_sync,
                trust,
                block_bytes,
            };
            let start = part.unit * group.lock_unit();
            let Part { extents, kind, unmap, plan, .. } = part;
            extents.iter().try_for_each(|extent| {
                let offset = start + u64::from(extent.row);
                match kind {
                    PartKind::Write => {
                        self.planner.write_mapped(&view, offset, extent.segment, *unmap, plan)
                    }
                    PartKind::Resync => {
                        self.planner.resync_mapped(&view, offset, extent.segment.len, plan)
                    }
                    _ => self.planner.read_mapped(&view, offset, extent.segment, plan),
                }
            })
        };
        if planned.is_err() {
            return self.finish_part(id, Some(RequestErrorKind::Io));
        }
        self.count_method(id);
        let part = &self.parts[id as usize];
        if part.plan.scratch_bytes == 0 {
            self.run_phase(id);
        } else {
            self.scratch_waiting.push_back(id);
            self.give_scratch();
        }
    }

    fn count_method(&self, id: PartId) {
        let plan = &self.parts[id as usize].plan;
        if plan.regenerates {
            self.count(Counter::RegeneratedReads);
        }
        match plan.method {
            Some(Method::FullStripe) => self.count(Counter::FullStripeWrites),
            Some(Method::ReadModifyWrite) => self.count(Counter::Rmw),
            Some(Method::ReconstructWrite) => self.count(Counter::Rcw),
            Some(Method::Regenerate) => self.count(Counter::RegeneratingWrites),
            Some(Method::DataOnly) | None => {}
        }
    }

    /// Gives scratch memory to those that wait, in their order.
    pub(super) fn give_scratch(&mut self) {
        while let Some(&id) = self.scratch_waiting.front() {
            let part = &mut self.parts[id as usize];
            let Some(range) = self.scratch.take(part.plan.scratch_bytes) else { return };
            part.scratch = Some(range);
            self.scratch_waiting.pop_front();
            self.run_phase(id);
        }
    }

    /// Starts the phase that a part has come to.
    pub(super) fn run_phase(&mut self, id: PartId) {
        let part = &mut self.parts[id as usize];
        let Some(&phase) = part.plan.phases.get(part.phase) else {
            return self.acknowledge(id);
        };
        let (span, list, fua) = match phase {
            Phase::Compute(_) => return self.computes.push_back(id),
            Phase::Read(span) => (span, &part.plan.reads, false),
            Phase::Write(span) => (span, &part.plan.writes, part.fua),
        };
        let base = part.scratch.map_or(0, |range| range.offset);
        let group = &self.volume.groups[part.group];
        let counters = self.volume.queue_counters(self.id);
        part.outstanding = span.range().len() as u32;
        for op in &list[span.range()] {
            let segment = crate::plan::rebase(op.segment, base);
            let offset = group.data_offsets[op.slot] + op.offset;
            let member = group.member_base + op.slot;
            match op.kind {
                IoKind::Read => counters.count_read(member, u64::from(segment.len)),
                _ => counters.count_write(member, u64::from(segment.len)),
            }
            let piece = Piece { owner: Owner::Part(id), slot: op.slot, offset, segment };
            self.operations.push(member, op.kind, fua, piece, counters);
        }
    }

    /// Sends a flush to every member in sync.
    fn send_flushes(&mut self, id: PartId) {
        let part = &mut self.parts[id as usize];
        let group = &self.volume.groups[part.group];
        let in_sync = group.in_sync();
        part.plan.clear();
        part.phase = 0;
        part.outstanding = in_sync.len() as u32;
        for slot in in_sync.iter() {
            let piece = Piece { owner: Owner::Part(id), slot, offset: 0, segment: Segment::EMPTY };
            let member = group.member_base + slot;
            self.operations.push_alone(member, IoKind::Flush, false, piece);
        }
    }

    /// Takes the end of one of a part's operations.
    pub(super) fn part_piece_done(
        &mut self,
        id: PartId,
        slot: usize,
        kind: IoKind,
        result: Result<(), MemberError>,
    ) {
        let part = &mut self.parts[id as usize];
        assert!(part.outstanding > 0, "part {id} has no operation under way");
        part.outstanding -= 1;
        if let Err(error) = result {
            if kind == IoKind::Read {
                part.unreadable.insert(slot);
                part.replan = true;
            } else {
                part.unwritten.insert(slot);
                part.no_space |= error == MemberError::NoSpace;
            }
        }
        if part.outstanding > 0 {
            return;
        }
        if part.replan {
            self.give_back_scratch(id);
            self.make_plan(id);
        } else if !part.unwritten.is_empty() {
            self.handle_unwritten(id);
        } else {
            part.phase += 1;
            self.run_phase(id);
        }
    }

    /// Some members did not take a write: they leave the array if it can bear that, and what was
    /// written to the others then stands for it. Else the request fails and the stripe is
    /// suspect.
    fn handle_unwritten(&mut self, id: PartId) {
        let part = &mut self.parts[id as usize];
        let group = &self.volume.groups[part.group];
        let unwritten = core::mem::take(&mut part.unwritten);
        let borne = !part.no_space && unwritten.iter().all(|slot| group.fail(slot));
        if borne {
            part.phase += 1;
            return self.run_phase(id);
        }
        if matches!(part.kind, PartKind::Resync | PartKind::Write) {
            group.mark_suspect(Some(part.unit));
        }
        let kind = if part.no_space { RequestErrorKind::NoSpace } else { RequestErrorKind::Io };
        self.finish_part(id, Some(kind));
    }

    /// A part has done all its phases: a write is acknowledged once every failure that it relies on
    /// is durable.
    fn acknowledge(&mut self, id: PartId) {
        let part = &mut self.parts[id as usize];
        part.gate = Gate::Ack;
        let gate = match part.kind {
            PartKind::Read => WriteGate::Open,
            PartKind::Flush if self.volume.read_only => WriteGate::Open,
            PartKind::Flush | PartKind::Resync | PartKind::Write => {
                self.volume.groups[part.group].ack_gate()
            }
        };
        match gate {
            WriteGate::Open => self.finish_part(id, None),
            WriteGate::Stopped => self.finish_part(id, Some(RequestErrorKind::Io)),
            WriteGate::Wait => self.metadata_waiting.push(id),
        }
    }

    /// Looks again at the parts that wait for metadata.
    pub(super) fn retry_metadata(&mut self) {
        let waiting = core::mem::take(&mut self.metadata_waiting);
        for id in waiting {
            match self.parts[id as usize].gate {
                Gate::Ack => self.acknowledge(id),
                Gate::Write => self.pass_gate(id),
            }
        }
    }

    fn give_back_scratch(&mut self, id: PartId) {
        if let Some(range) = self.parts[id as usize].scratch.take() {
            self.scratch.give(range);
        }
    }

    /// Counts a write out of its bitmap period.
    pub(super) fn end_write(&mut self, id: PartId) {
        let part = &mut self.parts[id as usize];
        if let Some(period) = part.period.take() {
            self.volume.groups[part.group].end_write(self.id, period);
        }
    }

    /// Releases a part's lock; whoever waits next is told.
    pub(super) fn release_lock(&mut self, id: PartId) {
        let part = &mut self.parts[id as usize];
        if part.stage == Stage::Locked {
            part.stage = Stage::Unlocked;
            let (word, mode) = (part.word, part.mode());
            self.release_word(word, mode);
        }
    }

    fn release_word(&mut self, word: usize, mode: LockMode) {
        match self.volume.locks.release(word, self.id, mode) {
            // Not at once: a long list of parts that fail would recurse.
            Some(heir) if heir == self.id => self.handed.push(word),
            Some(heir) => {
                self.volume.post(heir, word as u32);
                self.wakeups |= 1 << heir;
            }
            None => {}
        }
    }

    /// Ends a part: memory and lock go back, its requests hear of it.
    fn finish_part(&mut self, id: PartId, error: Option<RequestErrorKind>) {
        self.give_back_scratch(id);
        self.release_lock(id);
        self.end_write(id);
        let mut requests = core::mem::take(&mut self.parts[id as usize].requests);
        for &(tag, offset) in &requests {
            self.finish_piece(tag, error.map(|kind| RequestError { kind, offset }));
        }
        requests.clear();
        let part = &mut self.parts[id as usize];
        part.requests = requests;
        part.extents.clear();
        part.stage = Stage::Free;
        self.free_parts.push(id);
    }

    /// Does what became possible meanwhile, without recursion. Every public entry ends with it.
    pub(super) fn settle(&mut self) {
        loop {
            self.give_scratch();
            let Some(word) = self.handed.pop() else { return };
            self.admit_parked(word);
        }
    }
}
