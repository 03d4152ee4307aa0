//! An engine whose answers the test decides: held back, out of order, failing; with a log of what
//! it was asked.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex};

use raid_nbd::backend::{Backend, Completion, Queue, Refused};
use raid_nbd::connection::{Extent, Failure, Operation};
use raid_nbd::export::Export;
use raid_nbd::proto::transmission::Errno;
use rustix::event::{EventfdFlags, eventfd};

use super::PATIENCE;

#[derive(Clone)]
pub struct Gated {
    size_bytes: u64,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    hold: bool,
    /// Who asks for extents waits.
    block_allocation: bool,
    allocation_count: usize,
    queue_depth: Option<usize>,
    store: Vec<u8>,
    held: Vec<Held>,
    log: Vec<String>,
    mailboxes: Vec<Arc<Mailbox>>,
}

struct Held {
    queue: usize,
    user_data: u64,
    operation: Operation<Vec<u8>>,
}

struct Mailbox {
    done: Mutex<VecDeque<Completion<Vec<u8>>>>,
    eventfd: OwnedFd,
}

impl Gated {
    /// Claims `size_bytes`, keeps the first MiB of them.
    pub fn new(size_bytes: u64) -> Self {
        let gated = Self { size_bytes, shared: Arc::default() };
        gated.state(|state| state.store = vec![0; 1 << 20]);
        gated
    }

    fn state<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = change(&mut self.shared.state.lock().unwrap());
        self.shared.changed.notify_all();
        result
    }

    /// Keep operations in flight until they are released.
    pub fn hold(&self, hold: bool) {
        self.state(|state| state.hold = hold);
    }

    /// Keep the threads that ask for extents waiting; `false` lets them go.
    pub fn block_allocation(&self, block: bool) {
        self.state(|state| state.block_allocation = block);
    }

    /// Wait until somebody has asked for extents.
    pub fn wait_allocation(&self) {
        self.wait_for(|state| state.allocation_count > 0);
    }

    fn wait_for(&self, condition: impl Fn(&State) -> bool) {
        let state = self.shared.state.lock().unwrap();
        let wait =
            self.shared.changed.wait_timeout_while(state, PATIENCE, |state| !condition(state));
        assert!(!wait.unwrap().1.timed_out(), "it did not happen");
    }

    /// Take at most so many operations at once on each queue.
    pub fn limit(&self, queue_depth: usize) {
        self.state(|state| state.queue_depth = Some(queue_depth));
    }

    /// What the engine was asked so far.
    pub fn log(&self) -> Vec<String> {
        self.state(|state| state.log.clone())
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        self.state(|state| state.store[offset..offset + len].to_vec())
    }

    /// Wait until `count` operations are held.
    pub fn wait_held(&self, count: usize) {
        self.wait_for(|state| state.held.len() >= count);
    }

    pub fn held_count(&self) -> usize {
        self.state(|state| state.held.len())
    }

    /// Let the operation at `index` of those held end.
    pub fn release(&self, index: usize, result: Result<(), Failure>) {
        self.state(|state| {
            let held = state.held.remove(index);
            state.finish(held, result);
        });
    }

    /// Let everything go, now and later.
    pub fn open(&self) {
        self.state(|state| {
            state.hold = false;
            while !state.held.is_empty() {
                let held = state.held.remove(0);
                state.finish(held, Ok(()));
            }
        });
    }
}

impl State {
    fn finish(&mut self, held: Held, result: Result<(), Failure>) {
        let Held { queue, user_data, operation } = held;
        let inside = |offset: u64, len: usize| {
            let start = (offset as usize).min(self.store.len());
            start..(start + len).min(self.store.len())
        };
        let buffer = match operation {
            Operation::Read { offset, mut buffer } => {
                let place = inside(offset, buffer.len());
                buffer.fill(0);
                buffer[..place.len()].copy_from_slice(&self.store[place]);
                Some(buffer)
            }
            Operation::Write { offset, buffer, .. } => {
                let place = inside(offset, buffer.len());
                let len = place.len();
                self.store[place].copy_from_slice(&buffer[..len]);
                Some(buffer)
            }
            Operation::WriteZeroes { offset, len, .. } => {
                let place = inside(offset, len as usize);
                self.store[place].fill(0);
                None
            }
            Operation::Flush | Operation::Discard { .. } => None,
        };
        let mailbox = &self.mailboxes[queue];
        mailbox.done.lock().unwrap().push_back(Completion { user_data, result, buffer });
        rustix::io::write(&mailbox.eventfd, &1_u64.to_ne_bytes()).unwrap();
    }
}

impl Backend for Gated {
    type Buffer = Vec<u8>;
    type Queue = GatedQueue;

    fn describe(&self, export: &mut Export) {
        export.size_bytes = self.size_bytes;
    }

    fn queue(&self) -> Result<GatedQueue, Box<dyn std::error::Error + Send + Sync>> {
        let eventfd = eventfd(0, EventfdFlags::NONBLOCK)?;
        let mailbox = Arc::new(Mailbox { done: Mutex::default(), eventfd });
        let index = self.state(|state| {
            state.mailboxes.push(Arc::clone(&mailbox));
            state.mailboxes.len() - 1
        });
        Ok(GatedQueue { array: self.clone(), index, mailbox, in_flight: 0 })
    }

    fn allocation(&self, _: u64, len: u64, extents: &mut Vec<Extent>) -> Result<(), Failure> {
        self.state(|state| state.allocation_count += 1);
        self.wait_for(|state| !state.block_allocation);
        // Every other byte a hole: as many extents as there can be.
        extents.extend((0..len.min(100_000)).map(|at| Extent { len: 1, hole: at % 2 == 1 }));
        Ok(())
    }
}

pub struct GatedQueue {
    array: Gated,
    index: usize,
    mailbox: Arc<Mailbox>,
    in_flight: usize,
}

impl Queue for GatedQueue {
    type Buffer = Vec<u8>;

    fn buffer(&mut self, len: usize) -> Vec<u8> {
        vec![0x5a; len]
    }

    fn submit(
        &mut self,
        operation: Operation<Vec<u8>>,
        user_data: u64,
    ) -> Result<(), Refused<Vec<u8>>> {
        let in_flight = self.in_flight;
        let queue = self.index;
        self.array.state(|state| {
            if state.queue_depth.is_some_and(|depth| in_flight >= depth) {
                return Err(Refused::Full(operation));
            }
            let entry = match &operation {
                Operation::Read { offset, buffer } => format!("read {offset}+{}", buffer.len()),
                Operation::Write { offset, buffer, fua } => {
                    format!("write {offset}+{} fua={fua}", buffer.len())
                }
                Operation::Flush => "flush".into(),
                Operation::Discard { offset, len } => format!("discard {offset}+{len}"),
                Operation::WriteZeroes { offset, len, unmap, fua } => {
                    format!("zeroes {offset}+{len} unmap={unmap} fua={fua}")
                }
            };
            state.log.push(entry);
            let held = Held { queue, user_data, operation };
            if state.hold {
                state.held.push(held);
            } else {
                state.finish(held, Ok(()));
            }
            Ok(())
        })?;
        self.in_flight += 1;
        Ok(())
    }

    fn poll(&mut self) -> Option<Completion<Vec<u8>>> {
        let pop = || self.mailbox.done.lock().unwrap().pop_front();
        let done = pop().or_else(|| {
            // Reset first, look again afterwards: what comes in between is not missed.
            let _ = rustix::io::read(&self.mailbox.eventfd, &mut [0; 8]);
            pop()
        })?;
        self.in_flight -= 1;
        Some(done)
    }

    fn eventfd(&self) -> BorrowedFd<'_> {
        self.mailbox.eventfd.as_fd()
    }
}

/// EIO somewhere.
pub fn eio(offset: Option<u64>) -> Failure {
    Failure { error: Errno::Io, offset }
}
