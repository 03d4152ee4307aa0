//! A member that still works is copied to its successor.
//!
//! ```text
//! in sync --+-- replace --> in sync + replacement --- filled ---> the replacement is the member
//!           |                 |                                   (the other one is faulty)
//!           |                 '- the member fails: the replacement is recovered to the end
//!           '-- the replacement fails: nothing has happened
//! ```

use std::path::Path;

use raid_core::md::Superblock;
use raid_core::md::superblock::{Minor, Role};

use super::{Entry, same, unknown};
use crate::Error;
use crate::member::Member;
use crate::shared::Shared;

impl Shared {
    /// Begins to replace a member that is in sync by a spare: `with`, which is taken in if it is
    /// none yet, or whichever there is.
    pub(crate) fn replace(&self, member: &Path, with: Option<&Path>) -> Result<(), Error> {
        self.check_writable()?;
        let no_superblocks = "arrays without superblocks replace nobody";
        let metadata = self.metadata.as_ref().ok_or(Error::Unsupported(no_superblocks))?;
        let (group, slot, index) = self.find_in_slot(member).ok_or_else(|| unknown(member))?;
        let unsuited = |reason: &str| Error::UnsuitableMember {
            path: member.to_owned(),
            reason: reason.to_owned(),
        };
        self.check_replaceable(group, slot, index).map_err(unsuited)?;
        if metadata.lock(group).newest.minor == Minor::V0_90 {
            return Err(unsuited("superblocks of version 0.90 have no room for a replacement"));
        }
        let is_wanted = |spare: &Member| with.is_none_or(|with| same(spare.name(), with));
        let is_spare = |(spare, superblock): &(Member, Superblock)| {
            superblock.role() == Role::Spare && is_wanted(spare)
        };
        if let Some(with) = with
            && !metadata.lock(group).others.iter().any(is_spare)
        {
            self.add(with, false)?;
        }
        let turn = metadata.turn(group);
        // Somebody may have been faster.
        self.check_replaceable(group, slot, index).map_err(unsuited)?;
        let mut state = metadata.lock(group);
        let Some(at) = state.others.iter().position(is_spare) else {
            return Err(match with {
                Some(with) => Error::UnsuitableMember {
                    path: with.to_owned(),
                    reason: format!("is no spare of the group of {}", member.display()),
                },
                None => unsuited("there is no spare to replace it by"),
            });
        };
        let (spare, superblock) = state.others.remove(at);
        drop(state);
        let name = spare.name().to_owned();
        let kept = (spare.clone(), superblock.clone());
        let joined = self.join(group, slot, spare, superblock, Entry::Replace { recovered: 0 });
        if joined.is_err() {
            metadata.lock(group).others.push(kept);
        }
        drop(turn);
        joined?;
        tracing::info!("{}: is to replace {} in slot {slot}", name.display(), member.display());
        self.volume.request_update(group);
        self.record(group)?;
        self.bell.ring();
        Ok(())
    }

    fn check_replaceable(&self, group: usize, slot: usize, index: usize) -> Result<(), &str> {
        if self.volume.replacement_index(group, slot).is_some() {
            Err("it is being replaced already")
        } else if !self.volume.in_sync(group).contains(slot)
            || self.volume.member_index(group, slot) != index
        {
            Err("it is not in sync; a spare will step in for it when it is failed")
        } else {
            Ok(())
        }
    }

    /// Goes on with replacements that a stop or a crash has left unfinished.
    pub(crate) fn resume_replacements(&self) {
        let Some(metadata) = self.metadata.as_ref().filter(|_| !self.limits.read_only) else {
            return;
        };
        for group in 0..self.volume.group_count() {
            let unfinished = std::mem::take(&mut metadata.lock(group).unfinished);
            for (slot, member, superblock) in unfinished {
                let name = member.name().to_owned();
                let recovered = self.recovered_of(group, &superblock);
                let turn = metadata.turn(group);
                let entry = Entry::Replace { recovered };
                let joined = self.join(group, slot, member, superblock, entry);
                drop(turn);
                match joined {
                    Ok(()) => {
                        tracing::info!("{}: goes on replacing slot {slot}", name.display());
                        self.volume.request_update(group);
                    }
                    Err(error) => tracing::warn!("slot {slot} is not replaced: {error}"),
                }
            }
        }
    }

    /// Group bytes that a replacement holds by its superblock. After an unclean stop it may have
    /// got other halves of the writes that were under way than the member that it copies.
    fn recovered_of(&self, group: usize, superblock: &Superblock) -> u64 {
        if !self.volume.is_trusted(group) {
            return 0;
        }
        let unit = self.volume.resync_unit(group);
        let position = superblock.recovered_bytes().unwrap_or(0);
        crate::walk::recovered_group_bytes(self.volume.geometry(group), position, unit)
    }
}
