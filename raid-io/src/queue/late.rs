//! Member operations that do not end in time.
//!
//! The kernel cannot be made to let go of memory: an operation that hangs may still read or fill it
//! when the member comes back, hours later. So a late operation is given up in this order:
//!
//! ```text
//! late seen --> nothing new is sent; the members that answer end what they have   (holding)
//!           --> request buffers that late operations name are exchanged for copies
//!           --> the engine counts the operations as failed, and keeps their scratch memory aside
//! really ended --> the engine has its scratch memory again, the old buffers go
//! ```
//!
//! While it has operations that were given up, a member is asked nothing more by this queue: it
//! would only take more memory with it.

use std::collections::BTreeMap;
use std::path::Path;

use raid_core::queue::MemberError;

use super::{Queue, Sent};
use crate::Buffer;
use crate::buffer::PAGE;
use crate::deadline::Clock;
use crate::member::Member;
use crate::memory::Scratch;

/// What a queue knows of late operations.
#[derive(Default)]
pub(super) struct Late {
    /// The tick of the last look.
    tick: u32,
    /// Late operations wait for the others to end.
    holding: bool,
    /// Operations given up and not ended, by member.
    hung: Vec<u32>,
    /// Buffers of requests that such operations name, with their tokens.
    kept: Vec<(Vec<u32>, Buffer)>,
    /// Scratch memory in place of what is stuck.
    scratch: Vec<Scratch>,
}

impl Late {
    pub(super) fn is_holding(&self) -> bool {
        self.holding
    }

    /// Says that a member has not answered for too long.
    pub(super) fn is_hung(&self, member: usize) -> bool {
        self.hung.get(member).is_some_and(|count| *count > 0)
    }

    /// Returns the scratch memory behind the slab's.
    pub(super) fn scratch(&self) -> &[Scratch] {
        &self.scratch
    }

    /// Keeps memory that the kernel may still use from ever being given back.
    pub(super) fn leak(&mut self) {
        if self.hung.iter().any(|count| *count > 0) {
            std::mem::forget(std::mem::take(&mut self.kept));
            std::mem::forget(std::mem::take(&mut self.scratch));
        }
    }

    fn is_late(&self, sent: &Sent) -> bool {
        let is_due = |tick| Clock::is_late(tick, self.tick) || self.is_hung(sent.member);
        !sent.given_up && sent.tick.is_some_and(is_due)
    }
}

impl Queue {
    /// Looks whether operations have had their time, when the clock has moved on.
    pub(super) fn look_for_late(&mut self) {
        let tick = self.shared.clock.now();
        if tick == self.late.tick {
            return;
        }
        self.late.tick = tick;
        self.late.holding = self.sent.iter().any(|sent| self.late.is_late(sent));
    }

    /// Gives late operations up, once all others have ended. Returns whether there were any.
    pub(super) fn give_up_late(&mut self) -> bool {
        if !self.late.holding {
            return false;
        }
        let is_late = |sent: &Sent| self.late.is_late(sent);
        // What a member has besides a late operation is not waited for either.
        let slow: Vec<usize> =
            self.sent.iter().filter(|sent| is_late(sent)).map(|sent| sent.member).collect();
        let waits = |sent: &Sent| !sent.given_up && sent.tick.is_some();
        if self.sent.iter().any(|sent| waits(sent) && !slow.contains(&sent.member)) {
            return false;
        }
        self.late.holding = false;
        let tokens = 0..self.sent.len() as u32;
        let late: Vec<u32> = tokens.filter(|token| waits(&self.sent[*token as usize])).collect();
        let (recalled, running): (Vec<u32>, Vec<u32>) =
            late.into_iter().partition(|token| self.channel.recall(*token));
        running.iter().for_each(|token| self.channel.give_up(*token));
        self.keep_buffers(&running);
        for token in &running {
            let member = self.sent[*token as usize].member;
            self.sent[*token as usize].given_up = true;
            if self.late.hung.len() <= member {
                self.late.hung.resize(member + 1, 0);
            }
            self.late.hung[member] += 1;
            self.engine.abandon_io(*token);
        }
        for token in &recalled {
            self.finish_member_io(*token, Err(MemberError::Timeout));
        }
        self.report_hung(&running);
        self.replace_scratch();
        !(running.is_empty() && recalled.is_empty())
    }

    /// Exchanges the request buffers that operations name for copies, and unpins them.
    fn keep_buffers(&mut self, tokens: &[u32]) {
        let mut named: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for token in tokens {
            for tag in self.sent[*token as usize].tags.drain(..) {
                named.entry(tag).or_default().push(*token);
            }
        }
        for (tag, tokens) in named {
            let ticket = &mut self.tickets[tag as usize];
            ticket.pins -= tokens.len() as u32;
            assert!(ticket.pins == 0, "an operation that was not given up names request {tag}");
            if let Some(buffer) = self.buffers[tag as usize].as_mut() {
                let copy = buffer.copy_while_used();
                self.late.kept.push((tokens, std::mem::replace(buffer, copy)));
            }
            if let Some(result) = self.tickets[tag as usize].ended {
                self.end(tag, result);
            }
        }
    }

    /// An operation that was given up has ended: what it kept is free.
    pub(super) fn release_late(&mut self, token: u32) {
        let sent = &mut self.sent[token as usize];
        (sent.tick, sent.given_up) = (None, false);
        let member = sent.member;
        for (tokens, _) in &mut self.late.kept {
            tokens.retain(|other| *other != token);
        }
        self.late.kept.retain(|(tokens, _)| !tokens.is_empty());
        self.engine.release_io(token);
        let hung = &mut self.late.hung[member];
        *hung -= 1;
        if *hung == 0 {
            let members = self.shared.members();
            let name = members.get(member).map(Member::name).unwrap_or(Path::new("a member"));
            tracing::warn!("{}: answers again", name.display());
        }
    }

    fn report_hung(&self, tokens: &[u32]) {
        let members = self.shared.members();
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        tokens.iter().for_each(|t| *counts.entry(self.sent[*t as usize].member).or_default() += 1);
        for (member, count) in counts {
            let name = members.get(member).map(Member::name).unwrap_or(Path::new("a member"));
            let seconds = self.shared.clock.patience().as_secs_f32();
            tracing::warn!(
                "{}: no answer for {seconds} s, {count} operations given up",
                name.display()
            );
        }
    }

    /// Keeps as much scratch memory usable as there was, in pieces that the largest part fits into.
    fn replace_scratch(&mut self) {
        let stuck = self.engine.scratch_stuck();
        let least = u64::from(self.shared.volume.scratch_bytes_min());
        let have: u64 = self.late.scratch.iter().map(Scratch::len).sum();
        if stuck == 0 || have >= stuck + least {
            return;
        }
        // Both are far below 4 GiB: the arena is.
        let bytes = (stuck + least - have).max(least).next_multiple_of(PAGE as u64) as u32;
        let start = self.engine.add_scratch(bytes);
        self.late.scratch.push(Scratch::new(start, bytes));
    }
}
