//! The engine of one thread: requests in, member operations out, results in, completions out.
//!
//! ```text
//!   submit -> split -> healthy read: straight to a member operation
//!                  \
//!                   > part -> lock -> metadata gate -> plan -> scratch -> phases -> ack -> done
//!                              |            |                     |                  |
//!                            parked      waiting               waiting            waiting
//! ```
//!
//! A `Queue` belongs to one thread and never blocks; it shares a [`Volume`] with the other queues.
//! The driver feeds events (`submit`, `handle_*`) and executes what the queue asks for (`poll_*`,
//! `run_computes`), in any order, until nothing is left to do:
//!
//! 1. [`Queue::handle_wakeup`] after another queue named this one in its [`Queue::poll_wakeup`];
//! 2. [`Queue::run_computes`];
//! 3. [`Queue::poll_io`] until it is empty, each operation's result to [`Queue::handle_io`];
//! 4. [`Queue::poll_metadata`], its result to [`Queue::handle_metadata`];
//! 5. [`Queue::poll_wakeup`] until it is empty;
//! 6. [`Queue::poll_completion`] until it is empty.
//!
//! Invariants: a part holds at most one lock; a part with scratch memory never waits for a lock;
//! each accepted request is completed exactly once, each polled operation is answered exactly once.

mod healing;
mod ops;
mod parts;
mod phases;
mod scratch;
mod split;

pub use ops::{MemberError, MemberIo};

use crate::counters::Counter;
use crate::lock::LockTable;
use crate::memory::{BufferName, Memory};
use crate::parity::Kernel;
use crate::plan::{Extent, Planner, Working, execute};
use crate::request::{Completion, Rejected, Repair, Request, RequestError, RequestKind};
use crate::slots::SlotSet;
use crate::volume::{MESSAGE_METADATA, MetadataUpdate, REQUEST_BYTES_MAX, Volume};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use ops::{Operations, Owner};
use parts::{Part, PartId, Stage};
use scratch::{Range, Scratch};

/// No part: the end of a list.
const NONE: u32 = u32::MAX;

/// Pieces and parts that one request may have under way. Bounds the queue's memory: longer requests
/// go on as the first ones end. 128, so that a 1 MiB read of 64 KiB chunks goes out at once.
const OUTSTANDING_MAX: u32 = 128;

/// How large a queue is.
#[derive(Clone, Copy, Debug)]
pub struct QueueConfig {
    /// Requests in flight; tags are below it.
    pub request_count_max: u32,
    /// Size of the scratch arena in bytes, at least [`Volume::scratch_bytes_min`].
    pub scratch_bytes: u32,
    /// The parity kernel.
    pub kernel: Kernel,
}

/// Why a queue cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The volume has as many queues as it can have.
    #[error("the array already has {0} queues")]
    TooMany(usize),
    /// The scratch arena is too small for the greatest part.
    #[error("scratch arena of {got} bytes < {min}")]
    Scratch {
        /// Bytes given.
        got: u32,
        /// Bytes needed.
        min: u32,
    },
}

/// A request in flight.
#[derive(Clone, Debug)]
struct RequestState {
    active: bool,
    request: Request,
    /// Next byte to be split off, and the next slice of its stripe.
    cursor: u64,
    slice: u32,
    end: u64,
    /// Pieces and parts under way.
    outstanding: u32,
    /// The request is being split right now: pieces that end meanwhile do not complete it.
    splitting: bool,
    error: Option<RequestError>,
}

/// The engine of one thread. See the module's text.
#[derive(Debug)]
pub struct Queue {
    volume: Arc<Volume>,
    id: usize,
    kernel: Kernel,
    requests: Box<[RequestState]>,
    parts: Vec<Part>,
    free_parts: Vec<PartId>,
    /// Head and tail of the parts that wait for each lock word.
    parked: Box<[(PartId, PartId)]>,
    metadata_waiting: Vec<PartId>,
    scratch_waiting: VecDeque<PartId>,
    computes: VecDeque<PartId>,
    scratch: Scratch,
    /// Scratch ranges that operations which were given up may still use.
    stuck: Vec<(u32, Range)>,
    /// Those of them that no part needs any more.
    orphans: Vec<Range>,
    operations: Operations,
    completions: VecDeque<Completion>,
    planner: Planner,
    /// Lock words that this queue was handed by itself and has not used yet.
    handed: Vec<usize>,
    /// Queues to be woken, one bit each.
    wakeups: u32,
    in_flight: u32,
    working: Working,
    /// Borders of the rows of writes that may be joined.
    borders: Vec<u32>,
    /// Members that a phase's operations go to.
    targets: Vec<usize>,
    extents: Vec<Extent>,
}

impl Queue {
    /// Makes a queue on a volume.
    ///
    /// # Errors
    /// [`QueueError`] if the volume has no queue left or the arena is too small.
    pub fn new(volume: Arc<Volume>, config: QueueConfig) -> Result<Self, QueueError> {
        let min = volume.scratch_bytes_min();
        if config.scratch_bytes < min {
            return Err(QueueError::Scratch { got: config.scratch_bytes, min });
        }
        let too_many = QueueError::TooMany(crate::lock::QUEUE_COUNT_MAX);
        let id = volume.register().ok_or(too_many)?;
        let idle = RequestState {
            active: false,
            request: Request { tag: 0, kind: RequestKind::Flush, offset: 0, len: 0, fua: false },
            cursor: 0,
            slice: 0,
            end: 0,
            outstanding: 0,
            splitting: false,
            error: None,
        };
        let member_count = volume.member_count_max();
        Ok(Self {
            volume,
            id,
            kernel: config.kernel,
            requests: alloc::vec![idle; config.request_count_max as usize].into(),
            parts: Vec::new(),
            free_parts: Vec::new(),
            parked: alloc::vec![(NONE, NONE); LockTable::len()].into(),
            metadata_waiting: Vec::new(),
            scratch_waiting: VecDeque::new(),
            computes: VecDeque::new(),
            scratch: Scratch::new(config.scratch_bytes),
            stuck: Vec::new(),
            orphans: Vec::new(),
            operations: Operations::new(member_count),
            completions: VecDeque::new(),
            planner: Planner::default(),
            handed: Vec::new(),
            wakeups: 0,
            in_flight: 0,
            working: Working::default(),
            borders: Vec::new(),
            targets: Vec::new(),
            extents: Vec::new(),
        })
    }

    /// The volume this queue works on.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// This queue's number within its volume, below 32.
    pub fn id(&self) -> usize {
        self.id
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// True when no request is in flight and no completion waits to be polled.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.completions.is_empty()
    }

    /// Accepts a request; its completion comes from [`Queue::poll_completion`].
    ///
    /// # Errors
    /// [`Rejected`]; nothing was done then.
    pub fn submit(&mut self, request: Request) -> Result<(), Rejected> {
        let Request { tag, kind, offset, len, .. } = request;
        let limit = self.requests.len() as u32;
        if tag >= limit || self.requests[tag as usize].active {
            return Err(Rejected::Tag { tag, limit });
        }
        let (mut cursor, mut end) = (0, 0);
        if kind != RequestKind::Flush {
            let size = match kind {
                RequestKind::Check { group, .. }
                | RequestKind::Recover { group }
                | RequestKind::Resync { group } => {
                    let group = self.volume.groups.get(group as usize);
                    group.map_or(0, |group| group.geometry.array_bytes())
                }
                _ => self.volume.array_bytes(),
            };
            end = offset
                .checked_add(len)
                .filter(|&end| end <= size)
                .ok_or(Rejected::OutOfRange { offset, len, size })?;
            cursor = offset;
            let transfers = matches!(kind, RequestKind::Read | RequestKind::Write);
            if transfers && len > REQUEST_BYTES_MAX {
                return Err(Rejected::TooLong { len, max: REQUEST_BYTES_MAX });
            }
            let only_reads =
                matches!(kind, RequestKind::Read | RequestKind::Check { repair: Repair::None, .. });
            if self.volume.read_only && !only_reads {
                return Err(Rejected::ReadOnly);
            }
        }
        self.in_flight += 1;
        let state = &mut self.requests[tag as usize];
        *state = RequestState {
            active: true,
            request,
            cursor,
            slice: 0,
            end,
            outstanding: 0,
            splitting: false,
            error: None,
        };
        self.split_on(tag);
        self.settle();
        Ok(())
    }

    /// The next member operation to be started. Every one must be answered by [`Queue::handle_io`].
    pub fn poll_io(&mut self) -> Option<MemberIo<'_>> {
        self.operations.poll(self.volume.queue_counters(self.id))
    }

    /// Takes the result of a member operation.
    ///
    /// # Panics
    /// If `token` was not polled or was answered already.
    pub fn handle_io(&mut self, token: u32, result: Result<(), MemberError>) {
        self.finish_operation(token, result);
    }

    /// Gives up an operation that its member does not answer: it counts as failed, the member
    /// leaves the array if that can be borne. The operation's scratch memory is not used for
    /// anything else until [`Queue::release_io`]; request buffers that it names are the driver's
    /// business.
    ///
    /// # Panics
    /// If `token` was not polled, or was answered or given up already.
    pub fn abandon_io(&mut self, token: u32) {
        let operation = self.operations.get(token);
        assert!(!operation.abandoned, "operation {token} has been given up already");
        operation.abandoned = true;
        let (member, kind) = (operation.member, operation.kind);
        let pieces = core::mem::take(&mut operation.pieces);
        for piece in &pieces {
            if let Owner::Part(id) = piece.owner
                && piece.segment.buffer == BufferName::Scratch
                && let Some(range) = self.parts[id as usize].scratch
            {
                self.stuck.push((token, range));
            }
        }
        self.finish_pieces(&pieces, member, kind, Err(MemberError::Timeout));
        self.settle();
    }

    /// Scratch bytes that operations which were given up keep from being used. With all of the
    /// arena kept, requests that need some wait: see [`Queue::add_scratch`].
    pub fn scratch_stuck(&self) -> u64 {
        let mut ranges: Vec<Range> = self.stuck.iter().map(|(_, range)| *range).collect();
        ranges.sort_unstable_by_key(|range| range.offset);
        ranges.dedup();
        ranges.iter().map(|range| u64::from(range.len)).sum()
    }

    /// Adds scratch memory in place of what is stuck: `bytes` should be as much as that, and no
    /// less than [`Volume::scratch_bytes_min`], so that the largest part finds room. Returns the
    /// offset in [`BufferName::Scratch`] that it begins at. No segment reaches from one piece of
    /// scratch memory into another.
    ///
    /// # Panics
    /// If all pieces together reach 4 GiB.
    pub fn add_scratch(&mut self, bytes: u32) -> u32 {
        let start = self.scratch.grow(bytes);
        self.settle();
        start
    }

    /// An operation that was given up has really ended: its memory is free.
    ///
    /// # Panics
    /// If `token` was not given up.
    pub fn release_io(&mut self, token: u32) {
        assert!(self.operations.get(token).abandoned, "operation {token} was not given up");
        self.operations.recycle(token, Vec::new());
        let mut freed = Vec::new();
        self.stuck.retain(|&(stuck, range)| {
            if stuck == token {
                freed.push(range);
            }
            stuck != token
        });
        for range in freed {
            let is_stuck = self.stuck.iter().any(|(_, other)| *other == range);
            let orphan = self.orphans.iter().position(|other| *other == range);
            if let Some(index) = orphan.filter(|_| !is_stuck) {
                self.orphans.swap_remove(index);
                self.scratch.give(range);
            }
        }
        self.settle();
    }

    /// Executes every compute step that is due, on memory that the caller resolves.
    pub fn run_computes(&mut self, memory: &mut impl Memory) {
        while let Some(id) = self.computes.pop_front() {
            let part = &mut self.parts[id as usize];
            let plan = core::mem::take(&mut part.plan);
            let crate::plan::Phase::Compute(span) = plan.phases[part.phase] else {
                unreachable!("part {id} is not at a compute phase");
            };
            let base = part.scratch.map_or(0, |range| range.offset);
            for op in &plan.computes[span.range()] {
                execute(op, &plan, base, self.kernel, memory, &mut self.working);
            }
            let part = &mut self.parts[id as usize];
            part.found.append(&mut self.working.found);
            part.plan = plan;
            part.phase += 1;
            self.run_phase(id);
        }
        self.settle();
    }

    /// True if [`Queue::run_computes`] has work.
    pub fn has_computes(&self) -> bool {
        !self.computes.is_empty()
    }

    /// The number of a queue that must be woken: its driver calls [`Queue::handle_wakeup`].
    pub fn poll_wakeup(&mut self) -> Option<usize> {
        if self.wakeups == 0 {
            return None;
        }
        let queue = self.wakeups.trailing_zeros();
        self.wakeups &= self.wakeups - 1;
        Some(queue as usize)
    }

    /// Reads what other queues have told this one.
    pub fn handle_wakeup(&mut self) {
        while let Some(message) = self.volume.receive(self.id) {
            if message == MESSAGE_METADATA {
                self.retry_metadata();
            } else {
                self.admit_parked(message as usize);
            }
        }
        self.settle();
    }

    /// Superblocks that this queue must make durable, if any; answer with
    /// [`Queue::handle_metadata`].
    pub fn poll_metadata(&mut self) -> Option<MetadataUpdate> {
        self.volume.poll_metadata()
    }

    /// Takes the result of a metadata update: the slots whose superblock could not be made durable.
    pub fn handle_metadata(&mut self, update: &MetadataUpdate, failed: &SlotSet) {
        self.wakeups |= self.volume.handle_metadata(update, failed) & !(1 << self.id);
        self.retry_metadata();
        self.settle();
    }

    /// The next finished request.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    fn count(&self, counter: Counter) {
        self.volume.queue_counters(self.id).count(counter, 1);
    }

    /// Ends one piece or part of a request.
    fn finish_piece(&mut self, tag: u32, error: Option<RequestError>) {
        let state = &mut self.requests[tag as usize];
        assert!(state.active && state.outstanding > 0, "request {tag} has no piece under way");
        state.outstanding -= 1;
        state.error = state.error.or(error);
        if state.error.is_some() {
            // What is left of a failed request is not started.
            state.cursor = state.end;
        }
        if state.splitting {
            return;
        }
        if state.cursor < state.end {
            self.split_on(tag);
        } else if state.outstanding == 0 {
            self.complete(tag);
        }
    }

    fn complete(&mut self, tag: u32) {
        let state = &mut self.requests[tag as usize];
        state.active = false;
        self.in_flight -= 1;
        let result = state.error.map_or(Ok(()), Err);
        self.completions.push_back(Completion { tag, result });
    }
}

impl Drop for Queue {
    /// Gives back the locks and the number. Drive the queue until it is idle first: operations that
    /// are still with the driver are not waited for.
    fn drop(&mut self) {
        for word in 0..self.parked.len() {
            if self.parked[word].0 != NONE {
                self.volume.locks.withdraw(word, self.id);
                self.parked[word] = (NONE, NONE);
            }
        }
        for id in 0..self.parts.len() as PartId {
            if self.parts[id as usize].stage == Stage::Locked {
                self.release_lock(id);
                self.end_write(id);
            }
        }
        while let Some(message) = self.volume.receive(self.id) {
            if message != MESSAGE_METADATA {
                let word = message as usize;
                let exclusive = crate::lock::LockMode::Exclusive;
                if let Some(heir) = self.volume.locks.release(word, self.id, exclusive) {
                    self.volume.post(heir, message);
                }
            }
        }
        self.volume.unregister(self.id);
    }
}
