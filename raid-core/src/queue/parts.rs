//! Parts: the piece of a request within one lock unit, from its lock to its end; what happens in
//! between is in [`super::phases`].
//!
//! Life of a part (`Stage`), each edge in one function:
//!
//! ```text
//!   Free -> Parked -> Locked -> Free          Parked is skipped when the lock is free
//!   Free -> Unlocked -> Free                  flushes, which need no lock
//! ```

use super::healing::Fix;
use super::scratch::Range;
use super::{NONE, Queue};
use crate::counters::Counter;
use crate::lock::{LockMode, LockTable};
use crate::memory::SCRATCH_ALIGN;
use crate::plan::{Extent, Mismatch, Plan};
use crate::planted;
use crate::request::{Repair, RequestError, RequestErrorKind};
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
    /// Redundancy and data are compared.
    Check,
    /// Rows of one slot are regenerated, written and read back.
    Fix,
    Read,
    /// What joined is filled; the extents say which rows.
    Recover,
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
pub(super) enum Gate {
    /// It finished its writes and waits to be acknowledged.
    #[default]
    Ack,
    /// It waits to be planned.
    Write,
}

/// What makes up a part when it is born.
#[derive(Clone, Copy, Debug, Default)]
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
    /// One block's height of a part that failed as a whole: it is not joined with others again.
    pub(super) alone: bool,
    /// What a check may write.
    pub(super) repair: Repair,
    /// The slot whose rows are to be made right.
    pub(super) fix: Option<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) stage: Stage,
    pub(super) phase: usize,
    pub(super) plan: Plan,
    pub(super) scratch: Option<Range>,
    pub(super) kind: PartKind,
    pub(super) gate: Gate,
    pub(super) group: usize,
    pub(super) unit: u64,
    pub(super) slice: u32,
    pub(super) word: usize,
    pub(super) fua: bool,
    pub(super) unmap: bool,
    pub(super) aligned: bool,
    pub(super) alone: bool,
    /// The requests served, each with the array byte of its piece.
    pub(super) requests: Vec<(u32, u64)>,
    /// Rows of data chunks; for mapped levels chunk is 0 and rows count from the unit's start.
    pub(super) extents: Vec<Extent>,
    /// Slots that could not be read here.
    pub(super) unreadable: SlotSet,
    /// The last read phase failed somewhere.
    pub(super) replan: bool,
    /// Slots whose write failed in this phase, and the members that it failed on.
    pub(super) unwritten: Vec<(usize, usize)>,
    /// The membership that the plan was made under.
    pub(super) generation: u64,
    pub(super) no_space: bool,
    pub(super) repair: Repair,
    /// What has been compared and differs, in this plan and in the one before.
    pub(super) found: Vec<Mismatch>,
    pub(super) before: Option<Vec<Mismatch>>,
    /// What is to be made right, one after the other, and what is under way.
    pub(super) fixes: Vec<Fix>,
    pub(super) fixing: usize,
    /// What a fix wrote could not be read back.
    pub(super) unread_back: bool,
    /// The bitmap period that this write began in.
    pub(super) period: Option<u8>,
    pub(super) outstanding: u32,
    pub(super) next: PartId,
}

impl Part {
    pub(super) fn group(&self) -> usize {
        self.group
    }

    fn mode(&self) -> LockMode {
        match self.kind {
            PartKind::Check if self.repair == Repair::None => LockMode::Shared,
            PartKind::Check | PartKind::Fix => LockMode::Exclusive,
            PartKind::Recover | PartKind::Resync | PartKind::Write => LockMode::Exclusive,
            PartKind::Flush | PartKind::Read => LockMode::Shared,
        }
    }

    /// True if `other` can be written by the same plan: same unit, and no byte in common.
    fn can_join(&self, other: &Self) -> bool {
        let same_unit =
            (self.group, self.unit, self.slice) == (other.group, other.unit, other.slice);
        let both_plain = !self.alone
            && !other.alone
            && self.kind == PartKind::Write
            && other.kind == PartKind::Write
            && self.aligned
            && other.aligned
            && self.unmap == other.unmap;
        let meets = |a: &Extent, b: &Extent| {
            a.chunk == b.chunk && a.row < b.row_end() && b.row < a.row_end()
        };
        same_unit
            && both_plain
            && (planted::is(29)
                || !self.extents.iter().any(|a| other.extents.iter().any(|b| meets(a, b))))
    }
}

impl Queue {
    /// Makes a part of the extents in `self.extents` and starts it. `unreadable` slots are not
    /// read.
    pub(super) fn start_part(&mut self, birth: Birth, unreadable: SlotSet) -> PartId {
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
        part.unwritten.clear();
        part.no_space = false;
        part.alone = birth.alone;
        part.repair = birth.repair;
        part.found.clear();
        part.before = None;
        part.fixing = 0;
        part.fixes.clear();
        part.fixes.extend(birth.fix.zip(part.extents.first()).map(|(slot, extent)| Fix {
            slot,
            row: extent.row,
            len: extent.segment.len,
            finding: None,
        }));
        part.outstanding = 0;
        part.next = NONE;
        self.requests[birth.tag as usize].outstanding += 1;
        if birth.kind == PartKind::Flush {
            part.stage = Stage::Unlocked;
            self.send_flushes(id);
            return id;
        }
        if birth.kind == PartKind::Read && planted::is(32) {
            part.stage = Stage::Unlocked;
            self.pass_gate(id);
            return id;
        }
        let apart = if planted::is(19) { birth.tag << 8 } else { 0 };
        part.word = LockTable::word_of(birth.group, birth.unit, birth.slice + apart);
        let (word, mode) = (part.word, part.mode());
        if self.parked[word].0 == NONE && self.volume.locks.acquire(word, self.id, mode) {
            self.parts[id as usize].stage = Stage::Locked;
            self.pass_gate(id);
        } else {
            self.park(id);
        }
        id
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
            if head == NONE
                || !self.parts[id as usize].can_join(&self.parts[head as usize])
                || !self.fits_scratch(id, head)
            {
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

    /// True if the plan of two parts together is sure to fit the scratch arena. Each run of rows
    /// takes whole pages of it for every chunk and parity: many small writes of different rows take
    /// far more than their bytes.
    fn fits_scratch(&mut self, id: PartId, other: PartId) -> bool {
        let (part, other) = (&self.parts[id as usize], &self.parts[other as usize]);
        let geometry = &self.volume.groups[part.group].geometry;
        let extents = || part.extents.iter().chain(&other.extents);
        let whole_pages =
            |extent: &Extent| (extent.row | extent.row_end()).is_multiple_of(SCRATCH_ALIGN);
        if geometry.parity_count() == 0 || extents().all(whole_pages) {
            return true;
        }
        self.borders.clear();
        self.borders.extend(extents().flat_map(|extent| [extent.row, extent.row_end()]));
        self.borders.sort_unstable();
        let is_written = |rows: &&[u32]| {
            extents().any(|extent| extent.row <= rows[0] && rows[1] <= extent.row_end())
        };
        let runs = self.borders.windows(2).filter(|rows| rows[0] < rows[1]).filter(is_written);
        let pages: u64 =
            runs.map(|rows| u64::from((rows[1] - rows[0]).next_multiple_of(SCRATCH_ALIGN))).sum();
        // Every data chunk once, old parity, new parity, and one to spare.
        pages * (geometry.slot_count() as u64 + 5) <= u64::from(self.scratch.len())
    }

    /// Lets a locked part go on if the metadata allows it.
    fn pass_gate(&mut self, id: PartId) {
        let part = &mut self.parts[id as usize];
        if matches!(part.kind, PartKind::Resync | PartKind::Write) {
            part.gate = Gate::Write;
            let group = &self.volume.groups[part.group];
            if group.redundant {
                part.period = part.period.or_else(|| Some(group.begin_write(self.id)));
            }
            let gate = match group.write_gate() {
                WriteGate::Open => group.intent_gate(part.unit),
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

    /// A part has done all its phases: a write is acknowledged once every failure that it relies on
    /// is durable.
    pub(super) fn acknowledge(&mut self, id: PartId) {
        let part = &mut self.parts[id as usize];
        part.gate = Gate::Ack;
        let gate = match part.kind {
            PartKind::Check => return self.checked(id),
            PartKind::Fix if !part.fixes.is_empty() => return self.fixed(id),
            PartKind::Read => WriteGate::Open,
            PartKind::Flush if self.volume.read_only => WriteGate::Open,
            PartKind::Fix
            | PartKind::Flush
            | PartKind::Recover
            | PartKind::Resync
            | PartKind::Write => self.volume.groups[part.group].ack_gate(),
        };
        match gate {
            WriteGate::Open => self.finish_part(id, None),
            // A fix that failed is nobody's error.
            WriteGate::Stopped if part.kind == PartKind::Fix => self.finish_part(id, None),
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

    pub(super) fn give_back_scratch(&mut self, id: PartId) {
        let Some(range) = self.parts[id as usize].scratch.take() else { return };
        if self.stuck.iter().any(|(_, stuck)| *stuck == range) {
            self.orphans.push(range);
        } else {
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
    pub(super) fn finish_part(&mut self, id: PartId, error: Option<RequestErrorKind>) {
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
