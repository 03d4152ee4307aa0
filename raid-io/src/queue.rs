//! The embedder's face: operations in, completions out, one queue for each thread.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use raid_core::memory::{BufferName, ZERO_BYTES};
use raid_core::parity::Kernel;
use raid_core::plan::IoKind;
use raid_core::queue::{MemberError, MemberIo, Queue as Engine, QueueConfig};
use raid_core::request::{Request, RequestError, RequestErrorKind, RequestKind};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::buffer::Slab;
use crate::channel::Channel;
use crate::memory::Resolver;
use crate::metadata::Metadata;
use crate::shared::{Desk, RequestCounters, Shared};
use crate::transfer::{Job, JobKind, Piece};
use crate::{Buffer, Error};

mod late;

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
    desk: Arc<Desk>,
    engine: Engine,
    channel: Channel,
    slab: Arc<Slab>,
    /// The buffers of the requests in flight, by tag.
    buffers: Vec<Option<Buffer>>,
    /// What else is known of the requests in flight, by tag.
    tickets: Vec<Ticket>,
    free: Vec<u32>,
    /// The member operations that are under way, by token.
    sent: Vec<Sent>,
    late: late::Late,
    pieces: Vec<Piece>,
    ready: VecDeque<Completion>,
    /// Superblock updates that this queue waits for.
    updating: usize,
}

/// A request in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Ticket {
    user_data: u64,
    kind: Option<RequestKind>,
    len: u64,
    /// Member operations under way that name the request's buffer.
    pins: u32,
    /// The engine is done with it; it waits for its pins to go.
    ended: Option<Result<(), RequestError>>,
}

/// A member operation that is under way.
#[derive(Debug, Default)]
struct Sent {
    member: usize,
    /// When it began; `None` if the token is not in use.
    tick: Option<u32>,
    /// Nobody waits for it any more.
    given_up: bool,
    /// The requests whose buffers it names.
    tags: Vec<u32>,
}

impl Queue {
    pub(crate) fn new(shared: Arc<Shared>, uring: bool) -> Result<Self, Error> {
        if shared.is_stopping() {
            return Err(Error::Stopped);
        }
        let options = &shared.options;
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::system("make an eventfd"))?;
        let scratch_bytes = options.scratch_bytes.max(shared.volume.scratch_bytes_min());
        let zeroes = ZERO_BYTES as usize;
        let slab = Slab::new(zeroes, scratch_bytes as usize, options.pool_bytes as usize)?;
        let members = shared.members();
        let uring = uring && shared.uring;
        let channel = Channel::new(members, Arc::clone(&slab), &eventfd, uring)?;
        let count = options.request_count_max;
        let config =
            QueueConfig { request_count_max: count, scratch_bytes, kernel: Kernel::best() };
        let engine = Engine::new(Arc::clone(&shared.volume), config)
            .map_err(|error| Error::Options(error.to_string()))?;
        let desk = Arc::new(Desk::new(eventfd));
        shared.enter(engine.id(), Arc::clone(&desk));
        Ok(Self {
            shared,
            desk,
            engine,
            channel,
            slab,
            buffers: (0..count).map(|_| None).collect(),
            tickets: vec![Ticket::default(); count as usize],
            free: (0..count).rev().collect(),
            sent: Vec::new(),
            late: late::Late::default(),
            pieces: Vec::new(),
            ready: VecDeque::new(),
            updating: 0,
        })
    }

    /// Takes an operation. Its completion will carry `user_data`, which means nothing here.
    ///
    /// # Errors
    /// Gives the operation back when the queue is full, or when it can be seen at once that the
    /// operation is impossible (out of range, too long, read-only array).
    pub fn submit(&mut self, operation: Operation, user_data: u64) -> Result<(), Refused> {
        let error = match self.shared.limits.admit(&operation) {
            Ok(()) => match self.free.pop() {
                Some(tag) => return self.start(operation, user_data, tag),
                None => Error::QueueFull(self.shared.options.request_count_max),
            },
            Err(error) => error,
        };
        Err(Refused { operation, error })
    }

    /// Hands an operation to the engine under a free tag.
    fn start(&mut self, operation: Operation, user_data: u64, tag: u32) -> Result<(), Refused> {
        // Counted before the look at the flag: `stop` sets the flag before it counts, so one of the
        // two sees the other.
        self.desk.in_flight.store(self.in_flight() as u32 + 1, Ordering::SeqCst);
        if self.shared.is_stopping() {
            self.free.push(tag);
            self.desk.in_flight.store(self.in_flight() as u32, Ordering::SeqCst);
            return Err(Refused { operation, error: Error::Stopped });
        }
        let request = request_of(&operation, tag);
        let buffer = match operation {
            Operation::Read { buffer, .. } | Operation::Write { buffer, .. } => Some(buffer),
            _ => None,
        };
        self.begin(request, buffer, user_data);
        Ok(())
    }

    /// Goes over a range of a group for the embedder's own purposes. The completion carries
    /// `offset`.
    pub(crate) fn submit_background(
        &mut self,
        kind: RequestKind,
        offset: u64,
        len: u64,
    ) -> Result<(), Error> {
        let full = Error::QueueFull(self.shared.options.request_count_max);
        let tag = self.free.pop().ok_or(full)?;
        self.desk.in_flight.store(self.in_flight() as u32, Ordering::SeqCst);
        self.begin(Request { tag, kind, offset, len, fua: false }, None, offset);
        Ok(())
    }

    /// Hands a request to the engine.
    fn begin(&mut self, request: Request, buffer: Option<Buffer>, user_data: u64) {
        let tag = request.tag;
        let ticket =
            Ticket { user_data, kind: Some(request.kind), len: request.len, ..Ticket::default() };
        self.tickets[tag as usize] = ticket;
        self.buffers[tag as usize] = buffer;
        if let Err(rejected) = self.engine.submit(request) {
            // The same checks were made before; should they ever differ, the request fails.
            tracing::error!("the engine rejected an admitted request: {rejected}");
            let error = RequestError { kind: RequestErrorKind::Io, offset: request.offset };
            self.end(tag, Err(error));
        }
    }

    /// Says whether this is the queue behind `desk`.
    pub(crate) fn is_at(&self, desk: &Arc<Desk>) -> bool {
        Arc::ptr_eq(&self.desk, desk)
    }

    /// Returns the next completion, and drives the engine when none is ready. Never blocks.
    pub fn poll(&mut self) -> Option<Completion> {
        if self.ready.is_empty() {
            self.run();
        }
        if self.ready.is_empty() {
            // Going to sleep, perhaps: what comes after the reset makes the descriptor readable
            // again.
            self.reset_eventfd();
            self.run();
        }
        self.ready.pop_front()
    }

    /// Submits what is pending and reaps what has ended. [`poll`](Self::poll) does so by itself.
    pub fn run(&mut self) {
        self.take_updates();
        self.take_table();
        if self.desk.woken.swap(false, Ordering::AcqRel) {
            self.engine.handle_wakeup();
        }
        self.look_for_late();
        loop {
            if self.engine.has_computes() {
                let extra = self.late.scratch();
                let mut memory = Resolver::new(&self.slab, extra, &self.buffers);
                self.engine.run_computes(&mut memory);
            }
            self.send_member_io();
            self.channel.turn();
            let mut news = self.take_member_io();
            news |= self.give_up_late();
            self.send_updates();
            while let Some(id) = self.engine.poll_wakeup() {
                self.shared.wake(id);
            }
            while let Some(completion) = self.engine.poll_completion() {
                self.end(completion.tag, completion.result);
            }
            if !news && !self.engine.has_computes() {
                return;
            }
        }
    }

    /// Starts the member operations that the engine asks for.
    fn send_member_io(&mut self) {
        if self.late.is_holding() {
            return;
        }
        let Self { shared, engine, channel, slab, buffers, tickets, sent, late, pieces, .. } = self;
        let tick = shared.clock.now();
        while let Some(io) = engine.poll_io() {
            let token = io.token;
            if late.is_hung(io.member) {
                engine.handle_io(token, Err(MemberError::Timeout));
                continue;
            }
            if io.member >= channel.member_count() {
                // It has joined since the table was last looked at.
                channel.renew(&shared.members());
            }
            let resolver = Resolver::new(slab, late.scratch(), buffers);
            pieces.clear();
            pieces.extend(io.segments.iter().map(|segment| resolver.piece(segment)));
            if sent.len() <= token as usize {
                sent.resize_with(token as usize + 1, Sent::default);
            }
            let one = &mut sent[token as usize];
            (one.member, one.tick, one.given_up) = (io.member, Some(tick), false);
            for segment in io.segments {
                if let BufferName::Request(tag) = segment.buffer {
                    tickets[tag as usize].pins += 1;
                    one.tags.push(tag);
                }
            }
            // SAFETY: the slab's memory stays in place as long as the channel, which keeps it. The
            // buffers named are in `buffers`, pinned, and leave it only when `take_member_io` has
            // taken the pins away, or `give_up_late` keeps them aside; `drop` lets the channel go
            // first. Between, the engine keeps computations off memory that a member operation
            // fills.
            unsafe { channel.push(job_of(&io), pieces) };
        }
    }

    /// Tells the engine which member operations have ended. Returns whether there were any.
    fn take_member_io(&mut self) -> bool {
        let mut news = false;
        while let Some(ended) = self.channel.pop() {
            news = true;
            if self.sent[ended.token as usize].given_up {
                self.release_late(ended.token);
            } else {
                self.finish_member_io(ended.token, ended.result.map_err(member_error));
            }
        }
        news
    }

    /// Tells the engine that a member operation has ended, and unpins what it named.
    fn finish_member_io(&mut self, token: u32, result: Result<(), MemberError>) {
        let sent = &mut self.sent[token as usize];
        sent.tick = None;
        let mut tags = std::mem::take(&mut sent.tags);
        for tag in tags.drain(..) {
            let ticket = &mut self.tickets[tag as usize];
            ticket.pins -= 1;
            if let Some(result) = ticket.ended.filter(|_| ticket.pins == 0) {
                self.end(tag, result);
            }
        }
        self.sent[token as usize].tags = tags;
        self.engine.handle_io(token, result);
    }

    /// Starts the superblock updates that the engine asks for.
    fn send_updates(&mut self) {
        while let Some(update) = self.engine.poll_metadata() {
            if self.shared.metadata.is_none() {
                self.engine.handle_metadata(&update, &raid_core::slots::SlotSet::new());
                continue;
            }
            self.updating += 1;
            Metadata::write_for(&self.shared, &self.desk, update);
        }
    }

    /// Takes over a table of members that has changed.
    fn take_table(&mut self) {
        let version = self.shared.table_version();
        if self.desk.table_version.load(Ordering::Relaxed) != version {
            self.channel.renew(&self.shared.members());
            self.desk.table_version.store(version, Ordering::Release);
        }
    }

    /// Counts the superblock updates that have ended.
    fn take_updates(&mut self) {
        self.updating -= self.desk.updated.swap(0, Ordering::AcqRel);
    }

    /// Hands a request back, as soon as no member operation names its buffer.
    fn end(&mut self, tag: u32, result: Result<(), RequestError>) {
        let ticket = &mut self.tickets[tag as usize];
        if ticket.pins > 0 {
            ticket.ended = Some(result);
            return;
        }
        ticket.ended = None;
        let (user_data, kind, len) = (ticket.user_data, ticket.kind.take(), ticket.len);
        let completed = &self.desk.completed;
        let count = |cell: &AtomicU64, amount| RequestCounters::add(cell, amount);
        match kind.filter(|_| result.is_ok()) {
            Some(RequestKind::Read) => {
                count(&completed.reads, 1);
                count(&completed.read_bytes, len);
            }
            Some(RequestKind::Write) => {
                count(&completed.writes, 1);
                count(&completed.written_bytes, len);
            }
            Some(RequestKind::Flush) => count(&completed.flushes, 1),
            _ => {}
        }
        let buffer = self.buffers[tag as usize].take();
        self.free.push(tag);
        self.desk.in_flight.store(self.in_flight() as u32, Ordering::SeqCst);
        self.ready.push_back(Completion { user_data, result: result.map_err(Error::from), buffer });
    }

    fn reset_eventfd(&self) {
        // Fails when there is nothing to reset.
        let _ = rustix::io::read(&self.desk.eventfd, &mut [0; 8]);
    }

    /// Sleeps until [`poll`](Self::poll) may have news, or the time is over.
    ///
    /// # Errors
    /// Returns an error if the system refuses to wait.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        if self.ready.is_empty() {
            self.run();
        }
        if !self.ready.is_empty() {
            return Ok(());
        }
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        let mut fds = [PollFd::new(&self.desk.eventfd, PollFlags::IN)];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(0) => {
                // Nobody else may be there to see how long it takes.
                self.shared.clock.refresh();
                Ok(())
            }
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::system("wait for a queue")(errno)),
        }
    }

    /// Returns a descriptor that is readable when [`poll`](Self::poll) may have news: member I/O
    /// has ended, or another queue has released what this one waits for.
    ///
    /// Call `poll` until it returns `None` before sleeping on it; `poll` resets it.
    #[must_use]
    pub fn eventfd(&self) -> BorrowedFd<'_> {
        self.desk.eventfd.as_fd()
    }

    /// Returns a buffer of `len` bytes, from this queue's registered memory if there is room.
    /// Its contents are arbitrary.
    #[must_use]
    pub fn buffer(&self, len: usize) -> Buffer {
        self.slab.lend(len).unwrap_or_else(|| Buffer::zeroed(len))
    }

    /// Returns how many operations have been taken and have not ended; completions that wait to be
    /// polled do not count.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.tickets.len() - self.free.len()
    }
}

impl Drop for Queue {
    /// Carries what is in flight to its end: a stripe may not be left half-written and locked.
    fn drop(&mut self) {
        // After a panic the engine's state means nothing; the channel still waits for the kernel.
        while !std::thread::panicking() {
            self.reset_eventfd();
            self.run();
            self.ready.clear();
            if self.in_flight() == 0 && self.updating == 0 {
                break;
            }
            if let Err(error) = self.wait(Some(Duration::from_secs(1))) {
                tracing::error!("a queue is dropped with requests in flight: {error}");
                break;
            }
        }
        self.late.leak();
        self.shared.leave(self.engine.id());
    }
}

/// Says an operation in the engine's words.
fn request_of(operation: &Operation, tag: u32) -> Request {
    let (kind, offset, len, fua) = match operation {
        Operation::Read { offset, buffer } => {
            (RequestKind::Read, *offset, buffer.len() as u64, false)
        }
        Operation::Write { offset, buffer, fua } => {
            (RequestKind::Write, *offset, buffer.len() as u64, *fua)
        }
        Operation::Flush => (RequestKind::Flush, 0, 0, false),
        Operation::Discard { offset, len } => (RequestKind::Discard, *offset, *len, false),
        Operation::WriteZeroes { offset, len, unmap, fua } => {
            (RequestKind::WriteZeroes { unmap: *unmap }, *offset, *len, *fua)
        }
    };
    Request { tag, kind, offset, len, fua }
}

/// Says the engine's member operation in this crate's words.
fn job_of(io: &MemberIo<'_>) -> Job {
    let kind = match io.kind {
        IoKind::Flush => JobKind::Flush,
        IoKind::Read => JobKind::Read,
        IoKind::Write => JobKind::Write { durable: io.fua },
        IoKind::WriteZeroes { unmap } => JobKind::Zeroes { unmap, durable: io.fua },
    };
    Job { token: io.token, member: io.member, kind, offset: io.offset, len: io.len }
}

/// Says what an errno means for a member.
fn member_error(errno: Errno) -> MemberError {
    match errno {
        Errno::NODEV
        | Errno::NXIO
        | Errno::BADF
        | Errno::STALE
        | Errno::NOTCONN
        | Errno::CONNABORTED
        | Errno::CONNRESET => MemberError::Gone,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => MemberError::NoSpace,
        Errno::TIMEDOUT => MemberError::Timeout,
        _ => MemberError::Io,
    }
}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Self {
        match error.kind {
            RequestErrorKind::NoSpace => Self::NoSpace,
            RequestErrorKind::Io => Self::Io { offset: error.offset },
        }
    }
}
