//! Which members a group has, and how far each of them is filled.
//!
//! ```text
//!               join                     finish
//!   missing ----------> recovering ----------> in sync ---+-- join_replacement --> + replacement
//!      ^                    |                     |       |                             |
//!      +------- leave ------+-------- leave ------+       +<----------- finish ---------+
//! ```
//!
//! A recovering member takes every write of its slot from the moment it joins, and is read only in
//! lock units that are recovered: below its position, or, when the write-intent bitmap says what it
//! missed, where the bitmap has nothing to say. Writes that were planned before it joined still
//! hold their unit's lock, and the recovery of a unit takes that lock, so none of them is lost. A
//! replacement takes every write as well and is never read before it takes over.
//!
//! `generation` is a sequence lock: odd while a change is being made. Who reads it, then the sets
//! and members, then finds it unchanged, has seen all of them at one time.

use crate::geometry::Geometry;
use crate::slots::SlotSet;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// No member.
const NONE: u32 = u32::MAX;

/// A set of slots that many threads read and few change.
#[derive(Debug)]
struct AtomicSlots([AtomicU64; 4]);

impl AtomicSlots {
    fn new(slots: SlotSet) -> Self {
        Self(slots.words().map(AtomicU64::new))
    }

    fn load(&self) -> SlotSet {
        SlotSet::from_words(self.0.each_ref().map(|word| word.load(Ordering::SeqCst)))
    }

    fn contains(&self, slot: usize) -> bool {
        self.0[slot / 64].load(Ordering::SeqCst) >> (slot % 64) & 1 == 1
    }

    fn insert(&self, slot: usize) {
        self.0[slot / 64].fetch_or(1 << (slot % 64), Ordering::SeqCst);
    }

    fn remove(&self, slot: usize) {
        self.0[slot / 64].fetch_and(!(1 << (slot % 64)), Ordering::SeqCst);
    }
}

/// How a member comes into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join {
    /// Its index, from [`Volume::reserve_member`](super::Volume::reserve_member).
    pub member: usize,
    /// Where its data starts, in bytes.
    pub data_offset: u64,
    /// Group bytes from 0 on that it holds already, in whole lock units.
    pub recovered: u64,
    /// It was in this slot before and misses only what the group's write-intent bitmap has set now.
    pub by_bitmap: bool,
}

/// Why a member cannot join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The slot is out of range.
    #[error("slot {slot} >= {slots} slots")]
    NoSuchSlot {
        /// The slot.
        slot: usize,
        /// Slots of the group.
        slots: usize,
    },
    /// Somebody is in the slot.
    #[error("slot {slot} has a member")]
    Occupied {
        /// The slot.
        slot: usize,
    },
    /// A replacement needs a slot that is in sync and has none yet.
    #[error("slot {slot} is not in sync, or has a replacement already")]
    NotReplaceable {
        /// The slot.
        slot: usize,
    },
    /// The group keeps no bitmap.
    #[error("there is no bitmap to say what a member of slot {slot} missed")]
    NoBitmap {
        /// The slot.
        slot: usize,
    },
    /// The level keeps nothing that a member could be filled from.
    #[error("the level has no redundancy")]
    NoRedundancy,
    /// The member index was not reserved, or the data offset is off the block border.
    #[error("member {member} with data offset {data_offset} cannot be used")]
    Member {
        /// The index given.
        member: usize,
        /// The data offset given.
        data_offset: u64,
    },
}

/// A member cannot leave: what would be left does not hold every byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("member {member} is needed: without it data would be lost")]
pub struct NotBorne {
    /// Its index.
    pub member: usize,
}

/// See the module's text. Changes are made under [`Membership::change`].
#[derive(Debug)]
pub(crate) struct Membership {
    in_sync: AtomicSlots,
    recovering: AtomicSlots,
    replacing: AtomicSlots,
    by_bitmap: AtomicSlots,
    /// False while every slot is in sync.
    degraded: AtomicBool,
    /// For each slot, its member's index.
    members: Box<[AtomicU32]>,
    replacements: Box<[AtomicU32]>,
    /// For each slot, the group bytes below which its recovering member, or its replacement, is
    /// filled.
    recovered: Box<[AtomicU64]>,
    replaced: Box<[AtomicU64]>,
    generation: AtomicU64,
    changing: AtomicBool,
}

impl Membership {
    pub(crate) fn new(slots: usize, in_sync: SlotSet, member_base: usize) -> Self {
        let indexes = |first: Option<usize>| -> Box<[AtomicU32]> {
            (0..slots).map(|s| AtomicU32::new(first.map_or(NONE, |f| (f + s) as u32))).collect()
        };
        let zeroes = || -> Box<[AtomicU64]> { (0..slots).map(|_| AtomicU64::new(0)).collect() };
        Self {
            in_sync: AtomicSlots::new(in_sync),
            recovering: AtomicSlots::new(SlotSet::new()),
            replacing: AtomicSlots::new(SlotSet::new()),
            by_bitmap: AtomicSlots::new(SlotSet::new()),
            degraded: AtomicBool::new(in_sync.len() < slots),
            members: indexes(Some(member_base)),
            replacements: indexes(None),
            recovered: zeroes(),
            replaced: zeroes(),
            generation: AtomicU64::new(0),
            changing: AtomicBool::new(false),
        }
    }

    pub(crate) fn in_sync(&self) -> SlotSet {
        self.in_sync.load()
    }

    pub(crate) fn recovering(&self) -> SlotSet {
        // A slot that has just become in sync may still be listed.
        self.recovering.load().difference(self.in_sync.load())
    }

    pub(crate) fn replacing(&self) -> SlotSet {
        self.replacing.load()
    }

    /// Slots whose member takes writes.
    pub(crate) fn writable(&self) -> SlotSet {
        // In this order: a slot goes from recovering to in sync.
        let recovering = self.recovering.load();
        recovering.union(self.in_sync.load())
    }

    pub(crate) fn is_degraded(&self) -> bool {
        self.degraded.load(Ordering::Acquire)
    }

    /// Counts the changes; waits for one that is being made.
    pub(crate) fn generation(&self) -> u64 {
        loop {
            let generation = self.generation.load(Ordering::SeqCst);
            if generation.is_multiple_of(2) {
                return generation;
            }
            core::hint::spin_loop();
        }
    }

    /// The member that is in a slot, or was last.
    pub(crate) fn member(&self, slot: usize) -> usize {
        self.members[slot].load(Ordering::SeqCst) as usize
    }

    /// True if a write that this member does not take may not simply leave it behind.
    pub(crate) fn is_vital(&self, slot: usize, member: usize) -> bool {
        self.in_sync.contains(slot) && self.member(slot) == member
    }

    pub(crate) fn replacement(&self, slot: usize) -> Option<usize> {
        let member = self.replacements[slot].load(Ordering::SeqCst);
        (member != NONE && self.replacing.contains(slot)).then_some(member as usize)
    }

    /// Group bytes below which a slot's member is filled.
    pub(crate) fn recovered(&self, slot: usize) -> u64 {
        if self.in_sync.contains(slot) {
            return u64::MAX;
        }
        self.recovered[slot].load(Ordering::SeqCst)
    }

    /// Group bytes below which a slot's replacement is filled.
    pub(crate) fn replaced(&self, slot: usize) -> u64 {
        self.replaced[slot].load(Ordering::SeqCst)
    }

    /// True if the slot's recovering member is filled by the bitmap.
    pub(crate) fn is_by_bitmap(&self, slot: usize) -> bool {
        self.by_bitmap.contains(slot)
    }

    /// Slots that may be read up to the group byte `end`; `is_stale` says whether the bitmap knows
    /// of something that a returned member missed there.
    pub(crate) fn readable(&self, end: u64, is_stale: impl Fn() -> bool) -> SlotSet {
        let mut slots = self.in_sync.load();
        if self.is_degraded() {
            for slot in self.recovering.load().iter() {
                let is_filled = self.recovered[slot].load(Ordering::SeqCst) >= end
                    || self.by_bitmap.contains(slot) && !is_stale();
                if is_filled {
                    slots.insert(slot);
                }
            }
        }
        slots
    }

    /// Looks and perhaps makes a change, while nobody else makes one.
    pub(crate) fn change<T>(&self, make: impl FnOnce() -> T) -> T {
        while self.changing.swap(true, Ordering::AcqRel) {
            core::hint::spin_loop();
        }
        let result = make();
        self.changing.store(false, Ordering::Release);
        result
    }

    /// Makes a change that readers see whole. Under [`Membership::change`].
    fn step<T>(&self, make: impl FnOnce() -> T) -> T {
        self.generation.fetch_add(1, Ordering::SeqCst);
        let result = make();
        self.generation.fetch_add(1, Ordering::SeqCst);
        result
    }

    /// Waits until no change is half made: who acts on a part of one then sees the rest.
    pub(crate) fn settled(&self) {
        while self.changing.load(Ordering::SeqCst) {
            core::hint::spin_loop();
        }
    }

    /// Where a member is now. Under [`Membership::change`].
    pub(super) fn place_of(&self, slot: usize, member: usize) -> Place {
        if self.replacement(slot) == Some(member) {
            Place::Replacement
        } else if self.member(slot) != member {
            Place::Out
        } else if self.in_sync.contains(slot) {
            Place::InSync
        } else if self.recovering.contains(slot) {
            Place::Recovering
        } else {
            Place::Out
        }
    }

    /// Takes a member out of its slot; a replacement takes an in-sync member's place, as far as it
    /// is filled. Under [`Membership::change`].
    pub(super) fn leave(&self, slot: usize, place: Place) {
        self.step(|| match place {
            Place::Out => {}
            Place::Replacement => self.drop_replacement(slot),
            Place::Recovering => {
                self.recovering.remove(slot);
                self.by_bitmap.remove(slot);
            }
            Place::InSync => {
                // First the position, then the member it belongs to, then that it may be used.
                let replacement = self.replacement(slot);
                self.degraded.store(true, Ordering::SeqCst);
                self.recovered[slot].store(0, Ordering::SeqCst);
                self.in_sync.remove(slot);
                if let Some(member) = replacement {
                    self.members[slot].store(member as u32, Ordering::SeqCst);
                    let filled = self.replaced[slot].load(Ordering::SeqCst);
                    self.recovered[slot].store(filled, Ordering::SeqCst);
                    self.recovering.insert(slot);
                    self.drop_replacement(slot);
                }
            }
        });
    }

    fn drop_replacement(&self, slot: usize) {
        self.replacing.remove(slot);
        self.replacements[slot].store(NONE, Ordering::SeqCst);
    }

    /// Puts a member into an empty slot. `mark_stale` notes what the bitmap has set, after which
    /// the rest is believed. Under [`Membership::change`].
    pub(super) fn enter(&self, slot: usize, join: &Join, mark_stale: impl FnOnce()) {
        self.step(|| {
            self.recovered[slot].store(join.recovered, Ordering::SeqCst);
            self.by_bitmap.remove(slot);
            self.members[slot].store(join.member as u32, Ordering::SeqCst);
            self.recovering.insert(slot);
        });
        // Writes that were planned before this have their bits set; later ones write to it.
        if join.by_bitmap {
            mark_stale();
            self.step(|| self.by_bitmap.insert(slot));
        }
    }

    /// Gives a slot a replacement. Under [`Membership::change`].
    pub(super) fn enter_replacement(&self, slot: usize, join: &Join) {
        self.step(|| {
            self.replaced[slot].store(join.recovered, Ordering::SeqCst);
            self.replacements[slot].store(join.member as u32, Ordering::SeqCst);
            self.replacing.insert(slot);
        });
    }

    /// Makes recovering members full ones, and replacements the members of their slots; returns the
    /// slots concerned. Under [`Membership::change`], when all of them are filled.
    pub(super) fn finish(&self, slots: usize) -> SlotSet {
        let (recovering, replacing) = (self.recovering(), self.replacing());
        self.step(|| {
            for slot in recovering.iter() {
                self.in_sync.insert(slot);
                self.recovering.remove(slot);
                self.by_bitmap.remove(slot);
            }
            for slot in replacing.iter() {
                let member = self.replacements[slot].load(Ordering::SeqCst);
                self.members[slot].store(member, Ordering::SeqCst);
                self.drop_replacement(slot);
            }
            self.degraded.store(self.in_sync().len() < slots, Ordering::SeqCst);
        });
        recovering.union(replacing)
    }

    /// The first group byte at or after `from` that some member must be filled at by position, up
    /// to `size`.
    pub(super) fn unfilled(&self, from: u64, size: u64) -> Option<u64> {
        let by_position = self.recovering().difference(self.by_bitmap.load());
        let recovering = by_position.iter().map(|slot| self.recovered(slot));
        let replacing = self.replacing().iter().map(|slot| self.replaced(slot));
        let lowest = recovering.chain(replacing).min()?;
        (lowest < size && from < size).then(|| lowest.max(from))
    }

    /// True if some member is filled by the bitmap.
    pub(super) fn any_by_bitmap(&self) -> bool {
        !self.by_bitmap.load().is_empty()
    }

    /// Notes that all members that were being filled hold the group bytes from `start` to `end`.
    pub(super) fn filled(&self, start: u64, end: u64, geometry: &Geometry) {
        let end = if end >= geometry.array_bytes() { u64::MAX } else { end };
        let raise = |position: &AtomicU64| {
            if (start..end).contains(&position.load(Ordering::SeqCst)) {
                position.store(end, Ordering::SeqCst);
            }
        };
        self.recovering().iter().for_each(|slot| raise(&self.recovered[slot]));
        self.replacing().iter().for_each(|slot| raise(&self.replaced[slot]));
    }
}

/// What a member is to its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    InSync,
    Recovering,
    Replacement,
    /// Not any more, or not yet.
    Out,
}
