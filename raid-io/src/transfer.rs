//! One member operation on its way: which memory, how far it has come, and what comes next.
//!
//! Both ways of doing I/O (the ring and the blocking calls) own a [`Transfer`] from the moment they
//! take an operation until they hand back its end. Short results, interruptions and what a device
//! cannot do are answered here, once for both.
//!
//! ```text
//!            +--------------------- short, EINTR, EAGAIN ---------------------+
//!            v                                                                |
//!  begin -> step() -> Read | Write | Zero | Sync -> performed --> handle(result) -> ended
//! ```
//!
//! Invariant: the addresses in `pieces` stay valid and in place from `begin` to the end; the caller
//! of [`Transfer::begin`] promises so.

use std::ptr::NonNull;
use std::slice;

use libc::iovec;
use rustix::io::Errno;

use crate::buffer::{Buffer, Slab};
use crate::file::{MemberFile, Zeroing};
use crate::member::Member;

/// The most pieces of memory in one system call (the kernel's UIO_MAXIOV).
const PIECES_MAX: usize = 1024;
/// Calls in a row that may move nothing before the operation fails.
const STALLS_MAX: u32 = 64;

/// What a member is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobKind {
    /// Make completed writes durable.
    Flush,
    /// Fill the memory.
    Read,
    /// Write the memory; `durable`: and make it last before the end.
    Write { durable: bool },
    /// Make a range read as zeroes, without memory.
    Zeroes { unmap: bool, durable: bool },
}

/// One member operation, as the engine asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// Comes back with the end.
    pub(crate) token: u32,
    /// The index in the member table.
    pub(crate) member: usize,
    /// What to do.
    pub(crate) kind: JobKind,
    /// Where on the member.
    pub(crate) offset: u64,
    /// How many bytes; the sum of the memory for reads and writes.
    pub(crate) len: u64,
}

/// The end of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) token: u32,
    pub(crate) result: Result<(), Errno>,
}

/// A place in memory that stays valid until the job that uses it has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) pointer: NonNull<u8>,
    pub(crate) len: usize,
}

// SAFETY: an address may be known to any thread; using it is what `begin` is unsafe for.
unsafe impl Send for Piece {}

/// What to do next about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Read into [`Transfer::pieces`] from `offset`.
    Read { offset: u64 },
    /// Write [`Transfer::pieces`] at `offset`.
    Write { offset: u64, durable: bool },
    /// Make zeroes this way.
    Zero { way: Zeroing, offset: u64, len: u64 },
    /// Make zeroes by the device's own call, which has no descriptor.
    ZeroByDevice { offset: u64, len: u64, unmap: bool },
    /// Make completed writes durable.
    Sync,
}

/// A job in progress.
pub(crate) struct Transfer {
    job: Job,
    stage: Stage,
    /// What is still to be read into or written, in order.
    pieces: Vec<iovec>,
    /// Where the unfinished pieces begin.
    first: usize,
    /// Where on the member the unfinished part begins.
    offset: u64,
    /// Bytes that are unfinished.
    left: u64,
    /// Progress is made in multiples of this, so that the next step is aligned again.
    granule: u64,
    /// Calls in a row that moved nothing.
    stalls: u32,
    /// The device takes no durable writes; they are followed by a flush.
    flush_after: bool,
    /// Aligned memory in place of the caller's, and the caller's.
    bounce: Option<(Buffer, Vec<iovec>)>,
    /// Zeroes to write, over and over, where the device cannot make them itself.
    zeroes: Piece,
}

/// What part of the job is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Reading or writing the pieces.
    Move,
    /// Waiting for a flush that ends the job.
    Sync,
    /// Asking the device for zeroes.
    Zero,
    /// Writing zeroes.
    ZeroFill,
}

// SAFETY: the addresses in it are owned by the job, not by a thread; the caller of `begin`
// promises that they are valid until the end, on whichever thread that is.
unsafe impl Send for Transfer {}

impl Transfer {
    /// Starts a job over `pieces`. `spare` is an old transfer's memory, to be used again.
    ///
    /// # Errors
    /// Returns [`Errno::INVAL`] if the range is outside the member or not made of its blocks.
    ///
    /// # Safety
    /// - `pieces` must be valid for `job.kind` (writable for reads), and untouched by others, until
    ///   the transfer has ended or has been dropped while no call with its addresses is going on.
    /// - `slab` must outlive the transfer; its zeroes are never written.
    pub(crate) unsafe fn begin(
        job: Job,
        pieces: &[Piece],
        member: &Member,
        slab: &std::sync::Arc<Slab>,
        spare: Option<Self>,
    ) -> Result<Self, Errno> {
        let device = member.device();
        let block = u64::from(device.block_bytes());
        let end = job.offset.checked_add(job.len).ok_or(Errno::INVAL)?;
        let whole = job.offset.is_multiple_of(block) && job.len.is_multiple_of(block);
        let carries = matches!(job.kind, JobKind::Read | JobKind::Write { .. });
        let sum: u64 = pieces.iter().map(|piece| piece.len as u64).sum();
        let flush = job.kind == JobKind::Flush;
        if !flush && (end > device.size_bytes() || !whole || (carries && sum != job.len)) {
            return Err(Errno::INVAL);
        }
        let mut list = spare.map_or_else(Vec::new, |spare| spare.pieces);
        list.clear();
        let iovecs = pieces.iter().filter(|piece| piece.len > 0);
        list.extend(iovecs.map(|p| iovec { iov_base: p.pointer.as_ptr().cast(), iov_len: p.len }));
        let (pointer, len) = slab.zeroes();
        let mut transfer = Self {
            job,
            stage: match job.kind {
                JobKind::Flush => Stage::Sync,
                JobKind::Read | JobKind::Write { .. } => Stage::Move,
                JobKind::Zeroes { .. } => Stage::Zero,
            },
            pieces: list,
            first: 0,
            offset: job.offset,
            left: if flush { 0 } else { job.len },
            granule: block,
            stalls: 0,
            flush_after: false,
            bounce: None,
            zeroes: Piece { pointer, len },
        };
        if carries && !transfer.is_aligned(member.memory_alignment(), block) {
            transfer.use_bounce(slab);
        }
        Ok(transfer)
    }

    pub(crate) fn job(&self) -> Job {
        self.job
    }

    /// Returns the memory of the next read or write.
    pub(crate) fn pieces(&self) -> &[iovec] {
        let end = self.pieces.len().min(self.first + PIECES_MAX);
        &self.pieces[self.first..end]
    }

    /// Returns what to do next.
    pub(crate) fn step(&mut self, file: Option<&MemberFile>) -> Step {
        let JobKind::Zeroes { unmap, .. } = self.job.kind else { return self.plain_step() };
        if self.stage == Stage::Zero {
            let (offset, len) = (self.offset, self.left);
            let Some(file) = file else { return Step::ZeroByDevice { offset, len, unmap } };
            if let Some(way) = file.zeroing(unmap) {
                return Step::Zero { way, offset, len };
            }
            self.stage = Stage::ZeroFill;
        }
        if self.stage == Stage::ZeroFill && self.first == self.pieces.len() {
            self.refill_zeroes();
        }
        self.plain_step()
    }

    fn plain_step(&self) -> Step {
        match (self.stage, self.job.kind) {
            (Stage::Sync, _) => Step::Sync,
            (_, JobKind::Read) => Step::Read { offset: self.offset },
            (_, kind) => {
                let durable = matches!(kind, JobKind::Write { durable: true }) && !self.flush_after;
                Step::Write { offset: self.offset, durable }
            }
        }
    }

    /// Takes the result of `step`. Returns the end, or `None` when there is another step.
    pub(crate) fn handle(
        &mut self,
        step: Step,
        result: Result<u32, Errno>,
        file: Option<&MemberFile>,
    ) -> Option<Result<(), Errno>> {
        let ended = match (step, result) {
            (_, Err(Errno::INTR)) => None,
            (_, Err(Errno::AGAIN)) => self.stalled(Errno::AGAIN),
            (Step::Read { .. } | Step::Write { .. }, Ok(0)) => self.stalled(Errno::IO),
            (Step::Read { .. } | Step::Write { .. }, Ok(count)) => self.advance(count.into()),
            (Step::Write { durable: true, .. }, Err(Errno::OPNOTSUPP | Errno::INVAL)) => {
                self.flush_after = true;
                None
            }
            (Step::Zero { way, .. }, Err(errno)) => match file {
                Some(file) if file.refuse(way, errno) => None,
                _ => Some(Err(errno)),
            },
            (Step::ZeroByDevice { .. }, Err(Errno::OPNOTSUPP)) => {
                self.stage = Stage::ZeroFill;
                self.refill_zeroes();
                None
            }
            (Step::Zero { .. } | Step::ZeroByDevice { .. }, Ok(_)) => self.moved(),
            (Step::Sync, Ok(_)) => Some(Ok(())),
            (_, Err(errno)) => Some(Err(errno)),
        };
        if ended == Some(Ok(())) {
            self.copy_back();
        }
        ended
    }

    /// Counts a call that moved nothing, and gives up after too many.
    fn stalled(&mut self, errno: Errno) -> Option<Result<(), Errno>> {
        self.stalls += 1;
        // A result of zero is the end of the file, which does not come back.
        let give_up = errno == Errno::IO || self.stalls > STALLS_MAX;
        give_up.then_some(Err(errno))
    }

    /// Goes on behind what was moved, in whole blocks: the rest of a block is moved again.
    fn advance(&mut self, count: u64) -> Option<Result<(), Errno>> {
        if count > self.left {
            return Some(Err(Errno::IO));
        }
        let count = if count == self.left { count } else { count - count % self.granule };
        if count == 0 {
            return self.stalled(Errno::AGAIN);
        }
        self.stalls = 0;
        self.offset += count;
        self.left -= count;
        let mut skip = count;
        while let Some(piece) = self.pieces.get_mut(self.first).filter(|_| skip > 0) {
            let len = piece.iov_len as u64;
            if len > skip {
                piece.iov_base = piece.iov_base.cast::<u8>().wrapping_add(skip as usize).cast();
                piece.iov_len -= skip as usize;
                skip = 0;
            } else {
                skip -= len;
                self.first += 1;
            }
        }
        if self.left == 0 { self.moved() } else { None }
    }

    /// Everything is moved: the end, unless it has to be made durable still.
    fn moved(&mut self) -> Option<Result<(), Errno>> {
        let flush = match self.job.kind {
            JobKind::Flush | JobKind::Read => false,
            JobKind::Write { .. } => self.flush_after,
            JobKind::Zeroes { durable, .. } => durable,
        };
        if flush {
            self.stage = Stage::Sync;
            return None;
        }
        Some(Ok(()))
    }

    /// Lists the zeroes as often as one call takes, or as the rest needs.
    fn refill_zeroes(&mut self) {
        self.pieces.clear();
        self.first = 0;
        let mut left = self.left;
        while left > 0 && self.pieces.len() < PIECES_MAX {
            let len = left.min(self.zeroes.len as u64);
            let iov_base = self.zeroes.pointer.as_ptr().cast();
            self.pieces.push(iovec { iov_base, iov_len: len as usize });
            left -= len;
        }
    }

    /// Says that addresses and lengths suit the device.
    fn is_aligned(&self, memory: Option<usize>, block: u64) -> bool {
        memory.is_none_or(|memory| {
            self.pieces.iter().all(|piece| {
                piece.iov_base.addr() % memory == 0 && (piece.iov_len as u64).is_multiple_of(block)
            })
        })
    }

    /// Puts one aligned buffer in place of the caller's pieces.
    fn use_bounce(&mut self, slab: &std::sync::Arc<Slab>) {
        let len = self.left as usize;
        let mut buffer = slab.lend(len).unwrap_or_else(|| Buffer::zeroed(len));
        let theirs = std::mem::take(&mut self.pieces);
        if matches!(self.job.kind, JobKind::Write { .. }) {
            let mut rest = &mut buffer[..];
            for piece in &theirs {
                let (target, after) = rest.split_at_mut(piece.iov_len);
                // SAFETY: the caller of `begin` promised that the piece is valid until the end.
                let source =
                    unsafe { slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) };
                target.copy_from_slice(source);
                rest = after;
            }
        }
        let iov_base = buffer.pointer().as_ptr().cast();
        self.pieces.push(iovec { iov_base, iov_len: len });
        self.bounce = Some((buffer, theirs));
    }

    /// Copies what was read from the aligned buffer to where it was wanted.
    fn copy_back(&mut self) {
        let Some((buffer, theirs)) = self.bounce.take() else { return };
        if self.job.kind != JobKind::Read {
            return;
        }
        let mut rest = &buffer[..];
        for piece in &theirs {
            let (source, after) = rest.split_at(piece.iov_len);
            // SAFETY: the caller of `begin` promised that the piece is writable until the end.
            let target =
                unsafe { slice::from_raw_parts_mut(piece.iov_base.cast::<u8>(), piece.iov_len) };
            target.copy_from_slice(source);
            rest = after;
        }
    }
}
