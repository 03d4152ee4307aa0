//! Members that are files or block devices: opened once, checked, locked, and used by descriptor.
//!
//! Rules:
//! - The path is resolved once. Its last component is opened without following links, and what was
//!   opened must be what was looked at before; afterwards only the descriptor counts.
//! - A member that may be written is exclusive: `O_EXCL` on block devices (the kernel refuses what
//!   is mounted, swap, or somebody's member), an advisory lock on files. Held until it is dropped.
//! - A read-only member takes no lock and needs no right to write.
//! - `O_DIRECT` where the file system has it; then offsets, lengths and addresses obey the
//!   alignment that the kernel states, and 4096 where it does not say.
//! - What the device cannot do (punch holes, zero ranges) is found out once and remembered.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom, StatxFlags,
};
use rustix::io::{Errno, ReadWriteFlags};

use crate::Error;
use crate::buffer::PAGE;
use crate::member::MemberDevice;

/// How a member is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// To look at: no lock, no right to write.
    ReadOnly,
    /// To use: reading and writing, exclusively.
    Exclusive,
}

/// What tells one device or file from another, whatever its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Identity {
    /// A block device, by its number.
    Device(u64),
    /// A file, by file system and inode.
    File(u64, u64),
}

/// A file or block device that is open.
pub(crate) struct MemberFile {
    path: PathBuf,
    fd: OwnedFd,
    identity: Identity,
    size: u64,
    block: u32,
    memory_alignment: u32,
    direct: bool,
    rotational: bool,
    locked: bool,
    /// Calls may block though they were asked not to: somebody else answers for the file system.
    is_remote: bool,
    /// Bits of [`Zeroing`] that the device has refused.
    refused: AtomicU8,
}

/// The ways to make zeroes without writing them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Zeroing {
    /// Give the room back.
    PunchHole = 1,
    /// Keep the room.
    ZeroRange = 2,
}

impl Zeroing {
    /// Returns the mode of `fallocate`. Block devices take the same two.
    pub(crate) fn flags(self) -> FallocateFlags {
        match self {
            Self::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Self::ZeroRange => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        }
    }
}

impl MemberFile {
    /// Opens a file or block device.
    ///
    /// # Errors
    /// Says what is wrong with the path: missing, no right, a directory, in use.
    pub(crate) fn open(path: &Path, access: Access, direct: bool) -> Result<Self, Error> {
        let fail = |action| {
            move |errno: Errno| Error::Member {
                path: path.to_owned(),
                action,
                source: errno.into(),
            }
        };
        let real = fs::canonicalize(path).map_err(|source| Error::Member {
            path: path.to_owned(),
            action: "open",
            source,
        })?;
        let seen = rustix::fs::lstat(&real).map_err(fail("open"))?;
        let identity = identity_of(path, &seen)?;
        let mut flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        flags |= match (access, identity) {
            (Access::ReadOnly, _) => OFlags::RDONLY,
            (Access::Exclusive, Identity::Device(_)) => OFlags::RDWR | OFlags::EXCL,
            (Access::Exclusive, Identity::File(..)) => OFlags::RDWR,
        };
        let fd = rustix::fs::open(&real, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::BUSY => unsuited(path, "is in use (mounted, swap, or another array's member)"),
            errno => fail("open")(errno),
        })?;
        let stat = rustix::fs::fstat(&fd).map_err(fail("examine"))?;
        if identity_of(path, &stat)? != identity {
            return Err(unsuited(path, "was replaced while it was being opened"));
        }
        Self::from_descriptor(path, fd, identity, access, direct)
    }

    /// Makes a sparse file of `size` bytes and opens it.
    ///
    /// # Errors
    /// Returns an error if the path exists, or the file system refuses the file.
    pub(crate) fn create(path: &Path, size: u64, direct: bool) -> Result<Self, Error> {
        let fail = |action| {
            move |errno: Errno| Error::Member {
                path: path.to_owned(),
                action,
                source: errno.into(),
            }
        };
        let flags =
            OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        // For nobody but the owner: a member holds all the data there is.
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = rustix::fs::open(path, flags, mode).map_err(fail("create"))?;
        let made = (|| {
            rustix::fs::ftruncate(&fd, size).map_err(fail("set the size of"))?;
            let stat = rustix::fs::fstat(&fd).map_err(fail("examine"))?;
            let identity = identity_of(path, &stat)?;
            Self::from_descriptor(path, fd, identity, Access::Exclusive, direct)
        })();
        if made.is_err() {
            // It is ours and empty: made above, exclusively.
            let _ = fs::remove_file(path);
        }
        made
    }

    fn from_descriptor(
        path: &Path,
        fd: OwnedFd,
        identity: Identity,
        access: Access,
        direct: bool,
    ) -> Result<Self, Error> {
        let fail = |action| {
            move |errno: Errno| Error::Member {
                path: path.to_owned(),
                action,
                source: errno.into(),
            }
        };
        let is_remote = matches!(identity, Identity::File(..)) && is_remote(&fd);
        let locked = access == Access::Exclusive && matches!(identity, Identity::File(..));
        if locked {
            lock(path, &fd)?;
        }
        // Only the opening must not block (a path may be a pipe by now); a ring takes the flag for
        // the wish to fail instead of waiting.
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(fail("examine"))?;
        rustix::fs::fcntl_setfl(&fd, flags - OFlags::NONBLOCK).map_err(fail("examine"))?;
        // Works for both kinds; a block device has no size in `stat`.
        let size = rustix::fs::seek(&fd, SeekFrom::End(0)).map_err(fail("find the size of"))?;
        let (direct, block, memory_alignment) = alignment(&fd, identity, direct);
        let rotational = is_rotational(identity);
        Ok(Self {
            path: path.to_owned(),
            fd,
            identity,
            size,
            block,
            memory_alignment,
            direct,
            rotational,
            locked,
            is_remote,
            refused: AtomicU8::new(0),
        })
    }

    /// Returns the path that it was opened by.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns the descriptor, for a ring.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Says whether the page cache is passed by.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct
    }

    pub(crate) fn is_rotational(&self) -> bool {
        self.rotational
    }

    /// Returns what a buffer's address must be a multiple of.
    pub(crate) fn memory_alignment(&self) -> usize {
        self.memory_alignment as usize
    }

    /// Returns major and minor number of a block device.
    pub(crate) fn device_numbers(&self) -> Option<(u32, u32)> {
        match self.identity {
            Identity::Device(device) => {
                Some((rustix::fs::major(device), rustix::fs::minor(device)))
            }
            Identity::File(..) => None,
        }
    }

    /// Returns the cheapest way to make zeroes that the device has not refused.
    pub(crate) fn zeroing(&self, unmap: bool) -> Option<Zeroing> {
        let refused = self.refused.load(Ordering::Relaxed);
        let wanted = if unmap { Zeroing::PunchHole } else { Zeroing::ZeroRange };
        [wanted, Zeroing::ZeroRange].into_iter().find(|way| refused & *way as u8 == 0)
    }

    /// Says that a ring must not begin operations in the calling thread: they may block there.
    pub(crate) fn is_remote(&self) -> bool {
        self.is_remote
    }

    /// Remembers that the device cannot do this. Returns whether `errno` says so.
    pub(crate) fn refuse(&self, way: Zeroing, errno: Errno) -> bool {
        let refused = matches!(
            errno,
            Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY | Errno::INVAL | Errno::PERM
        );
        if refused {
            self.refused.fetch_or(way as u8, Ordering::Relaxed);
        }
        refused
    }
}

impl Drop for MemberFile {
    fn drop(&mut self) {
        // Closing is not enough: a program that is being started somewhere in this process has a
        // copy of the descriptor until it runs, and with it the lock.
        if self.locked {
            let _ = rustix::fs::flock(&self.fd, FlockOperation::Unlock);
        }
    }
}

impl MemberDevice for MemberFile {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn block_bytes(&self) -> u32 {
        self.block
    }

    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::preadv2(&self.fd, buffers, offset, ReadWriteFlags::empty())?)
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pwritev2(&self.fd, buffers, offset, ReadWriteFlags::empty())?)
    }

    fn write_durably_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        match rustix::io::pwritev2(&self.fd, buffers, offset, ReadWriteFlags::DSYNC) {
            Err(Errno::OPNOTSUPP) => {
                let count = self.write_at(buffers, offset)?;
                self.flush()?;
                Ok(count)
            }
            result => Ok(result?),
        }
    }

    fn flush(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.fd)?)
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        while let Some(way) = self.zeroing(unmap) {
            match rustix::fs::fallocate(&self.fd, way.flags(), offset, len) {
                Ok(()) => return Ok(()),
                Err(errno) if self.refuse(way, errno) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(io::ErrorKind::Unsupported.into())
    }

    fn extent(&self, offset: u64) -> (bool, u64) {
        if matches!(self.identity, Identity::Device(_)) {
            return (false, self.size);
        }
        match rustix::fs::seek(&self.fd, SeekFrom::Data(offset)) {
            // No data from here to the end.
            Err(Errno::NXIO) => (true, self.size),
            Err(_) => (false, self.size),
            Ok(data) if data > offset => (true, data.min(self.size)),
            Ok(_) => match rustix::fs::seek(&self.fd, SeekFrom::Hole(offset)) {
                Ok(hole) if hole > offset => (false, hole.min(self.size)),
                _ => (false, self.size),
            },
        }
    }
}

/// Makes an error that says why a path does not do.
fn unsuited(path: &Path, reason: &str) -> Error {
    Error::UnsuitableMember { path: path.to_owned(), reason: reason.into() }
}

/// Returns what the file is, or says why it cannot be a member.
fn identity_of(path: &Path, stat: &rustix::fs::Stat) -> Result<Identity, Error> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(Identity::File(stat.st_dev, stat.st_ino)),
        FileType::BlockDevice => Ok(Identity::Device(stat.st_rdev)),
        FileType::Directory => {
            Err(unsuited(path, "is a directory; a member is a file or a block device"))
        }
        _ => Err(unsuited(path, "is neither a file nor a block device")),
    }
}

/// How long a lock is waited for: that of a process which was killed stays until the kernel has
/// ended its I/O.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Locks a file for this open, against every other one.
fn lock(path: &Path, fd: &OwnedFd) -> Result<(), Error> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    let try_lock = || rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive);
    let mut locked = try_lock();
    while locked == Err(Errno::WOULDBLOCK) && Instant::now() < deadline {
        thread::sleep(LOCK_PATIENCE / 50);
        locked = try_lock();
    }
    match locked {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(unsuited(path, "is in use by another process")),
        Err(errno) => {
            Err(Error::Member { path: path.to_owned(), action: "lock", source: errno.into() })
        }
    }
}

/// Turns `O_DIRECT` on where that helps. Returns whether it did, and the granules of offsets and
/// of addresses.
fn alignment(fd: &OwnedFd, identity: Identity, direct: bool) -> (bool, u32, u32) {
    const BUFFERED: (bool, u32, u32) = (false, 512, 1);
    // A device's own node may well lie in a memory file system; that says nothing of the device.
    if !direct || (matches!(identity, Identity::File(..)) && is_memory(fd)) {
        return BUFFERED;
    }
    let flags = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
    let stated = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, flags)
        .ok()
        .filter(|statx| statx.stx_mask & StatxFlags::DIOALIGN.bits() != 0)
        .map(|statx| (statx.stx_dio_offset_align, statx.stx_dio_mem_align));
    let (block, memory) = match (stated, identity) {
        (Some(stated), _) => stated,
        (None, Identity::Device(_)) => {
            let block = rustix::fs::ioctl_blksszget(fd).unwrap_or(PAGE as u32);
            (block, block)
        }
        (None, Identity::File(..)) => (PAGE as u32, PAGE as u32),
    };
    let usable = |granule: u32| granule.is_power_of_two() && granule as usize <= PAGE;
    if !usable(block) || !usable(memory) {
        return BUFFERED;
    }
    let Ok(current) = rustix::fs::fcntl_getfl(fd) else { return BUFFERED };
    match rustix::fs::fcntl_setfl(fd, current | OFlags::DIRECT) {
        Ok(()) => (true, block.max(512), memory),
        Err(_) => BUFFERED,
    }
}

/// Says that calls to the file's system wait for another process or machine, even when they are
/// asked to return rather than wait (seen with FUSE of Linux 6.18).
fn is_remote(fd: &OwnedFd) -> bool {
    const FUSE: u32 = 0x6573_5546;
    const NFS: u32 = 0x6969;
    const SMB: [u32; 3] = [0x517b, 0xff53_4d42, 0xfe53_4d42];
    const NINE_P: u32 = 0x0102_1997;
    const CEPH: u32 = 0x00c3_6400;
    rustix::fs::fstatfs(fd).is_ok_and(|statfs| {
        let kind = statfs.f_type as u32;
        matches!(kind, FUSE | NFS | NINE_P | CEPH) || SMB.contains(&kind)
    })
}

/// Says that the file lives in the page cache alone, where `O_DIRECT` means nothing.
fn is_memory(fd: &OwnedFd) -> bool {
    const TMPFS: u32 = 0x0102_1994;
    const RAMFS: u32 = 0x8584_58f6;
    // The field's type differs between machines; the numbers have 32 bits.
    rustix::fs::fstatfs(fd).is_ok_and(|statfs| matches!(statfs.f_type as u32, TMPFS | RAMFS))
}

/// Asks sysfs whether the device, or the one below the file, has moving heads.
fn is_rotational(identity: Identity) -> bool {
    let device = match identity {
        Identity::Device(device) => device,
        Identity::File(device, _) => device,
    };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let base = format!("/sys/dev/block/{major}:{minor}");
    // A partition has no queue of its own; its disk is the folder above.
    [format!("{base}/queue/rotational"), format!("{base}/../queue/rotational")]
        .iter()
        .find_map(|path| fs::read_to_string(path).ok())
        .is_some_and(|text| text.trim() == "1")
}

#[cfg(test)]
mod tests;
