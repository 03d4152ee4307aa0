//! What is written to the members in one update, and who did not take it.

use std::time::Duration;

use raid_core::md::Superblock;
use raid_core::slots::SlotSet;
use raid_core::volume::Volume;

use crate::Error;
use crate::deadline::{Call, call_all};
use crate::member::Member;

/// What is written to one member's metadata, in this order, each step durable before the next.
#[derive(Debug, Default)]
pub(crate) struct Script {
    /// What was written to the member is made durable first.
    pub(crate) flush_first: bool,
    /// Parts of the bitmap, or the bad-block log, and their places.
    pub(crate) parts: Vec<(u64, Vec<u8>)>,
    /// The superblock and its place.
    pub(crate) superblock: Option<(u64, Vec<u8>)>,
}

impl Script {
    /// Carries it out. Blocks.
    pub(crate) fn play(&self, member: &Member) -> Result<(), Error> {
        if self.flush_first {
            member.flush()?;
        }
        for (offset, bytes) in &self.parts {
            member.write_range(*offset, bytes)?;
        }
        if !self.parts.is_empty() {
            member.flush()?;
        }
        if let Some((offset, bytes)) = &self.superblock {
            member.write_range(*offset, bytes)?;
            member.flush()?;
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.flush_first && self.parts.is_empty() && self.superblock.is_none()
    }
}

/// Whose metadata is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The slot's member.
    Slot(usize),
    /// The replacement that has this index in the table of members.
    Replacement(usize),
    /// A spare's, which nobody relies on.
    Nobodys,
}

/// What to write to whom.
pub(super) type Scripts = Vec<(Whose, Member, Result<Script, Error>)>;

/// Members that did not take what was written to them.
#[derive(Default)]
pub(super) struct NotWritten {
    slots: SlotSet,
    /// By their index in the table of members.
    replacements: Vec<usize>,
}

impl NotWritten {
    fn add(&mut self, whose: Whose, error: &Error) {
        tracing::warn!("metadata not written: {error}");
        match whose {
            Whose::Slot(slot) => {
                self.slots.insert(slot);
            }
            Whose::Replacement(index) => self.replacements.push(index),
            Whose::Nobodys => {}
        }
    }

    /// Returns the slots concerned, if there are any; replacements leave at once, which asks for
    /// another update.
    pub(super) fn of(self, volume: &Volume) -> Option<SlotSet> {
        for index in &self.replacements {
            // A replacement can always be borne to leave, and what took over meanwhile is told by
            // the next update.
            let _borne = volume.fail_member(*index);
        }
        (!self.slots.is_empty() || !self.replacements.is_empty()).then_some(self.slots)
    }
}

/// Carries scripts out, side by side. Returns who was not in time, or failed.
pub(super) fn carry_out(scripts: Scripts, patience: Duration) -> NotWritten {
    let mut owners = Vec::new();
    let mut failed = NotWritten::default();
    let mut calls: Vec<(Member, Call)> = Vec::new();
    for (whose, member, script) in scripts {
        match script {
            Ok(script) if script.is_empty() => {}
            Ok(script) => {
                owners.push(whose);
                calls.push((member, Box::new(move |member| script.play(member))));
            }
            Err(error) => failed.add(whose, &error),
        }
    }
    for (whose, result) in owners.into_iter().zip(call_all(calls, patience)) {
        if let Err(error) = result {
            failed.add(whose, &error);
        }
    }
    failed
}

/// A superblock's place and bytes.
pub(super) fn image_of(superblock: &Superblock) -> (u64, Vec<u8>) {
    (superblock.super_offset_bytes(), superblock.encode().as_slice().to_vec())
}
