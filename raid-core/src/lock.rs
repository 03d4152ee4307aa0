//! Locks on units of the array, shared by all queues, without a wait inside.
//!
//! A table of words; a unit hashes to one of them. A queue that does not get a lock leaves its bit
//! in the word and goes on with other work; whoever releases the word hands it to the next waiting
//! queue, in turn, so that no queue starves. Two units may share a word: that costs a needless
//! wait, never a deadlock, for a part holds one lock at most.
//!
//! ```text
//!   bit 63      62 .. 48   47 .. 32   31 .. 0
//!   exclusive   unused     readers    queues that wait
//! ```
//!
//! Invariants: waiting bits are set only while the word is held; exclusive and readers exclude each
//! other.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};

/// Queues that one volume can have: one bit each in a lock word.
pub const QUEUE_COUNT_MAX: usize = 32;

/// Lock words. 16 384, so that 128 random requests in flight rarely share one (under 1 %), in 128
/// KiB.
const WORD_COUNT: usize = 16 * 1024;

const EXCLUSIVE: u64 = 1 << 63;
const READER: u64 = 1 << 32;
const READERS: u64 = 0xffff << 32;
const WAITERS: u64 = 0xffff_ffff;

/// How a part holds its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockMode {
    /// Writes.
    Exclusive,
    /// Reads that regenerate.
    Shared,
}

/// The lock words of a volume.
#[derive(Debug)]
pub(crate) struct LockTable {
    words: Box<[AtomicU64]>,
}

impl LockTable {
    pub(crate) fn new() -> Self {
        Self { words: (0..WORD_COUNT).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Number of lock words.
    pub(crate) const fn len() -> usize {
        WORD_COUNT
    }

    /// The word of a unit. Fibonacci hashing spreads neighbouring units.
    pub(crate) fn word_of(group: usize, unit: u64, slice: u32) -> usize {
        let key = unit ^ (group as u64) << 48 ^ u64::from(slice) << 32;
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) as usize % WORD_COUNT
    }

    /// Takes the word, or leaves `queue`'s bit in it and returns false.
    pub(crate) fn acquire(&self, word: usize, queue: usize, mode: LockMode) -> bool {
        let mut taken = false;
        let step = |state: u64| {
            let next = match mode {
                LockMode::Exclusive if state == 0 => EXCLUSIVE,
                // A waiting writer goes first: otherwise a stream of readers would starve it.
                LockMode::Shared
                    if state & (EXCLUSIVE | WAITERS) == 0 && state & READERS != READERS =>
                {
                    state + READER
                }
                _ => state | 1 << queue,
            };
            taken = next & WAITERS == state & WAITERS && next != state;
            // A word that is held and already has our bit needs no store.
            Some(next)
        };
        let before = self.words[word].fetch_update(Ordering::AcqRel, Ordering::Acquire, step);
        assert!(before.is_ok(), "the update never declines");
        taken
    }

    /// Releases the word; if a queue waits, it is now the exclusive holder and must be told.
    pub(crate) fn release(&self, word: usize, queue: usize, mode: LockMode) -> Option<usize> {
        let mut heir = None;
        let step = |state: u64| {
            let rest = match mode {
                LockMode::Exclusive => {
                    assert!(state & EXCLUSIVE != 0, "lock word {word} is not held exclusively");
                    state & !EXCLUSIVE
                }
                LockMode::Shared => {
                    assert!(state & READERS != 0, "lock word {word} has no reader");
                    state - READER
                }
            };
            heir = (rest & READERS == 0).then(|| next_queue(rest, queue)).flatten();
            Some(heir.map_or(rest, |heir| (rest & !(1 << heir)) | EXCLUSIVE))
        };
        let before = self.words[word].fetch_update(Ordering::AcqRel, Ordering::Acquire, step);
        assert!(before.is_ok(), "the update never declines");
        heir
    }

    /// Turns an exclusive hold into a shared one.
    pub(crate) fn downgrade(&self, word: usize) {
        let before = self.words[word].fetch_sub(EXCLUSIVE - READER, Ordering::AcqRel);
        assert!(before & EXCLUSIVE != 0, "lock word {word} is not held exclusively");
    }

    /// Leaves `queue`'s bit in a word that it holds itself, for the rest of its waiting parts.
    pub(crate) fn wait_again(&self, word: usize, queue: usize) {
        let before = self.words[word].fetch_or(1 << queue, Ordering::AcqRel);
        assert!(before & (EXCLUSIVE | READERS) != 0, "lock word {word} is not held");
    }

    /// Withdraws `queue`'s bit; the word may have been handed to it meanwhile.
    pub(crate) fn withdraw(&self, word: usize, queue: usize) {
        self.words[word].fetch_and(!(1 << queue), Ordering::AcqRel);
    }
}

/// The waiting queue next after `queue`, in turn.
fn next_queue(state: u64, queue: usize) -> Option<usize> {
    let waiting = (state & WAITERS) as u32;
    if waiting == 0 {
        return None;
    }
    let from = (queue as u32 + 1) % QUEUE_COUNT_MAX as u32;
    let turned = waiting.rotate_right(from);
    Some(((turned.trailing_zeros() + from) % QUEUE_COUNT_MAX as u32) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// The word goes round the waiting queues in turn, whoever waits longest in bit order.
    #[test]
    fn hands_over_in_turn() {
        let table = LockTable::new();
        assert!(table.acquire(7, 3, LockMode::Exclusive));
        for queue in [1, 3, 31] {
            assert!(!table.acquire(7, queue, LockMode::Exclusive));
        }
        let mut order = Vec::new();
        let mut holder = 3;
        while let Some(next) = table.release(7, holder, LockMode::Exclusive) {
            order.push(next);
            holder = next;
        }
        assert_eq!(order, [31, 1, 3]);
        assert!(table.acquire(7, 0, LockMode::Exclusive), "free again");
    }

    /// Readers share, a waiting writer stops new readers and gets the word from the last one.
    #[test]
    fn writer_follows_readers() {
        let table = LockTable::new();
        assert!(table.acquire(0, 0, LockMode::Shared));
        assert!(table.acquire(0, 1, LockMode::Shared));
        assert!(!table.acquire(0, 2, LockMode::Exclusive));
        assert!(!table.acquire(0, 4, LockMode::Shared));
        assert_eq!(table.release(0, 0, LockMode::Shared), None);
        assert_eq!(table.release(0, 1, LockMode::Shared), Some(2));
        assert_eq!(table.release(0, 2, LockMode::Exclusive), Some(4));
        table.downgrade(0);
        assert!(table.acquire(0, 5, LockMode::Shared));
        assert_eq!(table.release(0, 4, LockMode::Shared), None);
        assert_eq!(table.release(0, 5, LockMode::Shared), None);
        assert!(table.acquire(0, 6, LockMode::Exclusive), "free again");
    }
}
