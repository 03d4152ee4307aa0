//! The requests of one connection that the engine works on.

use super::Slot;

/// What the reply to a request needs to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) kind: PendingKind,
}

/// How a request goes on when the engine has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingKind {
    Read,
    Write,
    /// Flush, write-zeroes: nothing but the result matters.
    Plain,
    /// A hint: not being able to follow it is no failure. `fua`: a flush comes after it.
    Trim {
        fua: bool,
    },
    Status {
        one: bool,
    },
}

/// Slots, each empty or holding a request in flight.
#[derive(Debug)]
pub(crate) struct Table {
    slots: Vec<Option<Pending>>,
    free: Vec<Slot>,
}

impl Table {
    pub(crate) fn new(slot_count: u8) -> Self {
        Self {
            slots: (0..slot_count).map(|_| None).collect(),
            // Low numbers first, so that a client with little in flight stays in few cache lines.
            free: (0..slot_count).rev().map(Slot).collect(),
        }
    }

    /// Requests in flight.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Take a slot for a request; `None` when all are taken.
    pub(crate) fn insert(&mut self, pending: Pending) -> Option<Slot> {
        let slot = self.free.pop()?;
        self.slots[slot.index()] = Some(pending);
        Some(slot)
    }

    /// The request in a slot is answered.
    ///
    /// # Panics
    /// When there is none: the shell has answered a request twice.
    pub(crate) fn remove(&mut self, slot: Slot) -> Pending {
        let Some(pending) = self.slots[slot.index()].take() else {
            panic!("slot {} is empty: a request was answered twice", slot.index());
        };
        self.free.push(slot);
        pending
    }
}
