//! The one error type of this crate.
//!
//! An [`Error`] says what was being done, to what, and which comparison failed; [`Error::errno`] is
//! what a block server answers its client with. Operating errors are values; nothing here panics.

use std::io;
use std::path::PathBuf;

/// What went wrong, to what.
///
/// ```
/// let error = raid_io::Error::ReadOnly;
/// assert_eq!(error.errno(), 30); // EROFS
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A member could not be opened, examined or used.
    #[error("{}: cannot {action}: {source}", path.display())]
    Member {
        /// The member's path, or its name when it has none.
        path: PathBuf,
        /// What was tried, as a verb: "open", "lock", "read the superblock".
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A member is unsuited; the text says why, with the numbers.
    #[error("{}: {reason}", path.display())]
    UnsuitableMember {
        /// The member's path.
        path: PathBuf,
        /// The comparison that failed.
        reason: String,
    },
    /// The options contradict each other or the members.
    #[error("{0}")]
    Options(String),
    /// The members do not make up an array that may be started.
    #[error("{0}")]
    Assemble(String),
    /// A request reaches beyond the end of the array, or its numbers overflow.
    #[error("range {offset}+{len} is outside the array of {size} bytes")]
    OutOfRange {
        /// The request's first byte.
        offset: u64,
        /// The request's length in bytes.
        len: u64,
        /// The array's size in bytes.
        size: u64,
    },
    /// A request is longer than [`Limits::request_bytes_max`](crate::Limits::request_bytes_max).
    #[error("request of {len} bytes is longer than {max}")]
    TooLong {
        /// The request's length in bytes.
        len: u64,
        /// The longest request.
        max: u64,
    },
    /// As many requests are in flight as the queue carries; poll, then submit again.
    #[error("the queue is full: {0} requests are in flight")]
    QueueFull(u32),
    /// Requests are in flight, and nobody polls their queues.
    #[error("{0} requests are still in flight")]
    Busy(u32),
    /// The array was opened read-only.
    #[error("the array is read-only")]
    ReadOnly,
    /// The array has been stopped, or is stopping.
    #[error("the array is stopped")]
    Stopped,
    /// The array is stopped, but counts as not cleanly stopped: a write failed on a member that it
    /// cannot do without, and may have reached others.
    #[error("stopped, but not clean: a write failed on a member that the array cannot do without")]
    NotClean,
    /// More members are lost than the level can bear, or the data cannot be regenerated.
    #[error("array byte {offset} cannot be read or written: too much is lost or unreadable")]
    Io {
        /// The first byte known to be concerned.
        offset: u64,
    },
    /// A member has no room left.
    #[error("a member has no room left")]
    NoSpace,
    /// The operation is not possible on this array.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// The system refused something that is no member's fault.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried, as a verb.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    /// Returns the errno that says this to a block device's client.
    #[must_use]
    pub fn errno(&self) -> i32 {
        use rustix::io::Errno;
        let errno = match self {
            Self::Member { source, .. } | Self::System { source, .. } => {
                return source.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
            }
            Self::UnsuitableMember { .. }
            | Self::Options(_)
            | Self::Assemble(_)
            | Self::TooLong { .. } => Errno::INVAL,
            Self::OutOfRange { .. } => Errno::INVAL,
            Self::QueueFull(_) => Errno::AGAIN,
            Self::Busy(_) => Errno::BUSY,
            Self::ReadOnly => Errno::ROFS,
            Self::Stopped => Errno::SHUTDOWN,
            Self::Io { .. } | Self::NotClean => Errno::IO,
            Self::NoSpace => Errno::NOSPC,
            Self::Unsupported(_) => Errno::OPNOTSUPP,
        };
        errno.raw_os_error()
    }

    /// Names the system call that failed.
    pub(crate) fn system(action: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::System { action, source: errno.into() }
    }
}

/// Lets a blocking caller treat the array like a file.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = Self::from_raw_os_error(error.errno()).kind();
        Self::new(kind, error)
    }
}
