//! Deciding from the superblocks of some members what the array is, who belongs to it and in what state.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

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
    /// md's number of its layout.
    pub layout: u32,
    /// Chunk size in bytes; 0 when the level has none.
    pub chunk_bytes: u64,
    /// Used bytes of each member; 0 for level 0 and linear, where each uses its whole data area.
    pub component_bytes: u64,
    /// Event count of the newest superblocks.
    pub events: u64,
    /// How far the redundancy is known to be right, in bytes of a member: `None` for everywhere (clean).
    pub resynced_bytes: Option<u64>,
    /// What fills each slot; its length is the slot count.
    pub slots: Vec<SlotState>,
    /// Spares.
    pub spares: Vec<usize>,
    /// Members that must not be used, and why.
    pub rejected: Vec<Rejected>,
    /// The member whose superblock is the truth.
    pub newest: usize,
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
    /// `Some`: only the first so many bytes of the data area are filled; the rest must be recovered.
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

/// Why a member is left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RejectReason {
    /// Its superblock cannot be used.
    #[error("{0}")]
    Superblock(SuperblockError),
    /// The newest superblocks call it faulty.
    #[error("it was marked faulty: its event count is {events}, that of the array {newest_events}")]
    Faulty {
        /// Its events.
        events: u64,
        /// The array's.
        newest_events: u64,
    },
    /// It missed updates of the array.
    #[error("it is stale: its event count is {events}, that of the array {newest_events}")]
    Stale {
        /// Its events.
        events: u64,
        /// The array's.
        newest_events: u64,
    },
}

/// Why there is no array.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AssembleError {
    /// No candidate has a superblock.
    #[error("no member has a usable superblock")]
    NoSuperblock,
}

impl AssembleError {
    /// Whether [`AssembleOptions::force`] would go on.
    #[must_use]
    pub fn can_force(&self) -> bool {
        false
    }
}

/// Decides what the array is.
///
/// The result does not depend on the order of the candidates, except that it names them by index.
///
/// # Errors
///
/// [`AssembleError`], which names the members and slots concerned.
pub fn assemble(
    candidates: &[Candidate<'_>],
    options: AssembleOptions,
) -> Result<Assembly, AssembleError> {
    let _ = (candidates, options);
    unimplemented!()
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
