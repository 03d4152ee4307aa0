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
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod allocation;
mod array;
mod r#async;
mod background;
mod bad_blocks;
mod bitmap;
mod blocking;
mod buffer;
mod calls;
mod channel;
mod create;
mod deadline;
mod error;
mod file;
mod limits;
mod logs;
mod member;
mod members;
mod membership;
mod memory;
mod metadata;
mod open;
mod options;
mod queue;
mod ring;
mod shared;
mod start;
mod status;
#[cfg(test)]
mod testing;
mod transfer;
mod upkeep;
mod volatile;
mod walk;

pub use array::Array;
pub use r#async::AsyncArray;
pub use buffer::Buffer;
pub use error::Error;
pub use limits::{Extent, Limits};
pub use member::{MemberDevice, MemoryDevice};
pub use members::{MemberQueue, Members};
pub use options::{
    Added, Backend, BitmapChoice, CreateOptions, MemoryOptions, MetadataVersion, OpenOptions,
};
pub use queue::{Completion, Operation, Queue, Refused};
pub use raid_core::layout::Level;
pub use raid_core::request::Repair;
pub use status::{BitmapStatus, Detail, GroupStatus, MemberStatus, Statistics, Status};
