//! What a front end may ask of an array: sizes, granules, and what it can do.

use crate::{Error, Operation};

/// Sizes and abilities of an array, as a block server shows them to its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The array's size.
    pub size_bytes: u64,
    /// The granule that needs no read before a write: 512 or 4096. Requests may be finer than that.
    pub block_bytes: u32,
    /// The size at which a write needs no read at all: a full stripe.
    pub optimal_bytes: u32,
    /// The chunk size, or the optimal size for levels without chunks.
    pub chunk_bytes: u32,
    /// The longest read or write. Flush, discard and write-zeroes have no such limit.
    pub request_bytes_max: u32,
    /// Discards that are finer than this give no room back.
    pub discard_granularity_bytes: u32,
    /// Some member has moving heads.
    pub rotational: bool,
    /// Every write is refused.
    pub read_only: bool,
    /// [`Operation::Discard`] gives room back to the members.
    pub can_unmap: bool,
}

impl Limits {
    /// Refuses what can be seen to be impossible.
    pub(crate) fn admit(&self, operation: &Operation) -> Result<(), Error> {
        let (offset, len, writes) = match operation {
            Operation::Read { offset, buffer } => (*offset, buffer.len() as u64, false),
            Operation::Write { offset, buffer, .. } => (*offset, buffer.len() as u64, true),
            Operation::Flush => return Ok(()),
            Operation::Discard { offset, len } | Operation::WriteZeroes { offset, len, .. } => {
                (*offset, *len, true)
            }
        };
        if writes && self.read_only {
            return Err(Error::ReadOnly);
        }
        let max = u64::from(self.request_bytes_max);
        let carries = matches!(operation, Operation::Read { .. } | Operation::Write { .. });
        if carries && len > max {
            return Err(Error::TooLong { len, max });
        }
        self.check_range(offset, len)
    }

    /// Refuses a range that leaves the array.
    pub(crate) fn check_range(&self, offset: u64, len: u64) -> Result<(), Error> {
        let size = self.size_bytes;
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(Error::OutOfRange { offset, len, size }),
        }
    }
}

/// A run of an array's address space with one allocation state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The length in bytes; extents follow each other without gaps.
    pub len: u64,
    /// Nothing is stored here, and it reads as zeroes. `false` promises nothing.
    pub hole_and_zero: bool,
}
