//! The array as all threads share it: geometry, who is in sync, stripe locks, metadata epochs.
//!
//! ```text
//!   Volume --- Group 0 --- slots 0..n      one group: a plain md array
//!          \-- Group 1 --- slots 0..n      several: RAID 50 or 60, striped by the outer geometry
//!          \-- lock table, one mailbox and one set of counters for each queue
//! ```
//!
//! Everything that a request touches is atomic. Invariants:
//! 1. `durable <= needed` for each group; a write is sent only while its group is durably dirty.
//! 2. When a member leaves, `needed` grows, and no write that finishes after that is acknowledged
//!    before `durable` has caught up.
//! 3. The slots in sync always suffice to read every byte.

mod config;
mod findings;
mod group;
mod membership;
mod recovery;

pub use config::{
    GroupConfig, MetadataUpdate, OuterConfig, RecoveringConfig, VolumeConfig, VolumeError,
};
pub use findings::{Finding, Loss};
pub use group::lock_unit_bytes;
pub(crate) use group::{Group, WriteGate};
pub use membership::{Join, JoinError, NotBorne};

use crate::counters::{Counters, MemberCounters, QueueCounters};
use crate::geometry::Geometry;
use crate::intent::IntentConfig;
use crate::lock::{LockTable, QUEUE_COUNT_MAX};
use crate::plan::Trust;
use crate::planted;
use crate::slots::SlotSet;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crossbeam_queue::SegQueue;
use findings::Bounded;

/// Greatest height in bytes of a lock unit: 512 KiB, md's default chunk. Taller chunks are locked
/// in slices, which bounds the scratch memory of one part.
pub const SLICE_BYTES_MAX: u32 = 512 * 1024;

/// Bytes of array addresses that levels without parity lock together: 256 KiB, enough for a write
/// to be one part, and few enough that writes far apart do not meet.
pub(crate) const MAPPED_UNIT_BYTES: u64 = 256 * 1024;

/// Scratch bytes that one row of a unit's slices may need over all slots: 8 MiB. With more slots
/// the slices get lower.
const UNIT_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Longest read or write in bytes: 32 MiB, NBD's customary maximum.
pub const REQUEST_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Members that can join a volume while it runs, beyond those that its slots begin with: member
/// indexes are never used twice, so that an operation on its way to a member that left can never
/// reach the one that took its place. 64 disks a run; a restart begins anew.
pub const JOIN_COUNT_MAX: usize = 64;

/// The mailbox message that says: metadata became durable, look again.
pub(crate) const MESSAGE_METADATA: u32 = u32::MAX;

/// The array as all threads share it. See the module's text.
#[derive(Debug)]
pub struct Volume {
    pub(crate) groups: Box<[Group]>,
    pub(crate) outer: Option<OuterConfig>,
    pub(crate) block_bytes: u32,
    pub(crate) read_only: bool,
    pub(crate) locks: LockTable,
    mailboxes: Box<[SegQueue<u32>]>,
    queues: AtomicU32,
    counters: Box<[QueueCounters]>,
    /// Members that have an index.
    member_count: AtomicUsize,
    /// By member index: where its data starts, in bytes.
    data_offsets: Box<[AtomicU64]>,
    array_bytes: u64,
    findings: Bounded<Finding>,
    losses: Bounded<Loss>,
}

impl Volume {
    /// Checks the configuration and makes the volume.
    ///
    /// # Errors
    /// [`VolumeError`] with the failed comparison.
    pub fn new(config: VolumeConfig) -> Result<Self, VolumeError> {
        let VolumeConfig { groups, outer, block_bytes, read_only } = config;
        if block_bytes != 512 && block_bytes != 4096 {
            return Err(VolumeError::BlockSize(block_bytes));
        }
        let slots = outer.as_ref().map_or(1, |outer| outer.geometry.slot_count());
        if groups.len() != slots {
            return Err(VolumeError::GroupCount { groups: groups.len(), slots });
        }
        let mut member_count = 0;
        let mut built = Vec::with_capacity(groups.len());
        let mut data_offsets = Vec::new();
        for (index, group) in groups.into_iter().enumerate() {
            let slots = group.geometry.slot_count();
            data_offsets.extend_from_slice(&group.data_offsets);
            built.push(Group::new(index, group, member_count, block_bytes)?);
            member_count += slots;
        }
        data_offsets.resize(member_count + JOIN_COUNT_MAX, 0);
        let array_bytes = match &outer {
            None => built[0].geometry.array_bytes(),
            Some(outer) => {
                check_outer(outer, &built)?;
                outer.geometry.array_bytes()
            }
        };
        Ok(Self {
            groups: built.into(),
            outer,
            block_bytes,
            read_only,
            locks: LockTable::new(),
            mailboxes: (0..QUEUE_COUNT_MAX).map(|_| SegQueue::new()).collect(),
            queues: AtomicU32::new(0),
            counters: (0..QUEUE_COUNT_MAX)
                .map(|_| QueueCounters::new(data_offsets.len()))
                .collect(),
            member_count: AtomicUsize::new(member_count),
            data_offsets: data_offsets.into_iter().map(AtomicU64::new).collect(),
            array_bytes,
            findings: Bounded::new(),
            losses: Bounded::new(),
        })
    }

    /// Size of the array in bytes.
    pub fn array_bytes(&self) -> u64 {
        self.array_bytes
    }

    /// Granularity of member I/O in bytes.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Members over all groups, those that left included; member indexes are below it. Grows when
    /// members join.
    pub fn member_count(&self) -> usize {
        self.member_count.load(Ordering::Acquire)
    }

    /// Member indexes never reach this.
    pub fn member_count_max(&self) -> usize {
        self.data_offsets.len()
    }

    /// Where a member's data starts, in bytes.
    ///
    /// # Panics
    /// If `member` is not below [`Volume::member_count_max`].
    pub fn data_offset(&self, member: usize) -> u64 {
        self.data_offsets[member].load(Ordering::Acquire)
    }

    /// Groups: 1, or more for nested levels.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Index among all members of the one that is in a slot, or was last.
    pub fn member_index(&self, group: usize, slot: usize) -> usize {
        self.groups[group].membership.member(slot)
    }

    /// Slots of a group that are in sync.
    pub fn in_sync(&self, group: usize) -> SlotSet {
        self.groups[group].in_sync()
    }

    /// Geometry of a group.
    pub fn geometry(&self, group: usize) -> &Geometry {
        &self.groups[group].geometry
    }

    /// Geometry of the stripes over the groups, for nested levels.
    pub fn outer_geometry(&self) -> Option<&Geometry> {
        self.outer.as_ref().map(|outer| &outer.geometry)
    }

    /// Finds the group of an array byte: `(group, offset within it, contiguous bytes)`.
    pub fn locate(&self, offset: u64) -> (usize, u64, u64) {
        match &self.outer {
            None => (0, offset, self.array_bytes - offset),
            Some(outer) => {
                let place = outer.geometry.place(offset);
                let within = outer.data_offsets[place.slot] + place.member_offset;
                (place.slot, within, place.contiguous_bytes)
            }
        }
    }

    /// True if parity and copies of a group may be believed.
    pub fn is_trusted(&self, group: usize) -> bool {
        self.groups[group].trust() == Trust::InSync
    }

    /// Bytes of a group's addresses that [`crate::request::RequestKind::Resync`] handles together.
    pub fn resync_unit(&self, group: usize) -> u64 {
        self.groups[group].lock_unit()
    }

    /// Group bytes from 0 on that are known to be in sync; at least the group's size when all are.
    pub fn synced(&self, group: usize) -> u64 {
        self.groups[group].synced.load(Ordering::Acquire)
    }

    /// Notes that a group's redundancy is right below `bytes`: a resync got there. When that is all
    /// of the group, a suspicion from failed writes that is older than `suspicion` is settled.
    ///
    /// `suspicion` is [`Volume::suspicion`] as it was when the resync began; if writes failed
    /// meanwhile nothing is noted, and the resync must begin again. True if it was noted.
    pub fn note_synced(&self, group: usize, bytes: u64, suspicion: u64) -> bool {
        let state = &self.groups[group];
        if state.suspicion.load(Ordering::Acquire) != suspicion {
            return false;
        }
        let all = bytes >= state.geometry.array_bytes();
        state.synced.store(if all { u64::MAX } else { bytes }, Ordering::Release);
        if all {
            state.suspect.store(false, Ordering::Release);
        }
        // A write may have failed between the two steps: then its word stands.
        if state.suspicion.load(Ordering::Acquire) != suspicion {
            state.mark_suspect(None);
            return false;
        }
        true
    }

    /// Counts the failed writes of a group that may have left a stripe inconsistent.
    pub fn suspicion(&self, group: usize) -> u64 {
        self.groups[group].suspicion.load(Ordering::Acquire)
    }

    /// True if writes to a group have been stopped because its superblocks could not be written.
    pub fn is_stopped(&self, group: usize) -> bool {
        self.groups[group].stopped.load(Ordering::Acquire)
    }

    /// True if a group's superblocks say that writes may be under way.
    pub fn is_dirty(&self, group: usize) -> bool {
        self.groups[group].dirty_durable.load(Ordering::Acquire)
    }

    /// True if a failed write may have left copies or parity of some stripe different; such a group
    /// is not marked clean.
    pub fn is_suspect(&self, group: usize) -> bool {
        self.groups[group].suspect.load(Ordering::Acquire)
    }

    /// The update that marks a group clean, or `None` if it is clean already or must stay dirty.
    ///
    /// Only right when no queue has a write in flight: the caller stops.
    pub fn clean_update(&self, group: usize) -> Option<MetadataUpdate> {
        let state = &self.groups[group];
        if !self.is_dirty(group) || self.is_suspect(group) || self.is_stopped(group) {
            return None;
        }
        let epoch = state.needed.load(Ordering::Acquire);
        // Nothing is under way: what is not distrusted is in sync.
        let intent = state.intent.as_ref().and_then(|intent| {
            if !state.is_degraded() {
                intent.age();
                intent.age();
            }
            intent.image()
        });
        Some(state.update(group, epoch, false, intent))
    }

    /// Ends a period of the write-intent bitmap: regions that saw no write in a whole period are
    /// taken back, lazily, and never while the group is degraded (what is set then tells a
    /// returning member what it missed). Call it every few seconds from one thread. False if
    /// writes from before the last period are still under way, or nothing is kept.
    ///
    /// What is to be written then comes from [`Volume::poll_metadata`] or any queue's
    /// `poll_metadata`.
    pub fn age_intent(&self, group: usize) -> bool {
        let state = &self.groups[group];
        let Some(intent) = state.intent.as_ref().filter(|_| !state.is_degraded()) else {
            return false;
        };
        let period = state.period.load(Ordering::SeqCst);
        let before = (period + 1) as usize % 2;
        if !planted::is(23)
            && state.writes.iter().any(|counts| counts[before].load(Ordering::SeqCst) > 0)
        {
            return false;
        }
        // In this order: a write that begins in between touches its bits after they were read, in
        // the old period.
        intent.age();
        state.period.store(period + 1, Ordering::SeqCst);
        true
    }

    /// Bits of a group's write-intent bitmap: `(set, of these not to be believed)`; `None` without
    /// a bitmap.
    pub fn intent_counts(&self, group: usize) -> Option<(u64, u64)> {
        let intent = self.groups[group].intent.as_ref()?;
        Some((intent.dirty_count(), intent.unsynced_count()))
    }

    /// Superblocks or bitmap words that must become durable, for a thread without a queue; answer
    /// with [`Volume::handle_metadata`].
    pub fn poll_metadata(&self) -> Option<MetadataUpdate> {
        if self.read_only {
            return None;
        }
        let mut groups = self.groups.iter().enumerate();
        groups.find_map(|(index, group)| group.claim_metadata(index))
    }

    /// Takes the result of an update: the slots on which it could not be made durable. Returns the
    /// queues that must be woken, one bit each.
    pub fn handle_metadata(&self, update: &MetadataUpdate, failed: &SlotSet) -> u32 {
        self.groups[update.group].metadata_done(update, failed);
        let queues = self.registered();
        for queue in (0..32).filter(|queue| queues & 1 << queue != 0) {
            self.post(queue, MESSAGE_METADATA);
        }
        queues
    }

    /// Notes that the superblocks of a group are durably clean.
    pub fn marked_clean(&self, group: usize) {
        let state = &self.groups[group];
        state.dirty_durable.store(false, Ordering::Release);
        state.dirty_wanted.store(false, Ordering::Release);
    }

    /// The engine's counters, added up over all queues.
    pub fn counters(&self) -> Counters {
        let members = alloc::vec![MemberCounters::default(); self.member_count()];
        let mut sum = Counters { members: members.into(), ..Counters::default() };
        for queue in &self.counters {
            queue.add_to(&mut sum);
        }
        sum
    }

    /// Scratch bytes that a queue needs at least: twice the greatest part.
    pub fn scratch_bytes_min(&self) -> u32 {
        let largest = |group: &Group| {
            let slots = group.geometry.slot_count() as u32;
            let height = if group.geometry.parity_count() > 0 {
                group.slice_bytes
            } else {
                MAPPED_UNIT_BYTES as u32
            };
            // Old content of every slot, an aligned copy of the new content, new P and Q, and lost
            // chunks.
            height * (2 * slots + 6)
        };
        2 * self.groups.iter().map(largest).max().unwrap_or(0)
    }

    pub(crate) fn queue_counters(&self, queue: usize) -> &QueueCounters {
        &self.counters[queue]
    }

    /// Takes a free queue number.
    pub(crate) fn register(&self) -> Option<usize> {
        let mut taken = None;
        let step = |mask: u32| {
            taken = (mask != u32::MAX).then(|| mask.trailing_ones() as usize);
            taken.map(|queue| mask | 1 << queue)
        };
        let _full = self.queues.fetch_update(Ordering::AcqRel, Ordering::Acquire, step);
        taken
    }

    pub(crate) fn unregister(&self, queue: usize) {
        self.queues.fetch_and(!(1 << queue), Ordering::AcqRel);
    }

    /// One bit for each queue that exists.
    pub(crate) fn registered(&self) -> u32 {
        self.queues.load(Ordering::Acquire)
    }

    pub(crate) fn post(&self, queue: usize, message: u32) {
        self.mailboxes[queue].push(message);
    }

    pub(crate) fn receive(&self, queue: usize) -> Option<u32> {
        self.mailboxes[queue].pop()
    }
}

fn check_intent(geometry: &Geometry, intent: Option<&IntentConfig>) -> Result<(), VolumeError> {
    let Some(intent) = intent else { return Ok(()) };
    let granule = intent.granule_bytes;
    let bytes = match geometry.parity_count() {
        0 => geometry.array_bytes(),
        _ => geometry.stripe_count() * geometry.chunk_bytes(),
    };
    let needed = bytes.div_ceil(granule.max(1)).div_ceil(64);
    if !granule.is_power_of_two() || granule < 4096 || needed != intent.words.len() as u64 {
        return Err(VolumeError::Bitmap { granule, words: intent.words.len(), needed });
    }
    Ok(())
}

fn check_outer(outer: &OuterConfig, groups: &[Group]) -> Result<(), VolumeError> {
    let slots = groups.len();
    if outer.data_offsets.len() != slots {
        return Err(VolumeError::DataOffsets { got: outer.data_offsets.len(), slots });
    }
    for (index, group) in groups.iter().enumerate() {
        let size = group.geometry.array_bytes();
        // What is used of a member is a prefix of it: the first byte past the group must not be
        // used.
        let room = size.checked_sub(outer.data_offsets[index]);
        if room.is_none_or(|room| outer.geometry.logical_of(index, room).is_some()) {
            return Err(VolumeError::OuterSize { group: index, size });
        }
    }
    Ok(())
}
