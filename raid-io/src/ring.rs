//! Member I/O through io_uring, by ownership.
//!
//! ```text
//! push --> waiting --> submission queue --> kernel --> completion queue --> step again, or ended
//!          \________________ flights: one slot for each job _______________/
//! ```
//!
//! Invariants, which every `SAFETY` comment here refers to:
//! - The kernel sees addresses only of transfers in `flights`, and of their `Vec`s, which do not
//!   move; a flight leaves the table only after its completion has been read.
//! - `in_kernel` counts the entries submitted (or queued for submission) whose completion has not
//!   been read. `drop` waits until it is zero; if that is impossible, it leaks what the kernel
//!   sees.
//! - `in_kernel` never exceeds the completion queue, so the kernel never drops a completion.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fixed, FsyncFlags};
use io_uring::{Builder, IoUring, opcode};
use libc::iovec;
use rustix::io::Errno;

use raid_core::volume::JOIN_COUNT_MAX;

use crate::buffer::Slab;
use crate::file::MemberFile;
use crate::member::Member;
use crate::transfer::{Ended, Job, Piece, Step, Transfer};

/// `RWF_DSYNC`: the write is durable when it completes.
const RWF_DSYNC: i32 = 2;
/// The most operations of one member that the kernel holds at once. Files that it cannot serve
/// without blocking take a worker thread for each, and one that hangs must leave workers for the
/// others.
const MEMBER_MAX: u32 = 128;
/// Worker threads that the kernel may start for a ring, where it needs any: members that hang at
/// the same time, times [`MEMBER_MAX`].
const WORKERS_MAX: u32 = 4 * MEMBER_MAX;
/// Entries of the submission and of the completion queue, the best first. A turn with more jobs
/// than the first enters the kernel twice; the second is the most jobs that the kernel holds at
/// once. The small pair is for processes that may lock little memory.
const SIZES: [(u32, u32); 2] = [(256, 4096), (32, 256)];

/// The settings to try, the best first: what each kernel version has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rung {
    /// 6.6: no indirection array.
    NoArray,
    /// 6.1: completions are worked off when this thread asks.
    Deferred,
    /// 5.19: no interrupts of this thread for completions.
    Cooperative,
    /// Anything before.
    Plain,
}

impl Rung {
    const ALL: [Self; 4] = [Self::NoArray, Self::Deferred, Self::Cooperative, Self::Plain];

    fn builder(self, completions: u32) -> Builder {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_cqsize(completions);
        if self != Self::Plain {
            builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
        }
        if matches!(self, Self::NoArray | Self::Deferred) {
            builder.setup_single_issuer().setup_defer_taskrun();
        }
        if self == Self::NoArray {
            builder.setup_no_sqarray();
        }
        builder
    }
}

/// One thread's ring over all members that have a descriptor.
pub(crate) struct Ring {
    ring: IoUring,
    rung: Rung,
    owner: usize,
    members: Arc<[Member]>,
    slab: Arc<Slab>,
    /// Entries of the table of registered files.
    files: usize,
    /// The slab is registered: pieces inside it need no mapping.
    fixed_slab: bool,
    flights: Vec<Option<Flight>>,
    free: Vec<u32>,
    waiting: VecDeque<u32>,
    /// What each member is busy with.
    loads: Vec<Load>,
    in_kernel: usize,
    /// Flights that were given up and that the kernel still sees.
    given_up: usize,
    /// Entries of the completion queue.
    completions: usize,
    ended: Vec<Ended>,
    /// Completions that are being worked off: flight and result.
    read: Vec<(u64, i32)>,
    spare: Vec<Transfer>,
}

/// The descriptor of each member; -1 for those that have none.
fn descriptors_of(members: &[Member]) -> Vec<i32> {
    let descriptor = |member: &Member| member.as_file().map(|file| file.descriptor().as_raw_fd());
    members.iter().map(|member| descriptor(member).unwrap_or(-1)).collect()
}

/// A job, and the step that is being done.
struct Flight {
    transfer: Transfer,
    step: Step,
    /// Nobody waits for it any more. The member stays open, and locked, until it ends.
    given_up: Option<Member>,
}

/// What one member is busy with.
#[derive(Default)]
struct Load {
    /// Steps in the kernel.
    in_kernel: u32,
    /// Flights that wait because there are too many.
    parked: VecDeque<u32>,
}

impl Ring {
    /// Says whether this process may use io_uring.
    pub(crate) fn probe() -> io::Result<()> {
        build().map(drop)
    }

    /// Makes a ring for the calling thread. `eventfd` is written when jobs have ended.
    pub(crate) fn new(
        members: Arc<[Member]>,
        slab: Arc<Slab>,
        eventfd: &OwnedFd,
    ) -> io::Result<Self> {
        let (ring, rung) = build()?;
        let completions = ring.params().cq_entries() as usize;
        let submitter = ring.submitter();
        submitter.register_eventfd(eventfd.as_raw_fd())?;
        let mut descriptors = descriptors_of(&members);
        // Room for those that join later.
        descriptors.resize(members.len() + JOIN_COUNT_MAX, -1);
        submitter.register_files(&descriptors)?;
        let files = descriptors.len();
        let (pointer, len) = slab.range();
        let range = [iovec { iov_base: pointer.as_ptr().cast(), iov_len: len }];
        // SAFETY: the slab is mapped as long as `self.slab`, which is dropped after the ring.
        let fixed_slab = unsafe { submitter.register_buffers(&range) }.is_ok();
        // Since 5.15. Without it there are fewer workers, and members that hang hold others up.
        let _ = submitter.register_iowq_max_workers(&mut [WORKERS_MAX, WORKERS_MAX]);
        if !fixed_slab {
            tracing::debug!("buffers are not registered: the limit of locked memory is too low");
        }
        Ok(Self {
            ring,
            rung,
            owner: thread_mark(),
            members,
            slab,
            files,
            fixed_slab,
            flights: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            loads: Vec::new(),
            in_kernel: 0,
            given_up: 0,
            completions,
            ended: Vec::new(),
            read: Vec::new(),
            spare: Vec::new(),
        })
    }

    /// Takes over another table of members. What is under way goes on with the old ones.
    pub(crate) fn renew(&mut self, members: &Arc<[Member]>) {
        let descriptors = descriptors_of(members);
        let known = descriptors.len().min(self.files);
        let updated = self.ring.submitter().register_files_update(0, &descriptors[..known]);
        if let Err(error) = updated {
            // Their operations end with EBADF, which is a member that is gone.
            tracing::error!("members cannot be registered: {error}");
        }
        self.members = Arc::clone(members);
    }

    /// Says whether the ring may be used by the calling thread.
    pub(crate) fn is_mine(&self) -> bool {
        self.owner == thread_mark() || !matches!(self.rung, Rung::NoArray | Rung::Deferred)
    }

    /// Says that no job is in the ring.
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.flights.len() && self.ended.is_empty()
    }

    /// Takes a job. It starts with the next [`turn`](Self::turn).
    ///
    /// # Safety
    /// `pieces` must be valid for the job, and untouched by others, until the job comes out of
    /// [`turn`](Self::turn) or this value has been dropped.
    pub(crate) unsafe fn push(&mut self, job: Job, pieces: &[Piece]) {
        let Some(member) = self.members.get(job.member) else {
            self.ended.push(Ended { token: job.token, result: Err(Errno::NODEV) });
            return;
        };
        let spare = self.spare.pop();
        // SAFETY: the caller's promise is the same; the flight ends in `turn`, or when `drop` has
        // waited for the kernel. `self.slab` lives as long.
        let begun = unsafe { Transfer::begin(job, pieces, member, &self.slab, spare) };
        let transfer = match begun {
            Ok(transfer) => transfer,
            Err(errno) => {
                self.ended.push(Ended { token: job.token, result: Err(errno) });
                return;
            }
        };
        if self.loads.len() <= job.member {
            self.loads.resize_with(job.member + 1, Load::default);
        }
        let flight = Some(Flight { transfer, step: Step::Sync, given_up: None });
        let index = if let Some(index) = self.free.pop() {
            self.flights[index as usize] = flight;
            index
        } else {
            self.flights.push(flight);
            // The queue's request count bounds the table far below 2^32.
            (self.flights.len() - 1) as u32
        };
        self.waiting.push_back(index);
    }

    /// Submits what waits and collects what has ended: one system call for the whole batch, none
    /// when there is nothing to submit and no news.
    pub(crate) fn turn(&mut self, ended: &mut Vec<Ended>) {
        loop {
            self.queue_waiting();
            self.enter();
            let news = self.collect();
            // Continued and held-back jobs go out in the same turn.
            if self.waiting.is_empty() || !news {
                break;
            }
        }
        ended.append(&mut self.ended);
    }

    /// Moves waiting jobs to the submission queue, as far as both queues have room.
    fn queue_waiting(&mut self) {
        while self.in_kernel < self.completions {
            let Some(index) = self.waiting.pop_front() else { return };
            let Some(member) = self.member_of(index) else { continue };
            if self.loads[member].in_kernel >= MEMBER_MAX {
                self.loads[member].parked.push_back(index);
                continue;
            }
            let Some(entry) = self.entry(index) else { continue };
            // SAFETY: the entry's addresses belong to flight `index`, which stays in the table
            // until its completion has been read.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            if pushed.is_err() {
                self.waiting.push_front(index);
                self.enter();
                if self.ring.submission().is_full() {
                    return;
                }
                continue;
            }
            self.in_kernel += 1;
            self.loads[member].in_kernel += 1;
        }
    }

    /// The member of a flight.
    fn member_of(&self, index: u32) -> Option<usize> {
        self.flights.get(index as usize)?.as_ref().map(|flight| flight.transfer.job().member)
    }

    /// Takes back a job that the kernel does not see; true if it did not. Its memory is free then,
    /// and it does not come out of [`turn`](Self::turn).
    pub(crate) fn recall(&mut self, token: u32) -> bool {
        let parked = self.loads.iter().flat_map(|load| &load.parked);
        let outside = self.waiting.iter().chain(parked);
        let is_it = |index: &u32| {
            let flight = self.flights[*index as usize].as_ref();
            flight.is_some_and(|flight| flight.transfer.job().token == token)
        };
        let Some(index) = outside.copied().find(is_it) else { return false };
        self.waiting.retain(|other| *other != index);
        self.loads.iter_mut().for_each(|load| load.parked.retain(|other| *other != index));
        if let Some(flight) = self.flights[index as usize].take() {
            self.spare.push(flight.transfer);
            self.free.push(index);
        }
        true
    }

    /// Says that a job is in the ring.
    pub(crate) fn has(&self, token: u32) -> bool {
        self.flights.iter().flatten().any(|flight| flight.transfer.job().token == token)
    }

    /// Notes that nobody waits for a job any more. Its memory stays its own until it comes out of
    /// [`turn`](Self::turn), which the ring's end does not wait for.
    pub(crate) fn give_up(&mut self, token: u32) {
        let mut flights = self.flights.iter_mut().flatten();
        let flight = flights.find(|flight| flight.transfer.job().token == token);
        let flight = flight.filter(|flight| flight.given_up.is_none());
        let member = |flight: &Flight| self.members.get(flight.transfer.job().member).cloned();
        if let Some((flight, member)) = flight.and_then(|f| member(f).map(|member| (f, member))) {
            flight.given_up = Some(member);
            self.given_up += 1;
        }
    }

    /// Enters the kernel if there is something to submit or to run.
    fn enter(&mut self) {
        let submission = self.ring.submission();
        let needed = !submission.is_empty() || submission.taskrun() || submission.cq_overflow();
        drop(submission);
        if !needed {
            return;
        }
        while let Err(error) = self.ring.submit() {
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // Short of memory, or completions to be read first: the next turn tries again.
                Some(libc::EAGAIN | libc::EBUSY) => return,
                _ => {
                    // Entries stay queued, so their memory stays in the table.
                    tracing::error!("io_uring_enter: {error}");
                    return;
                }
            }
        }
    }

    /// Reads the completions. Returns whether there were any.
    fn collect(&mut self) -> bool {
        let mut read = std::mem::take(&mut self.read);
        read.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
        let news = !read.is_empty();
        self.in_kernel -= read.len();
        for (index, result) in read.drain(..) {
            let result = u32::try_from(result)
                .map_err(|_| Errno::from_raw_os_error(result.saturating_neg()));
            // Every entry carries the index that `queue_waiting` gave it.
            self.handle(index as u32, result);
        }
        self.read = read;
        news
    }

    /// Goes on with a job whose step has ended.
    fn handle(&mut self, index: u32, result: Result<u32, Errno>) {
        if let Some(load) = self.member_of(index).and_then(|member| self.loads.get_mut(member)) {
            load.in_kernel -= 1;
            self.waiting.extend(load.parked.pop_front());
        }
        let slot = self.flights.get_mut(index as usize);
        let Some(flight) = slot.and_then(Option::as_mut) else { return };
        let job = flight.transfer.job();
        if flight.given_up.is_some() {
            self.given_up -= 1;
            return self.end(index, Ended { token: job.token, result: Err(Errno::TIMEDOUT) });
        }
        let file = self.members.get(job.member).and_then(Member::as_file);
        match flight.transfer.handle(flight.step, result, file) {
            None => self.waiting.push_back(index),
            Some(result) => self.end(index, Ended { token: job.token, result }),
        }
    }

    /// Takes a job that the kernel no longer sees out of the table.
    fn end(&mut self, index: u32, ended: Ended) {
        if let Some(flight) = self.flights[index as usize].take() {
            self.spare.push(flight.transfer);
            self.free.push(index);
        }
        self.ended.push(ended);
    }

    /// Makes the entry of a flight's next step.
    fn entry(&mut self, index: u32) -> Option<Entry> {
        let flight = self.flights[index as usize].as_mut()?;
        let job = flight.transfer.job();
        let file = self.members.get(job.member).and_then(Member::as_file);
        let is_remote = file.is_some_and(MemberFile::is_remote);
        flight.step = flight.transfer.step(file);
        let fd = Fixed(job.member as u32);
        let pieces = flight.transfer.pieces();
        let single = match pieces {
            [piece] => Some((piece.iov_base.cast::<u8>(), piece_len(piece))),
            _ => None,
        };
        let fixed = self.fixed_slab && single.is_some_and(|(at, len)| inside(&self.slab, at, len));
        let count = pieces.len() as u32;
        let entry = match (flight.step, single) {
            (Step::Read { offset }, Some((at, len))) if fixed => {
                opcode::ReadFixed::new(fd, at, len, 0).offset(offset).build()
            }
            (Step::Read { offset }, Some((at, len))) => {
                opcode::Read::new(fd, at, len).offset(offset).build()
            }
            (Step::Read { offset }, None) => {
                opcode::Readv::new(fd, pieces.as_ptr(), count).offset(offset).build()
            }
            (Step::Write { offset, durable }, Some((at, len))) if fixed => {
                let write = opcode::WriteFixed::new(fd, at, len, 0).offset(offset);
                write.rw_flags(write_flags(durable)).build()
            }
            (Step::Write { offset, durable }, Some((at, len))) => {
                let write = opcode::Write::new(fd, at, len).offset(offset);
                write.rw_flags(write_flags(durable)).build()
            }
            (Step::Write { offset, durable }, None) => {
                let write = opcode::Writev::new(fd, pieces.as_ptr(), count).offset(offset);
                write.rw_flags(write_flags(durable)).build()
            }
            (Step::Zero { way, offset, len }, _) => {
                let mode = way.flags().bits() as i32;
                opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build()
            }
            (Step::Sync, _) => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            (Step::ZeroByDevice { .. }, _) => {
                // Only members without a descriptor take this step, and they never come here.
                self.end(index, Ended { token: job.token, result: Err(Errno::NODEV) });
                return None;
            }
        };
        let flags = if is_remote { Flags::ASYNC } else { Flags::empty() };
        Some(entry.user_data(u64::from(index)).flags(flags))
    }

    /// Waits until the kernel sees none of our memory, but for what was given up.
    fn settle(&mut self) {
        self.waiting.clear();
        self.loads.iter_mut().for_each(|load| load.parked.clear());
        while self.in_kernel > self.given_up {
            if let Err(error) = self.ring.submit_and_wait(1)
                && !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
            {
                tracing::error!("io_uring_enter: {error}");
                return;
            }
            self.collect();
            self.waiting.clear();
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.is_mine() {
            self.settle();
            // The kernel takes a closed ring apart later, and would hold the members' locks till
            // then.
            let _ = self.ring.submitter().unregister_files();
        }
        if self.in_kernel > 0 {
            // Another thread's ring, or a member that hangs, cannot be waited for. Memory that the
            // kernel may still write is never given back.
            tracing::warn!("a ring was dropped with {} operations running", self.in_kernel);
            std::mem::forget(std::mem::take(&mut self.flights));
            std::mem::forget(Arc::clone(&self.slab));
        }
    }
}

/// Builds a ring with the best settings that this kernel takes.
fn build() -> io::Result<(IoUring, Rung)> {
    let mut last = io::Error::from(io::ErrorKind::Unsupported);
    for (entries, completions) in SIZES {
        for rung in Rung::ALL {
            match rung.builder(completions).build(entries) {
                Ok(ring) => return Ok((ring, rung)),
                Err(error) => last = error,
            }
            match last.raw_os_error() {
                // Not these flags.
                Some(libc::EINVAL) => {}
                // Not this size.
                Some(libc::ENOMEM) => break,
                _ => return Err(last),
            }
        }
    }
    Err(last)
}

/// Returns the longest part of a piece that one entry takes.
fn piece_len(piece: &iovec) -> u32 {
    u32::try_from(piece.iov_len).unwrap_or(1 << 30)
}

/// Says that a piece lies in the slab.
fn inside(slab: &Slab, at: *const u8, len: u32) -> bool {
    let (pointer, size) = slab.range();
    let start = pointer.as_ptr().addr();
    at.addr().checked_sub(start).is_some_and(|skip| skip + len as usize <= size)
}

fn write_flags(durable: bool) -> i32 {
    if durable { RWF_DSYNC } else { 0 }
}

/// Returns a number that no other living thread has, cheaper than asking the system.
fn thread_mark() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}
