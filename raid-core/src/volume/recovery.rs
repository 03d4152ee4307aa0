//! What is left to be made right in a group, and what has been: resyncs, and the filling of members
//! that joined.
//!
//! Positions count in group bytes and whole lock units ([`Volume::resync_unit`]). The driver walks
//! over the runs that are due, and tells how far it came; what it was told before the state changed
//! under it (a failed write, another member) is refused, and it begins again.

use super::membership::Place;
use super::{Group, Join, JoinError, MAPPED_UNIT_BYTES, NotBorne, Volume};
use crate::slots::SlotSet;
use core::sync::atomic::Ordering;

impl Group {
    /// Turns a run of bitmap addresses into group bytes, whole units, at or after `from`.
    fn run_of(&self, (first, end): (u64, u64), from: u64) -> (u64, u64) {
        let unit = self.lock_unit();
        let per_unit = self.intent_unit();
        let start = (first / per_unit * unit).max(from);
        (start, (end.div_ceil(per_unit) * unit).min(self.geometry.array_bytes()))
    }

    /// Bitmap addresses of one lock unit.
    fn intent_unit(&self) -> u64 {
        if self.geometry.parity_count() > 0 {
            self.geometry.chunk_bytes()
        } else {
            MAPPED_UNIT_BYTES
        }
    }

    /// Bitmap addresses in all.
    fn intent_end(&self) -> u64 {
        if self.geometry.parity_count() > 0 {
            self.geometry.stripe_count() * self.geometry.chunk_bytes()
        } else {
            self.geometry.array_bytes()
        }
    }

    /// Where a bitmap address range ends that ends with these group bytes; past the last region at
    /// the end.
    fn intent_until(&self, end: u64) -> u64 {
        if end >= self.geometry.array_bytes() {
            u64::MAX
        } else {
            self.intent_span(end / self.lock_unit()).0
        }
    }

    /// The run of group bytes at or after `from` that a member which joined has not got.
    fn next_unrecovered(&self, from: u64) -> Option<(u64, u64)> {
        let size = self.geometry.array_bytes();
        let by_position = self.membership.unfilled(from, size).map(|first| (first, size));
        let intent = self.intent.as_ref().filter(|_| self.membership.any_by_bitmap());
        let by_bitmap = intent.filter(|_| from < size).and_then(|intent| {
            let (start, _) = self.intent_span(from / self.lock_unit());
            let run = intent.next_stale(start, self.intent_end())?;
            Some(self.run_of(run, from))
        });
        match (by_position, by_bitmap) {
            (Some(all), Some(run)) if run.0 < all.0 => Some((run.0, run.1.min(all.0))),
            (all, run) => all.or(run),
        }
    }
}

impl Volume {
    /// The next run of a group's addresses at or after `from` that a resync is due for, by the
    /// bitmap or by position, in whole units: `(first, end)` in group bytes.
    pub fn next_unsynced(&self, group: usize, from: u64) -> Option<(u64, u64)> {
        let state = &self.groups[group];
        let (size, unit) = (state.geometry.array_bytes(), state.lock_unit());
        let synced = state.synced.load(Ordering::Acquire);
        if synced < size {
            let first = from.max(synced / unit * unit);
            return (first < size).then_some((first, size));
        }
        let intent = state.intent.as_ref().filter(|_| from < size)?;
        let (start, _) = state.intent_span(from / unit);
        Some(state.run_of(intent.next_unsynced(start, state.intent_end())?, from))
    }

    /// Notes that a resync went over the group bytes from `start` to `end`, whole units: the
    /// bitmap's regions wholly within are believed again. `suspicion` as for
    /// [`Volume::note_synced`].
    pub fn note_region_synced(&self, group: usize, start: u64, end: u64, suspicion: u64) -> bool {
        let state = &self.groups[group];
        let Some(intent) = &state.intent else { return true };
        if state.suspicion.load(Ordering::Acquire) != suspicion {
            return false;
        }
        let first = state.intent_span(start / state.lock_unit()).0;
        intent.synced(first, state.intent_until(end));
        let size = state.geometry.array_bytes();
        if intent.unsynced_count() == 0 && state.synced.load(Ordering::Acquire) >= size {
            state.suspect.store(false, Ordering::Release);
        }
        true
    }

    /// Hands out an index for a member that is about to join; `None` when this run of the volume
    /// has used them all.
    pub fn reserve_member(&self) -> Option<usize> {
        let next = |count: usize| (count < self.data_offsets.len()).then_some(count + 1);
        self.member_count.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok()
    }

    /// Puts a member into a slot that has none. From now on it takes every write of the slot; it is
    /// read where it has been recovered ([`crate::request::RequestKind::Recover`]). Queues may ask
    /// for it at once: the driver must know the index before.
    ///
    /// # Errors
    /// [`JoinError`]; nothing has changed then.
    pub fn join(&self, group: usize, slot: usize, join: Join) -> Result<(), JoinError> {
        let state = self.check_join(group, slot, &join)?;
        if join.by_bitmap && state.intent.is_none() {
            return Err(JoinError::NoBitmap { slot });
        }
        state.membership.change(|| {
            if state.membership.writable().contains(slot) {
                return Err(JoinError::Occupied { slot });
            }
            self.data_offsets[join.member].store(join.data_offset, Ordering::Release);
            state.membership.enter(slot, &join, || {
                state.intent.iter().for_each(crate::intent::Intent::mark_stale);
            });
            Ok(())
        })
    }

    /// Gives a slot that is in sync a second member, which takes every write as well and takes the
    /// slot over when it is filled, or when the first one leaves.
    ///
    /// # Errors
    /// [`JoinError`]; nothing has changed then.
    pub fn join_replacement(&self, group: usize, slot: usize, join: Join) -> Result<(), JoinError> {
        let state = self.check_join(group, slot, &join)?;
        let membership = &state.membership;
        membership.change(|| {
            if !membership.in_sync().contains(slot) || membership.replacing().contains(slot) {
                return Err(JoinError::NotReplaceable { slot });
            }
            self.data_offsets[join.member].store(join.data_offset, Ordering::Release);
            membership.enter_replacement(slot, &join);
            Ok(())
        })
    }

    fn check_join(&self, group: usize, slot: usize, join: &Join) -> Result<&Group, JoinError> {
        let state = &self.groups[group];
        let slots = state.geometry.slot_count();
        if slot >= slots {
            return Err(JoinError::NoSuchSlot { slot, slots });
        }
        if !state.redundant {
            return Err(JoinError::NoRedundancy);
        }
        let Join { member, data_offset, .. } = *join;
        let is_aligned = data_offset.is_multiple_of(self.block_bytes.into());
        if member >= self.member_count() || !is_aligned {
            return Err(JoinError::Member { member, data_offset });
        }
        Ok(state)
    }

    /// Slots whose members are being filled.
    pub fn recovering(&self, group: usize) -> SlotSet {
        self.groups[group].membership.recovering()
    }

    /// Slots that have a replacement.
    pub fn replacing(&self, group: usize) -> SlotSet {
        self.groups[group].membership.replacing()
    }

    /// The index of a slot's replacement.
    pub fn replacement_index(&self, group: usize, slot: usize) -> Option<usize> {
        self.groups[group].membership.replacement(slot)
    }

    /// Group bytes from 0 on that a slot's member holds: all (`u64::MAX`) when it is in sync; of
    /// one that is filled by the bitmap, those that the recovery has gone over.
    pub fn recovered(&self, group: usize, slot: usize) -> u64 {
        self.groups[group].membership.recovered(slot)
    }

    /// Group bytes from 0 on that a slot's replacement holds.
    pub fn replaced(&self, group: usize, slot: usize) -> u64 {
        self.groups[group].membership.replaced(slot)
    }

    /// True if a recovering slot's member lacks only what the bitmap says.
    pub fn is_by_bitmap(&self, group: usize, slot: usize) -> bool {
        self.groups[group].membership.is_by_bitmap(slot)
    }

    /// Counts the changes of who is a member of a group.
    pub fn membership(&self, group: usize) -> u64 {
        self.groups[group].membership.generation()
    }

    /// The next run of a group's addresses at or after `from` that a recovery is due for:
    /// `(first, end)` in group bytes, whole units.
    pub fn next_unrecovered(&self, group: usize, from: u64) -> Option<(u64, u64)> {
        self.groups[group].next_unrecovered(from)
    }

    /// Notes that a recovery went over the group bytes from `start` to `end`, whole units: what
    /// joined holds them now. `membership` is [`Volume::membership`] as it was before the first of
    /// these requests was made; if somebody came or left since, nothing is noted, and the recovery
    /// asks again what is due. True if it was noted.
    pub fn note_recovered(&self, group: usize, start: u64, end: u64, membership: u64) -> bool {
        let state = &self.groups[group];
        state.membership.change(|| {
            if state.membership.generation() != membership {
                return false;
            }
            state.membership.filled(start, end, &state.geometry);
            if let Some(intent) = &state.intent {
                let first = state.intent_span(start / state.lock_unit()).0;
                intent.caught_up(first, state.intent_until(end));
            }
            true
        })
    }

    /// Ends a recovery that has nothing left to do: recovering slots are in sync, replacements take
    /// over, and superblocks must be written. Returns the slots concerned, none if there is
    /// something left.
    ///
    /// What was written to these members must have been flushed before.
    pub fn finish_recovery(&self, group: usize) -> SlotSet {
        let state = &self.groups[group];
        state.membership.change(|| {
            if state.next_unrecovered(0).is_some() {
                return SlotSet::new();
            }
            let finished = state.membership.finish(state.geometry.slot_count());
            if !finished.is_empty() {
                state.intent.iter().for_each(crate::intent::Intent::forget_stale);
                state.needed.fetch_add(1, Ordering::SeqCst);
            }
            finished
        })
    }

    /// Takes a member out: by hand, or because its driver gave it up. A member that has left
    /// already is no error.
    ///
    /// # Errors
    /// [`NotBorne`] if the rest does not hold every byte; the member stays.
    pub fn fail_member(&self, member: usize) -> Result<(), NotBorne> {
        for state in &self.groups {
            let membership = &state.membership;
            let slots = 0..state.geometry.slot_count();
            let mut places = slots.map(|slot| (slot, membership.place_of(slot, member)));
            if let Some((slot, _)) = places.find(|(_, place)| *place != Place::Out)
                && !state.fail(slot, member)
            {
                return Err(NotBorne { member });
            }
        }
        Ok(())
    }

    /// Asks for a group's superblocks to be written once more: a position to be kept, or roles that
    /// the driver changed.
    pub fn request_update(&self, group: usize) {
        self.groups[group].needed.fetch_add(1, Ordering::SeqCst);
    }

    /// True if the superblocks of a group say what was last asked for, or never will.
    pub fn is_recorded(&self, group: usize) -> bool {
        let state = &self.groups[group];
        let needed = state.needed.load(Ordering::SeqCst);
        state.durable.load(Ordering::SeqCst) >= needed || self.is_stopped(group)
    }

    /// Asks for a group to be marked clean because nothing has been written for a while; true if an
    /// update is to be made now. It is not while writes are under way or something is to be made
    /// right. The next write asks for the dirty mark again.
    pub fn mark_idle(&self, group: usize) -> bool {
        let state = &self.groups[group];
        let may_be_clean = self.is_dirty(group)
            && self.is_trusted(group)
            && !self.is_suspect(group)
            && !self.is_stopped(group);
        may_be_clean && !self.read_only && state.mark_idle()
    }
}
