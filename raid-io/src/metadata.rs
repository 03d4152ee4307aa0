//! Superblocks of a running array: kept in memory, changed by md's rules, written to every member.
//!
//! An update is one event: all members that take part get the same common fields, written and
//! flushed side by side. A member whose superblock cannot be made durable is handed back to the
//! engine, which declares it faulty and asks for the next update.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use raid_core::md::update::{Change, apply};
use raid_core::md::{MdTime, MdUuid, Superblock};
use raid_core::slots::SlotSet;
use raid_core::volume::{MetadataUpdate, Volume};

use crate::Error;
use crate::member::Member;
use crate::shared::{Desk, Shared};

/// The superblocks of all groups.
pub(crate) struct Metadata {
    groups: Vec<Mutex<GroupMetadata>>,
    /// The stripes over the groups of a nested array; written once, when it is made.
    pub(crate) outer: Option<Superblock>,
}

/// One md array's superblocks.
#[derive(Clone)]
pub(crate) struct GroupMetadata {
    /// For each slot, the superblock of the member that is in sync there.
    pub(crate) slots: Vec<Option<Superblock>>,
    /// Members that stand by or are being recovered: they take part in every update.
    pub(crate) others: Vec<(Member, Superblock)>,
    /// How far the redundancy was known to be right when the array was opened; `None`: everywhere.
    pub(crate) resynced_bytes: Option<u64>,
    /// The superblocks that are on the members said so when the array was opened.
    pub(crate) was_clean: bool,
    /// A newest superblock, for the common fields.
    pub(crate) newest: Superblock,
}

impl Metadata {
    pub(crate) fn new(groups: Vec<GroupMetadata>, outer: Option<Superblock>) -> Self {
        Self { groups: groups.into_iter().map(Mutex::new).collect(), outer }
    }

    /// Returns a copy of one group's superblocks.
    pub(crate) fn group(&self, group: usize) -> GroupMetadata {
        self.lock(group).clone()
    }

    /// Returns the identity that the whole array is known by.
    pub(crate) fn face(&self) -> Superblock {
        self.outer.clone().unwrap_or_else(|| self.lock(0).newest.clone())
    }

    fn lock(&self, group: usize) -> MutexGuard<'_, GroupMetadata> {
        self.groups[group].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes an update durable. Returns the slots whose superblock could not be written.
    ///
    /// Clean means that parity and copies match the data below `resynced_bytes`, `None` for all of
    /// it.
    pub(crate) fn write(
        &self,
        update: &MetadataUpdate,
        resynced_bytes: Option<u64>,
        volume: &Volume,
        members: &[Member],
    ) -> Result<SlotSet, Error> {
        let mut state = self.lock(update.group);
        let change =
            if update.dirty { Change::MarkDirty } else { Change::MarkClean { resynced_bytes } };
        state.apply(update.in_sync, change)?;
        let in_slots = state.slots.iter().enumerate().filter_map(|(slot, superblock)| {
            let member = members.get(volume.member_index(update.group, slot))?;
            Some((Some(slot), member, superblock.as_ref()?))
        });
        let others = state.others.iter().map(|(member, superblock)| (None, member, superblock));
        let targets: Vec<_> = in_slots.chain(others).collect();
        let failed: Vec<_> = thread::scope(|scope| {
            let writers: Vec<_> = targets
                .iter()
                .map(|(slot, member, superblock)| {
                    scope.spawn(move || {
                        write_superblock(member, superblock).err().map(|e| (*slot, e))
                    })
                })
                .collect();
            writers.into_iter().filter_map(|writer| writer.join().ok().flatten()).collect()
        });
        let mut slots = SlotSet::new();
        for (slot, error) in failed {
            tracing::warn!("superblock not written: {error}");
            if let Some(slot) = slot {
                slots.insert(slot);
            }
        }
        Ok(slots)
    }

    /// Makes an update durable on a thread of its own, for a queue that must not block.
    pub(crate) fn write_for(shared: &Arc<Shared>, desk: &Arc<Desk>, update: MetadataUpdate) {
        let work = {
            let (shared, desk, update) = (Arc::clone(shared), Arc::clone(desk), update.clone());
            move || {
                let failed = shared.update_metadata(&update);
                // Before the queue hears of it: who waits for the end may want the members next.
                drop(shared);
                desk.updated.push((update, failed));
                desk.signal();
            }
        };
        let thread = thread::Builder::new().name("uraid-metadata".into());
        if let Err(error) = thread.spawn(work) {
            tracing::warn!("cannot start a thread for superblocks: {error}");
            let failed = shared.update_metadata(&update);
            desk.updated.push((update, failed));
            desk.signal();
        }
    }
}

impl Shared {
    /// Makes an update durable. Returns the slots whose superblock could not be written.
    fn update_metadata(&self, update: &MetadataUpdate) -> SlotSet {
        let Some(metadata) = &self.metadata else { return SlotSet::new() };
        let members = self.members();
        metadata.write(update, None, &self.volume, &members).unwrap_or_else(|error| {
            tracing::error!("superblocks cannot be updated: {error}");
            update.in_sync
        })
    }
}

impl GroupMetadata {
    /// Makes the change in every superblock that takes part; members that left are faulty.
    fn apply(&mut self, in_sync: SlotSet, change: Change) -> Result<(), Error> {
        let mut changes = vec![change];
        for (slot, superblock) in self.slots.iter_mut().enumerate() {
            if in_sync.contains(slot) {
                continue;
            }
            if let Some(left) = superblock.take() {
                tracing::warn!("slot {slot}: in_sync -> faulty");
                changes.push(Change::Fail { dev_number: left.dev_number });
            }
        }
        let others = self.others.iter_mut().map(|(_, superblock)| superblock);
        let mut all: Vec<&mut Superblock> = self.slots.iter_mut().flatten().chain(others).collect();
        apply(&mut all, &changes, now()).map_err(|error| Error::Assemble(error.to_string()))?;
        if let Some(newest) = all.first() {
            self.newest = Superblock::clone(newest);
        }
        Ok(())
    }
}

/// Writes one superblock and makes it durable.
pub(crate) fn write_superblock(member: &Member, superblock: &Superblock) -> Result<(), Error> {
    member.write_range(superblock.super_offset_bytes(), superblock.encode().as_slice())?;
    member.flush()
}

/// Returns the time as md stores it.
pub(crate) fn now() -> MdTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    MdTime::new(since.as_secs(), since.subsec_micros())
}

/// Makes a random identity.
pub(crate) fn random_uuid() -> MdUuid {
    uuid::Uuid::new_v4().into()
}
