//! The write-intent bitmap in memory: which regions may be out of sync, and which of that is
//! durable.
//!
//! A bit stands for `granule_bytes` of a group's bitmap addresses (bytes of a member for levels 1,
//! 4, 5 and 6, bytes of the array for level 10, as md counts). Three words for each 64 bits:
//!
//! ```text
//!   wanted   set by a write that found the bit not durable; cleared together with `durable`
//!   durable  set once the members' bitmaps have the bit; a write goes on only then
//!   touched  set by every write before it looks at `durable`; cleared by the ageing
//! ```
//!
//! Clearing is lazy and needs no counter for each bit. Time is cut into periods (`Intent::age`);
//! a period ends only when every write that began before it has ended. A bit that no write touched
//! in a whole period therefore has none under way: it is taken back in memory, then on the members.
//! A write that comes in between either sees the bit taken back, and waits for it to be set again,
//! or is seen by the ageing, which lets the bit stand: each side stores before it loads,
//! sequentially consistent, so one of them sees the other (Dekker).
//!
//! `unsynced` bits are regions whose redundancy is not to be believed until they have been
//! resynced: those found set after an unclean stop. They are never taken back by age.
//!
//! `stale` bits are regions that a member which has come back missed: they are what was set when it
//! came, and go as its recovery gets on.

use crate::planted;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The bitmap that a group keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntentConfig {
    /// Bitmap addresses that one bit stands for: a power of two, at least 4096.
    pub granule_bytes: u64,
    /// Bits that are set on the members, lowest bit first; as many words as the group's bitmap
    /// addresses need.
    pub words: Vec<u64>,
}

/// What the members' bitmaps must say, as far as it changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntentImage {
    /// All words as they must be on the members.
    pub words: Vec<u64>,
    /// Indexes of the words that may differ from what is there, ascending.
    pub changed: Vec<usize>,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Intent {
    granule_shift: u32,
    wanted: Box<[AtomicU64]>,
    durable: Box<[AtomicU64]>,
    touched: Box<[AtomicU64]>,
    unsynced: Box<[AtomicU64]>,
    stale: Box<[AtomicU64]>,
    /// What the members were last told.
    stored: Box<[AtomicU64]>,
    /// Words or bits are to be written.
    pub(crate) due: AtomicBool,
}

fn words(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

impl Intent {
    pub(crate) fn new(config: &IntentConfig, unsynced: bool) -> Self {
        let count = config.words.len();
        let intent = Self {
            granule_shift: config.granule_bytes.trailing_zeros(),
            wanted: words(count),
            durable: words(count),
            touched: words(count),
            unsynced: words(count),
            stale: words(count),
            stored: words(count),
            due: AtomicBool::new(false),
        };
        for (index, &bits) in config.words.iter().enumerate() {
            intent.wanted[index].store(bits, Ordering::Relaxed);
            intent.durable[index].store(bits, Ordering::Relaxed);
            intent.stored[index].store(bits, Ordering::Relaxed);
            if unsynced {
                intent.unsynced[index].store(bits, Ordering::Relaxed);
            }
        }
        intent
    }

    fn bits(&self, start: u64, len: u64) -> impl Iterator<Item = (usize, u64)> + use<> {
        let first = start >> self.granule_shift;
        let last = (start + len - 1) >> self.granule_shift;
        (first..=last).map(|bit| ((bit / 64) as usize, 1 << (bit % 64)))
    }

    /// Asks whether a write to these bitmap addresses may be sent; if not, its bits are wanted from
    /// now on.
    pub(crate) fn enter(&self, start: u64, len: u64) -> bool {
        let mut open = true;
        for (word, bit) in self.bits(start, len) {
            if self.touched[word].load(Ordering::SeqCst) & bit == 0 {
                self.touched[word].fetch_or(bit, Ordering::SeqCst);
            }
            if self.durable[word].load(Ordering::SeqCst) & bit == 0 {
                self.wanted[word].fetch_or(bit, Ordering::SeqCst);
                self.due.store(true, Ordering::SeqCst);
                open = false;
            }
        }
        open
    }

    fn any(&self, words: &[AtomicU64], start: u64, len: u64) -> bool {
        self.bits(start, len).any(|(word, bit)| words[word].load(Ordering::SeqCst) & bit != 0)
    }

    /// The first address at or after `from` with a bit in `words`, and where its run of bits ends.
    fn next_set(&self, words: &[AtomicU64], from: u64, end: u64) -> Option<(u64, u64)> {
        let granule = 1u64 << self.granule_shift;
        let set =
            |bit: u64| words[(bit / 64) as usize].load(Ordering::Acquire) >> (bit % 64) & 1 != 0;
        let last = end.div_ceil(granule);
        let first = (from / granule..last).find(|&bit| set(bit))?;
        let after = (first..last).find(|&bit| !set(bit)).unwrap_or(last);
        Some(((first * granule).max(from), (after * granule).min(end)))
    }

    /// Clears the bits of the regions that lie wholly between the addresses; `u64::MAX` reaches the
    /// last one.
    fn clear_within(&self, words: &[AtomicU64], start: u64, end: u64) {
        let granule = 1u64 << self.granule_shift;
        let last = (end / granule).min(words.len() as u64 * 64);
        for bit in start.div_ceil(granule)..last {
            words[(bit / 64) as usize].fetch_and(!(1 << (bit % 64)), Ordering::AcqRel);
        }
    }

    /// True if a resync of these addresses is due.
    pub(crate) fn is_unsynced(&self, start: u64, len: u64) -> bool {
        self.any(&self.unsynced, start, len)
    }

    /// The first address at or after `from` that a resync is due for, and where its run of bits
    /// ends.
    pub(crate) fn next_unsynced(&self, from: u64, end: u64) -> Option<(u64, u64)> {
        self.next_set(&self.unsynced, from, end)
    }

    /// Notes that the regions at or after `start` that end at `end` or before are in sync again;
    /// `u64::MAX` reaches the last one.
    pub(crate) fn synced(&self, start: u64, end: u64) {
        if planted::is(26) {
            let granule = 1u64 << self.granule_shift;
            let end = end.checked_next_multiple_of(granule).unwrap_or(end);
            return self.clear_within(&self.unsynced, start / granule * granule, end);
        }
        self.clear_within(&self.unsynced, start, end);
    }

    /// Takes all bits that are set now for what a member missed that has just come back.
    pub(crate) fn mark_stale(&self) {
        for (index, stale) in self.stale.iter().enumerate() {
            let set = self.wanted[index].load(Ordering::SeqCst)
                | self.durable[index].load(Ordering::SeqCst);
            stale.fetch_or(set, Ordering::SeqCst);
        }
    }

    /// True if a member that came back may have missed something there.
    pub(crate) fn is_stale(&self, start: u64, len: u64) -> bool {
        self.any(&self.stale, start, len)
    }

    /// As [`Intent::next_unsynced`], of what a member that came back missed.
    pub(crate) fn next_stale(&self, from: u64, end: u64) -> Option<(u64, u64)> {
        self.next_set(&self.stale, from, end)
    }

    /// As [`Intent::synced`], of what a member that came back missed.
    pub(crate) fn caught_up(&self, start: u64, end: u64) {
        self.clear_within(&self.stale, start, end);
    }

    /// Nobody needs the stale bits any more.
    pub(crate) fn forget_stale(&self) {
        self.stale.iter().for_each(|word| word.store(0, Ordering::SeqCst));
    }

    /// Says that redundancy cannot be believed in these regions, durably marked or not.
    pub(crate) fn distrust(&self, start: u64, len: u64) {
        for (word, bit) in self.bits(start, len) {
            self.unsynced[word].fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// Bits that are set, in all.
    pub(crate) fn dirty_count(&self) -> u64 {
        self.wanted.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }

    /// Bits of regions that are not to be believed.
    pub(crate) fn unsynced_count(&self) -> u64 {
        self.unsynced.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }

    /// Ends a period: bits that nothing touched in it are taken back. Only right when every write
    /// that began before the period has ended.
    pub(crate) fn age(&self) {
        for index in 0..self.durable.len() {
            let touched = self.touched[index].swap(0, Ordering::SeqCst);
            let touched = if planted::is(22) { 0 } else { touched };
            let kept = touched | self.unsynced[index].load(Ordering::SeqCst);
            let old = self.durable[index].load(Ordering::SeqCst) & !kept;
            if old == 0 {
                continue;
            }
            self.durable[index].fetch_and(!old, Ordering::SeqCst);
            // Writes that came in between saw the bit durable: it stands for them.
            let back = self.touched[index].load(Ordering::SeqCst) & old;
            self.durable[index].fetch_or(back, Ordering::SeqCst);
            self.wanted[index].fetch_and(!(old & !back), Ordering::SeqCst);
            // A write that found the bit gone may have wanted it just before it was taken back: its
            // touch says so.
            let again = self.touched[index].load(Ordering::SeqCst) & old & !back;
            self.wanted[index].fetch_or(again, Ordering::SeqCst);
            self.due.store(true, Ordering::SeqCst);
        }
    }

    /// What is to be written now, if anything is due.
    pub(crate) fn image(&self) -> Option<IntentImage> {
        if !self.due.swap(false, Ordering::SeqCst) {
            return None;
        }
        let load = |word: &AtomicU64| word.load(Ordering::SeqCst);
        let words: Vec<u64> =
            self.wanted.iter().zip(&self.durable).map(|(a, b)| load(a) | load(b)).collect();
        let changed: Vec<usize> =
            (0..words.len()).filter(|&index| words[index] != load(&self.stored[index])).collect();
        Some(IntentImage { words, changed })
    }

    /// Notes that an image is on those members that are left, some having failed meanwhile: the
    /// next image is compared with this one.
    pub(crate) fn told(&self, image: &IntentImage) {
        for &index in &image.changed {
            self.stored[index].store(image.words[index], Ordering::SeqCst);
        }
    }

    /// Notes that an image is on every member in sync.
    pub(crate) fn made_durable(&self, image: &IntentImage) {
        self.told(image);
        for (index, &word) in image.words.iter().enumerate() {
            // Only bits that are still wanted: others were taken back while the image was written.
            let wanted = self.wanted[index].load(Ordering::SeqCst);
            if word & wanted & !self.durable[index].load(Ordering::SeqCst) != 0 {
                self.durable[index].fetch_or(word & wanted, Ordering::SeqCst);
            }
        }
    }
}
