//! A set of slots, small enough to be passed by value.
//!
//! Used for the missing slots of an array, the slots a plan touches and the copies that may be
//! read. 256 bits, because an array has at most 255 slots; four words, so that every operation is a
//! handful of instructions and none allocates.

use core::fmt;

/// The largest number of distinct slots a [`SlotSet`] can hold.
pub const SLOT_SET_CAPACITY: usize = 256;

const WORD_COUNT: usize = SLOT_SET_CAPACITY / 64;

/// A set of slots `0..256`. Slots beyond that are never members: `insert` panics, queries answer
/// "no".
///
/// ```
/// use raid_core::slots::SlotSet;
/// let missing: SlotSet = [3, 1].into_iter().collect();
/// assert!(missing.contains(1) && !missing.contains(2));
/// assert_eq!(missing.iter().collect::<Vec<_>>(), [1, 3]);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SlotSet {
    words: [u64; WORD_COUNT],
}

impl SlotSet {
    /// The set without slots.
    pub const EMPTY: Self = Self { words: [0; WORD_COUNT] };

    /// The set without slots.
    #[must_use]
    pub const fn new() -> Self {
        Self::EMPTY
    }

    /// The slots `0..slot_count`.
    ///
    /// # Panics
    /// When `slot_count` is more than 256.
    #[must_use]
    pub fn first(slot_count: usize) -> Self {
        assert!(slot_count <= SLOT_SET_CAPACITY, "slot count {slot_count} > {SLOT_SET_CAPACITY}");
        let mut set = Self::EMPTY;
        for (position, word) in set.words.iter_mut().enumerate() {
            let below = slot_count.saturating_sub(position * 64).min(64);
            *word = if below == 64 { u64::MAX } else { (1 << below) - 1 };
        }
        set
    }

    /// The set as words, slot 0 in the lowest bit of the first: for atomic storage.
    pub(crate) const fn words(self) -> [u64; WORD_COUNT] {
        self.words
    }

    /// The set of such words.
    pub(crate) const fn from_words(words: [u64; WORD_COUNT]) -> Self {
        Self { words }
    }

    /// The set of one slot.
    ///
    /// # Panics
    /// When `slot` is not below 256.
    #[must_use]
    pub fn one(slot: usize) -> Self {
        let mut set = Self::EMPTY;
        set.insert(slot);
        set
    }

    /// Whether `slot` is in the set.
    #[must_use]
    #[inline]
    pub const fn contains(&self, slot: usize) -> bool {
        slot < SLOT_SET_CAPACITY && self.words[slot / 64] >> (slot % 64) & 1 == 1
    }

    /// Adds `slot`; tells whether it was not in the set before.
    ///
    /// # Panics
    /// When `slot` is not below 256.
    #[inline]
    pub fn insert(&mut self, slot: usize) -> bool {
        assert!(slot < SLOT_SET_CAPACITY, "slot {slot} >= {SLOT_SET_CAPACITY}");
        let is_new = !self.contains(slot);
        self.words[slot / 64] |= 1 << (slot % 64);
        is_new
    }

    /// Takes `slot` out; tells whether it was in the set.
    #[inline]
    pub fn remove(&mut self, slot: usize) -> bool {
        let was_in = self.contains(slot);
        if was_in {
            self.words[slot / 64] &= !(1 << (slot % 64));
        }
        was_in
    }

    /// The number of slots in the set.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        (self.words[0].count_ones()
            + self.words[1].count_ones()
            + self.words[2].count_ones()
            + self.words[3].count_ones()) as usize
    }

    /// Whether the set has no slot.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.words[0] | self.words[1] | self.words[2] | self.words[3] == 0
    }

    /// The lowest slot in the set.
    #[must_use]
    #[inline]
    pub fn lowest(&self) -> Option<usize> {
        self.iter().next()
    }

    /// The slots in either set.
    #[must_use]
    #[inline]
    pub fn union(self, other: Self) -> Self {
        self.combined(other, |a, b| a | b)
    }

    /// The slots in both sets.
    #[must_use]
    #[inline]
    pub fn intersection(self, other: Self) -> Self {
        self.combined(other, |a, b| a & b)
    }

    /// The slots of this set that are not in `other`.
    #[must_use]
    #[inline]
    pub fn difference(self, other: Self) -> Self {
        self.combined(other, |a, b| a & !b)
    }

    /// Whether every slot of this set is in `other`.
    #[must_use]
    #[inline]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(*other).is_empty()
    }

    /// The slots from the lowest to the highest.
    #[inline]
    pub fn iter(&self) -> Slots {
        Slots { words: self.words, position: 0 }
    }

    #[inline]
    fn combined(self, other: Self, operation: impl Fn(u64, u64) -> u64) -> Self {
        let mut words = self.words;
        for (word, other_word) in words.iter_mut().zip(other.words) {
            *word = operation(*word, other_word);
        }
        Self { words }
    }
}

impl fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl FromIterator<usize> for SlotSet {
    fn from_iter<I: IntoIterator<Item = usize>>(slots: I) -> Self {
        let mut set = Self::EMPTY;
        set.extend(slots);
        set
    }
}

impl Extend<usize> for SlotSet {
    fn extend<I: IntoIterator<Item = usize>>(&mut self, slots: I) {
        for slot in slots {
            self.insert(slot);
        }
    }
}

impl IntoIterator for SlotSet {
    type Item = usize;
    type IntoIter = Slots;

    fn into_iter(self) -> Slots {
        self.iter()
    }
}

impl IntoIterator for &SlotSet {
    type Item = usize;
    type IntoIter = Slots;

    fn into_iter(self) -> Slots {
        self.iter()
    }
}

/// The slots of a [`SlotSet`] in ascending order.
#[derive(Clone, Debug)]
pub struct Slots {
    words: [u64; WORD_COUNT],
    position: usize,
}

impl Iterator for Slots {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        while let Some(word) = self.words.get_mut(self.position) {
            if *word != 0 {
                let bit = word.trailing_zeros() as usize;
                *word &= *word - 1;
                return Some(self.position * 64 + bit);
            }
            self.position += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    // The set against a plain list of booleans, at the word borders and through every operation.
    #[test]
    fn set_agrees_with_a_list_of_booleans() {
        let slots = [0, 1, 63, 64, 65, 127, 128, 191, 192, 254, 255];
        let mut set = SlotSet::new();
        let mut model = [false; SLOT_SET_CAPACITY];
        for slot in slots {
            assert!(set.insert(slot) && !set.insert(slot));
            model[slot] = true;
            assert_eq!(set.len(), model.iter().filter(|&&m| m).count());
            assert!((0..SLOT_SET_CAPACITY).all(|s| set.contains(s) == model[s]));
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), slots);
        assert!(!set.contains(256) && !set.remove(256) && !set.contains(usize::MAX));
        for slot in slots {
            assert!(set.remove(slot) && !set.remove(slot));
        }
        assert!(set.is_empty() && set == SlotSet::EMPTY && set.lowest().is_none());
    }

    #[test]
    fn first_holds_exactly_the_slots_below() {
        for count in 0..=SLOT_SET_CAPACITY {
            assert_eq!(SlotSet::first(count), (0..count).collect(), "count {count}");
            assert_eq!(SlotSet::first(count).len(), count);
        }
    }

    #[test]
    fn algebra_of_sets() {
        let a: SlotSet = [1, 2, 130].into_iter().collect();
        let b: SlotSet = [2, 130, 200].into_iter().collect();
        assert_eq!(a.union(b), [1, 2, 130, 200].into_iter().collect());
        assert_eq!(a.intersection(b), [2, 130].into_iter().collect());
        assert_eq!(a.difference(b), SlotSet::one(1));
        assert!(SlotSet::one(2).is_subset(&a) && !a.is_subset(&b) && SlotSet::EMPTY.is_subset(&a));
    }
}
