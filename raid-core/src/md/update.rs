//! Changes of an array's state, as the next generation of its superblocks.
//!
//! One update: every common field of all superblocks becomes equal, `events` grows by exactly one,
//! the changes are made. It is durable when every superblock that takes part has been written and
//! flushed; nothing that relies on it may happen before. A crash in between leaves some members one
//! event behind, which [`mod@crate::md::assemble`] decides about.
//!
//! ```text
//!   resync_offset   means                        set by
//!   u64::MAX        clean                        MarkClean { None }
//!   0               dirty                        MarkDirty
//!   n               clean, resync got to n       MarkClean { Some(n) }
//! ```

use alloc::vec::Vec;

use crate::md::superblock::{ALL_SECTORS, Features, Minor, Role, SuperblockError};
use crate::md::{MdTime, SECTOR_BYTES, Superblock};

/// One change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Before the first write: the redundancy may not be trusted after a crash.
    MarkDirty,
    /// No write is outstanding: the array becomes clean, or keeps the position of a resync that is
    /// not through yet.
    MarkClean {
        /// How far an unfinished resync has come, in the unit of
        /// [`Assembly::resynced_bytes`](crate::md::Assembly::resynced_bytes); `None` when there is
        /// none.
        resynced_bytes: Option<u64>,
    },
    /// A member has failed, or is given up.
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
    /// A member that is being recovered lacks only what the bitmap says.
    ByBitmap {
        /// Its number.
        dev_number: u32,
    },
    /// How far a member that is being recovered is filled; `None` when it is in sync.
    Recovered {
        /// Its number.
        dev_number: u32,
        /// Bytes of its data area that are filled.
        recovered_bytes: Option<u64>,
    },
    /// The log of a journal goes on somewhere else: see
    /// [`crate::md::journal::Replay::next_position`].
    JournalTail {
        /// The journal's number.
        dev_number: u32,
        /// Position of the first meta block in its ring.
        position_sectors: u64,
    },
}

/// Why an update cannot be made. Nothing has been changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// No superblock was given.
    #[error("an update needs at least one superblock")]
    Empty,
    /// A rule of the superblock.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// A recovery position for a member whose superblock was not given.
    #[error("member number {dev_number} does not take part in the update")]
    NotTakingPart {
        /// Its number.
        dev_number: u32,
    },
}

/// Applies `changes` to the superblocks of all members that will be written, as one update.
///
/// `superblocks` are those of the members that still take part, spares included and failed members
/// left out (a failed member keeps its old superblock, so that everyone can see that it fell
/// behind). The newest of them is the truth for the common fields. Any number that it lists as
/// active and that does not take part becomes faulty: who is listed as active has received the
/// update, or was about to. In version 0.90 a member that has been recovered changes its
/// `dev_number`. Returns the new event count.
///
/// # Errors
///
/// [`UpdateError`]; the superblocks are as they were.
pub fn apply(
    superblocks: &mut [&mut Superblock],
    changes: &[Change],
    now: MdTime,
) -> Result<u64, UpdateError> {
    // The first of the newest, so that equal ones decide by order; they say the same anyway.
    let newest = superblocks.iter().rev().max_by_key(|superblock| superblock.events);
    let next = newest.ok_or(UpdateError::Empty)?;
    let mut next = Superblock::clone(next);
    next.events += 1;
    next.updated = now;
    for change in changes {
        apply_common(&mut next, *change)?;
        if let Change::ByBitmap { dev_number } | Change::Recovered { dev_number, .. } = *change
            && !superblocks.iter().any(|superblock| superblock.dev_number == dev_number)
        {
            return Err(UpdateError::NotTakingPart { dev_number });
        }
    }
    let renumbered = renumber(&mut next, changes)?;
    let number_of = |superblock: &Superblock| {
        let own = superblock.dev_number;
        renumbered.iter().find(|pair| pair.0 == own).map_or(own, |pair| pair.1)
    };
    let number_count = next.roles().len() as u32;
    for dev_number in 0..number_count {
        let takes_part = superblocks.iter().any(|superblock| number_of(superblock) == dev_number);
        if !takes_part && matches!(next.role_of(dev_number), Role::Active(_)) {
            next.set_role(dev_number, Role::Faulty)?;
        }
    }
    for superblock in superblocks.iter_mut() {
        superblock.take_common(&next);
        changes.iter().for_each(|change| apply_own(superblock, *change));
        changes.iter().for_each(|change| list(superblock, *change));
        renumbered.iter().for_each(|pair| superblock.list_spare(pair.0, false));
        superblock.dev_number = number_of(superblock);
    }
    Ok(next.events)
}

/// In version 0.90, a member that has been recovered gets the number of its slot, and its old
/// number stands for nothing. Returns old and new numbers.
fn renumber(next: &mut Superblock, changes: &[Change]) -> Result<Vec<(u32, u32)>, SuperblockError> {
    let mut renumbered = Vec::new();
    for change in changes {
        let Change::Recovered { dev_number, recovered_bytes: None } = *change else { continue };
        let Role::Active(slot) = next.role_of(dev_number) else { continue };
        if next.minor == Minor::V0_90 && u32::from(slot) != dev_number {
            next.set_role(slot.into(), Role::Active(slot))?;
            next.set_role(dev_number, Role::Spare)?;
            renumbered.push((dev_number, slot.into()));
        }
    }
    Ok(renumbered)
}

/// Lists a new spare where roles alone do not tell.
fn list(superblock: &mut Superblock, change: Change) {
    if let Change::SetRole { dev_number, role: Role::Spare | Role::Active(_) } = change
        && dev_number >= superblock.slot_count
    {
        superblock.list_spare(dev_number, true);
    }
}

/// The part of a change that every superblock records.
fn apply_common(next: &mut Superblock, change: Change) -> Result<(), SuperblockError> {
    match change {
        Change::MarkDirty => next.resync_offset_sectors = 0,
        Change::MarkClean { resynced_bytes } => {
            next.resync_offset_sectors =
                resynced_bytes.map_or(ALL_SECTORS, |bytes| bytes / SECTOR_BYTES);
        }
        Change::Fail { dev_number } => next.set_role(dev_number, Role::Faulty)?,
        Change::SetRole { dev_number, role } => next.set_role(dev_number, role)?,
        Change::ByBitmap { .. } | Change::Recovered { .. } | Change::JournalTail { .. } => {}
    }
    Ok(())
}

/// The part of a change that only the member's own superblock records.
fn apply_own(superblock: &mut Superblock, change: Change) {
    if let Change::JournalTail { dev_number, position_sectors } = change
        && superblock.dev_number == dev_number
    {
        superblock.recovery_offset_sectors = position_sectors;
    }
    if let Change::ByBitmap { dev_number } = change
        && superblock.dev_number == dev_number
    {
        superblock.features.0 |= Features::RECOVERY_BITMAP;
    }
    let Change::Recovered { dev_number, recovered_bytes } = change else { return };
    if superblock.dev_number != dev_number {
        return;
    }
    match recovered_bytes {
        Some(bytes) => {
            superblock.features.0 |= Features::RECOVERY_OFFSET;
            superblock.features.0 &= !Features::RECOVERY_BITMAP;
            superblock.recovery_offset_sectors = bytes / SECTOR_BYTES;
        }
        None => {
            superblock.features.0 &=
                !(Features::RECOVERY_OFFSET | Features::RECOVERY_BITMAP | Features::REPLACEMENT);
            superblock.recovery_offset_sectors = 0;
        }
    }
}

impl Superblock {
    /// Takes the fields that are the same in every superblock of one generation.
    fn take_common(&mut self, next: &Self) {
        self.events = next.events;
        self.updated = next.updated;
        self.resync_offset_sectors = next.resync_offset_sectors;
        self.take_roles(next);
    }
}
