//! What the server needs of an array, and [`raid_io::Array`] as one.
//!
//! The traits exist so that tests can serve an engine that answers late, out of order or not at
//! all. They are resolved at compile time.

use std::error::Error;
use std::ops::DerefMut;
use std::os::fd::BorrowedFd;

use crate::connection::{Extent, Failure, Operation};
use crate::export::Export;
use crate::proto::transmission::Errno;

/// An array: shared by all threads of a server.
pub trait Backend: Clone + Send + 'static {
    /// Memory of one request.
    type Buffer: DerefMut<Target = [u8]> + Send + 'static;
    /// One thread's way into the array.
    type Queue: Queue<Buffer = Self::Buffer>;

    /// Fill in size and abilities.
    fn describe(&self, export: &mut Export);

    /// Make the queue of the calling thread.
    ///
    /// # Errors
    /// When memory or descriptors are short.
    fn queue(&self) -> Result<Self::Queue, Box<dyn Error + Send + Sync>>;

    /// Say where data is: append extents that cover the range.
    ///
    /// # Errors
    /// What the client is to be told.
    fn allocation(&self, offset: u64, len: u64, extents: &mut Vec<Extent>) -> Result<(), Failure>;
}

/// One thread's way into an array.
pub trait Queue {
    /// Memory of one request.
    type Buffer;

    /// Exactly `len` bytes.
    fn buffer(&mut self, len: usize) -> Self::Buffer;

    /// Take an operation; its completion carries `user_data`.
    ///
    /// # Errors
    /// Gives it back when the queue is full, or when the operation is impossible.
    fn submit(
        &mut self,
        operation: Operation<Self::Buffer>,
        user_data: u64,
    ) -> Result<(), Refused<Self::Buffer>>;

    /// The next completion, if there is one. Drives the engine, never blocks.
    fn poll(&mut self) -> Option<Completion<Self::Buffer>>;

    /// Readable when [`Self::poll`] may have news.
    fn eventfd(&self) -> BorrowedFd<'_>;
}

/// An operation that a queue did not take.
#[derive(Debug)]
pub enum Refused<B> {
    /// Later: too much is in flight.
    Full(Operation<B>),
    /// Never.
    Failed(Failure),
}

/// An operation that has ended.
#[derive(Debug)]
pub struct Completion<B> {
    /// As submitted.
    pub user_data: u64,
    /// How it went.
    pub result: Result<(), Failure>,
    /// The buffer that went with it.
    pub buffer: Option<B>,
}

impl Backend for raid_io::Array {
    type Buffer = raid_io::Buffer;
    type Queue = raid_io::Queue;

    fn describe(&self, export: &mut Export) {
        let limits = self.limits();
        export.size_bytes = limits.size_bytes;
        export.read_only |= limits.read_only;
        export.rotational = limits.rotational;
        export.can_trim = limits.can_unmap;
        export.preferred_bytes = Export::preferred_for(u64::from(limits.optimal_bytes));
    }

    fn queue(&self) -> Result<Self::Queue, Box<dyn Error + Send + Sync>> {
        Ok(Self::queue(self)?)
    }

    fn allocation(&self, offset: u64, len: u64, extents: &mut Vec<Extent>) -> Result<(), Failure> {
        let list = Self::allocation(self, offset, len).map_err(|error| failure(&error))?;
        extents.extend(
            list.iter().map(|extent| Extent { len: extent.len, hole: extent.hole_and_zero }),
        );
        Ok(())
    }
}

impl Queue for raid_io::Queue {
    type Buffer = raid_io::Buffer;

    fn buffer(&mut self, len: usize) -> raid_io::Buffer {
        Self::buffer(self, len)
    }

    fn submit(
        &mut self,
        operation: Operation<raid_io::Buffer>,
        user_data: u64,
    ) -> Result<(), Refused<raid_io::Buffer>> {
        let operation = match operation {
            Operation::Read { offset, buffer } => raid_io::Operation::Read { offset, buffer },
            Operation::Write { offset, buffer, fua } => {
                raid_io::Operation::Write { offset, buffer, fua }
            }
            Operation::Flush => raid_io::Operation::Flush,
            Operation::Discard { offset, len } => raid_io::Operation::Discard { offset, len },
            Operation::WriteZeroes { offset, len, unmap, fua } => {
                raid_io::Operation::WriteZeroes { offset, len, unmap, fua }
            }
        };
        let refused = match Self::submit(self, operation, user_data) {
            Ok(()) => return Ok(()),
            Err(refused) => refused,
        };
        match (refused.error, refused.operation) {
            (raid_io::Error::QueueFull(_), operation) => Err(match restore(operation) {
                Some(operation) => Refused::Full(operation),
                None => Refused::Failed(Errno::Io.into()),
            }),
            (error, _) => Err(Refused::Failed(failure(&error))),
        }
    }

    fn poll(&mut self) -> Option<Completion<raid_io::Buffer>> {
        let raid_io::Completion { user_data, result, buffer, .. } = Self::poll(self)?;
        Some(Completion { user_data, result: result.map_err(|error| failure(&error)), buffer })
    }

    fn eventfd(&self) -> BorrowedFd<'_> {
        Self::eventfd(self)
    }
}

/// An operation that came back; `None` for a kind that this crate never submits.
fn restore(operation: raid_io::Operation) -> Option<Operation<raid_io::Buffer>> {
    Some(match operation {
        raid_io::Operation::Read { offset, buffer } => Operation::Read { offset, buffer },
        raid_io::Operation::Write { offset, buffer, fua } => {
            Operation::Write { offset, buffer, fua }
        }
        raid_io::Operation::Flush => Operation::Flush,
        raid_io::Operation::Discard { offset, len } => Operation::Discard { offset, len },
        raid_io::Operation::WriteZeroes { offset, len, unmap, fua } => {
            Operation::WriteZeroes { offset, len, unmap, fua }
        }
        _ => return None,
    })
}

fn failure(error: &raid_io::Error) -> Failure {
    let offset = match error {
        raid_io::Error::Io { offset } => Some(*offset),
        _ => None,
    };
    Failure { error: Errno::from_system(error.errno()), offset }
}
