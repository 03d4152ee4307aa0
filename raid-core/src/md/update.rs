//! Changes of an array's state, as the next generation of its superblocks.
//!
//! One update: every common field of all superblocks becomes equal, `events` grows by exactly one, the
//! changes are made. It is durable when every superblock that takes part has been written and flushed;
//! a crash in between leaves some members one event behind, which [`crate::md::assemble`](mod@crate::md::assemble) decides about.

use crate::md::superblock::{Role, SuperblockError};
use crate::md::{MdTime, Superblock};

/// One change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Before the first write: the redundancy may not be trusted after a crash (`resync_offset` 0).
    MarkDirty,
    /// No write is outstanding. `resync_offset` becomes the given position in array sectors, or clean
    /// for `None`. (md keeps the position of an unfinished resync here.)
    MarkClean {
        /// How far an unfinished resync has come, in bytes of a member.
        resynced_bytes: Option<u64>,
    },
    /// A member has failed, or is given up: its role becomes [`Role::Faulty`].
    Fail {
        /// Its number.
        dev_number: u32,
    },
    /// A member gets a role: a spare is added, or starts to be recovered into a slot.
    SetRole {
        /// Its number.
        dev_number: u32,
        /// Its new role.
        role: Role,
    },
    /// How far a member that is being recovered is filled; `None` when it is in sync.
    Recovered {
        /// Its number.
        dev_number: u32,
        /// Bytes of its data area that are filled.
        recovered_bytes: Option<u64>,
    },
}

/// Applies `changes` to the superblocks of all members that will be written, as one update.
///
/// `superblocks` are those of the members that still take part, failed ones left out (a failed member
/// keeps its old superblock, so that everyone can see that it fell behind). The newest of them is the
/// truth for the common fields. Returns the new event count.
///
/// # Errors
///
/// [`SuperblockError::DevNumber`] for a member number that cannot be recorded.
pub fn apply(
    superblocks: &mut [&mut Superblock],
    changes: &[Change],
    now: MdTime,
) -> Result<u64, SuperblockError> {
    let _ = (superblocks, changes, now);
    unimplemented!()
}
