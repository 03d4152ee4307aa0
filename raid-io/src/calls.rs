//! The blocking face: calls that borrow a queue, and wait.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::shared::Shared;
use crate::{Completion, Error, Operation, Queue};

/// Queues that serve blocking calls at once; further callers wait for one.
const QUEUES_MAX: usize = 4;
/// Bytes of one operation of a long call.
const PIECE_BYTES: usize = 4 << 20;
/// Operations of a long call under way at once.
const PIECES_MAX: usize = 4;

/// The queues behind an array's blocking methods.
pub(crate) struct Calls {
    shared: Arc<Shared>,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Default)]
struct State {
    idle: Vec<Queue>,
    /// Queues that exist, idle or in use.
    count: usize,
}

impl Calls {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, state: Mutex::default(), returned: Condvar::new() }
    }

    /// Carries out one operation.
    pub(crate) fn run(&self, operation: Operation) -> Result<(), Error> {
        self.borrowed(|queue| {
            queue.submit(operation, 0).map_err(|refused| refused.error)?;
            next(queue)?.result
        })
    }

    pub(crate) fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<(), Error> {
        self.shared.limits.check_range(offset, bytes.len() as u64)?;
        self.borrowed(|queue| {
            let mut waiting = bytes.chunks_mut(PIECE_BYTES).enumerate();
            let mut out: Vec<(u64, &mut [u8])> = Vec::new();
            let mut failed = None;
            loop {
                while out.len() < PIECES_MAX && failed.is_none() {
                    let Some((index, piece)) = waiting.next() else { break };
                    let offset = offset + (index * PIECE_BYTES) as u64;
                    let operation = Operation::Read { offset, buffer: queue.buffer(piece.len()) };
                    match queue.submit(operation, index as u64) {
                        Ok(()) => out.push((index as u64, piece)),
                        Err(refused) => failed = Some(refused.error),
                    }
                }
                if out.is_empty() {
                    return failed.map_or(Ok(()), Err);
                }
                let Completion { user_data, result, buffer } = next(queue)?;
                let place = out.iter().position(|(index, _)| *index == user_data);
                let piece = place.map(|place| out.swap_remove(place).1);
                match (result, piece, buffer) {
                    (Ok(()), Some(piece), Some(buffer)) => piece.copy_from_slice(&buffer),
                    (Err(error), ..) => failed = Some(error),
                    _ => {}
                }
            }
        })
    }

    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        self.shared.limits.check_range(offset, bytes.len() as u64)?;
        self.borrowed(|queue| {
            let mut waiting = bytes.chunks(PIECE_BYTES).enumerate();
            let mut out = 0;
            let mut failed = None;
            loop {
                while out < PIECES_MAX && failed.is_none() {
                    let Some((index, piece)) = waiting.next() else { break };
                    let mut buffer = queue.buffer(piece.len());
                    buffer.copy_from_slice(piece);
                    let offset = offset + (index * PIECE_BYTES) as u64;
                    match queue.submit(Operation::Write { offset, buffer, fua: false }, 0) {
                        Ok(()) => out += 1,
                        Err(refused) => failed = Some(refused.error),
                    }
                }
                if out == 0 {
                    return failed.map_or(Ok(()), Err);
                }
                out -= 1;
                if let Err(error) = next(queue)?.result {
                    failed = Some(error);
                }
            }
        })
    }

    /// Lets the idle queues go, and with them their hold on the members.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        let queues = std::mem::take(&mut state.idle);
        state.count -= queues.len();
        drop(state);
        drop(queues);
        self.returned.notify_all();
    }

    /// Runs `work` with a queue that nobody else uses.
    fn borrowed<T>(&self, work: impl FnOnce(&mut Queue) -> Result<T, Error>) -> Result<T, Error> {
        let mut queue = self.take()?;
        let result = work(&mut queue);
        // A queue with something left in flight is not lent again; dropping it waits.
        let keep = queue.in_flight() == 0 && !self.shared.is_stopping();
        let kept = if keep { Some(queue) } else { None };
        let mut state = self.lock();
        match kept {
            Some(queue) => state.idle.push(queue),
            None => state.count -= 1,
        }
        drop(state);
        self.returned.notify_all();
        result
    }

    fn take(&self) -> Result<Queue, Error> {
        let mut state = self.lock();
        loop {
            if self.shared.is_stopping() {
                return Err(Error::Stopped);
            }
            if let Some(queue) = state.idle.pop() {
                return Ok(queue);
            }
            if state.count < QUEUES_MAX {
                state.count += 1;
                drop(state);
                let made = Queue::new(Arc::clone(&self.shared), true);
                if made.is_err() {
                    self.lock().count -= 1;
                    self.returned.notify_one();
                }
                return made;
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for a completion.
fn next(queue: &mut Queue) -> Result<Completion, Error> {
    loop {
        if let Some(completion) = queue.poll() {
            return Ok(completion);
        }
        queue.wait(None)?;
    }
}
