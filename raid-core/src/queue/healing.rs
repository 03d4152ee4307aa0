//! What cannot be read is made anew; what does not agree is told, and made right where that is
//! wanted.
//!
//! ```text
//!   read fails ---> part that regenerates (answers the request)
//!              \\-> Fix: regenerate, write, read back     (the request waits for both)
//!   Check ---> differs? ---> read again ---> still? ---> told, or Fix under the same lock
//!   no plan for lack of a few rows ---> the same, block by block: only what is lost is lost
//! ```

use super::Queue;
use super::ops::{Owner, Piece};
use super::parts::{Birth, Part, PartId, PartKind};
use crate::geometry::Geometry;
use crate::memory::Segment;
use crate::plan::{EVIDENCE_MIN, Extent, Mismatch, Phase};
use crate::request::{Repair, RequestErrorKind};
use crate::slots::SlotSet;
use crate::volume::{Finding, Loss, MAPPED_UNIT_BYTES};
use alloc::vec::Vec;

/// Rows of one slot that are to be made right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fix {
    pub(super) slot: usize,
    /// Row of the chunk, or byte of the unit for levels without parity.
    pub(super) row: u32,
    pub(super) len: u32,
    /// What is to be told when it is done.
    pub(super) finding: Option<Mismatch>,
}

impl Part {
    /// True if what is under way of this slot is the reading back of what a fix wrote.
    pub(super) fn reads_back(&self, slot: usize) -> bool {
        let written = self.plan.phases[..self.phase].iter().any(|p| matches!(p, Phase::Write(_)));
        self.kind == PartKind::Fix && written && self.fixes[self.fixing].slot == slot
    }
}

impl Queue {
    /// A member is there and cannot read some blocks: they are regenerated, written and read back.
    /// The request that found them waits for it, and does not fail if it fails.
    pub(super) fn heal(&mut self, piece: &Piece, member: usize) {
        let (group_index, tag) = match piece.owner {
            Owner::Direct { tag, group, .. } => (group as usize, Some(tag)),
            Owner::Part(id) => {
                let part = &self.parts[id as usize];
                let tag = part.requests.first().map(|request| request.0);
                (part.group(), tag.filter(|_| part.kind != PartKind::Fix))
            }
        };
        let group = &self.volume.groups[group_index];
        let Some(tag) = tag.filter(|_| group.redundant && !self.volume.read_only) else { return };
        if group.membership.member(piece.slot) != member || !group.is_proven() {
            return;
        }
        let offset = piece.offset - self.volume.data_offset(member);
        let (len, slot) = (u64::from(piece.segment.len), piece.slot);
        let slice_bytes = u64::from(group.slice_bytes);
        let mut done = 0;
        while done < len {
            let at = offset + done;
            let geometry = &self.volume.groups[group_index].geometry;
            let (unit, row, run) = if geometry.parity_count() > 0 {
                let row = at % geometry.chunk_bytes();
                (at / geometry.chunk_bytes(), row, slice_bytes - row % slice_bytes)
            } else {
                let Some(position) = geometry.logical_of(slot, at).map(|found| found.offset) else {
                    return;
                };
                let row = position % MAPPED_UNIT_BYTES;
                let run = contiguous(geometry, position, slot, at).min(MAPPED_UNIT_BYTES - row);
                (position / MAPPED_UNIT_BYTES, row, run)
            };
            let run = run.min(len - done);
            let slice = if geometry.parity_count() > 0 { (row / slice_bytes) as u32 } else { 0 };
            let birth = Birth {
                kind: PartKind::Fix,
                group: group_index,
                unit,
                slice,
                tag,
                fix: Some(slot),
                ..Birth::default()
            };
            self.extents.clear();
            let segment = Segment::zero(run as u32);
            self.extents.push(Extent { chunk: 0, row: row as u32, segment });
            self.start_part(birth, SlotSet::new());
            done += run;
        }
    }

    /// There is no plan. If rows of some member could not be read, other rows may still be had: the
    /// part is done again block by block.
    pub(super) fn plan_failed(&mut self, id: PartId) {
        if self.narrow(id) {
            return self.finish_part(id, None);
        }
        let part = &self.parts[id as usize];
        match part.kind {
            // What is answered to the request is another part's business.
            PartKind::Fix => self.finish_fixes(id),
            PartKind::Recover if !part.unreadable.is_empty() => {
                self.tell_losses(id);
                self.finish_part(id, None);
            }
            _ => self.finish_part(id, Some(RequestErrorKind::Io)),
        }
    }

    /// Makes parts of one block's height of a part that met unreadable blocks. False if it is that
    /// low already, or met none.
    fn narrow(&mut self, id: PartId) -> bool {
        let block = self.volume.block_bytes;
        let part = &self.parts[id as usize];
        let lowest = part.extents.iter().map(|extent| extent.row / block).min().unwrap_or(0);
        let highest = part.extents.iter().map(|extent| extent.row_end().div_ceil(block)).max();
        let highest = highest.unwrap_or(0);
        if part.unreadable.is_empty() || highest - lowest <= 1 {
            return false;
        }
        let fix = (part.kind == PartKind::Fix).then(|| part.fixes[part.fixing].slot);
        if part.kind == PartKind::Fix && part.fixes[part.fixing].finding.is_some() {
            return false;
        }
        let extents = part.extents.clone();
        let requests = part.requests.clone();
        for row in lowest..highest {
            let (start, end) = (row * block, (row + 1) * block);
            let part = &self.parts[id as usize];
            let (tag, array_offset) = requests[0];
            let birth = Birth {
                kind: part.kind,
                group: part.group,
                unit: part.unit,
                slice: part.slice,
                tag,
                array_offset,
                fua: part.fua,
                unmap: part.unmap,
                alone: true,
                repair: part.repair,
                fix,
            };
            self.extents.clear();
            for extent in &extents {
                let (from, to) = (extent.row.max(start), extent.row_end().min(end));
                if from < to {
                    let segment = extent.segment.slice(from - extent.row, to - from);
                    self.extents.push(Extent { row: from, segment, ..*extent });
                }
            }
            if !self.extents.is_empty() {
                // It waits for this part's lock, so that the others can still be told of it.
                let child = self.start_part(birth, SlotSet::new());
                for &(tag, offset) in &requests[1..] {
                    self.requests[tag as usize].outstanding += 1;
                    self.parts[child as usize].requests.push((tag, offset));
                }
            }
        }
        true
    }

    /// A recovery cannot get the one block that this part is about.
    fn tell_losses(&self, id: PartId) {
        let part = &self.parts[id as usize];
        let group = &self.volume.groups[part.group];
        let lacking = group.membership.recovering().difference(group.readable(part.unit));
        for extent in &part.extents {
            for slot in lacking.iter() {
                for (member_offset, len) in self.places(part, slot, extent.row, extent.segment.len)
                {
                    self.volume.push_loss(Loss { group: part.group, slot, member_offset, len });
                }
            }
        }
    }

    /// Where rows of a part's unit lie on the member of a slot: `(member offset, length)`.
    fn places(&self, part: &Part, slot: usize, row: u32, len: u32) -> Vec<(u64, u64)> {
        let geometry = &self.volume.groups[part.group].geometry;
        if geometry.parity_count() > 0 {
            let start = geometry.member_offset_of_stripe(part.unit) + u64::from(row);
            return alloc::vec![(start, len.into())];
        }
        let mut places = Vec::new();
        let (mut at, end) = (u64::from(row), u64::from(row + len));
        while at < end {
            let position = part.unit * MAPPED_UNIT_BYTES + at;
            let copies = (0..geometry.copy_count()).map(|copy| geometry.copy(position, copy));
            let run = copies.clone().map(|place| place.contiguous_bytes).min().unwrap_or(1);
            let run = run.min(end - at);
            let here = copies.filter(|place| place.slot == slot);
            places.extend(here.map(|place| (place.member_offset, run)));
            at += run;
        }
        places
    }

    /// A check has compared. What differs is read once more before anything is done about it.
    pub(super) fn checked(&mut self, id: PartId) {
        let part = &mut self.parts[id as usize];
        let found = core::mem::take(&mut part.found);
        let Some(before) = part.before.take() else {
            if found.is_empty() {
                return self.finish_part(id, None);
            }
            part.before = Some(found);
            self.give_back_scratch(id);
            return self.make_plan(id);
        };
        // What a second look does not confirm is told, and left alone.
        let confirmed = found == before;
        let fixes = if confirmed { self.fixes_for(id, &before) } else { Vec::new() };
        let is_fixed = |found: &Mismatch| fixes.iter().any(|fix| fix.finding == Some(*found));
        for mismatch in before.iter().filter(|found| !is_fixed(found)) {
            self.tell(id, mismatch, false);
        }
        if fixes.is_empty() {
            return self.finish_part(id, None);
        }
        let part = &mut self.parts[id as usize];
        part.kind = PartKind::Fix;
        part.fixes = fixes;
        part.fixing = 0;
        self.give_back_scratch(id);
        self.make_plan(id);
    }

    /// What is to be written to make these mismatches go away, as far as that may be done.
    fn fixes_for(&self, id: PartId, found: &[Mismatch]) -> Vec<Fix> {
        let part = &self.parts[id as usize];
        let group = &self.volume.groups[part.group];
        let has_parity = group.geometry.parity_count() > 0;
        let mut fixes = Vec::new();
        for mismatch in found {
            let Mismatch { row, len, suspect, evidence } = *mismatch;
            let fix = |slot| Fix { slot, row, len, finding: Some(*mismatch) };
            let proven = suspect.filter(|_| !has_parity || evidence >= EVIDENCE_MIN);
            let proven = proven.filter(|_| group.is_proven());
            match (part.repair, proven) {
                (Repair::None, _) | (Repair::Proven, None) => {}
                (_, Some(slot)) => fixes.push(fix(slot)),
                (Repair::TrustData, None) => {
                    let readable = group.readable(part.unit);
                    let wrong: SlotSet = if has_parity {
                        let stripe = group.geometry.stripe(part.unit);
                        stripe.p.into_iter().chain(stripe.q).collect()
                    } else {
                        let position = part.unit * MAPPED_UNIT_BYTES + u64::from(row);
                        let copies = 0..group.geometry.copy_count();
                        let slots = copies.map(|copy| group.geometry.copy(position, copy).slot);
                        slots.filter(|slot| readable.contains(*slot)).skip(1).collect()
                    };
                    fixes.extend(wrong.intersection(readable).iter().map(fix));
                }
            }
        }
        fixes
    }

    /// A fix has been written and read back.
    pub(super) fn fixed(&mut self, id: PartId) {
        let part = &mut self.parts[id as usize];
        let found = core::mem::take(&mut part.found);
        if let Some(fix) = part.fixes.get(part.fixing).copied() {
            let membership = &self.volume.groups[part.group].membership;
            let member = membership.member(fix.slot);
            if found.is_empty() {
                self.volume.queue_counters(self.id).count_rewritten(member);
                part.fixing += 1;
                // Several fixes of one mismatch are told once, with the last.
                let more = part.fixes.get(part.fixing).is_some_and(|n| n.finding == fix.finding);
                let unit_left = part.fixing < part.fixes.len();
                if let Some(mismatch) = fix.finding.filter(|_| !more) {
                    self.tell(id, &mismatch, true);
                }
                if unit_left {
                    self.give_back_scratch(id);
                    return self.make_plan(id);
                }
                return self.finish_fixes(id);
            }
            // It says that it has written, and has not.
            let _borne = self.volume.groups[part.group].fail(fix.slot, member);
        }
        self.finish_fixes(id);
    }

    /// Ends a part whose fixes cannot go on; what is not fixed is told.
    pub(super) fn finish_fixes(&mut self, id: PartId) {
        let part = &mut self.parts[id as usize];
        let left = part.fixes.split_off(part.fixing.min(part.fixes.len()));
        let mut told: Option<Mismatch> = None;
        for mismatch in left.iter().filter_map(|fix| fix.finding) {
            if told != Some(mismatch) {
                self.tell(id, &mismatch, false);
            }
            told = Some(mismatch);
        }
        // Who failed meanwhile must be recorded before a write that waits for this is answered.
        self.parts[id as usize].fixes.clear();
        self.acknowledge(id);
    }

    fn tell(&self, id: PartId, mismatch: &Mismatch, repaired: bool) {
        let part = &self.parts[id as usize];
        let geometry = &self.volume.groups[part.group].geometry;
        let row = u64::from(mismatch.row);
        let (offset, member_offset) = if geometry.parity_count() > 0 {
            let stripe = geometry.stripe(part.unit);
            let start = part.unit * geometry.chunk_bytes() * geometry.data_slots() as u64;
            let chunk = (0..geometry.data_slots())
                .find(|&chunk| Some(stripe.data_slot(chunk)) == mismatch.suspect);
            let within = chunk.map_or(0, |chunk| chunk as u64 * geometry.chunk_bytes() + row);
            (start + within, geometry.member_offset_of_stripe(part.unit) + row)
        } else {
            let position = part.unit * MAPPED_UNIT_BYTES + row;
            let copies = (0..geometry.copy_count()).map(|copy| geometry.copy(position, copy));
            let first = copies.clone().next().map_or(0, |place| place.member_offset);
            let suspect = copies.into_iter().find(|place| Some(place.slot) == mismatch.suspect);
            (position, suspect.map_or(first, |place| place.member_offset))
        };
        self.volume.push_finding(Finding {
            group: part.group,
            offset,
            member_offset,
            len: mismatch.len.into(),
            slot: mismatch.suspect,
            repaired,
        });
    }
}

/// Bytes from a member's byte on that follow each other in the array as well.
fn contiguous(geometry: &Geometry, position: u64, slot: usize, member_offset: u64) -> u64 {
    let copies = (0..geometry.copy_count()).map(|copy| geometry.copy(position, copy));
    let here = copies
        .filter(|place| (place.slot, place.member_offset) == (slot, member_offset))
        .map(|place| place.contiguous_bytes);
    here.min().unwrap_or(1)
}
