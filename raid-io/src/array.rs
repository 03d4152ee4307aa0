//! An array that is open: shared by all threads, asked through queues.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::background::Background;
use crate::calls::Calls;
use crate::shared::Shared;
use crate::upkeep::Upkeep;
use crate::{
    Added, CreateOptions, Detail, Error, Extent, Limits, MemberDevice, MemoryOptions, OpenOptions,
    Queue, Repair, Status,
};

/// An open array. Cheap to clone; every clone is the same array.
///
/// Work goes through a [`Queue`] for each thread, through the blocking methods here
/// ([`read_at`](Self::read_at) and its neighbours), or through [`AsyncArray`](crate::AsyncArray).
/// [`stop`](Self::stop) it when it is no longer needed: an array that is merely dropped is found
/// "not cleanly stopped" the next time, and its redundancy is not trusted until it is made anew.
///
/// ```
/// use raid_io::{Array, MemoryOptions};
/// # fn main() -> Result<(), raid_io::Error> {
/// let array = Array::in_memory(MemoryOptions::default())?;
/// array.write_at(b"hello", 1000)?;
/// let mut bytes = [0; 5];
/// array.read_at(&mut bytes, 1000)?;
/// assert_eq!(&bytes, b"hello");
/// array.stop()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Array {
    pub(crate) shared: Arc<Shared>,
    calls: Arc<Calls>,
    background: Arc<Background>,
    upkeep: Arc<Upkeep>,
}

impl Array {
    pub(crate) fn over(shared: Shared) -> Self {
        let shared = Arc::new(shared);
        shared.resume_replacements();
        let calls = Arc::new(Calls::new(Arc::clone(&shared)));
        let background = Arc::new(Background::start(&shared));
        let upkeep = Arc::new(Upkeep::start(&shared));
        Self { shared, calls, background, upkeep }
    }

    /// Makes an array and opens it. Nothing is written before every member has been validated.
    ///
    /// Members that do not exist are made as sparse files when
    /// [`CreateOptions::member_bytes`] says how large. An array of new files is in sync from the
    /// start, for the parity of zeroes is zero.
    ///
    /// ```
    /// use raid_io::{Array, CreateOptions, Level, OpenOptions};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let folder = tempfile::tempdir()?;
    /// let members: Vec<_> = (0..3).map(|n| folder.path().join(format!("member{n}"))).collect();
    /// let mut options = CreateOptions::new(Level::Raid5);
    /// options.member_bytes = Some(8 << 20);
    /// options.chunk_bytes = 64 << 10;
    /// let array = Array::create(&options, &members)?;
    /// array.write_at(b"kept", 0)?;
    /// array.stop()?;
    ///
    /// let array = Array::open(&members, &OpenOptions::default())?;
    /// let mut bytes = [0; 4];
    /// array.read_at(&mut bytes, 0)?;
    /// assert_eq!(&bytes, b"kept");
    /// array.stop()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if a member is unsuited, in use, or looks like somebody's data (unless
    /// forced), or if the options do not fit together.
    pub fn create(options: &CreateOptions, members: &[PathBuf]) -> Result<Self, Error> {
        crate::create::create(options, members)
    }

    /// Opens an array from its members, in any order.
    ///
    /// # Errors
    /// Returns an error if the members do not make up an array that may be started.
    pub fn open(members: &[PathBuf], options: &OpenOptions) -> Result<Self, Error> {
        crate::open::open(members, options)
    }

    /// Makes an array in this process's memory, for examples and tests.
    ///
    /// # Errors
    /// Returns an error if the options do not fit together.
    pub fn in_memory(options: MemoryOptions) -> Result<Self, Error> {
        crate::volatile::in_memory(options)
    }

    /// Makes an array over devices that the caller brings along, in their order; `None` is a
    /// missing member. There are no superblocks: what happens to the array is not kept when it
    /// ends.
    ///
    /// ```
    /// use raid_io::{Array, Level, MemberDevice, MemoryDevice, MemoryOptions};
    /// use std::sync::Arc;
    /// # fn main() -> Result<(), raid_io::Error> {
    /// let device = || Arc::new(MemoryDevice::new(1 << 20, 512)) as Arc<dyn MemberDevice>;
    /// let mut options = MemoryOptions::default();
    /// options.level = Level::Raid6;
    /// let members = vec![Some(device()), None, Some(device()), Some(device())];
    /// let array = Array::over_devices(members, &options)?;
    /// assert_eq!(array.status().degraded, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if the options do not fit the devices, or too many are missing.
    pub fn over_devices(
        devices: Vec<Option<Arc<dyn MemberDevice>>>,
        options: &MemoryOptions,
    ) -> Result<Self, Error> {
        crate::volatile::over_devices(devices, options)
    }

    /// Returns sizes and abilities.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.shared.limits
    }

    /// Makes a queue for one thread. It may be made on another one; it belongs to the thread that
    /// uses it first, as long as requests are in flight. An array has 32 queues at most, some of
    /// which serve the blocking methods.
    ///
    /// # Errors
    /// Returns an error if memory, descriptors or queues are short, or the array has been stopped.
    pub fn queue(&self) -> Result<Queue, Error> {
        Queue::new(Arc::clone(&self.shared), true)
    }

    /// Says which parts of a range hold data. The extents cover the range exactly.
    ///
    /// What is being written meanwhile may be told either way.
    ///
    /// # Errors
    /// Returns an error if the range is outside the array.
    pub fn allocation(&self, offset: u64, len: u64) -> Result<Vec<Extent>, Error> {
        self.shared.limits.check_range(offset, len)?;
        Ok(crate::allocation::extents(&self.shared, offset, len))
    }

    /// Returns the state and the counters.
    #[must_use]
    pub fn status(&self) -> Status {
        crate::status::status(&self.shared)
    }

    /// Returns everything that is known, superblock fields included.
    #[must_use]
    pub fn detail(&self) -> Detail {
        crate::status::detail(&self.shared)
    }

    /// Declares a member faulty: it leaves the array, and a spare steps in if there is one.
    ///
    /// # Errors
    /// Returns an error if `member` is none, or the rest does not hold every byte without it: the
    /// last copy is never failed.
    pub fn fail(&self, member: &Path) -> Result<(), Error> {
        self.shared.fail(member)
    }

    /// Lets a faulty member or a spare go; its file is closed as soon as every queue has been
    /// polled.
    ///
    /// # Errors
    /// Returns an error if `member` is none, or is in use.
    pub fn remove(&self, member: &Path) -> Result<(), Error> {
        let removed = self.shared.remove(member);
        // Queues that lie idle would hold the file.
        self.calls.close();
        removed
    }

    /// Takes a member in. One that was in this array goes back into its slot and gets what it
    /// missed, if the write-intent bitmap covers its absence; otherwise it is filled from the
    /// start. Anything else becomes a spare, which fills a slot that has no member. With `force`
    /// somebody's data is written over.
    ///
    /// ```
    /// use raid_io::{Added, Array, CreateOptions, Level};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let folder = tempfile::tempdir()?;
    /// let members: Vec<_> = (0..3).map(|n| folder.path().join(format!("member{n}"))).collect();
    /// let mut options = CreateOptions::new(Level::Raid5);
    /// options.member_bytes = Some(8 << 20);
    /// let array = Array::create(&options, &members)?;
    /// array.write_at(b"kept", 0)?;
    /// array.fail(&members[0])?;
    /// array.remove(&members[0])?;
    /// let spare = folder.path().join("spare");
    /// std::fs::File::create(&spare)?.set_len(8 << 20)?;
    /// assert_eq!(array.add(&spare, false)?, Added::Spare);
    /// while array.status().degraded > 0 {
    ///     std::thread::sleep(std::time::Duration::from_millis(5));
    /// }
    /// array.stop()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if the member is unsuited, in use, holds somebody's data, or has seen more
    /// of this array than the array itself.
    pub fn add(&self, member: &Path, force: bool) -> Result<Added, Error> {
        self.shared.release_faulty(member);
        self.calls.close();
        self.shared.settle_table();
        self.shared.add(member, force)
    }

    /// As [`add`](Self::add), for a member that was here before and can catch up by the bitmap;
    /// one that would have to be filled from the start is refused.
    ///
    /// # Errors
    /// As for [`add`](Self::add).
    pub fn re_add(&self, member: &Path) -> Result<(), Error> {
        self.shared.release_faulty(member);
        self.calls.close();
        self.shared.settle_table();
        self.shared.re_add(member)
    }

    /// Copies a member that is in sync to a spare, which takes its slot over when it holds
    /// everything; what cannot be read of the member is regenerated. `with` is a spare, or is taken
    /// in as one as by [`add`](Self::add); `None`: any spare. The member that was replaced is
    /// faulty then, and can be removed.
    ///
    /// ```
    /// use raid_io::{Array, CreateOptions, Level};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let folder = tempfile::tempdir()?;
    /// let members: Vec<_> = (0..3).map(|n| folder.path().join(format!("member{n}"))).collect();
    /// let mut options = CreateOptions::new(Level::Raid5);
    /// options.member_bytes = Some(8 << 20);
    /// let array = Array::create(&options, &members)?;
    /// let newer = folder.path().join("newer");
    /// std::fs::File::create(&newer)?.set_len(8 << 20)?;
    /// array.replace(&members[1], Some(&newer))?;
    /// while array.status().groups[0].members[1].path != newer.display().to_string() {
    ///     std::thread::sleep(std::time::Duration::from_millis(5));
    /// }
    /// array.remove(&members[1])?;
    /// array.stop()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if the member is not in sync or is being replaced already, if there is no
    /// spare, or if the superblocks are of version 0.90, which cannot say so.
    pub fn replace(&self, member: &Path, with: Option<&Path>) -> Result<(), Error> {
        if let Some(with) = with {
            self.shared.release_faulty(with);
            self.calls.close();
            self.shared.settle_table();
        }
        self.shared.replace(member, with)
    }

    /// Limits what is done in the background, in bytes of each member in a second; what is `None`
    /// stays as it is. See [`OpenOptions::speed_min`] and [`OpenOptions::speed_max`].
    pub fn set_speed(&self, min: Option<u64>, max: Option<u64>) {
        self.shared.set_speed(min, max);
    }

    /// Begins a check of the whole array in the background; [`Status`] tells how far it is, the
    /// log what it finds. Nothing is written but what `repair` allows.
    ///
    /// # Errors
    /// Returns an error if nothing is redundant, or the array is read-only.
    pub fn scrub(&self, repair: Repair) -> Result<(), Error> {
        if self.shared.limits.read_only {
            return Err(Error::ReadOnly);
        }
        if !self.shared.volume.geometry(0).level().is_redundant() {
            return Err(Error::Unsupported("this level keeps nothing that could be checked"));
        }
        self.shared.bell.ask_scrub(repair);
        Ok(())
    }

    /// Calls a check off.
    pub fn stop_scrub(&self) {
        self.shared.bell.call_off_scrub();
    }

    /// Refuses new requests, waits for those in flight, flushes, marks the array clean and
    /// releases the members. Clones and queues of it answer [`Error::Stopped`] from then on.
    ///
    /// Requests in flight need their queues polled: by other threads, or by none when all of them
    /// have ended. A member is free for others when the last queue is gone as well.
    ///
    /// # Errors
    /// Returns an error if requests stay in flight for half a minute, or if the last flush or the
    /// superblocks could not be written, or a write failed on a member that the array cannot do
    /// without; the array then counts as not cleanly stopped.
    pub fn stop(self) -> Result<(), Error> {
        self.background.finish();
        self.upkeep.finish();
        let stopped = self.shared.stop();
        self.calls.close();
        stopped
    }

    /// Fills `bytes` from `offset`. Blocks.
    ///
    /// # Errors
    /// Returns an error if the range is outside the array or cannot be read.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<(), Error> {
        self.calls.read_at(bytes, offset)
    }

    /// Writes `bytes` at `offset`. Blocks. Durable after [`flush`](Self::flush).
    ///
    /// # Errors
    /// Returns an error if the range is outside the array or cannot be written.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        self.calls.write_at(bytes, offset)
    }

    /// Makes every completed write durable. Blocks.
    ///
    /// # Errors
    /// Returns an error if a member cannot be flushed.
    pub fn flush(&self) -> Result<(), Error> {
        self.calls.run(crate::Operation::Flush)
    }

    /// Gives room back. Blocks.
    ///
    /// # Errors
    /// Returns an error if the range is outside the array.
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.calls.run(crate::Operation::Discard { offset, len })
    }

    /// Makes a range read as zeroes; `unmap` lets it give room back. Blocks.
    ///
    /// # Errors
    /// Returns an error if the range is outside the array or cannot be written.
    pub fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> Result<(), Error> {
        self.calls.run(crate::Operation::WriteZeroes { offset, len, unmap, fua: false })
    }
}

impl std::fmt::Debug for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Array").field("limits", &self.shared.limits).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
