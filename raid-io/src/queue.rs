//! The embedder's face: operations in, completions out, one queue for each thread.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::array::Shared;
use crate::buffer::Slab;
use crate::{Buffer, Error};

/// What to do. The offset and the length may be any bytes of the array.
#[derive(Debug)]
#[non_exhaustive]
pub enum Operation {
    /// Fill the whole buffer.
    Read {
        /// The array's byte to start at.
        offset: u64,
        /// Where the bytes go; its length is the read's.
        buffer: Buffer,
    },
    /// Write the whole buffer.
    Write {
        /// The array's byte to start at.
        offset: u64,
        /// What to write.
        buffer: Buffer,
        /// Complete only when the data is durable.
        fua: bool,
    },
    /// Make every write durable that completed before this was submitted, on whichever queue.
    Flush,
    /// Give room back. What the range reads afterwards is undefined but stable.
    Discard {
        /// The array's byte to start at.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// Make a range read as zeroes.
    WriteZeroes {
        /// The array's byte to start at.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// Room may be given back; otherwise it stays allocated.
        unmap: bool,
        /// Complete only when the zeroes are durable.
        fua: bool,
    },
}

/// An operation that has ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The number that the operation was submitted with.
    pub user_data: u64,
    /// How it went. After an error the buffer of a read holds nothing to be relied on.
    pub result: Result<(), Error>,
    /// The buffer of a read or write.
    pub buffer: Option<Buffer>,
}

/// An operation that the queue did not take.
#[derive(Debug)]
pub struct Refused {
    /// The operation, with its buffer.
    pub operation: Operation,
    /// Why.
    pub error: Error,
}

/// One thread's way into an [`Array`](crate::Array).
///
/// A queue owns the requests it has taken until they come out of [`poll`](Self::poll). Nothing
/// happens between calls: `poll` drives the engine, [`wait`](Self::wait) sleeps until there may be
/// news. Dropping a queue waits for what is in flight, and drops the completions.
///
/// ```
/// use raid_io::{Array, MemoryOptions, Operation};
/// # fn main() -> Result<(), raid_io::Error> {
/// let array = Array::in_memory(MemoryOptions::default())?;
/// let mut queue = array.queue()?;
/// let mut buffer = queue.buffer(4096);
/// buffer.fill(7);
/// queue.submit(Operation::Write { offset: 100, buffer, fua: false }, 1).map_err(|r| r.error)?;
/// let completion = loop {
///     match queue.poll() {
///         Some(completion) => break completion,
///         None => queue.wait(None)?,
///     }
/// };
/// assert_eq!(completion.user_data, 1);
/// completion.result?;
/// # Ok(())
/// # }
/// ```
pub struct Queue {
    shared: Arc<Shared>,
    slab: Arc<Slab>,
    eventfd: OwnedFd,
    completed: VecDeque<Completion>,
}

impl Queue {
    pub(crate) fn new(shared: Arc<Shared>) -> Result<Self, Error> {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::system("make an eventfd"))?;
        let slab = Slab::new(0, 0, shared.options.pool_bytes as usize)?;
        Ok(Self { shared, slab, eventfd, completed: VecDeque::new() })
    }

    /// Takes an operation. Its completion will carry `user_data`, which means nothing here.
    ///
    /// # Errors
    /// Gives the operation back when the queue is full, or when it can be seen at once that the
    /// operation is impossible (out of range, too long, read-only array).
    pub fn submit(&mut self, operation: Operation, user_data: u64) -> Result<(), Refused> {
        if self.completed.len() >= self.shared.options.request_count_max as usize {
            let error = Error::QueueFull(self.shared.options.request_count_max);
            return Err(Refused { operation, error });
        }
        if let Err(error) = self.shared.admit(&operation) {
            return Err(Refused { operation, error });
        }
        let buffer = self.shared.execute(operation);
        self.completed.push_back(Completion { user_data, result: Ok(()), buffer });
        let _ = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
        Ok(())
    }

    /// Returns the next completion, and drives the engine when none is ready. Never blocks.
    pub fn poll(&mut self) -> Option<Completion> {
        if self.completed.is_empty() {
            self.run();
        }
        self.completed.pop_front()
    }

    /// Submits what is pending and reaps what has ended. [`poll`](Self::poll) does so by itself.
    pub fn run(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.eventfd, &mut count);
    }

    /// Sleeps until [`poll`](Self::poll) may have news, or the time is over.
    ///
    /// # Errors
    /// Returns an error if the system refuses to wait.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        if !self.completed.is_empty() {
            return Ok(());
        }
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        let mut fds = [PollFd::new(&self.eventfd, PollFlags::IN)];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::system("wait for a queue")(errno)),
        }
    }

    /// Returns a descriptor that is readable when [`poll`](Self::poll) may have news: member I/O
    /// has ended, or another queue has released what this one waits for.
    ///
    /// Call `poll` until it returns `None` before sleeping on it; `poll` resets it.
    #[must_use]
    pub fn eventfd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    /// Returns a buffer of `len` bytes, from this queue's registered memory if there is room.
    /// Its contents are arbitrary.
    #[must_use]
    pub fn buffer(&self, len: usize) -> Buffer {
        self.slab.lend(len).unwrap_or_else(|| Buffer::zeroed(len))
    }

    /// Returns how many operations have been taken and not yet come out of [`poll`](Self::poll).
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.completed.len()
    }
}
