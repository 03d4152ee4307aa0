//! Why a member is left out, and why there is no array.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::md::superblock::WriteObstacle;
use crate::md::{MdUuid, SuperblockError};

/// Why a member is left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RejectReason {
    /// Its superblock cannot be used.
    #[error("{0}")]
    Superblock(SuperblockError),
    /// The newest superblocks call it faulty.
    #[error("it was marked faulty: its event count is {events}, the array's {newest_events}")]
    Faulty {
        /// Its events.
        events: u64,
        /// The array's.
        newest_events: u64,
    },
    /// The newest superblocks do not list it in the slot that it claims: it was removed or
    /// replaced.
    #[error(
        "it is no longer listed in slot {slot}: its event count is {events}, the array's \
            {newest_events}"
    )]
    Removed {
        /// The slot that it claims.
        slot: u16,
        /// Its events.
        events: u64,
        /// The array's.
        newest_events: u64,
    },
    /// It missed updates of the array.
    #[error("it is stale: its event count is {events}, the array's {newest_events}")]
    Stale {
        /// Its events.
        events: u64,
        /// The array's.
        newest_events: u64,
    },
    /// It is being filled to replace the member in a slot that is still there.
    #[error("it is an unfinished replacement for slot {slot}")]
    Replacement {
        /// The slot.
        slot: u16,
    },
    /// A journal that cannot be used.
    #[error("it is a journal")]
    Journal,
    /// A journal that missed updates of the array, or is not listed as the journal any more.
    #[error("it is a stale journal: its event count is {events}, the array's {newest_events}")]
    StaleJournal {
        /// Its events.
        events: u64,
        /// The array's.
        newest_events: u64,
    },
}

/// Something that an array uses and this engine does not know how to treat yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsupported {
    /// Members with a list of bad blocks.
    BadBlocks,
    /// A write-intent bitmap on an array that has to be written, or was not stopped cleanly.
    Bitmap,
    /// A clustered array.
    Cluster,
    /// A journal member.
    Journal,
    /// A partial parity log on an array that has to be written, or was not stopped cleanly.
    Ppl,
    /// A reshape under way.
    Reshape,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BadBlocks => "a non-empty bad-block list",
            Self::Bitmap => "a write-intent bitmap",
            Self::Cluster => "clustering",
            Self::Journal => "a journal",
            Self::Ppl => "a partial parity log",
            Self::Reshape => "an unfinished reshape",
        })
    }
}

/// Why there is no array. Members are called by the names of their candidates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AssembleError {
    /// No candidate has a superblock that can be used.
    #[error("no member has a usable superblock{}", Details(reasons))]
    NoSuperblock {
        /// Each candidate and why.
        reasons: Vec<(String, SuperblockError)>,
    },
    /// Members of different arrays.
    #[error("{first} belongs to array {first_uuid}, {second} to array {second_uuid}")]
    DifferentArrays {
        /// One member.
        first: String,
        /// Its array.
        first_uuid: MdUuid,
        /// Another member.
        second: String,
        /// Its array.
        second_uuid: MdUuid,
    },
    /// One member offered twice: a copy, or two paths to one device.
    #[error("{first} and {second} are the same member, {device_uuid}: one is a copy of the other")]
    DuplicateDevice {
        /// One.
        first: String,
        /// The other.
        second: String,
        /// The identity that both claim.
        device_uuid: MdUuid,
    },
    /// Two current members claim one slot, or one member number.
    #[error("{first} and {second} both claim slot {slot}")]
    DuplicateSlot {
        /// One.
        first: String,
        /// The other.
        second: String,
        /// The slot.
        slot: u16,
    },
    /// Superblocks of one generation that do not say the same.
    #[error("{first} and {second} have the same event count {events}, but disagree about {what}")]
    Disagreement {
        /// One.
        first: String,
        /// The other.
        second: String,
        /// Their events.
        events: u64,
        /// The field.
        what: &'static str,
    },
    /// Two halves were written apart.
    #[error(
        "{stale} went on without {current}: the array was written in two halves, leave one of \
            them out"
    )]
    SplitBrain {
        /// A member of the newer half.
        current: String,
        /// A member of the older half.
        stale: String,
    },
    /// More slots are missing than the level can bear.
    #[error(
        "slots {} of {slot_count} are missing or not in sync, which level {level} cannot bear{}",
        Slots(missing),
        Details(rejected)
    )]
    TooManyMissing {
        /// Those slots.
        missing: Vec<usize>,
        /// How many there are.
        slot_count: usize,
        /// md's number of the level.
        level: i32,
        /// Members that were left out, and why.
        rejected: Vec<(String, RejectReason)>,
        /// Whether enough stale members are there that force would start it.
        can_force: bool,
    },
    /// The array was not stopped cleanly, and slots are missing: regenerated data may be wrong.
    #[error(
        "the array was not stopped cleanly and slots {} are missing or not in sync, so \
            regenerated data may be wrong{}",
        Slots(missing),
        Details(rejected)
    )]
    DirtyDegraded {
        /// Those slots.
        missing: Vec<usize>,
        /// Members that were left out, and why.
        rejected: Vec<(String, RejectReason)>,
    },
    /// Something that this engine cannot do yet.
    #[error("the array uses {what}, which is not supported yet{}", if *can_read { "; it can be \
        opened read-only" } else { "" })]
    Unsupported {
        /// What.
        what: Unsupported,
        /// Whether read-only access would do.
        can_read: bool,
    },
    /// The journal is missing or stale; it may hold data that is nowhere else.
    #[error(
        "the journal is missing{}, so writes may be lost that were acknowledged{}",
        Details(rejected),
        if *is_forced { "; without it the array can only be opened read-only" } else { "" }
    )]
    JournalMissing {
        /// Members that were left out, and why.
        rejected: Vec<(String, RejectReason)>,
        /// Whether force was used already: then read-only access would do.
        is_forced: bool,
    },
    /// A superblock that must not be written back.
    #[error("{name} can only be used read-only: {obstacle}")]
    WriteObstacle {
        /// Which member.
        name: String,
        /// Why.
        obstacle: WriteObstacle,
    },
}

impl AssembleError {
    /// Whether [`AssembleOptions::force`](super::AssembleOptions::force) would go on.
    #[must_use]
    pub fn can_force(&self) -> bool {
        match self {
            Self::DirtyDegraded { .. } | Self::SplitBrain { .. } => true,
            Self::JournalMissing { is_forced, .. } => !is_forced,
            Self::TooManyMissing { can_force, .. } => *can_force,
            _ => false,
        }
    }
}

/// `1 and 3`, `0, 1 and 3`.
struct Slots<'a>(&'a [usize]);

impl fmt::Display for Slots<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, slot) in self.0.iter().enumerate() {
            let separator = match index {
                0 => "",
                _ if index + 1 == self.0.len() => " and ",
                _ => ", ",
            };
            write!(f, "{separator}{slot}")?;
        }
        Ok(())
    }
}

/// `; NAME: REASON` for each member.
struct Details<'a, R>(&'a [(String, R)]);

impl<R: fmt::Display> fmt::Display for Details<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, reason) in self.0 {
            write!(f, "; {name}: {reason}")?;
        }
        Ok(())
    }
}
