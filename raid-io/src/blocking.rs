//! Member I/O by plain system calls, where io_uring is not to be had or the member has no
//! descriptor.
//!
//! Members that answer at once (memory) are served in the caller's thread. The others are served by
//! a few threads that are started when there is work for them, so that [`poll`](crate::Queue::poll)
//! does not block and members work side by side.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::slice;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use libc::iovec;
use rustix::io::Errno;

use crate::Error;
use crate::buffer::Slab;
use crate::member::Member;
use crate::transfer::{Ended, Job, Piece, Step, Transfer};

/// The most operations of one member under way at once; there are as many threads as that takes
/// for all members, so that one that hangs does not hold the others up.
const MEMBER_MAX: usize = 2;

/// The blocking way of doing member I/O.
pub(crate) struct Blocking {
    members: Arc<[Member]>,
    slab: Arc<Slab>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Jobs with the threads.
    out: usize,
    /// Of these, the ones that nobody waits for any more.
    given_up: Vec<u32>,
    /// Jobs that ended in this thread.
    ended: Vec<Ended>,
    spare: Vec<Transfer>,
}

/// What the threads see.
struct Shared {
    state: Mutex<State>,
    work: Condvar,
    eventfd: OwnedFd,
}

#[derive(Default)]
struct State {
    /// Jobs that no thread has taken, the oldest first.
    tasks: VecDeque<Task>,
    /// Operations under way, by member.
    busy: Vec<usize>,
    /// Jobs that the threads have ended.
    ended: Vec<(Ended, Transfer)>,
    /// Threads that wait for work.
    idle: usize,
    stopping: bool,
}

struct Task {
    transfer: Transfer,
    member: Member,
}

impl State {
    /// Takes the oldest job whose member is not busy enough.
    fn take(&mut self) -> Option<Task> {
        let busy = |task: &Task| self.busy.get(task.transfer.job().member).copied().unwrap_or(0);
        let at = self.tasks.iter().position(|task| busy(task) < MEMBER_MAX)?;
        let task = self.tasks.remove(at)?;
        let member = task.transfer.job().member;
        if self.busy.len() <= member {
            self.busy.resize(member + 1, 0);
        }
        self.busy[member] += 1;
        Some(task)
    }
}

impl Blocking {
    /// Prepares; `eventfd` is written when a thread has ended a job.
    pub(crate) fn new(members: Arc<[Member]>, slab: Arc<Slab>, eventfd: OwnedFd) -> Self {
        let shared = Shared { state: Mutex::default(), work: Condvar::new(), eventfd };
        Self {
            members,
            slab,
            shared: Arc::new(shared),
            threads: Vec::new(),
            out: 0,
            given_up: Vec::new(),
            ended: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Takes over another table of members.
    pub(crate) fn renew(&mut self, members: &Arc<[Member]>) {
        self.members = Arc::clone(members);
    }

    /// Takes a job.
    ///
    /// # Safety
    /// `pieces` must be valid for the job, and untouched by others, until the job comes out of
    /// [`reap`](Self::reap) or this value has been dropped.
    pub(crate) unsafe fn push(&mut self, job: Job, pieces: &[Piece]) {
        let Some(member) = self.members.get(job.member) else {
            self.ended.push(Ended { token: job.token, result: Err(Errno::NODEV) });
            return;
        };
        let spare = self.spare.pop();
        // SAFETY: the caller's promise is the same; the transfer ends in `reap`, or when `drop` has
        // joined the threads. `self.slab` lives as long.
        let begun = unsafe { Transfer::begin(job, pieces, member, &self.slab, spare) };
        match begun {
            Err(errno) => self.ended.push(Ended { token: job.token, result: Err(errno) }),
            Ok(mut transfer) if member.device().is_instant() => {
                let result = perform(&mut transfer, member);
                self.ended.push(Ended { token: job.token, result });
                self.spare.push(transfer);
            }
            Ok(transfer) => self.hand_over(Task { transfer, member: member.clone() }),
        }
    }

    /// Moves the jobs that have ended to `ended`.
    pub(crate) fn reap(&mut self, ended: &mut Vec<Ended>) {
        ended.append(&mut self.ended);
        if self.out == 0 {
            return;
        }
        let mut state = self.shared.lock();
        self.out -= state.ended.len();
        for (end, transfer) in state.ended.drain(..) {
            ended.push(end);
            self.given_up.retain(|token| *token != end.token);
            self.spare.push(transfer);
        }
    }

    /// Takes back a job that no thread has begun; true if none had. Its memory is free then, and it
    /// does not come out of [`reap`](Self::reap).
    pub(crate) fn recall(&mut self, token: u32) -> bool {
        let mut state = self.shared.lock();
        let at = state.tasks.iter().position(|task| task.transfer.job().token == token);
        let task = at.and_then(|at| state.tasks.remove(at));
        drop(state);
        let Some(task) = task else { return false };
        self.out -= 1;
        self.spare.push(task.transfer);
        true
    }

    /// Notes that nobody waits for a job any more. Its memory stays its own until it comes out of
    /// [`reap`](Self::reap), which the end of this value does not wait for.
    pub(crate) fn give_up(&mut self, token: u32) {
        self.given_up.push(token);
    }

    fn hand_over(&mut self, task: Task) {
        let mut state = self.shared.lock();
        state.tasks.push_back(task);
        let short = state.tasks.len() > state.idle;
        drop(state);
        self.out += 1;
        if short && self.threads.len() < MEMBER_MAX * self.members.len() {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name("uraid-io".into());
            match thread.spawn(move || shared.serve()) {
                Ok(thread) => self.threads.push(thread),
                Err(error) if self.threads.is_empty() => {
                    tracing::warn!("cannot start a thread for member I/O: {error}");
                    self.serve_here();
                }
                Err(_) => {}
            }
        }
        self.shared.work.notify_one();
    }

    /// Does the work in this thread, when no other can be had.
    fn serve_here(&self) {
        loop {
            let task = self.shared.lock().take();
            let Some(task) = task else { return };
            self.shared.serve_one(task);
        }
    }
}

impl Drop for Blocking {
    /// Waits for the calls that are going on: they use memory that is not ours. Those that were
    /// given up may never end: the threads keep their members, and the memory is never given back.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stopping = true;
        state.tasks.clear();
        drop(state);
        self.shared.work.notify_all();
        self.reap(&mut Vec::new());
        if !self.given_up.is_empty() {
            tracing::warn!("{} operations of a member never ended", self.given_up.len());
            std::mem::forget(Arc::clone(&self.slab));
            return;
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of a thread.
    fn serve(&self) {
        let mut state = self.lock();
        while !state.stopping {
            if let Some(task) = state.take() {
                drop(state);
                self.serve_one(task);
                state = self.lock();
            } else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }

    fn serve_one(&self, task: Task) {
        let Task { mut transfer, member } = task;
        let Job { token, member: index, .. } = transfer.job();
        // A user's device may panic; its job must end all the same, or the queue waits for ever.
        let performed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            perform(&mut transfer, &member)
        }));
        let result = performed.unwrap_or(Err(Errno::IO));
        let mut state = self.lock();
        state.ended.push((Ended { token, result }, transfer));
        state.busy[index] -= 1;
        // What waited for this member has a thread: this one comes back for more.
        drop(state);
        let _ = rustix::io::write(self.eventfd.as_fd(), &1_u64.to_ne_bytes());
    }
}

/// Carries a transfer to its end.
fn perform(transfer: &mut Transfer, member: &Member) -> Result<(), Errno> {
    let file = member.as_file();
    loop {
        let step = transfer.step(file);
        let result = perform_step(transfer, step, member).map_err(|error| errno_of(&error));
        if let Some(result) = transfer.handle(step, result, file) {
            return result;
        }
    }
}

/// Makes one call.
fn perform_step(transfer: &mut Transfer, step: Step, member: &Member) -> io::Result<u32> {
    let device = member.device();
    let count = match step {
        Step::Read { offset } => {
            let mut slices: Vec<IoSliceMut<'_>> = transfer.pieces().iter().map(readable).collect();
            device.read_at(&mut slices, offset)?
        }
        Step::Write { offset, durable } => {
            let slices: Vec<IoSlice<'_>> = transfer.pieces().iter().map(writable).collect();
            if durable {
                device.write_durably_at(&slices, offset)?
            } else {
                device.write_at(&slices, offset)?
            }
        }
        Step::Zero { way, offset, len } => {
            let file = member.as_file().ok_or(io::ErrorKind::Unsupported)?;
            rustix::fs::fallocate(file.descriptor(), way.flags(), offset, len)?;
            0
        }
        Step::ZeroByDevice { offset, len, unmap } => {
            device.write_zeroes(offset, len, unmap)?;
            0
        }
        Step::Sync => {
            device.flush()?;
            0
        }
    };
    Ok(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Makes a piece of a transfer a slice to be filled.
fn readable<'a>(piece: &iovec) -> IoSliceMut<'a> {
    // SAFETY: the transfer's invariant: the piece is valid and untouched by others until its end,
    // and the slice lives for one call before that.
    IoSliceMut::new(unsafe { slice::from_raw_parts_mut(piece.iov_base.cast(), piece.iov_len) })
}

/// Makes a piece of a transfer a slice to be written.
fn writable<'a>(piece: &iovec) -> IoSlice<'a> {
    // SAFETY: as in `readable`; zeroes may be listed twice, which shared slices allow.
    IoSlice::new(unsafe { slice::from_raw_parts(piece.iov_base.cast(), piece.iov_len) })
}

/// Returns the errno of an error, or the nearest one.
pub(crate) fn errno_of(error: &io::Error) -> Errno {
    if let Some(code) = error.raw_os_error() {
        return Errno::from_raw_os_error(code);
    }
    match error.kind() {
        io::ErrorKind::Interrupted => Errno::INTR,
        io::ErrorKind::WouldBlock => Errno::AGAIN,
        io::ErrorKind::StorageFull => Errno::NOSPC,
        io::ErrorKind::TimedOut => Errno::TIMEDOUT,
        io::ErrorKind::Unsupported => Errno::OPNOTSUPP,
        io::ErrorKind::NotFound => Errno::NODEV,
        io::ErrorKind::ReadOnlyFilesystem => Errno::ROFS,
        _ => Errno::IO,
    }
}

/// Duplicates an eventfd, for a thread.
pub(crate) fn duplicate(eventfd: &OwnedFd) -> Result<OwnedFd, Error> {
    rustix::io::fcntl_dupfd_cloexec(eventfd, 0).map_err(Error::system("duplicate an eventfd"))
}
