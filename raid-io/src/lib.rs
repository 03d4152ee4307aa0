//! RAID arrays for programs: open or make one, ask it through a queue, a blocking call or a future.
//!
//! ```text
//!  Operation + Buffer --> Queue --> raid_core::queue --> member I/O --> io_uring or preadv/pwritev
//!  Completion + Buffer <----'            '-- parity over the queue's own memory
//! ```
//!
//! An [`Array`] is shared by all threads; each thread makes itself a [`Queue`]. A queue never
//! blocks in [`Queue::poll`], sleeps in [`Queue::wait`] or on [`Queue::eventfd`], and hands every
//! buffer back with its completion.

mod array;
#[allow(dead_code, reason = "until the engine drives it")]
mod blocking;
mod buffer;
#[allow(dead_code, reason = "until the engine drives it")]
mod channel;
mod error;
#[allow(dead_code, reason = "until the engine drives it")]
mod file;
mod limits;
#[allow(dead_code, reason = "until the engine drives it")]
mod member;
mod options;
mod queue;
#[allow(dead_code, reason = "until the engine drives it")]
mod ring;
mod status;
#[cfg(test)]
mod testing;
#[allow(dead_code, reason = "until the engine drives it")]
mod transfer;

pub use array::Array;
pub use buffer::Buffer;
pub use error::Error;
pub use limits::{Extent, Limits};
pub use member::{MemberDevice, MemoryDevice};
pub use options::{Backend, CreateOptions, MemoryOptions, OpenOptions};
pub use queue::{Completion, Operation, Queue, Refused};
pub use status::{Detail, GroupStatus, MemberStatus, Statistics, Status};

/// The levels of an array or of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// One member after the other; read for rescue.
    Linear,
    /// Striped, no redundancy.
    Raid0,
    /// Mirrors.
    Raid1,
    /// Parity on the last slot.
    Raid4,
    /// Rotating parity.
    Raid5,
    /// Two rotating parities.
    Raid6,
    /// md's RAID 10: near, far and offset copies.
    Raid10,
}
