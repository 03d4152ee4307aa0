//! An array that is open: shared by all threads, asked through queues.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::{
    Buffer, CreateOptions, Detail, Error, Extent, Limits, MemoryOptions, OpenOptions, Operation,
    Queue, Status,
};

/// The longest read or write.
const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// An open array. Cheap to clone; every clone is the same array.
///
/// Work goes through a [`Queue`] for each thread, through the blocking methods here
/// ([`read_at`](Self::read_at) and its neighbours), or through the async face.
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
    shared: Arc<Shared>,
}

/// What all clones and queues share.
pub(crate) struct Shared {
    pub(crate) options: OpenOptions,
    limits: Limits,
    bytes: Mutex<Vec<u8>>,
}

impl Array {
    /// Makes an array and opens it. Nothing is written before every member has been validated.
    ///
    /// # Errors
    /// Returns an error if a member is unsuited, in use, or looks like somebody's data (unless
    /// forced), or if the options do not fit together.
    pub fn create(options: &CreateOptions, members: &[PathBuf]) -> Result<Self, Error> {
        let _ = (options, members);
        Err(Error::Unsupported("creating arrays"))
    }

    /// Opens an array from its members, in any order.
    ///
    /// # Errors
    /// Returns an error if the members do not make up an array that may be started.
    pub fn open(members: &[PathBuf], options: &OpenOptions) -> Result<Self, Error> {
        let _ = (options, members);
        Err(Error::Unsupported("opening arrays"))
    }

    /// Makes an array in this process's memory, for examples and tests.
    ///
    /// # Errors
    /// Returns an error if the options do not fit together.
    pub fn in_memory(options: MemoryOptions) -> Result<Self, Error> {
        let data = u64::from(options.slot_count.max(2) - 1);
        let size_bytes = options.member_bytes * data;
        let optimal = u64::from(options.chunk_bytes) * data;
        let limits = Limits {
            size_bytes,
            block_bytes: options.block_bytes,
            optimal_bytes: u32::try_from(optimal).unwrap_or(options.chunk_bytes),
            chunk_bytes: options.chunk_bytes,
            request_bytes_max: REQUEST_BYTES_MAX,
            discard_granularity_bytes: options.chunk_bytes,
            rotational: false,
            read_only: options.open.read_only,
            can_unmap: true,
        };
        let len = usize::try_from(size_bytes)
            .map_err(|_| Error::Options("the array is larger than memory".into()))?;
        let bytes = Mutex::new(vec![0; len]);
        Ok(Self { shared: Arc::new(Shared { options: options.open, limits, bytes }) })
    }

    /// Returns sizes and abilities.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.shared.limits
    }

    /// Makes a queue for one thread.
    ///
    /// # Errors
    /// Returns an error if memory or descriptors are short, or the array has been stopped.
    pub fn queue(&self) -> Result<Queue, Error> {
        Queue::new(Arc::clone(&self.shared))
    }

    /// Says which parts of a range hold data. The extents cover the range exactly.
    ///
    /// # Errors
    /// Returns an error if the range is outside the array.
    pub fn allocation(&self, offset: u64, len: u64) -> Result<Vec<Extent>, Error> {
        self.shared.check_range(offset, len)?;
        Ok(vec![Extent { len, hole_and_zero: false }])
    }

    /// Returns the state and the counters.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            level: "raid5".into(),
            size_bytes: self.shared.limits.size_bytes,
            state: "clean".into(),
            ..Status::default()
        }
    }

    /// Returns everything that is known, superblock fields included.
    #[must_use]
    pub fn detail(&self) -> Detail {
        Detail { status: self.status(), ..Detail::default() }
    }

    /// Refuses new requests, waits for those in flight, flushes, marks the array clean and
    /// releases the members. Clones and queues of it answer [`Error::Stopped`] from then on.
    ///
    /// # Errors
    /// Returns an error if the last flush or the superblocks could not be written.
    pub fn stop(self) -> Result<(), Error> {
        Ok(())
    }

    /// Fills `bytes` from `offset`. Blocks.
    ///
    /// # Errors
    /// Returns an error if the range is outside the array or cannot be read.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<(), Error> {
        let operation = Operation::Read { offset, buffer: Buffer::zeroed(bytes.len()) };
        self.shared.admit(&operation)?;
        if let Some(buffer) = self.shared.execute(operation) {
            bytes.copy_from_slice(&buffer);
        }
        Ok(())
    }

    /// Writes `bytes` at `offset`. Blocks. Durable after [`flush`](Self::flush).
    ///
    /// # Errors
    /// Returns an error if the range is outside the array or cannot be written.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        let buffer = Buffer::copy_of(bytes);
        self.block_on(Operation::Write { offset, buffer, fua: false })
    }

    /// Makes every completed write durable. Blocks.
    ///
    /// # Errors
    /// Returns an error if a member cannot be flushed.
    pub fn flush(&self) -> Result<(), Error> {
        self.block_on(Operation::Flush)
    }

    /// Gives room back. Blocks.
    ///
    /// # Errors
    /// Returns an error if the range is outside the array.
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.block_on(Operation::Discard { offset, len })
    }

    /// Makes a range read as zeroes; `unmap` lets it give room back. Blocks.
    ///
    /// # Errors
    /// Returns an error if the range is outside the array or cannot be written.
    pub fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> Result<(), Error> {
        self.block_on(Operation::WriteZeroes { offset, len, unmap, fua: false })
    }

    fn block_on(&self, operation: Operation) -> Result<(), Error> {
        self.shared.admit(&operation)?;
        self.shared.execute(operation);
        Ok(())
    }
}

impl Shared {
    pub(crate) fn check_range(&self, offset: u64, len: u64) -> Result<(), Error> {
        let size = self.limits.size_bytes;
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(Error::OutOfRange { offset, len, size }),
        }
    }

    pub(crate) fn admit(&self, operation: &Operation) -> Result<(), Error> {
        let (offset, len, writes) = match operation {
            Operation::Read { offset, buffer } => (*offset, buffer.len() as u64, false),
            Operation::Write { offset, buffer, .. } => (*offset, buffer.len() as u64, true),
            Operation::Flush => return Ok(()),
            Operation::Discard { offset, len } | Operation::WriteZeroes { offset, len, .. } => {
                (*offset, *len, true)
            }
        };
        if writes && self.limits.read_only {
            return Err(Error::ReadOnly);
        }
        let max = u64::from(self.limits.request_bytes_max);
        let carries = matches!(operation, Operation::Read { .. } | Operation::Write { .. });
        if carries && len > max {
            return Err(Error::TooLong { len, max });
        }
        self.check_range(offset, len)
    }

    /// Carries out an operation that was admitted.
    pub(crate) fn execute(&self, operation: Operation) -> Option<Buffer> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        match operation {
            Operation::Read { offset, mut buffer } => {
                let start = offset as usize;
                let end = start + buffer.len();
                buffer.copy_from_slice(&bytes[start..end]);
                Some(buffer)
            }
            Operation::Write { offset, buffer, .. } => {
                let start = offset as usize;
                bytes[start..start + buffer.len()].copy_from_slice(&buffer);
                Some(buffer)
            }
            Operation::Discard { offset, len } | Operation::WriteZeroes { offset, len, .. } => {
                let start = offset as usize;
                bytes[start..start + len as usize].fill(0);
                None
            }
            Operation::Flush => None,
        }
    }
}
