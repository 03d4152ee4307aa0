//! Superblocks of a running array: kept in memory, changed by md's rules, written to every member.
//!
//! An update is one event: all members that take part get the same common fields, written and
//! flushed side by side. A member whose superblock cannot be made durable is handed back to the
//! engine, which declares it faulty and asks for the next update.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use raid_core::md::superblock::Role;
use raid_core::md::update::{Change, apply};
use raid_core::md::{MdTime, MdUuid, Superblock};
use raid_core::slots::SlotSet;
use raid_core::volume::{MetadataUpdate, Volume};

use crate::Error;
use crate::bitmap::Bitmap;
use crate::logs::Paused;
use crate::member::Member;
use crate::shared::{Desk, Shared};
use crate::walk::recovery_position;

/// The superblocks of all groups.
pub(crate) struct Metadata {
    groups: Vec<Mutex<GroupMetadata>>,
    /// Each group's bitmap; taken after the group's own lock.
    bitmaps: Vec<Mutex<Option<Bitmap>>>,
    /// Writes of bitmap blocks to members.
    bitmap_writes: AtomicU64,
    /// The stripes over the groups of a nested array; written once, when it is made.
    pub(crate) outer: Option<Superblock>,
}

/// One md array's superblocks.
#[derive(Clone)]
pub(crate) struct GroupMetadata {
    /// For each slot, the superblock of the member that is in sync there, or is being recovered.
    pub(crate) slots: Vec<Option<Superblock>>,
    /// Members that stand by: they take part in every update.
    pub(crate) others: Vec<(Member, Superblock)>,
    /// How far the redundancy was known to be right when the array was opened; `None`: everywhere.
    pub(crate) resynced_bytes: Option<u64>,
    /// The superblocks that are on the members said so when the array was opened.
    pub(crate) was_clean: bool,
    /// A newest superblock, for the common fields.
    pub(crate) newest: Superblock,
    /// Members that were given and take no part.
    pub(crate) left_out: Vec<LeftOut>,
    /// Numbers that were given out and that no superblock lists yet.
    pub(crate) newcomers: Vec<u32>,
    /// Numbers of spares that were taken for broken and are not recorded as that yet.
    pub(crate) given_up: Vec<u32>,
    /// A log that rests while the array is open.
    pub(crate) paused: Option<Paused>,
    /// The bitmap, until the array has started.
    pub(crate) bitmap: Option<Bitmap>,
}

/// A member that was given and takes no part.
#[derive(Clone)]
pub(crate) struct LeftOut {
    pub(crate) member: Member,
    /// Its permanent number, as far as it has a superblock.
    pub(crate) number: Option<u32>,
    /// The others call it faulty.
    pub(crate) is_faulty: bool,
    pub(crate) reason: String,
}

impl Metadata {
    pub(crate) fn new(mut groups: Vec<GroupMetadata>, outer: Option<Superblock>) -> Self {
        let bitmaps = groups.iter_mut().map(|group| Mutex::new(group.bitmap.take())).collect();
        let groups = groups.into_iter().map(Mutex::new).collect();
        Self { groups, bitmaps, bitmap_writes: AtomicU64::new(0), outer }
    }

    /// Looks at a group's bitmap, if it has one.
    pub(crate) fn with_bitmap<T>(
        &self,
        group: usize,
        look: impl FnOnce(&Bitmap) -> T,
    ) -> Option<T> {
        self.bitmap(group).as_ref().map(look)
    }

    /// Returns how often bitmap blocks were written to a member.
    pub(crate) fn bitmap_writes(&self) -> u64 {
        self.bitmap_writes.load(Ordering::Relaxed)
    }

    fn bitmap(&self, group: usize) -> MutexGuard<'_, Option<Bitmap>> {
        self.bitmaps[group].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a copy of one group's superblocks.
    pub(crate) fn group(&self, group: usize) -> GroupMetadata {
        self.lock(group).clone()
    }

    /// Returns the identity that the whole array is known by.
    pub(crate) fn face(&self) -> Superblock {
        self.outer.clone().unwrap_or_else(|| self.lock(0).newest.clone())
    }

    /// Locks one group's superblocks: no update is made meanwhile.
    pub(crate) fn lock(&self, group: usize) -> MutexGuard<'_, GroupMetadata> {
        self.groups[group].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a group's whole bitmap to a member that is about to join.
    ///
    /// # Errors
    /// Returns an error if it cannot be written, or has no room there.
    pub(crate) fn copy_bitmap(
        &self,
        group: usize,
        member: &Member,
        superblock: &Superblock,
    ) -> Result<(), Error> {
        let bitmap = self.bitmap(group);
        bitmap.as_ref().map_or(Ok(()), |bitmap| bitmap.write_whole(member, superblock))
    }

    /// Puts a log that rested back into the superblocks in memory. Returns whether they must be
    /// written for that.
    pub(crate) fn resume_log(&self, group: usize) -> bool {
        self.lock(group).resume_log()
    }

    /// Writes the bad-block logs that say too much. What was written to the members is durable.
    ///
    /// # Errors
    /// Returns an error if one cannot be written.
    pub(crate) fn store_bad_blocks(
        &self,
        group: usize,
        volume: &Volume,
        members: &[Member],
    ) -> Result<(), Error> {
        let mut state = self.lock(group);
        for (slot, superblock) in state.slots.iter_mut().enumerate() {
            let member = members.get(volume.member_index(group, slot));
            let bad = member.and_then(|member| Some((member, member.bad_ranges()?)));
            if let (Some((member, bad)), Some(superblock)) = (bad, superblock) {
                bad.store(member, superblock)?;
            }
        }
        Ok(())
    }

    /// Makes an update durable: on each member the bitmap first, then the superblock. Returns the
    /// slots of which one could not be written.
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
        let mut bitmap = self.bitmap(update.group);
        if update.superblocks {
            let change =
                if update.dirty { Change::MarkDirty } else { Change::MarkClean { resynced_bytes } };
            // Before the flush: what is filled later is not stable by it.
            let filled: Vec<u64> =
                (0..state.slots.len()).map(|slot| volume.recovered(update.group, slot)).collect();
            let failed = flush_before(update, &state, volume, members);
            if !failed.is_empty() {
                // They leave first; then there is another update to make.
                return Ok(failed);
            }
            state.apply(update, change, &filled, volume, members)?;
            state.note_recorded();
        }
        let mut ranges = Vec::new();
        if let Some(bitmap) = bitmap.as_mut() {
            if let Some(intent) = &update.intent {
                bitmap.apply(intent);
            }
            if update.superblocks {
                let is_whole = update.in_sync.len() == state.slots.len();
                bitmap.set_events(state.newest.events, is_whole);
            }
            ranges = bitmap.take_changed();
        }
        let in_slots = state.slots.iter().enumerate().filter_map(|(slot, superblock)| {
            let member = members.get(volume.member_index(update.group, slot))?;
            let superblock = superblock.as_ref()?;
            Some((Some(slot), member, superblock))
        });
        let others = state.others.iter().map(|(member, superblock)| (None, member, superblock));
        let targets: Vec<_> = in_slots.chain(others).collect();
        let write_one = |slot: Option<usize>, member: &Member, superblock: &Superblock| {
            let counts = slot.is_some() && !ranges.is_empty();
            if let Some(bitmap) = bitmap.as_ref().filter(|_| counts) {
                bitmap.write(member, superblock, &ranges)?;
                self.bitmap_writes.fetch_add(ranges.len() as u64, Ordering::Relaxed);
            }
            if update.superblocks { write_superblock(member, superblock) } else { Ok(()) }
        };
        let failed: Vec<_> = thread::scope(|scope| {
            let write_one = &write_one;
            let start = |&(slot, member, superblock): &(_, _, _)| {
                scope.spawn(move || write_one(slot, member, superblock).err().map(|e| (slot, e)))
            };
            let writers: Vec<_> = targets.iter().map(start).collect();
            writers.into_iter().filter_map(|writer| writer.join().ok().flatten()).collect()
        });
        let mut slots = SlotSet::new();
        for (slot, error) in failed {
            tracing::warn!("metadata not written: {error}");
            if let Some(slot) = slot {
                slots.insert(slot);
            }
        }
        Ok(slots)
    }

    /// Makes an update durable on a thread of its own, for a queue that must not block.
    ///
    /// The end is told to the volume, and every queue is woken: the one that took the update over
    /// may have nothing more to do, and nobody polls it, while others wait.
    pub(crate) fn write_for(shared: &Arc<Shared>, desk: &Arc<Desk>, update: MetadataUpdate) {
        let work = {
            let (shared, desk, update) = (Arc::clone(shared), Arc::clone(desk), update.clone());
            move || Self::finish(shared, &desk, &update)
        };
        let thread = thread::Builder::new().name("uraid-metadata".into());
        if let Err(error) = thread.spawn(work) {
            tracing::warn!("cannot start a thread for superblocks: {error}");
            Self::finish(Arc::clone(shared), desk, &update);
        }
    }

    fn finish(shared: Arc<Shared>, desk: &Desk, update: &MetadataUpdate) {
        let failed = shared.update_metadata(update);
        let (volume, desks) = (Arc::clone(&shared.volume), shared.desks());
        let bell = Arc::clone(&shared.bell);
        // Before any queue hears of it: who waits for the end may want the members next.
        drop(shared);
        volume.handle_metadata(update, &failed);
        if update.superblocks {
            bell.ring();
        }
        desk.updated.fetch_add(1, Ordering::AcqRel);
        for desk in desks {
            desk.woken.store(true, Ordering::Release);
            desk.signal();
        }
    }
}

impl Shared {
    /// Makes an update durable. Returns the slots of which it could not be.
    fn update_metadata(&self, update: &MetadataUpdate) -> SlotSet {
        let Some(metadata) = &self.metadata else { return SlotSet::new() };
        let members = self.members();
        let resynced_bytes = self.resynced_bytes(update.group);
        let written = metadata.write(update, resynced_bytes, &self.volume, &members);
        written.unwrap_or_else(|error| {
            tracing::error!("superblocks cannot be updated: {error}");
            update.in_sync
        })
    }

    /// Carries out what must become durable, from a thread without a queue. Blocks.
    pub(crate) fn update_now(&self) {
        while let Some(update) = self.volume.poll_metadata() {
            let failed = self.update_metadata(&update);
            let woken = self.volume.handle_metadata(&update, &failed);
            (0..u32::BITS as usize)
                .filter(|queue| woken >> queue & 1 == 1)
                .for_each(|q| self.wake(q));
        }
    }
}

impl GroupMetadata {
    /// Makes the change in every superblock that takes part; members that left are faulty.
    fn apply(
        &mut self,
        update: &MetadataUpdate,
        change: Change,
        filled: &[u64],
        volume: &Volume,
        members: &[Member],
    ) -> Result<(), Error> {
        let mut changes = vec![change];
        // Who has joined since the update was made is no less there.
        let recovering = update.recovering.union(volume.recovering(update.group));
        for (slot, superblock) in self.slots.iter_mut().enumerate() {
            let Some(own) = superblock else { continue };
            let dev_number = own.dev_number;
            let geometry = volume.geometry(update.group);
            if update.in_sync.contains(slot) {
                if own.recovered_bytes().is_some() {
                    changes.push(Change::Recovered { dev_number, recovered_bytes: None });
                }
            } else if recovering.contains(slot) {
                let role = Role::Active(slot as u16);
                // Its own superblock may be from before it left.
                if own.role() != role || self.newest.role_of(dev_number) != role {
                    changes.push(Change::SetRole { dev_number, role });
                }
                let by_bitmap = volume.is_by_bitmap(update.group, slot);
                let position = recovery_position(geometry, filled[slot]);
                let recovered_bytes = Some(if by_bitmap { 0 } else { position });
                changes.push(Change::Recovered { dev_number, recovered_bytes });
                if by_bitmap {
                    changes.push(Change::ByBitmap { dev_number });
                }
            } else if let Some(left) = superblock.take() {
                let member = members.get(volume.member_index(update.group, slot));
                let name = member.map(|m| m.name().display().to_string()).unwrap_or_default();
                tracing::warn!("{name}: slot {slot}: in_sync -> faulty");
                changes.push(Change::Fail { dev_number: left.dev_number });
                self.left_out.extend(member.map(|member| LeftOut {
                    member: member.clone(),
                    number: Some(left.dev_number),
                    is_faulty: true,
                    reason: format!("it left slot {slot} while the array ran"),
                }));
            }
        }
        for dev_number in self.given_up.drain(..) {
            changes.push(Change::Fail { dev_number });
        }
        for dev_number in self.newcomers.drain(..) {
            changes.push(Change::SetRole { dev_number, role: Role::Spare });
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

/// Makes stable what the superblocks are about to say: that nothing is under way, how far a member
/// is filled, that it is filled. Returns the slots whose member cannot.
fn flush_before(
    update: &MetadataUpdate,
    state: &GroupMetadata,
    volume: &Volume,
    members: &[Member],
) -> SlotSet {
    let mut failed = SlotSet::new();
    let recovering = update.recovering.union(volume.recovering(update.group));
    for (slot, superblock) in state.slots.iter().enumerate() {
        let Some(superblock) = superblock else { continue };
        let is_filling = recovering.contains(slot) || superblock.recovered_bytes().is_some();
        let takes_part = update.in_sync.contains(slot) || recovering.contains(slot);
        if takes_part && (is_filling || !update.dirty) {
            let member = members.get(volume.member_index(update.group, slot));
            if let Some(Err(error)) = member.map(Member::flush) {
                tracing::warn!("{error}");
                failed.insert(slot);
            }
        }
    }
    failed
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
