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
//! 2. A slot leaves `in_sync` at most once, `needed` grows with it, and no write that finishes after that is
//!    acknowledged before `durable` has caught up.
//! 3. The slots in sync always suffice to read every byte.

use crate::counters::{Counters, MemberCounters, QueueCounters};
use crate::geometry::{Geometry, Level};
use crate::intent::{Intent, IntentConfig, IntentImage};
use crate::lock::{LockTable, QUEUE_COUNT_MAX};
use crate::plan::Trust;
use crate::slots::SlotSet;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crossbeam_queue::SegQueue;
use crossbeam_utils::CachePadded;

/// Greatest height in bytes of a lock unit: 512 KiB, md's default chunk. Taller chunks are locked in slices,
/// which bounds the scratch memory of one part.
pub const SLICE_BYTES_MAX: u32 = 512 * 1024;

/// Bytes of array addresses that levels without parity lock together: 256 KiB, enough for a write to be one
/// part, and few enough that writes far apart do not meet.
pub(crate) const MAPPED_UNIT_BYTES: u64 = 256 * 1024;

/// Scratch bytes that one row of a unit's slices may need over all slots: 8 MiB. With more slots the slices get
/// lower.
const UNIT_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Longest read or write in bytes: 32 MiB, NBD's customary maximum.
pub const REQUEST_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// The mailbox message that says: metadata became durable, look again.
pub(crate) const MESSAGE_METADATA: u32 = u32::MAX;

/// One md array: the whole volume, or a part of a RAID 50 or 60.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// Its geometry.
    pub geometry: Geometry,
    /// Where each slot's data starts on its member, in bytes.
    pub data_offsets: Vec<u64>,
    /// Slots that are fully up to date.
    pub in_sync: SlotSet,
    /// Whether parity and copies may be believed everywhere.
    pub trust: Trust,
    /// True if the superblocks already say that writes may be under way.
    pub dirty: bool,
    /// The write-intent bitmap, if the array keeps one. With [`Trust::Unsynced`] its set bits are what is not to be believed, and
    /// all else is.
    pub intent: Option<IntentConfig>,
}

/// The stripes over the groups of a RAID 50 or 60: a RAID 0 whose members are the groups.
#[derive(Clone, Debug)]
pub struct OuterConfig {
    /// RAID 0 over the groups' sizes less `data_offsets`.
    pub geometry: Geometry,
    /// Where the outer array's data starts within each group, in bytes.
    pub data_offsets: Vec<u64>,
}

/// What a [`Volume`] is made of.
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// One group, or as many as the outer geometry has slots.
    pub groups: Vec<GroupConfig>,
    /// Present for nested levels.
    pub outer: Option<OuterConfig>,
    /// Granularity of member I/O in bytes: 512 or 4096, the coarsest of the members.
    pub block_bytes: u32,
    /// Refuse every modifying request.
    pub read_only: bool,
}

/// Why a [`VolumeConfig`] is not a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// The block size is not 512 or 4096.
    #[error("block size {0} is neither 512 nor 4096")]
    BlockSize(u32),
    /// The number of groups does not fit the outer geometry.
    #[error("{groups} groups for an outer geometry of {slots} slots")]
    GroupCount {
        /// Groups given.
        groups: usize,
        /// Slots of the outer geometry, or 1 without one.
        slots: usize,
    },
    /// A list has not one entry for each slot.
    #[error("{got} data offsets for {slots} slots")]
    DataOffsets {
        /// Entries given.
        got: usize,
        /// Slots.
        slots: usize,
    },
    /// Too many members are missing.
    #[error("group {group}: {missing} of {slots} slots are missing, more than the level can bear")]
    NotEnoughMembers {
        /// The group.
        group: usize,
        /// Slots not in sync.
        missing: usize,
        /// Slots in all.
        slots: usize,
    },
    /// The write-intent bitmap does not fit the group.
    #[error("bitmap granule of {granule} bytes with {words} words where {needed} are needed")]
    Bitmap {
        /// Bytes that one bit stands for.
        granule: u64,
        /// Words given.
        words: usize,
        /// Words needed.
        needed: u64,
    },
    /// A member's data does not start on a block border.
    #[error("data offset {offset} is not a multiple of the block size {block_bytes}")]
    Unaligned {
        /// The data offset in bytes.
        offset: u64,
        /// The block size in bytes.
        block_bytes: u32,
    },
    /// The outer stripes end past a group's size.
    #[error("outer data of group {group} ends past the group's {size} bytes")]
    OuterSize {
        /// The group.
        group: usize,
        /// The group's size in bytes.
        size: u64,
    },
}

/// Superblocks and bitmap words that must become durable before writes go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataUpdate {
    /// The group concerned.
    pub group: usize,
    /// The epoch that becomes durable with it; give it back to `handle_metadata`.
    pub epoch: u64,
    /// The superblocks are to be written; false if only the bitmap is.
    pub superblocks: bool,
    /// What the members' write-intent bitmaps must say, if that changed. It is durable no later than the superblocks.
    pub intent: Option<IntentImage>,
    /// Mark the array dirty (writes may be under way) or clean.
    pub dirty: bool,
    /// Slots in sync; all others are recorded as faulty. Their members' superblocks are written.
    pub in_sync: SlotSet,
}

/// The state of one group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) geometry: Geometry,
    pub(crate) data_offsets: Box<[u64]>,
    /// Index of slot 0 among all members.
    pub(crate) member_base: usize,
    /// Height in bytes of a lock unit's slice; equals the chunk unless that is tall.
    pub(crate) slice_bytes: u32,
    /// True if the level keeps anything redundant, so that dirty marks mean something.
    pub(crate) redundant: bool,
    pub(crate) intent: Option<Intent>,
    in_sync: [AtomicU64; 4],
    /// False while every slot is in sync.
    degraded: AtomicBool,
    /// Group bytes below this are in sync; `u64::MAX` when all are.
    synced: AtomicU64,
    /// A write failed in a way that may have left a stripe inconsistent: never mark clean.
    suspect: AtomicBool,
    suspicion: AtomicU64,
    dirty_wanted: AtomicBool,
    dirty_durable: AtomicBool,
    needed: AtomicU64,
    durable: AtomicU64,
    /// Held while membership changes, which is rare.
    changing: AtomicBool,
    /// A queue is writing this group's superblocks.
    writing_metadata: AtomicBool,
    /// The superblocks cannot be written any more: modifying requests fail.
    stopped: AtomicBool,
    /// The bitmap's current period, and for each queue its writes under way that began in even and odd ones.
    period: AtomicU64,
    writes: Box<[CachePadded<[AtomicU64; 2]>]>,
}

/// What a write must wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteGate {
    Open,
    Stopped,
    Wait,
}

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
    member_count: usize,
    array_bytes: u64,
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
        for (index, group) in groups.into_iter().enumerate() {
            let slots = group.geometry.slot_count();
            built.push(Group::new(index, group, member_count, block_bytes)?);
            member_count += slots;
        }
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
            counters: (0..QUEUE_COUNT_MAX).map(|_| QueueCounters::new(member_count)).collect(),
            member_count,
            array_bytes,
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

    /// Members over all groups; member indexes are below it.
    pub fn member_count(&self) -> usize {
        self.member_count
    }

    /// Groups: 1, or more for nested levels.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Index among all members of a slot of a group.
    pub fn member_index(&self, group: usize, slot: usize) -> usize {
        self.groups[group].member_base + slot
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

    /// Notes that a group's redundancy is right below `bytes`: a resync got there. When that is all of the group, a suspicion from
    /// failed writes that is older than `suspicion` is settled.
    ///
    /// `suspicion` is [`Volume::suspicion`] as it was when the resync began; if writes failed meanwhile nothing is noted, and the
    /// resync must begin again. True if it was noted.
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

    /// True if a failed write may have left copies or parity of some stripe different; such a group is not
    /// marked clean.
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
        let in_sync = state.in_sync();
        // Nothing is under way: what is not distrusted is in sync.
        let intent = state.intent.as_ref().and_then(|intent| {
            if !state.is_degraded() {
                intent.age();
                intent.age();
            }
            intent.image()
        });
        Some(MetadataUpdate { group, epoch, superblocks: true, intent, dirty: false, in_sync })
    }

    /// Ends a period of the write-intent bitmap: regions that saw no write in a whole period are taken back, lazily, and never
    /// while the group is degraded (what is set then tells a returning member what it missed). Call it every few seconds from
    /// one thread. False if writes from before the last period are still under way, or nothing is kept.
    ///
    /// What is to be written then comes from [`Volume::poll_metadata`] or any queue's `poll_metadata`.
    pub fn age_intent(&self, group: usize) -> bool {
        let state = &self.groups[group];
        let Some(intent) = state.intent.as_ref().filter(|_| !state.is_degraded()) else {
            return false;
        };
        let period = state.period.load(Ordering::SeqCst);
        let before = (period + 1) as usize % 2;
        if state.writes.iter().any(|counts| counts[before].load(Ordering::SeqCst) > 0) {
            return false;
        }
        // In this order: a write that begins in between touches its bits after they were read, in the old period.
        intent.age();
        state.period.store(period + 1, Ordering::SeqCst);
        true
    }

    /// Bits of a group's write-intent bitmap: `(set, of these not to be believed)`; `None` without a bitmap.
    pub fn intent_counts(&self, group: usize) -> Option<(u64, u64)> {
        let intent = self.groups[group].intent.as_ref()?;
        Some((intent.dirty_count(), intent.unsynced_count()))
    }

    /// The next run of a group's addresses at or after `from` that a resync is due for, by the bitmap or by position, in whole
    /// units: `(first, end)` in group bytes.
    pub fn next_unsynced(&self, group: usize, from: u64) -> Option<(u64, u64)> {
        let state = &self.groups[group];
        let (size, unit) = (state.geometry.array_bytes(), state.lock_unit());
        let synced = state.synced.load(Ordering::Acquire);
        if synced < size {
            let first = from.max(synced / unit * unit);
            return (first < size).then_some((first, size));
        }
        let intent = state.intent.as_ref()?;
        let (start, _) = state.intent_span(from / unit);
        let (span, per_unit) = if state.geometry.parity_count() > 0 {
            (
                state.geometry.stripe_count() * state.geometry.chunk_bytes(),
                state.geometry.chunk_bytes(),
            )
        } else {
            (size, MAPPED_UNIT_BYTES)
        };
        let (first, end) = intent.next_unsynced(start, span)?;
        Some(((first / per_unit * unit).max(from), (end.div_ceil(per_unit) * unit).min(size)))
    }

    /// Notes that a resync went over the group bytes from `start` to `end`, whole units: the bitmap's regions wholly within are
    /// believed again. `suspicion` as for [`Volume::note_synced`].
    pub fn note_region_synced(&self, group: usize, start: u64, end: u64, suspicion: u64) -> bool {
        let state = &self.groups[group];
        let Some(intent) = &state.intent else { return true };
        if state.suspicion.load(Ordering::Acquire) != suspicion {
            return false;
        }
        let (size, unit) = (state.geometry.array_bytes(), state.lock_unit());
        let last = if end >= size { u64::MAX } else { state.intent_span(end / unit).0 };
        intent.synced(state.intent_span(start / unit).0, last);
        if intent.unsynced_count() == 0 && state.synced.load(Ordering::Acquire) >= size {
            state.suspect.store(false, Ordering::Release);
        }
        true
    }

    /// Superblocks or bitmap words that must become durable, for a thread without a queue; answer with
    /// [`Volume::handle_metadata`].
    pub fn poll_metadata(&self) -> Option<MetadataUpdate> {
        if self.read_only {
            return None;
        }
        let mut groups = self.groups.iter().enumerate();
        groups.find_map(|(index, group)| group.claim_metadata(index))
    }

    /// Takes the result of an update: the slots on which it could not be made durable. Returns the queues that must be woken, one
    /// bit each.
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
        let members = alloc::vec![MemberCounters::default(); self.member_count];
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
            // Old content of every slot, an aligned copy of the new content, new P and Q, and lost chunks.
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
        // What is used of a member is a prefix of it: the first byte past the group must not be used.
        let room = size.checked_sub(outer.data_offsets[index]);
        if room.is_none_or(|room| outer.geometry.logical_of(index, room).is_some()) {
            return Err(VolumeError::OuterSize { group: index, size });
        }
    }
    Ok(())
}

impl Group {
    fn new(
        index: usize,
        config: GroupConfig,
        member_base: usize,
        block_bytes: u32,
    ) -> Result<Self, VolumeError> {
        let GroupConfig { geometry, data_offsets, in_sync, trust, dirty, intent } = config;
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
        Ok(Self {
            data_offsets: data_offsets.into(),
            member_base,
            slice_bytes,
            redundant,
            in_sync: in_sync.words().map(AtomicU64::new),
            degraded: AtomicBool::new(!missing.is_empty()),
            // With a bitmap distrust is a matter of its bits.
            synced: AtomicU64::new(match (trust, &intent) {
                (Trust::Unsynced, None) => 0,
                (Trust::Unsynced, Some(_)) | (Trust::InSync, _) => u64::MAX,
            }),
            intent: intent.map(|intent| Intent::new(&intent, trust == Trust::Unsynced)),
            suspect: AtomicBool::new(false),
            suspicion: AtomicU64::new(0),
            dirty_wanted: AtomicBool::new(dirty),
            dirty_durable: AtomicBool::new(dirty),
            needed: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            changing: AtomicBool::new(false),
            writing_metadata: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            period: AtomicU64::new(0),
            writes: (0..QUEUE_COUNT_MAX).map(|_| CachePadded::default()).collect(),
            geometry,
        })
    }

    pub(crate) fn in_sync(&self) -> SlotSet {
        SlotSet::from_words(self.in_sync.each_ref().map(|word| word.load(Ordering::Acquire)))
    }

    pub(crate) fn is_degraded(&self) -> bool {
        self.degraded.load(Ordering::Acquire)
    }

    /// Whether redundancy may be believed in a lock unit.
    pub(crate) fn trust_unit(&self, unit: u64) -> Trust {
        let end = (unit + 1).saturating_mul(self.lock_unit()).min(self.geometry.array_bytes());
        let distrusted = || {
            let (start, len) = self.intent_span(unit);
            self.intent.as_ref().is_some_and(|intent| intent.is_unsynced(start, len))
        };
        if end > self.synced.load(Ordering::Acquire) || distrusted() {
            return Trust::Unsynced;
        }
        Trust::InSync
    }

    /// Whether redundancy may be believed everywhere.
    fn trust(&self) -> Trust {
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
        if self.geometry.parity_count() > 0 {
            self.geometry.chunk_bytes() * self.geometry.data_slots() as u64
        } else {
            MAPPED_UNIT_BYTES
        }
    }

    /// Notes that a failed write may have left a unit inconsistent. While nothing is missing its redundancy is not
    /// believed any more, so that later writes compute it anew; a degraded group has no such choice. Without a bitmap
    /// to say where, that is the whole group.
    pub(crate) fn mark_suspect(&self, unit: Option<u64>) {
        self.suspicion.fetch_add(1, Ordering::AcqRel);
        self.suspect.store(true, Ordering::Release);
        if !self.redundant || self.is_degraded() {
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

    /// Asks whether a write to a unit may be sent as far as the write-intent bitmap goes.
    pub(crate) fn intent_gate(&self, unit: u64) -> WriteGate {
        let Some(intent) = &self.intent else { return WriteGate::Open };
        let (start, len) = self.intent_span(unit);
        if intent.enter(start, len) { WriteGate::Open } else { WriteGate::Wait }
    }

    /// Asks whether a write may be sent now.
    pub(crate) fn write_gate(&self) -> WriteGate {
        if self.stopped.load(Ordering::Acquire) {
            return WriteGate::Stopped;
        }
        if !self.redundant {
            return WriteGate::Open;
        }
        if !self.dirty_durable.load(Ordering::Acquire) {
            if !self.dirty_wanted.swap(true, Ordering::AcqRel) {
                self.needed.fetch_add(1, Ordering::AcqRel);
            }
            return WriteGate::Wait;
        }
        self.ack_gate()
    }

    /// Asks whether a finished write may be acknowledged now.
    pub(crate) fn ack_gate(&self) -> WriteGate {
        if self.stopped.load(Ordering::Acquire) {
            return WriteGate::Stopped;
        }
        let needed = self.needed.load(Ordering::Acquire);
        if self.durable.load(Ordering::Acquire) >= needed {
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

    /// Declares a slot faulty if the rest can bear it; true if it is out of sync afterwards.
    pub(crate) fn fail(&self, slot: usize) -> bool {
        while self.changing.swap(true, Ordering::AcqRel) {
            core::hint::spin_loop();
        }
        let mut rest = self.in_sync();
        let was_in_sync = rest.contains(slot);
        rest.remove(slot);
        let bearable = self.redundant
            && self.trust() == Trust::InSync
            && self.geometry.tolerates(&self.geometry.slots().difference(rest));
        if was_in_sync && bearable {
            let words = rest.words();
            self.in_sync[slot / 64].store(words[slot / 64], Ordering::Release);
            self.degraded.store(true, Ordering::Release);
            self.needed.fetch_add(1, Ordering::AcqRel);
        }
        self.changing.store(false, Ordering::Release);
        !was_in_sync || bearable
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
        let dirty = self.dirty_wanted.load(Ordering::Acquire);
        let in_sync = self.in_sync();
        Some(MetadataUpdate { group, epoch, superblocks, intent, dirty, in_sync })
    }

    /// Ends a claimed update. `failed` are slots whose superblock could not be written.
    pub(crate) fn metadata_done(&self, update: &MetadataUpdate, failed: &SlotSet) {
        let mut all_recorded = true;
        for slot in failed.iter() {
            all_recorded &= self.fail(slot);
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
        } else if let (Some(intent), Some(_)) = (&self.intent, &update.intent) {
            // Once more, to those that are left.
            intent.due.store(true, Ordering::SeqCst);
        }
        self.writing_metadata.store(false, Ordering::Release);
    }
}
