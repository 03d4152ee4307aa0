//! Deciding from the superblocks of some members what the array is, who belongs to it and in what
//! state.
//!
//! # Who is current
//!
//! An update gives every superblock that takes part the same next event count, and nothing that
//! relies on it happens before it is durable on all of them: no write is acknowledged over a failed
//! member whose failure is not recorded, no write is sent before the dirty mark is down. So:
//!
//! - The superblocks with the highest event count are the *newest*; their role tables are the
//!   truth. When they do not agree with each other, two halves were written apart: refused.
//! - A member with that event count is current, in the role that the tables give it.
//! - A member exactly **one** event behind is current if the newest tables list its number as
//!   active in the slot that it claims itself, and if it calls no current member faulty. The last
//!   update did not reach it, and whatever that update was (dirty, clean, somebody else's failure
//!   or arrival), no write relied on it yet: had its own write failed, the next update would have
//!   listed it as faulty. This is a crash between two superblock writes.
//! - The distance alone is never enough: a member whose number the newest tables call faulty, spare
//!   or something else is out even one event behind (md once let such a member back in, and parity
//!   was rewritten to match stale data).
//! - Two or more events behind is stale, whatever the tables say. Tables that list such a member as
//!   active were written without it being told twice: that does not happen in an orderly life.
//! - A member that is out, but whose own tables go on with none of the current members while a slot
//!   of theirs stands empty there, went on alone: split brain, refused.
//!
//! `force` lets as many stale members back in as the array cannot do without, newest first.
//!
//! # Logs
//!
//! What the members say in their logs is looked at after this decision, and only on members that
//! are current: [`crate::md::bitmap::believe`], [`crate::md::ppl::recover`],
//! [`crate::md::journal::scan`], [`crate::md::bad_blocks::BadBlocks::decode`]. Here it is decided
//! whether they can be done without.
//!
//! - A journal holds data that may be nowhere else, even when the array is clean. Without the
//!   current journal the array is refused; by force it can be read (the kernel forces it
//!   read-only).
//! - A partial parity log makes a dirty and degraded RAID 5 safe to start for writing: recovery
//!   says which blocks are lost.
//!
//! # What is not decided here
//!
//! Nothing is written. The first update ([`crate::md::update::apply`]) of an array that was
//! assembled with members left out lists them as faulty.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

mod decide;
mod error;

pub use decide::{assemble, went_on_without};
pub use error::{AssembleError, RejectReason, Unsupported};

use crate::md::superblock::LogArea;
use crate::md::{MdUuid, Superblock, SuperblockError};

/// A member offered for assembly.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// How messages call it: its path.
    pub name: &'a str,
    /// Its size.
    pub member_bytes: u64,
    /// What its superblock says, or why it says nothing.
    pub superblock: Result<&'a Superblock, &'a SuperblockError>,
}

/// What is wanted of the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads alone: no member will be written, not even its superblock.
    ReadOnly,
    /// Reads and writes.
    ReadWrite,
}

/// How to assemble.
#[derive(Clone, Copy, Debug)]
pub struct AssembleOptions {
    /// What is wanted.
    pub access: Access,
    /// Take the risks that are named by [`AssembleError::can_force`].
    pub force: bool,
    /// What the caller does about logs.
    pub abilities: Abilities,
}

/// Which of an array's logs the caller reads, honours and keeps. An array that needs one which the
/// caller does not, is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// Write-intent bitmaps ([`crate::md::bitmap`]). Without: arrays that were stopped cleanly can
    /// be written, which lets their bitmaps fall behind, so that nobody believes them.
    pub bitmap: bool,
    /// Bad-block logs ([`crate::md::bad_blocks`]).
    pub bad_blocks: bool,
    /// Partial parity logs ([`crate::md::ppl`]).
    pub ppl: bool,
    /// Journals ([`crate::md::journal`]).
    pub journal: bool,
}

impl Abilities {
    /// No logs at all.
    pub const NONE: Self = Self { bitmap: false, bad_blocks: false, ppl: false, journal: false };
    /// All of them.
    pub const ALL: Self = Self { bitmap: true, bad_blocks: true, ppl: true, journal: true };
}

/// What makes the redundancy right again after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// A resync of everything.
    Resync,
    /// A resync of what the write-intent bitmap says.
    Bitmap,
    /// The partial parity logs: see [`crate::md::ppl::recover`].
    Ppl,
    /// The journal, which has to be looked at even when the array is clean: see
    /// [`crate::md::journal`].
    Journal,
}

/// The array, decided.
///
/// Members are named by their index among the candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembly {
    /// Identity of the array.
    pub array_uuid: MdUuid,
    /// Its name.
    pub name: String,
    /// md's number of its level.
    pub level: i32,
    /// md's number of its layout; 0 where it means nothing, and for a RAID 0 that does not say.
    pub layout: u32,
    /// Chunk size in bytes; 0 when the level has none.
    pub chunk_bytes: u64,
    /// Used bytes of each member; 0 for level 0 and linear, where each uses its whole data area.
    pub component_bytes: u64,
    /// The array must not be offered with a smaller logical block size; 0 when nothing is said.
    pub logical_block_bytes: u32,
    /// Event count of the newest superblocks.
    pub events: u64,
    /// How far the redundancy is known to be right: `None` for everywhere (clean). In bytes of a
    /// member's data area for levels 1, 4, 5 and 6, in bytes of the array for level 10, as md
    /// counts.
    pub resynced_bytes: Option<u64>,
    /// What fills each slot; its length is the slot count.
    pub slots: Vec<SlotState>,
    /// Spares.
    pub spares: Vec<usize>,
    /// Members that must not be used, and why.
    pub rejected: Vec<Rejected>,
    /// The member whose superblock is the truth.
    pub newest: usize,
    /// Members that are in their slots by force alone: their content may be old.
    pub forced: Vec<usize>,
    /// The write-intent bitmap, relative to each member's superblock.
    pub bitmap: Option<LogArea>,
    /// What there is to do after a crash (when [`resynced_bytes`](Self::resynced_bytes) is `Some`).
    pub consistency: Consistency,
    /// The journal, index among the candidates.
    pub journal: Option<usize>,
    /// Things the user should read.
    pub warnings: Vec<String>,
}

/// What fills a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Nothing.
    Missing,
    /// A member.
    Member(SlotMember),
}

/// A member in its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotMember {
    /// Index among the candidates.
    pub member: usize,
    /// Its permanent number.
    pub dev_number: u32,
    /// Its data area, in bytes of the member.
    pub data: Range<u64>,
    /// `Some`: only the first so many bytes of the data area are filled; the rest must be
    /// recovered.
    pub recovered_bytes: Option<u64>,
    /// Read from it only when there is no other (write-mostly).
    pub is_write_mostly: bool,
}

/// A member that is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Index among the candidates.
    pub member: usize,
    /// Why.
    pub reason: RejectReason,
}

/// The members of one array among many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayMembers {
    /// The array.
    pub array_uuid: MdUuid,
    /// Indexes among the candidates, ascending.
    pub members: Vec<usize>,
}

/// Splits candidates by the array they belong to, in the order in which arrays appear first.
///
/// For nested arrays (RAID 50, 60): split the members, assemble each inner array, read the outer
/// superblock through each inner one, and split and assemble those in the same way. Candidates
/// without a superblock belong to no array and are left out.
#[must_use]
pub fn split_by_array(candidates: &[Candidate<'_>]) -> Vec<ArrayMembers> {
    let mut arrays: Vec<ArrayMembers> = Vec::new();
    for (member, candidate) in candidates.iter().enumerate() {
        let Ok(superblock) = candidate.superblock else { continue };
        match arrays.iter_mut().find(|array| array.array_uuid == superblock.array_uuid) {
            Some(array) => array.members.push(member),
            None => arrays.push(ArrayMembers {
                array_uuid: superblock.array_uuid,
                members: alloc::vec![member],
            }),
        }
    }
    arrays
}
