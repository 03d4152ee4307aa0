//! Members by themselves, through the rings and buffers of a [`Queue`](crate::Queue): what an array
//! over them could reach at most, for whoever measures that.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use raid_core::memory::ZERO_BYTES;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::buffer::Slab;
use crate::channel::Channel;
use crate::file::Access;
use crate::member::Member;
use crate::open::open_members;
use crate::start::choose_uring;
use crate::transfer::{Job, JobKind, Piece};
use crate::{Buffer, Completion, Error, MemberDevice, OpenOptions, Operation, Refused};

/// Members that are open and belong to no array. What is written to them is written over.
///
/// They are opened as an array opens them: exclusively, past the page cache where
/// [`OpenOptions::direct`] says so, by the same [`Backend`](crate::Backend).
///
/// ```
/// use raid_io::{MemberDevice, MemoryDevice, Members, OpenOptions, Operation};
/// use std::sync::Arc;
/// # fn main() -> Result<(), raid_io::Error> {
/// let device = Arc::new(MemoryDevice::new(1 << 20, 512)) as Arc<dyn MemberDevice>;
/// let members = Members::over_devices(vec![device], &OpenOptions::default());
/// let mut queue = members.queue()?;
/// let mut buffer = queue.buffer(4096);
/// buffer.fill(7);
/// let write = Operation::Write { offset: 8192, buffer, fua: false };
/// queue.submit(0, write, 1).map_err(|refused| refused.error)?;
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
#[derive(Clone, Debug)]
pub struct Members {
    members: Arc<[Member]>,
    uring: bool,
    options: OpenOptions,
}

impl Members {
    /// Opens files or block devices, whatever they hold.
    ///
    /// # Errors
    /// Returns an error if one is in use, given twice, or neither a file nor a block device.
    pub fn open(paths: &[PathBuf], options: &OpenOptions) -> Result<Self, Error> {
        let access = if options.read_only { Access::ReadOnly } else { Access::Exclusive };
        let members = open_members(paths, access, options.direct)?;
        let uring = choose_uring(options.backend)?;
        Ok(Self { members: members.into(), uring, options: options.clone() })
    }

    /// Takes devices that the caller brings along.
    #[must_use]
    pub fn over_devices(devices: Vec<Arc<dyn MemberDevice>>, options: &OpenOptions) -> Self {
        let name = |index: usize| format!("device-{index}");
        let member = |(index, device)| Member::other(name(index), device);
        let members = devices.into_iter().enumerate().map(member).collect();
        Self { members, uring: false, options: options.clone() }
    }

    /// Returns the size of each member in bytes.
    #[must_use]
    pub fn sizes(&self) -> Vec<u64> {
        self.members.iter().map(|member| member.device().size_bytes()).collect()
    }

    /// Returns the granule that every member takes.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        let blocks = self.members.iter().map(|member| member.device().block_bytes());
        blocks.max().unwrap_or(512).max(512)
    }

    /// Says whether every member that is a file passes the page cache by.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.members.iter().filter_map(Member::as_file).all(crate::file::MemberFile::is_direct)
    }

    /// Says what a range of a member is: a hole, and where that stops being so.
    ///
    /// # Panics
    /// Panics if there is no such member.
    #[must_use]
    pub fn extent(&self, member: usize, offset: u64) -> (bool, u64) {
        self.members[member].device().extent(offset)
    }

    /// Makes a queue for one thread, with memory and rings like those of an array's.
    ///
    /// # Errors
    /// Returns an error if memory or descriptors are short.
    pub fn queue(&self) -> Result<MemberQueue, Error> {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::system("make an eventfd"))?;
        let slab = Slab::new(ZERO_BYTES as usize, 0, self.options.pool_bytes as usize)?;
        let members = Arc::clone(&self.members);
        let channel = Channel::new(members, Arc::clone(&slab), &eventfd, self.uring)?;
        let count = self.options.request_count_max;
        Ok(MemberQueue {
            channel,
            slab,
            eventfd,
            sizes: self.sizes(),
            flights: (0..count).map(|_| None).collect(),
            free: (0..count).rev().collect(),
        })
    }
}

/// One thread's way to [`Members`].
pub struct MemberQueue {
    // Before the buffers that the kernel fills: dropped first, it waits for what is under way.
    channel: Channel,
    slab: Arc<Slab>,
    eventfd: OwnedFd,
    sizes: Vec<u64>,
    /// The operations under way, by token.
    flights: Vec<Option<Flight>>,
    free: Vec<u32>,
}

struct Flight {
    user_data: u64,
    offset: u64,
    buffer: Option<Buffer>,
}

impl MemberQueue {
    /// Takes an operation for a member; offsets are the member's own, and they and lengths are
    /// multiples of its block size.
    ///
    /// # Errors
    /// Gives the operation back when the queue is full, when there is no such member, or when the
    /// range is not inside it.
    pub fn submit(
        &mut self,
        member: usize,
        operation: Operation,
        user_data: u64,
    ) -> Result<(), Refused> {
        let (kind, offset, len) = match &operation {
            Operation::Read { offset, buffer } => (JobKind::Read, *offset, buffer.len() as u64),
            Operation::Write { offset, buffer, fua } => {
                (JobKind::Write { durable: *fua }, *offset, buffer.len() as u64)
            }
            Operation::Flush => (JobKind::Flush, 0, 0),
            // Its neighbour without a promise about what is read afterwards.
            Operation::Discard { offset, len } => {
                (JobKind::Zeroes { unmap: true, durable: false }, *offset, *len)
            }
            Operation::WriteZeroes { offset, len, unmap, fua } => {
                (JobKind::Zeroes { unmap: *unmap, durable: *fua }, *offset, *len)
            }
        };
        let end = offset.checked_add(len);
        let size = self.sizes.get(member).copied().unwrap_or(0);
        if end.is_none_or(|end| end > size) {
            let error =
                Error::Options(format!("{offset}+{len} of {size} bytes of member {member}"));
            return Err(Refused { operation, error });
        }
        let Some(token) = self.free.pop() else {
            let count = u32::try_from(self.flights.len()).unwrap_or(u32::MAX);
            return Err(Refused { operation, error: Error::QueueFull(count) });
        };
        let buffer = match operation {
            Operation::Read { buffer, .. } | Operation::Write { buffer, .. } => Some(buffer),
            _ => None,
        };
        let piece = buffer.as_ref().map(|b| Piece { pointer: b.pointer(), len: b.len() });
        self.flights[token as usize] = Some(Flight { user_data, offset, buffer });
        let job = Job { token, member, kind, offset, len };
        // SAFETY: the buffer owns its memory, which does not move with it; it stays in `flights`
        // until the job comes out of `pop`, and `channel` is dropped before `flights`.
        unsafe { self.channel.push(job, piece.as_slice()) };
        Ok(())
    }

    /// Returns the next completion; submits what waits. Never blocks.
    pub fn poll(&mut self) -> Option<Completion> {
        let mut ended = self.channel.pop();
        if ended.is_none() {
            self.channel.turn();
            ended = self.channel.pop();
        }
        if ended.is_none() {
            // Going to sleep, perhaps: what comes after the reset makes the descriptor readable.
            let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
            self.channel.turn();
            ended = self.channel.pop();
        }
        let ended = ended?;
        let Flight { user_data, offset, buffer } = self.flights[ended.token as usize].take()?;
        self.free.push(ended.token);
        let result = ended.result.map_err(|errno| match errno {
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Error::NoSpace,
            _ => Error::Io { offset },
        });
        Some(Completion { user_data, result, buffer })
    }

    /// Sleeps until [`poll`](Self::poll) may have news, or the time is over.
    ///
    /// # Errors
    /// Returns an error if the system refuses to wait.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        let mut fds = [PollFd::new(&self.eventfd, PollFlags::IN)];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::system("wait for a queue")(errno)),
        }
    }

    /// Returns a buffer of `len` bytes, from this queue's registered memory if there is room.
    /// Its contents are arbitrary.
    #[must_use]
    pub fn buffer(&self, len: usize) -> Buffer {
        self.slab.lend(len).unwrap_or_else(|| Buffer::zeroed(len))
    }

    /// Returns how many operations have been taken and not handed back.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backend;

    fn next(queue: &mut MemberQueue) -> Completion {
        loop {
            if let Some(completion) = queue.poll() {
                return completion;
            }
            queue.wait(None).unwrap();
        }
    }

    /// What is written comes back from the same member and place, by either backend.
    #[test]
    fn members_are_written_and_read_by_themselves() {
        for backend in [Backend::Automatic, Backend::Blocking] {
            let folder = tempfile::tempdir().unwrap();
            let paths: Vec<PathBuf> = (0..2).map(|n| folder.path().join(n.to_string())).collect();
            for path in &paths {
                std::fs::File::create(path).unwrap().set_len(1 << 20).unwrap();
            }
            let options = OpenOptions { backend, ..OpenOptions::default() };
            let members = Members::open(&paths, &options).unwrap();
            assert_eq!(members.sizes(), [1 << 20; 2]);
            assert!(members.extent(1, 0).0);
            let mut queue = members.queue().unwrap();
            for member in 0..2 {
                let mut buffer = queue.buffer(4096);
                buffer.fill(member as u8 + 1);
                let write = Operation::Write { offset: 8192, buffer, fua: false };
                queue.submit(member, write, member as u64).unwrap();
            }
            next(&mut queue).result.unwrap();
            next(&mut queue).result.unwrap();
            assert!(!members.extent(1, 8192).0);
            for member in 0..2 {
                let read = Operation::Read { offset: 8192, buffer: queue.buffer(4096) };
                queue.submit(member, read, 7).unwrap();
                let completion = next(&mut queue);
                assert_eq!(completion.user_data, 7);
                let bytes = completion.buffer.unwrap();
                assert!(completion.result.is_ok() && bytes.iter().all(|b| *b == member as u8 + 1));
            }
            queue.submit(0, Operation::Flush, 0).unwrap();
            next(&mut queue).result.unwrap();
            assert_eq!(queue.in_flight(), 0);
        }
    }

    #[test]
    fn what_is_outside_a_member_is_given_back() {
        let device = Arc::new(crate::MemoryDevice::new(8192, 512)) as Arc<dyn MemberDevice>;
        let members = Members::over_devices(vec![device], &OpenOptions::default());
        let mut queue = members.queue().unwrap();
        for (member, offset) in [(0, 4608), (1, 0), (0, u64::MAX)] {
            let read = Operation::Read { offset, buffer: queue.buffer(4096) };
            let refused = queue.submit(member, read, 0).unwrap_err();
            assert!(matches!(refused.operation, Operation::Read { .. }), "{member} {offset}");
        }
        assert_eq!(queue.in_flight(), 0);
    }
}
