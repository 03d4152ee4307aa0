//! The state of one group: who is in sync, what is durable, what may be believed.

use super::membership::{Membership, Place};
use super::{
    GroupConfig, Join, MAPPED_UNIT_BYTES, MetadataUpdate, RecoveringConfig, SLICE_BYTES_MAX,
    UNIT_BYTES_MAX, VolumeError, check_intent,
};
use crate::geometry::{Geometry, Level};
use crate::intent::{Intent, IntentImage};
use crate::lock::QUEUE_COUNT_MAX;
use crate::plan::Trust;
use crate::planted;
use crate::slots::SlotSet;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crossbeam_utils::CachePadded;

/// The state of one group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) geometry: Geometry,
    /// Height in bytes of a lock unit's slice; equals the chunk unless that is tall.
    pub(crate) slice_bytes: u32,
    /// True if the level keeps anything redundant, so that dirty marks mean something.
    pub(crate) redundant: bool,
    pub(crate) intent: Option<Intent>,
    pub(crate) membership: Membership,
    /// Group bytes below this are in sync; `u64::MAX` when all are.
    pub(super) synced: AtomicU64,
    /// A write failed in a way that may have left a stripe inconsistent: never mark clean.
    pub(super) suspect: AtomicBool,
    pub(super) suspicion: AtomicU64,
    /// What parity regenerates may be wrong in some rows, and nobody knows which.
    doubtful: bool,
    /// Sectors that checks found to mismatch.
    pub(super) mismatches: AtomicU64,
    pub(super) dirty_wanted: AtomicBool,
    pub(super) dirty_durable: AtomicBool,
    /// The dirty mark was found when the array was opened. It may be on one member alone, or in its
    /// cache, and says nothing of who is missing now: the first write has it written anew.
    pub(super) unproven: AtomicBool,
    pub(super) needed: AtomicU64,
    pub(super) durable: AtomicU64,
    /// A queue is writing this group's superblocks.
    pub(super) writing_metadata: AtomicBool,
    /// The superblocks cannot be written any more: modifying requests fail.
    pub(super) stopped: AtomicBool,
    /// The bitmap's current period, and for each queue its writes under way that began in even and
    /// odd ones.
    pub(super) period: AtomicU64,
    pub(super) writes: Box<[CachePadded<[AtomicU64; 2]>]>,
}

/// Bytes of an array of this geometry that are locked, resynced and recovered together.
pub fn lock_unit_bytes(geometry: &Geometry) -> u64 {
    if geometry.parity_count() > 0 {
        geometry.chunk_bytes() * geometry.data_slots() as u64
    } else {
        MAPPED_UNIT_BYTES
    }
}

/// What a write must wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteGate {
    Open,
    Stopped,
    Wait,
}

impl Group {
    pub(super) fn new(
        index: usize,
        config: GroupConfig,
        member_base: usize,
        block_bytes: u32,
    ) -> Result<Self, VolumeError> {
        let GroupConfig {
            geometry,
            data_offsets,
            in_sync,
            trust,
            dirty,
            intent,
            recovering,
            doubtful,
        } = config;
        let slots = geometry.slot_count();
        if data_offsets.len() != slots {
            return Err(VolumeError::DataOffsets { got: data_offsets.len(), slots });
        }
        check_intent(&geometry, intent.as_ref())?;
        let unaligned = data_offsets.iter().find(|&&start| start % u64::from(block_bytes) != 0);
        if let Some(&offset) = unaligned {
            return Err(VolumeError::Unaligned { offset, block_bytes });
        }
        let missing = SlotSet::first(slots).difference(in_sync);
        if !geometry.tolerates(&missing) {
            let missing = missing.len();
            return Err(VolumeError::NotEnoughMembers { group: index, missing, slots });
        }
        let slice = (UNIT_BYTES_MAX / slots as u64).max(4096);
        let slice = 1 << slice.min(u64::from(SLICE_BYTES_MAX)).ilog2();
        let slice_bytes = geometry.chunk_bytes().min(slice) as u32;
        let redundant = !matches!(geometry.level(), Level::Raid0 | Level::Linear);
        let intent = intent.map(|intent| Intent::new(&intent, trust == Trust::Unsynced));
        let membership = Membership::new(slots, in_sync, member_base);
        for config in &recovering {
            let RecoveringConfig { slot, recovered, by_bitmap } = *config;
            if !missing.contains(slot) || !redundant || by_bitmap && intent.is_none() {
                return Err(VolumeError::Recovering { group: index, slot });
            }
            let member = member_base + slot;
            let join = Join { member, data_offset: data_offsets[slot], recovered, by_bitmap };
            membership.change(|| {
                membership.enter(slot, &join, || intent.iter().for_each(Intent::mark_stale));
            });
        }
        Ok(Self {
            slice_bytes,
            redundant,
            membership,
            // With a bitmap distrust is a matter of its bits.
            synced: AtomicU64::new(match (trust, &intent) {
                (Trust::Unsynced, None) => 0,
                (Trust::Unsynced, Some(_)) | (Trust::InSync, _) => u64::MAX,
            }),
            intent,
            suspect: AtomicBool::new(false),
            suspicion: AtomicU64::new(0),
            doubtful: doubtful && geometry.parity_count() > 0,
            mismatches: AtomicU64::new(0),
            dirty_wanted: AtomicBool::new(dirty),
            dirty_durable: AtomicBool::new(dirty),
            unproven: AtomicBool::new(dirty && redundant),
            needed: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            writing_metadata: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            period: AtomicU64::new(0),
            writes: (0..QUEUE_COUNT_MAX).map(|_| CachePadded::default()).collect(),
            geometry,
        })
    }

    pub(crate) fn in_sync(&self) -> SlotSet {
        self.membership.in_sync()
    }

    pub(crate) fn is_degraded(&self) -> bool {
        self.membership.is_degraded()
    }

    /// Slots that may be read in a lock unit.
    pub(crate) fn readable(&self, unit: u64) -> SlotSet {
        let end = (unit + 1).saturating_mul(self.lock_unit()).min(self.geometry.array_bytes());
        self.membership.readable(end, || {
            let (start, len) = self.intent_span(unit);
            self.intent.as_ref().is_some_and(|intent| intent.is_stale(start, len))
        })
    }

    /// Whether redundancy may be believed in a lock unit.
    pub(crate) fn trust_unit(&self, unit: u64) -> Trust {
        let end = (unit + 1).saturating_mul(self.lock_unit()).min(self.geometry.array_bytes());
        let distrusted = || {
            let (start, len) = self.intent_span(unit);
            self.intent.as_ref().is_some_and(|intent| intent.is_unsynced(start, len))
        };
        let extra = if planted::is(33) { self.lock_unit() } else { 0 };
        if end > self.synced.load(Ordering::Acquire).saturating_add(extra) || distrusted() {
            return Trust::Unsynced;
        }
        Trust::InSync
    }

    /// Whether redundancy may be believed everywhere.
    pub(super) fn trust(&self) -> Trust {
        let all = self.geometry.array_bytes() <= self.synced.load(Ordering::Acquire);
        let distrusted = self.intent.as_ref().is_some_and(|intent| intent.unsynced_count() > 0);
        if all && !distrusted { Trust::InSync } else { Trust::Unsynced }
    }

    /// Bitmap addresses of a lock unit: `(first, length)`.
    pub(crate) fn intent_span(&self, unit: u64) -> (u64, u64) {
        if self.geometry.parity_count() > 0 {
            let chunk = self.geometry.chunk_bytes();
            (unit * chunk, chunk)
        } else {
            let start = unit * MAPPED_UNIT_BYTES;
            (start, MAPPED_UNIT_BYTES.min(self.geometry.array_bytes() - start))
        }
    }

    /// Group bytes that are locked together, and so resynced together.
    pub(crate) fn lock_unit(&self) -> u64 {
        lock_unit_bytes(&self.geometry)
    }

    /// Notes that a failed write may have left a unit inconsistent. While nothing is missing its
    /// redundancy is not believed any more, so that later writes compute it anew; a degraded
    /// group has no such choice. Without a bitmap to say where, that is the whole group.
    pub(crate) fn mark_suspect(&self, unit: Option<u64>) {
        self.suspicion.fetch_add(1, Ordering::AcqRel);
        self.suspect.store(!planted::is(31), Ordering::Release);
        if planted::is(31) || !self.redundant || self.is_degraded() {
            return;
        }
        match (&self.intent, unit) {
            (Some(intent), Some(unit)) => {
                let (start, len) = self.intent_span(unit);
                intent.distrust(start, len);
            }
            _ => self.synced.store(0, Ordering::Release),
        }
    }

    /// True if what is regenerated is as good as what was written: only that may be stored in place
    /// of what cannot be read.
    pub(crate) fn is_proven(&self) -> bool {
        !self.doubtful && !self.suspect.load(Ordering::Acquire)
    }

    /// Asks whether a write to a unit may be sent as far as the write-intent bitmap goes.
    pub(crate) fn intent_gate(&self, unit: u64) -> WriteGate {
        let Some(intent) = &self.intent else { return WriteGate::Open };
        let (start, len) = self.intent_span(unit);
        if intent.enter(start, len) || planted::is(4) { WriteGate::Open } else { WriteGate::Wait }
    }

    /// Asks whether a write may be sent now.
    pub(crate) fn write_gate(&self) -> WriteGate {
        if self.stopped.load(Ordering::Acquire) {
            return WriteGate::Stopped;
        }
        if !self.redundant {
            return WriteGate::Open;
        }
        // After the write has been counted: see `mark_idle`.
        if !self.dirty_durable.load(Ordering::SeqCst) && !planted::is(1) {
            if !self.dirty_wanted.swap(true, Ordering::SeqCst) {
                self.needed.fetch_add(1, Ordering::SeqCst);
            }
            return WriteGate::Wait;
        }
        self.prove();
        self.ack_gate()
    }

    /// Asks for the superblocks to be written if their dirty mark was only found.
    fn prove(&self) {
        if self.unproven.load(Ordering::Acquire) && !planted::is(3) {
            // In this order: whoever sees it proven sees the epoch that it waits for. An epoch that
            // somebody else asked for meanwhile writes the mark as well.
            let _asked = self.needed.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire);
            self.unproven.store(false, Ordering::Release);
        }
    }

    /// Asks whether a finished write may be acknowledged now.
    pub(crate) fn ack_gate(&self) -> WriteGate {
        if self.stopped.load(Ordering::Acquire) {
            return WriteGate::Stopped;
        }
        // A member that is just leaving is one that the update must tell of.
        self.membership.settled();
        if self.is_degraded() {
            // A flush makes stable what was written before the array was opened: whoever missed
            // that must be known to be missing.
            self.prove();
        }
        let needed = self.needed.load(Ordering::Acquire);
        if self.durable.load(Ordering::Acquire) >= needed || planted::is(2) {
            WriteGate::Open
        } else {
            WriteGate::Wait
        }
    }

    /// Counts a write that begins now; returns its period for [`Group::end_write`].
    pub(crate) fn begin_write(&self, queue: usize) -> u8 {
        loop {
            let period = self.period.load(Ordering::SeqCst);
            let parity = (period % 2) as u8;
            self.writes[queue][usize::from(parity)].fetch_add(1, Ordering::SeqCst);
            if self.period.load(Ordering::SeqCst) == period {
                return parity;
            }
            self.end_write(queue, parity);
        }
    }

    /// Counts a write that has ended.
    pub(crate) fn end_write(&self, queue: usize, period: u8) {
        let before = self.writes[queue][usize::from(period)].fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "no write of this period is under way");
    }

    /// Takes a member out if the rest can bear it; true if it is out afterwards.
    pub(crate) fn fail(&self, slot: usize, member: usize) -> bool {
        self.membership.change(|| {
            let place = self.membership.place_of(slot, member);
            if place == Place::Out {
                return true;
            }
            let mut rest = self.in_sync();
            rest.remove(slot);
            let bearable = self.redundant
                && self.trust() == Trust::InSync
                && self.geometry.tolerates(&self.geometry.slots().difference(rest));
            if place == Place::InSync && !bearable {
                return false;
            }
            self.membership.leave(slot, place);
            self.needed.fetch_add(u64::from(!planted::is(18)), Ordering::SeqCst);
            true
        })
    }

    /// Takes the dirty mark back if no write is under way; true if that must become durable now.
    ///
    /// A write is counted before it looks at the mark, the mark is taken back before the counts are
    /// looked at, sequentially consistent: one of the two sees the other.
    pub(super) fn mark_idle(&self) -> bool {
        if self.writing_metadata.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.dirty_wanted.store(false, Ordering::SeqCst);
        self.dirty_durable.store(false, Ordering::SeqCst);
        let counts = self.writes.iter().flat_map(|counts| counts.iter());
        let idle = counts.map(|count| count.load(Ordering::SeqCst)).all(|count| count == 0);
        if idle {
            self.needed.fetch_add(1, Ordering::SeqCst);
        } else {
            // The superblocks still say so.
            self.dirty_wanted.store(true, Ordering::SeqCst);
            self.dirty_durable.store(true, Ordering::SeqCst);
        }
        self.writing_metadata.store(false, Ordering::Release);
        idle
    }

    /// What superblocks must say now.
    pub(super) fn update(
        &self,
        group: usize,
        epoch: u64,
        dirty: bool,
        intent: Option<IntentImage>,
    ) -> MetadataUpdate {
        let (recovering, replacing) = (self.membership.recovering(), self.membership.replacing());
        let in_sync = self.in_sync();
        MetadataUpdate {
            group,
            epoch,
            superblocks: true,
            intent,
            dirty,
            in_sync,
            // Meanwhile it may have become that.
            recovering: recovering.difference(in_sync),
            replacing,
        }
    }

    /// Claims the duty to write this group's superblocks, if something must become durable.
    pub(crate) fn claim_metadata(&self, group: usize) -> Option<MetadataUpdate> {
        let superblocks_due =
            || self.durable.load(Ordering::Acquire) < self.needed.load(Ordering::Acquire);
        let bits_due =
            || self.intent.as_ref().is_some_and(|intent| intent.due.load(Ordering::SeqCst));
        if !(superblocks_due() || bits_due()) || self.stopped.load(Ordering::Acquire) {
            return None;
        }
        if self.writing_metadata.swap(true, Ordering::AcqRel) {
            return None;
        }
        // Read again under the claim: another queue may just have finished.
        let epoch = self.needed.load(Ordering::Acquire);
        let superblocks = self.durable.load(Ordering::Acquire) < epoch;
        let intent = self.intent.as_ref().and_then(Intent::image);
        if !superblocks && intent.is_none() {
            self.writing_metadata.store(false, Ordering::Release);
            return None;
        }
        let dirty = self.dirty_wanted.load(Ordering::SeqCst);
        Some(MetadataUpdate { superblocks, ..self.update(group, epoch, dirty, intent) })
    }

    /// Ends a claimed update. `failed` are slots whose superblock could not be written.
    pub(crate) fn metadata_done(&self, update: &MetadataUpdate, failed: &SlotSet) {
        let failed = if planted::is(25) { &SlotSet::new() } else { failed };
        let mut all_recorded = true;
        for slot in failed.iter() {
            all_recorded &= self.fail(slot, self.membership.member(slot));
        }
        if !all_recorded {
            self.stopped.store(true, Ordering::Release);
        } else if failed.is_empty() {
            if let (Some(intent), Some(image)) = (&self.intent, &update.intent) {
                intent.made_durable(image);
            }
            if update.superblocks {
                self.durable.fetch_max(update.epoch, Ordering::AcqRel);
                if update.dirty {
                    self.dirty_durable.store(true, Ordering::Release);
                }
            }
        } else if let (Some(intent), Some(image)) = (&self.intent, &update.intent) {
            // Once more, to those that are left.
            if !planted::is(5) {
                intent.told(image);
            }
            intent.due.store(true, Ordering::SeqCst);
        }
        self.writing_metadata.store(false, Ordering::Release);
    }
}
