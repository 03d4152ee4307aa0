//! What a member device is to the engine, whoever made it.
//!
//! Files and block devices are [`MemberFile`]; they have a descriptor that
//! a ring can use. Everything else implements [`MemberDevice`]: memory, and devices that users and
//! tests bring along (fault wrappers, network devices).

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use crate::Error;
use crate::bad_blocks::BadRanges;
use crate::buffer::{Buffer, PAGE};
use crate::file::MemberFile;

/// A device that can be a member: blocking calls, safe from several threads at once.
///
/// Reads and writes may be short, as in `preadv` and `pwritev`, and may fail with
/// [`io::ErrorKind::Interrupted`] or [`io::ErrorKind::WouldBlock`]; the caller goes on from there.
/// Offsets and lengths are multiples of [`block_bytes`](Self::block_bytes).
pub trait MemberDevice: Send + Sync {
    /// Returns the size in bytes.
    fn size_bytes(&self) -> u64;

    /// Returns the granule of reads and writes, a power of two up to 4096.
    fn block_bytes(&self) -> u32 {
        512
    }

    /// Fills `buffers` in order from `offset`, and returns how many bytes it filled.
    ///
    /// # Errors
    /// Returns the device's error; zero bytes count as one.
    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize>;

    /// Writes `buffers` in order at `offset`, and returns how many bytes it wrote.
    ///
    /// # Errors
    /// Returns the device's error; zero bytes count as one.
    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;

    /// Writes like [`write_at`](Self::write_at), and returns when the bytes are durable.
    ///
    /// # Errors
    /// Returns the device's error; zero bytes count as one.
    fn write_durably_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let count = self.write_at(buffers, offset)?;
        self.flush()?;
        Ok(count)
    }

    /// Makes every completed write durable.
    ///
    /// # Errors
    /// Returns the device's error.
    fn flush(&self) -> io::Result<()>;

    /// Makes a range read as zeroes; with `unmap` the device may give the room back.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] makes the caller write zeroes.
    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        let _ = (offset, len, unmap);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Says whether the bytes from `offset` on are a hole, and where that stops being so.
    /// `(false, size)` promises nothing.
    fn extent(&self, offset: u64) -> (bool, u64) {
        let _ = offset;
        (false, self.size_bytes())
    }

    /// Says that calls return at once, so that they need no thread of their own.
    fn is_instant(&self) -> bool {
        false
    }
}

/// One member that is open.
#[derive(Clone)]
pub(crate) struct Member {
    name: PathBuf,
    pub(crate) device: Device,
    /// Ranges that are listed as lost.
    bad: Option<Arc<BadRanges>>,
}

/// The two kinds: with a descriptor, and without.
#[derive(Clone)]
pub(crate) enum Device {
    /// A file or block device, which a ring can use.
    File(Arc<MemberFile>),
    /// Anything else.
    Other(Arc<dyn MemberDevice>),
}

impl Member {
    pub(crate) fn file(file: MemberFile) -> Self {
        let name = file.path().to_owned();
        Self { name, device: Device::File(Arc::new(file)), bad: None }
    }

    pub(crate) fn other(name: impl Into<PathBuf>, device: Arc<dyn MemberDevice>) -> Self {
        Self { name: name.into(), device: Device::Other(device), bad: None }
    }

    /// Returns the same member, of which `bad` is lost.
    pub(crate) fn with_bad_ranges(self, bad: Option<BadRanges>) -> Self {
        Self { bad: bad.map(Arc::new), ..self }
    }

    /// Returns the ranges that are listed as lost, if there are any.
    pub(crate) fn bad_ranges(&self) -> Option<&BadRanges> {
        self.bad.as_deref()
    }

    pub(crate) fn name(&self) -> &Path {
        &self.name
    }

    /// Returns the file, if it is one.
    pub(crate) fn as_file(&self) -> Option<&MemberFile> {
        match &self.device {
            Device::File(file) => Some(file),
            Device::Other(_) => None,
        }
    }

    /// Returns the device, whichever kind it is.
    pub(crate) fn device(&self) -> &dyn MemberDevice {
        match &self.device {
            Device::File(file) => file.as_ref(),
            Device::Other(device) => device.as_ref(),
        }
    }

    /// Returns what a buffer's address must be a multiple of, its length being made of blocks;
    /// `None` if any memory will do.
    pub(crate) fn memory_alignment(&self) -> Option<usize> {
        match &self.device {
            Device::File(file) if file.is_direct() => Some(file.memory_alignment()),
            Device::File(_) => None,
            // A device that fills one buffer for each call still gets on.
            Device::Other(_) => Some(1),
        }
    }

    /// Reads `len` bytes at any `offset`, for superblocks. Blocks.
    pub(crate) fn read_range(&self, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        let (start, skip, mut buffer) = self.widened(offset, len)?;
        self.fill(start, &mut buffer)?;
        Ok(buffer[skip..skip + len].to_vec())
    }

    /// Writes `bytes` at any `offset`, for superblocks. Blocks; the rest of a block that is covered
    /// in part is read before, so no other write to it may run.
    pub(crate) fn write_range(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let (start, skip, mut buffer) = self.widened(offset, bytes.len())?;
        if buffer.len() != bytes.len() {
            self.fill(start, &mut buffer)?;
        }
        buffer[skip..skip + bytes.len()].copy_from_slice(bytes);
        let mut done = 0;
        while done < buffer.len() {
            let slices = [IoSlice::new(&buffer[done..])];
            let result = self.device().write_at(&slices, start + done as u64);
            done = self.advanced(done, result, "write")?;
        }
        Ok(())
    }

    /// Makes every completed write durable. Blocks.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        self.device().flush().map_err(|source| self.error("flush", source))
    }

    /// Makes an error about this member.
    pub(crate) fn error(&self, action: &'static str, source: io::Error) -> Error {
        Error::Member { path: self.name.clone(), action, source }
    }

    /// Makes an error that says why this member does not do.
    pub(crate) fn unsuited(&self, reason: impl Into<String>) -> Error {
        Error::UnsuitableMember { path: self.name.clone(), reason: reason.into() }
    }

    /// Returns the whole blocks around a range: where they start, how far inside the range starts,
    /// and memory for them.
    fn widened(&self, offset: u64, len: usize) -> Result<(u64, usize, Buffer), Error> {
        let size = self.device().size_bytes();
        let block = u64::from(self.device().block_bytes());
        let outside = || self.unsuited(format!("{offset}+{len} is beyond its {size} bytes"));
        let end = offset.checked_add(len as u64).filter(|end| *end <= size).ok_or_else(outside)?;
        let start = offset - offset % block;
        let wide = end.next_multiple_of(block) - start;
        let skip = usize::try_from(offset - start).map_err(|_| outside())?;
        let wide = usize::try_from(wide).map_err(|_| outside())?;
        Ok((start, skip, Buffer::zeroed(wide)))
    }

    /// Fills `bytes` from `offset`, however many calls it takes.
    fn fill(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let mut done = 0;
        while done < bytes.len() {
            let mut slices = [IoSliceMut::new(&mut bytes[done..])];
            let result = self.device().read_at(&mut slices, offset + done as u64);
            done = self.advanced(done, result, "read")?;
        }
        Ok(())
    }

    /// Goes on after a call that may have been short or interrupted.
    fn advanced(
        &self,
        done: usize,
        result: io::Result<usize>,
        action: &'static str,
    ) -> Result<usize, Error> {
        match result {
            Ok(0) => Err(self.error(action, io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => Ok(done + count),
            Err(error) if is_transient(&error) => Ok(done),
            Err(error) => Err(self.error(action, error)),
        }
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Member({})", self.name.display())
    }
}

/// Says that the same call may well succeed when it is made again.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

/// A member in this process's memory: pages appear when they are written.
///
/// ```
/// use raid_io::{MemberDevice, MemoryDevice};
/// use std::io::IoSlice;
/// let device = MemoryDevice::new(1 << 20, 512);
/// device.write_at(&[IoSlice::new(&[1; 512])], 4096).unwrap();
/// assert_eq!(device.extent(0), (true, 4096));
/// assert!(!device.extent(4096).0);
/// ```
pub struct MemoryDevice {
    size: u64,
    block: u32,
    pages: RwLock<Vec<Option<Box<[u8; PAGE]>>>>,
}

impl MemoryDevice {
    /// Returns a device of `size` bytes, all of them zero.
    ///
    /// # Panics
    /// Panics if `block` is no power of two up to 4096, or if `size` is beyond this machine.
    #[must_use]
    pub fn new(size: u64, block: u32) -> Self {
        assert!(block.is_power_of_two() && block as usize <= PAGE, "block size {block}");
        let count = size.div_ceil(PAGE as u64);
        assert!(count <= u64::from(u32::MAX), "memory member of {size} bytes");
        let pages = (0..count).map(|_| None).collect();
        Self { size, block, pages: RwLock::new(pages) }
    }

    /// Cuts a range into parts of one page and hands out page number, place and length of each.
    fn parts(&self, offset: u64, len: u64) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let mut at = offset;
        let end = offset.saturating_add(len).min(self.size);
        std::iter::from_fn(move || {
            let left = usize::try_from(end.checked_sub(at)?).ok().filter(|left| *left > 0)?;
            let page = usize::try_from(at / PAGE as u64).ok()?;
            let start = (at % PAGE as u64) as usize;
            let count = left.min(PAGE - start);
            at += count as u64;
            Some((page, start, count))
        })
    }
}

impl MemberDevice for MemoryDevice {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn block_bytes(&self) -> u32 {
        self.block
    }

    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        let mut total = 0;
        for buffer in buffers {
            let mut done = 0;
            for (page, start, count) in self.parts(offset + total, buffer.len() as u64) {
                let target = &mut buffer[done..done + count];
                match &pages[page] {
                    Some(bytes) => target.copy_from_slice(&bytes[start..start + count]),
                    None => target.fill(0),
                }
                done += count;
            }
            total += done as u64;
        }
        Ok(total as usize)
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let mut pages = self.pages.write().unwrap_or_else(PoisonError::into_inner);
        let mut total = 0;
        for buffer in buffers {
            let mut done = 0;
            for (page, start, count) in self.parts(offset + total, buffer.len() as u64) {
                let bytes = pages[page].get_or_insert_with(|| Box::new([0; PAGE]));
                bytes[start..start + count].copy_from_slice(&buffer[done..done + count]);
                done += count;
            }
            total += done as u64;
        }
        Ok(total as usize)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        let mut pages = self.pages.write().unwrap_or_else(PoisonError::into_inner);
        for (page, start, count) in self.parts(offset, len) {
            if unmap && count == PAGE {
                pages[page] = None;
            } else if unmap && pages[page].is_none() {
                // A hole stays one.
            } else {
                let bytes = pages[page].get_or_insert_with(|| Box::new([0; PAGE]));
                bytes[start..start + count].fill(0);
            }
        }
        Ok(())
    }

    fn extent(&self, offset: u64) -> (bool, u64) {
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        let first = usize::try_from(offset / PAGE as u64).unwrap_or(usize::MAX);
        let Some(page) = pages.get(first) else { return (false, self.size) };
        let hole = page.is_none();
        let run = pages[first..].iter().take_while(|page| page.is_none() == hole).count();
        (hole, (((first + run) * PAGE) as u64).min(self.size))
    }

    fn is_instant(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges that start and end inside blocks come back as written, and leave the rest alone.
    #[test]
    fn ranges_of_any_bytes_are_read_and_written() {
        for block in [512, 4096] {
            let member = Member::other("m", Arc::new(MemoryDevice::new(64 << 10, block)));
            member.write_range(0, &[9; 64 << 10]).unwrap();
            for (offset, len) in [(0, 1), (511, 2), (4095, 4098), (60000, 5536), (4096, 4096)] {
                let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
                member.write_range(offset, &bytes).unwrap();
                assert_eq!(member.read_range(offset, len).unwrap(), bytes);
                member.write_range(offset, &vec![9; len]).unwrap();
            }
            assert_eq!(member.read_range(0, 64 << 10).unwrap(), vec![9; 64 << 10]);
        }
    }

    #[test]
    fn a_range_beyond_the_end_is_an_error() {
        let member = Member::other("m", Arc::new(MemoryDevice::new(8192, 512)));
        assert!(matches!(member.read_range(8000, 193), Err(Error::UnsuitableMember { .. })));
        assert!(matches!(member.read_range(u64::MAX, 2), Err(Error::UnsuitableMember { .. })));
    }

    #[test]
    fn unmapped_pages_become_holes() {
        let device = MemoryDevice::new(64 << 10, 512);
        device.write_at(&[IoSlice::new(&[1; 16384])], 0).unwrap();
        assert_eq!(device.extent(0), (false, 16384));
        device.write_zeroes(100, 12000, true).unwrap();
        assert_eq!(device.extent(4096), (true, 8192));
        let mut bytes = [0; 16384];
        device.read_at(&mut [IoSliceMut::new(&mut bytes)], 0).unwrap();
        let zero = bytes.iter().enumerate().all(|(i, b)| (*b == 0) == (100..12100).contains(&i));
        assert!(zero);
    }
}
