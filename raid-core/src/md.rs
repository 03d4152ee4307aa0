//! Linux md's on-disk metadata, as pure functions over byte slices.
//!
//! ```text
//!   bytes of a member --superblock::decode--> Superblock --assemble--> Assembly (who is what)
//!   its logs          --bitmap, ppl, journal, bad_blocks-------------> what to repair first
//!   sizes and wishes  --create::plan--------> Superblock per member --encode--> 4096 bytes each
//!   Superblocks       --update::apply-------> the same, one event later
//!   head and tail     --signature::probe----> whose data this may be
//! ```
//!
//! Invariants of everything below:
//!
//! - No I/O, no clock, no randomness: bytes, times and uuids are arguments.
//! - Nothing read from a member is trusted: a decoded [`Superblock`] has been through every check
//!   of [`superblock`], its offsets are inside its member and its areas do not overlap.
//! - What this code does not understand it carries along unchanged, and refuses to write to.
//! - Names ending in `_sectors` are md's 512-byte sectors, names ending in `_bytes` are bytes.
//!
//! The byte table is docs/format.md. Tests: `tests/md`, against images that mdadm and the
//! kernel made.

pub mod assemble;
pub mod bad_blocks;
pub mod bitmap;
mod bits;
mod crc;
pub mod create;
#[doc(hidden)]
pub mod fuzz;
mod id;
pub mod journal;
pub mod ppl;
mod redundancy;
pub mod regions;
pub mod signature;
pub mod superblock;
pub mod update;

pub use assemble::{AssembleError, Assembly, Candidate, assemble};
pub use id::{MdTime, MdUuid, ParseUuidError};
pub use superblock::{Superblock, SuperblockError};

/// Bytes in a sector, always.
pub const SECTOR_BYTES: u64 = 512;
