//! Superblocks of a running array: kept in memory, changed by md's rules, written to every member.
//!
//! An update is one event: all members that take part get the same common fields, written and
//! flushed side by side. A member whose superblock cannot be made durable is handed back to the
//! engine, which declares it faulty and asks for the next update.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use raid_core::md::superblock::{Features, Role};
use raid_core::md::update::{Change, apply};
use raid_core::md::{MdTime, MdUuid, Superblock};
use raid_core::slots::SlotSet;
use raid_core::volume::{MetadataUpdate, Volume};

use crate::Error;
use crate::bitmap::Bitmap;
use crate::deadline::call;
use crate::logs::Paused;
use crate::member::Member;
use crate::shared::{Desk, Shared};
use crate::walk::recovery_position;

mod script;
mod seats;

pub(crate) use script::Script;
use script::{Scripts, Whose, carry_out, image_of};
use seats::Seats;

/// The superblocks of all groups.
///
/// Locks are taken in the order of the fields. Nothing is read or written while a group's own lock
/// or its bitmap's is held, so that a look at the array never waits for a member.
pub(crate) struct Metadata {
    /// Whose turn it is to change a group's superblocks and to write them.
    turns: Vec<Mutex<()>>,
    groups: Vec<Mutex<GroupMetadata>>,
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
    /// For each slot, the member that is being filled to replace the one that is in sync there.
    pub(crate) replacements: Vec<Option<Replacement>>,
    /// Replacements that were not finished when the array was opened: slot, member, superblock;
    /// until it has started.
    pub(crate) unfinished: Vec<(usize, Member, Superblock)>,
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

/// A member that is being filled to take a slot over.
#[derive(Clone)]
pub(crate) struct Replacement {
    /// Its index in the table of members.
    pub(crate) index: usize,
    /// The index of the one that it replaces.
    pub(crate) replaces: usize,
    pub(crate) superblock: Superblock,
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
        let turns = groups.iter().map(|_| Mutex::new(())).collect();
        let groups = groups.into_iter().map(Mutex::new).collect();
        Self { turns, groups, bitmaps, bitmap_writes: AtomicU64::new(0), outer }
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

    /// Waits for the turn to change a group's superblocks: no update is made meanwhile, and nobody
    /// comes or goes.
    pub(crate) fn turn(&self, group: usize) -> Turn<'_> {
        Turn { _guard: self.turns[group].lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Locks one group's superblocks, for a moment.
    pub(crate) fn lock(&self, group: usize) -> MutexGuard<'_, GroupMetadata> {
        self.groups[group].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what writes a group's whole bitmap to a member that is about to join.
    ///
    /// # Errors
    /// Returns an error if it has no room there.
    pub(crate) fn bitmap_copy(
        &self,
        group: usize,
        member: &Member,
        superblock: &Superblock,
    ) -> Result<Script, Error> {
        let bitmap = self.bitmap(group);
        let copy = |bitmap: &Bitmap| bitmap.whole_for(member, superblock);
        bitmap.as_ref().map_or(Ok(Script::default()), copy)
    }

    /// Puts a log that rested back into the superblocks in memory. Returns whether they must be
    /// written for that.
    pub(crate) fn resume_log(&self, group: usize) -> bool {
        self.lock(group).resume_log()
    }

    /// Writes the bad-block logs that say something else than is so; superblocks follow with the
    /// next update. It is the caller's turn.
    ///
    /// # Errors
    /// Returns an error if one cannot be written, or has no room.
    pub(crate) fn store_bad_blocks(
        &self,
        group: usize,
        volume: &Volume,
        members: &[Member],
        patience: Duration,
    ) -> Result<(), Error> {
        let seats = Seats::look(volume, group);
        let replacements = seats.replacements.iter().enumerate();
        let replacements = replacements.filter_map(|(slot, index)| Some((slot, (*index)?)));
        for (slot, index) in seats.members.iter().copied().enumerate().chain(replacements) {
            let Some(member) = members.get(index) else { continue };
            let Some(bad) = member.bad_ranges() else { continue };
            let superblock = self.lock(group).superblock_at(slot, index).map(|one| one.clone());
            let Some(superblock) = superblock else { continue };
            let Some((script, ranges)) = bad.changed(member, &superblock)? else { continue };
            call(member, patience, Box::new(move |member| script.play(member)))?;
            if let Some(superblock) = self.lock(group).superblock_at(slot, index) {
                superblock.set_bad_blocks(&ranges);
            }
        }
        Ok(())
    }

    /// Makes an update durable: on each member the bitmap first, then the superblock. Returns the
    /// slots of which one could not be written, or not within `patience`.
    ///
    /// Clean means that parity and copies match the data below `resynced_bytes`, `None` for all of
    /// it.
    pub(crate) fn write(
        &self,
        update: &MetadataUpdate,
        resynced_bytes: Option<u64>,
        volume: &Volume,
        members: &[Member],
        patience: Duration,
    ) -> Result<SlotSet, Error> {
        let _turn = self.turn(update.group);
        if update.superblocks {
            // Before the flush: what is filled later is not stable by it.
            let before = Seats::look(volume, update.group);
            let flushes = self.lock(update.group).flushes_before(update, &before, members);
            if let Some(failed) = carry_out(flushes, patience).of(volume) {
                // They leave first; then there is another update to make.
                return Ok(failed);
            }
            let change =
                if update.dirty { Change::MarkDirty } else { Change::MarkClean { resynced_bytes } };
            let mut state = self.lock(update.group);
            state.apply(update, change, &before, volume, members)?;
            state.note_recorded();
        }
        let scripts = self.scripts(update, volume, members);
        Ok(carry_out(scripts, patience).of(volume).unwrap_or_default())
    }

    /// Returns what an update writes to each member.
    fn scripts(&self, update: &MetadataUpdate, volume: &Volume, members: &[Member]) -> Scripts {
        let state = self.lock(update.group);
        let mut bitmap = self.bitmap(update.group);
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
            Some((Whose::Slot(slot), member, superblock))
        });
        let replacements = state.replacements.iter().flatten();
        let replacements = replacements.filter_map(|one| {
            Some((Whose::Replacement(one.index), members.get(one.index)?, &one.superblock))
        });
        let others = state.others.iter();
        let others = others.map(|(member, superblock)| (Whose::Nobodys, member, superblock));
        let script = |whose: Whose, member: &Member, superblock: &Superblock| {
            let counts = whose != Whose::Nobodys && !ranges.is_empty();
            let mut script = match bitmap.as_ref().filter(|_| counts) {
                Some(bitmap) => bitmap.changes_for(member, superblock, &ranges)?,
                None => Script::default(),
            };
            self.bitmap_writes.fetch_add(script.parts.len() as u64, Ordering::Relaxed);
            script.superblock = update.superblocks.then(|| image_of(superblock));
            Ok(script)
        };
        in_slots
            .chain(replacements)
            .chain(others)
            .map(|(whose, member, superblock)| {
                (whose, member.clone(), script(whose, member, superblock))
            })
            .collect()
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
        let patience = self.clock.patience();
        let written = metadata.write(update, resynced_bytes, &self.volume, &members, patience);
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
    /// Returns the superblocks of all that take part in updates.
    pub(crate) fn superblocks(&self) -> impl Iterator<Item = &Superblock> {
        let replacements = self.replacements.iter().flatten().map(|one| &one.superblock);
        let others = self.others.iter().map(|(_, superblock)| superblock);
        self.slots.iter().flatten().chain(replacements).chain(others)
    }

    /// Returns the superblocks of all that take part in updates, for a change.
    pub(crate) fn superblocks_mut(&mut self) -> impl Iterator<Item = &mut Superblock> {
        let replacements = self.replacements.iter_mut().flatten().map(|one| &mut one.superblock);
        let others = self.others.iter_mut().map(|(_, superblock)| superblock);
        self.slots.iter_mut().flatten().chain(replacements).chain(others)
    }

    /// Returns the superblock of a member in a slot, or beside it.
    fn superblock_at(&mut self, slot: usize, index: usize) -> Option<&mut Superblock> {
        match &mut self.replacements[slot] {
            Some(one) if one.index == index => Some(&mut one.superblock),
            _ => self.slots[slot].as_mut(),
        }
    }

    /// Makes stable what the superblocks are about to say: that nothing is under way, how far a
    /// member is filled, that it is filled.
    fn flushes_before(
        &self,
        update: &MetadataUpdate,
        seats: &Seats,
        members: &[Member],
    ) -> Scripts {
        let recovering = update.recovering.union(seats.recovering);
        let mut flushes = Scripts::new();
        let mut flush = |whose: Whose, index: usize| {
            if let Some(member) = members.get(index) {
                let script = Script { flush_first: true, ..Script::default() };
                flushes.push((whose, member.clone(), Ok(script)));
            }
        };
        for (slot, superblock) in self.slots.iter().enumerate() {
            let Some(superblock) = superblock else { continue };
            let is_filling = recovering.contains(slot) || superblock.recovered_bytes().is_some();
            let takes_part = update.in_sync.contains(slot) || recovering.contains(slot);
            if takes_part && (is_filling || !update.dirty) {
                flush(Whose::Slot(slot), seats.members[slot]);
            }
        }
        let replacements = self.replacements.iter().flatten();
        replacements.for_each(|one| flush(Whose::Replacement(one.index), one.index));
        flushes
    }

    /// Makes the change in every superblock that takes part; members that left are faulty. `before`
    /// is who was where when what the members hold was made durable.
    fn apply(
        &mut self,
        update: &MetadataUpdate,
        change: Change,
        before: &Seats,
        volume: &Volume,
        members: &[Member],
    ) -> Result<(), Error> {
        let mut changes = vec![change];
        let group = update.group;
        let now_there = Seats::look(volume, group);
        self.follow_replacements(&now_there, members, &mut changes);
        // The engine has gone on since it made the update. Who is filled now, or has been since,
        // was no member in sync then; who has left since still is what it was: the next update
        // tells.
        let in_sync = update.in_sync.difference(now_there.recovering);
        let there = update.recovering.union(now_there.recovering).union(now_there.in_sync);
        let recovering = there.difference(in_sync);
        let geometry = volume.geometry(group);
        for (slot, superblock) in self.slots.iter_mut().enumerate() {
            let Some(own) = superblock else { continue };
            let dev_number = own.dev_number;
            let index = now_there.members[slot];
            if in_sync.contains(slot) {
                if own.recovered_bytes().is_some() {
                    changes.push(Change::Recovered { dev_number, recovered_bytes: None });
                }
            } else if recovering.contains(slot) {
                let role = Role::Active(slot as u16);
                // Its own superblock may be from before it left.
                if own.role() != role || self.newest.role_of(dev_number) != role {
                    changes.push(Change::SetRole { dev_number, role });
                }
                let by_bitmap = volume.is_by_bitmap(group, slot);
                let position = recovery_position(geometry, before.filled(index));
                let recovered_bytes = Some(if by_bitmap { 0 } else { position });
                changes.push(Change::Recovered { dev_number, recovered_bytes });
                if by_bitmap {
                    changes.push(Change::ByBitmap { dev_number });
                }
            } else if let Some(left) = superblock.take() {
                let member = members.get(index);
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
        for (slot, replacement) in self.replacements.iter_mut().enumerate() {
            let Some(Replacement { index, superblock: own, .. }) = replacement else { continue };
            let (dev_number, role) = (own.dev_number, Role::Active(slot as u16));
            own.features.0 |= Features::REPLACEMENT;
            if own.role() != role || self.newest.role_of(dev_number) != role {
                changes.push(Change::SetRole { dev_number, role });
            }
            let position = recovery_position(geometry, before.filled(*index));
            changes.push(Change::Recovered { dev_number, recovered_bytes: Some(position) });
        }
        for dev_number in self.given_up.drain(..) {
            changes.push(Change::Fail { dev_number });
        }
        for dev_number in self.newcomers.drain(..) {
            changes.push(Change::SetRole { dev_number, role: Role::Spare });
        }
        let mut all: Vec<&mut Superblock> = self.superblocks_mut().collect();
        apply(&mut all, &changes, now()).map_err(|error| Error::Assemble(error.to_string()))?;
        if let Some(newest) = all.first() {
            self.newest = Superblock::clone(newest);
        }
        Ok(())
    }

    /// Takes over that replacements have become their slots' members, or are gone.
    fn follow_replacements(
        &mut self,
        seats: &Seats,
        members: &[Member],
        changes: &mut Vec<Change>,
    ) {
        for slot in 0..self.replacements.len() {
            let is_over = |one: &mut Replacement| seats.replacements[slot] != Some(one.index);
            let Some(one) = self.replacements[slot].take_if(is_over) else { continue };
            let Replacement { index, replaces, mut superblock } = one;
            let (gone, gone_index, reason) = if seats.members[slot] == index {
                superblock.features.0 &= !Features::REPLACEMENT;
                let old = self.slots[slot].replace(superblock);
                let was_whole = seats.in_sync.contains(slot);
                let word = if was_whole { "was replaced in" } else { "left" };
                (old, replaces, format!("it {word} slot {slot} while the array ran"))
            } else {
                (Some(superblock), index, format!("it failed while it was to replace slot {slot}"))
            };
            let Some(gone) = gone else { continue };
            changes.push(Change::Fail { dev_number: gone.dev_number });
            self.left_out.extend(members.get(gone_index).map(|member| LeftOut {
                member: member.clone(),
                number: Some(gone.dev_number),
                is_faulty: true,
                reason,
            }));
        }
    }
}

/// The right to change a group's superblocks.
pub(crate) struct Turn<'a> {
    _guard: MutexGuard<'a, ()>,
}

/// Writes one superblock and makes it durable.
pub(crate) fn write_superblock(member: &Member, superblock: &Superblock) -> Result<(), Error> {
    Script { superblock: Some(image_of(superblock)), ..Script::default() }.play(member)
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
