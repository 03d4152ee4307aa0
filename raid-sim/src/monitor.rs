//! Rules about single events: order of writes and metadata (O9), acknowledgements (O8), flushes,
//! and which errors are honest (O7, O10).

use std::collections::BTreeSet;

use raid_core::layout::Level;
use raid_core::plan::IoKind;
use raid_core::request::RequestErrorKind;

use crate::checks::{places, raw_bits, raw_role, raw_superblock, stripe};
use crate::options::{DATA_OFFSET, OpKind};
use crate::report::Violation;
use crate::workload::SECTOR;
use crate::world::{Errand, Flight, Pending, Source, World};

impl World<'_> {
    /// Checks an operation of the engine when it is sent, and again when it is executed.
    pub(crate) fn monitor_io(&mut self, pending: &Pending, when: &str) -> Result<(), Violation> {
        let Source::Queue { .. } = pending.source else { return Ok(()) };
        let (group, slot) = self.place_of(pending.member);
        if !self.offered[group].contains(slot) {
            let what = format!("member {} is used and was not offered", pending.member);
            return Err(Violation::new("O9", what));
        }
        let component = self.machine.options.shape.component;
        let end = pending.offset + pending.len;
        if pending.kind != IoKind::Flush
            && (pending.offset < DATA_OFFSET || end > DATA_OFFSET + component)
        {
            return Err(Violation::new("O9", format!("{pending:?} leaves the data area")));
        }
        let writes = matches!(pending.kind, IoKind::Write | IoKind::WriteZeroes { .. })
            && !self.changes_nothing(pending);
        self.written[group] |= writes;
        let redundant = self.machine.options.shape.level.is_redundant();
        if !writes || !redundant {
            return Ok(());
        }
        for other in self.volume.in_sync(group).iter() {
            let image = self.machine.members[self.machine.member(group, other)].durable();
            if raw_superblock(image).resync_offset != 0 {
                let what = format!(
                    "a write to member {} {when} before slot {other} is durably dirty",
                    pending.member
                );
                return Err(Violation::new("O9", what));
            }
            let Some(granule) = self.machine.options.granule else { continue };
            let (start, len) = self.bitmap_range(slot, pending.offset - DATA_OFFSET, pending.len);
            if len > 0 && !raw_bits(image, granule, start, len) {
                let what = format!(
                    "a write to member {} at {} {when} before its bits are durable on slot {other}",
                    pending.member, pending.offset
                );
                return Err(Violation::new("O9", what));
            }
        }
        Ok(())
    }

    /// True if the member holds these bytes already, readable or not: an unreadable block is
    /// written
    /// anew. That makes no row inconsistent, wherever it is cut, and needs no mark. In a row that
    /// the write hole reached, and that was stopped cleanly since, nothing says that what is
    /// regenerated is not what was there.
    fn changes_nothing(&mut self, pending: &Pending) -> bool {
        let bytes = self.bytes_of(pending);
        let (group, _) = self.place_of(pending.member);
        let block = u64::from(self.machine.options.block);
        let image = self.machine.members[pending.member].live();
        bytes.chunks(block as usize).zip(0..).all(|(bytes, index)| {
            let start = pending.offset + index * block;
            let same = image[start as usize..start as usize + bytes.len()] == *bytes;
            let row = start.saturating_sub(DATA_OFFSET) / block;
            same || self.machine.tainted.contains(&(group, row))
        })
    }

    /// Bitmap addresses of some bytes of a slot's data area. For RAID 10, whose bitmap counts array
    /// bytes, those of the first chunk.
    fn bitmap_range(&self, slot: usize, offset: u64, len: u64) -> (u64, u64) {
        let shape = &self.machine.options.shape;
        if shape.level != Level::Raid10 {
            return (offset, len);
        }
        let chunk = shape.chunk;
        let count = self.machine.geometry.array_bytes() / chunk;
        let holds =
            |index: &u64| places(shape, index * chunk).contains(&(slot, offset / chunk * chunk));
        let found = (0..count).find(holds);
        let len = len.min(chunk - offset % chunk);
        found.map_or((0, 0), |index| (index * chunk + offset % chunk, len))
    }

    /// An acknowledgement of a request that began at `began`: whoever is out of sync is durably
    /// called faulty by all that are in, once anything has been written without him. A request of
    /// several units may have ended in one before a member failed in another: `whole` is false for
    /// it, and only failures from before it began count.
    pub(crate) fn monitor_ack(
        &mut self,
        groups: &[usize],
        began: u64,
        whole: bool,
    ) -> Result<(), Violation> {
        for &group in groups.iter().filter(|&&group| self.written[group]) {
            let in_sync = self.volume.in_sync(group);
            for out in self.machine.geometry.slots().difference(in_sync).iter() {
                // Who left in this very event may belong to another request.
                let left_at = self.left_at[group][out];
                if left_at == u64::MAX || !whole && left_at >= began {
                    continue;
                }
                for slot in in_sync.iter() {
                    let image = self.machine.members[self.machine.member(group, slot)].durable();
                    if raw_role(image, out) != 0xfffe {
                        let what = format!(
                            "group {group}: acknowledged before slot {slot} durably calls slot \
                             {out} faulty"
                        );
                        return Err(Violation::new("O8", what));
                    }
                }
            }
        }
        Ok(())
    }

    /// Notes when a slot was first seen out of sync.
    pub(crate) fn note_leavers(&mut self) {
        for group in 0..self.volume.group_count() {
            let in_sync = self.volume.in_sync(group);
            for slot in self.machine.geometry.slots().difference(in_sync).iter() {
                let left_at = &mut self.left_at[group][slot];
                *left_at = (*left_at).min(self.machine.clock);
            }
        }
    }

    /// A flush succeeded: what was executed before it was submitted is stable on every member.
    pub(crate) fn monitor_flush(&mut self, submitted: u64) -> Result<(), Violation> {
        for group in 0..self.volume.group_count() {
            for slot in self.volume.in_sync(group).iter() {
                let member = &self.machine.members[self.machine.member(group, slot)];
                if let Some(sector) = member.unflushed(DATA_OFFSET, submitted) {
                    let what = format!("flushed, but sector {sector} of slot {slot} is not");
                    return Err(Violation::new("O9", what));
                }
            }
        }
        Ok(())
    }

    /// A request failed: only if more is broken there than the level bears.
    pub(crate) fn check_error(
        &mut self,
        flight: &Flight,
        error: Option<RequestErrorKind>,
    ) -> Result<(), Violation> {
        let Some(kind) = error else { return Ok(()) };
        if kind == RequestErrorKind::NoSpace && self.no_space_at >= flight.began {
            return Ok(());
        }
        let is_flush = matches!(&flight.errand, Errand::Flush)
            || matches!(&flight.errand, Errand::Client(op) if op.kind == OpKind::Flush);
        let groups = if is_flush {
            (0..self.volume.group_count()).collect()
        } else {
            self.groups_of(flight)
        };
        for group in groups {
            if self.may_fail(group, flight.began) {
                return Ok(());
            }
        }
        if !is_flush && self.is_unavailable(flight) {
            return Ok(());
        }
        let what = format!("{:?} failed ({kind:?}) and nothing explains it", flight.errand);
        Err(Violation::new("O7/O10", what))
    }

    /// True if requests of a group may fail wherever they are: more slots are lost than it bears,
    /// some are lost while redundancy is not to be believed, or it was stopped for that.
    pub(crate) fn may_fail(&self, group: usize, began: u64) -> bool {
        let lost = self.lost(group);
        let untrusted = !self.was_trusted(group, began);
        !self.machine.geometry.tolerates(&lost)
            || untrusted && !lost.is_empty()
            || self.volume.is_stopped(group) && !lost.is_empty()
    }

    /// True if a group's redundancy was to be believed all the time since a request began.
    pub(crate) fn was_trusted(&self, group: usize, began: u64) -> bool {
        self.volume.is_trusted(group) && self.untrusted_at[group] < began
    }

    /// True if a resync may fail: somebody is lost, has no room, or has unreadable sectors.
    pub(crate) fn may_fail_resync(&self, group: usize, began: u64) -> bool {
        let bad = self.ever_bad.iter().any(|&(member, _)| self.place_of(member).0 == group);
        bad || !self.lost(group).is_empty() || self.no_space_at >= began
    }

    /// True if some row that the request needs has more unreadable places than it bears.
    fn is_unavailable(&self, flight: &Flight) -> bool {
        let writes = matches!(&flight.errand, Errand::Client(op) if op.kind != OpKind::Read);
        let sectors = flight.first..flight.first + flight.count;
        let block = u64::from(self.machine.options.block) / SECTOR as u64;
        if writes && sectors.clone().any(|at| self.is_unit_crowded(at, flight.began)) {
            return true;
        }
        sectors.clone().any(|sector| {
            // A block is read whole, and completed before it is written.
            let first = sector / block * block;
            (first..first + block)
                .any(|near| self.is_sector_unavailable(near, writes, flight.began))
        })
    }

    /// True if the slots with unreadable sectors anywhere in a sector's lock unit are more than the
    /// level bears. Writes that wait for one unit are joined: if a row of one of them cannot be
    /// completed, all of them fail, though the others were written.
    fn is_unit_crowded(&self, sector: u64, began: u64) -> bool {
        let (group, places) = self.machine.places(sector);
        let mut lost = self.lost(group);
        for slot in self.machine.geometry.slots().iter() {
            if self.has_bad(&self.ever_bad, group, slot, places[0].1) {
                lost.insert(slot);
            }
        }
        let trusted = self.was_trusted(group, began) || self.machine.geometry.parity_count() == 0;
        !trusted && !lost.is_empty() || !self.machine.geometry.tolerates(&lost)
    }

    /// True if a slot was unreadable within the stripe of a member's byte; for
    /// levels without parity anywhere, as their units are larger than most members here.
    pub(crate) fn has_bad(
        &self,
        bad: &BTreeSet<(usize, u64)>,
        group: usize,
        slot: usize,
        offset: u64,
    ) -> bool {
        let member = self.machine.member(group, slot);
        let chunk = self.machine.options.shape.chunk;
        let (first, last) = if self.machine.geometry.parity_count() > 0 {
            let start = DATA_OFFSET + offset / chunk * chunk;
            (start / SECTOR as u64, (start + chunk) / SECTOR as u64)
        } else {
            (0, u64::MAX)
        };
        bad.range((member, first)..(member, last)).next().is_some()
    }

    /// True if a sector cannot be read, or written, by what is unreadable or lost around it.
    fn is_sector_unavailable(&self, sector: u64, writes: bool, began: u64) -> bool {
        if sector >= self.machine.oracle.sector_count() {
            return false;
        }
        let shape = &self.machine.options.shape;
        let (group, places) = self.machine.places(sector);
        let lost = self.lost(group);
        let block = u64::from(self.machine.options.block);
        let is_lost = |slot: usize, offset: u64| {
            let start = (DATA_OFFSET + offset) / block * block;
            let (first, last) = (start / SECTOR as u64, (start + block) / SECTOR as u64);
            let member = self.machine.member(group, slot);
            let bad = self.ever_bad.range((member, first)..(member, last)).next().is_some();
            lost.contains(slot) || bad
        };
        if self.machine.geometry.parity_count() == 0 {
            return places.iter().all(|&(slot, offset)| is_lost(slot, offset));
        }
        let (own, offset) = places[0];
        let stripe = stripe(shape, offset / shape.chunk);
        let parities = [Some(stripe.p), stripe.q];
        let all = stripe.data.iter().copied().chain(parities.into_iter().flatten());
        let lost_count = all.filter(|&slot| is_lost(slot, offset)).count();
        let trusted = self.was_trusted(group, began);
        let bears = if trusted { self.machine.geometry.parity_count() } else { 0 };
        lost_count > bears && (writes || is_lost(own, offset))
    }
}
