//! Checking: everything is read and compared; what differs is told block by block.

use super::{ComputeOp, MappedView, Plan, Planner, Span, StripeView, Trust};
use crate::geometry::Place;
use crate::memory::Segment;
use crate::parity::{Kernel, Suspect, locate};
use alloc::vec::Vec;

/// Bytes that are judged together: a sector, the smallest thing that a member stores at once.
const SECTOR: usize = 512;

/// Wrong bytes that it takes to believe that a named chunk is the wrong one: with fewer, two wrong
/// chunks are taken for a third one too often (reckoned in docs/fault-model.md).
pub(crate) const EVIDENCE_MIN: u32 = 16;

/// Rows of a unit whose redundancy and data do not agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// First row: a byte of the chunk, or of the unit for levels without parity.
    pub row: u32,
    /// Length in bytes.
    pub len: u32,
    /// The slot whose content is wrong, if that can be told.
    pub suspect: Option<usize>,
    /// Bytes that differ.
    pub evidence: u32,
}

impl Planner {
    /// Plans the check of `len` bytes of rows from row `start` on: whatever parity can be read is
    /// compared. Without all of the data, or where a resync is due, there is nothing to compare,
    /// and the plan is empty.
    pub fn check_stripe(&mut self, view: &StripeView<'_>, start: u32, len: u32, plan: &mut Plan) {
        let all_here = (0..view.data_count()).all(|chunk| view.data_readable(chunk));
        if !all_here || view.parity_sources() == 0 || view.trust == Trust::Unsynced {
            return;
        }
        let mut data = core::mem::take(&mut self.old);
        data.clear();
        let first_slot = plan.slots.len();
        plan.slots.resize(first_slot + view.stripe.syndrome_width() + 2, usize::MAX);
        for chunk in 0..view.data_count() {
            let segment = plan.scratch(len);
            let slot = view.stripe.data_slot(chunk);
            plan.read(slot, view.offset(start), segment);
            plan.slots[first_slot + view.stripe.syndrome_index(chunk)] = slot;
            data.push(Some(segment));
        }
        let [p, q] = [view.readable_p(), view.readable_q()].map(|slot| {
            let segment = plan.scratch(len);
            slot.map(|slot| (slot, segment))
        });
        let parity_slots = plan.slots.len() - 2;
        for (at, parity) in [p, q].into_iter().enumerate() {
            if let Some((slot, segment)) = parity {
                plan.read(slot, view.offset(start), segment);
                plan.slots[parity_slots + at] = slot;
            }
        }
        self.order(&view.stripe, &data, len);
        let sources = plan.operands(self.ordered.iter().copied());
        self.old = data;
        let slots = Span { start: first_slot, end: plan.slots.len() };
        let [p, q] = [p, q].map(|parity| parity.map(|(_, segment)| segment));
        plan.computes.push(ComputeOp::CheckParity { sources, p, q, slots, row: start });
        plan.close_stage();
    }

    /// Plans the check of `len` array bytes of a level without parity, from byte `row` of the unit
    /// that begins at `start`: all readable copies are compared.
    pub fn check_mapped(
        &mut self,
        view: &MappedView<'_>,
        start: u64,
        row: u32,
        len: u32,
        plan: &mut Plan,
    ) {
        let copies = view.geometry.copy_count();
        if copies < 2 || view.trust == Trust::Unsynced {
            return;
        }
        let mut done = 0;
        while done < len {
            let at = start + u64::from(row + done);
            let places: Vec<Place> = (0..copies).map(|copy| view.geometry.copy(at, copy)).collect();
            let contiguous = places.iter().map(|place| place.contiguous_bytes).min();
            let run = contiguous.unwrap_or(u64::MAX).min(u64::from(len - done)) as u32;
            let here = places.iter().filter(|place| view.readable.contains(place.slot));
            if here.clone().count() > 1 {
                let first_slot = plan.slots.len();
                let segments: Vec<Segment> = here.clone().map(|_| plan.scratch(run)).collect();
                for (place, &segment) in here.zip(&segments) {
                    plan.read(place.slot, place.member_offset, segment);
                    plan.slots.push(place.slot);
                }
                let copies = plan.operands(segments.into_iter());
                let slots = Span { start: first_slot, end: plan.slots.len() };
                plan.computes.push(ComputeOp::CheckCopies { copies, slots, row: row + done });
            }
            done += run;
        }
        plan.close_stage();
    }

    /// Adds to a plan that what it writes is read back and compared.
    pub(crate) fn read_back(&mut self, row: u32, plan: &mut Plan) {
        for index in 0..plan.writes.len() {
            let op = plan.writes[index];
            let back = plan.scratch(op.segment.len);
            plan.read(op.slot, op.offset, back);
            let copies = plan.operands([op.segment, back].into_iter());
            let slots = Span { start: plan.slots.len(), end: plan.slots.len() + 2 };
            plan.slots.extend([usize::MAX, op.slot]);
            plan.computes.push(ComputeOp::CheckCopies { copies, slots, row });
        }
        plan.close_stage();
    }
}

/// Judges sector by sector; neighbours with the same verdict are one mismatch.
fn judge(
    len: usize,
    row: u32,
    found: &mut Vec<Mismatch>,
    verdict: impl Fn(core::ops::Range<usize>) -> Option<(Option<usize>, u32)>,
) {
    for start in (0..len).step_by(SECTOR) {
        let end = len.min(start + SECTOR);
        let Some((suspect, evidence)) = verdict(start..end) else { continue };
        let (at, sector) = (row + start as u32, (end - start) as u32);
        match found.last_mut() {
            Some(last) if last.row + last.len == at && last.suspect == suspect => {
                last.len += sector;
                last.evidence += evidence;
            }
            _ => found.push(Mismatch { row: at, len: sector, suspect, evidence }),
        }
    }
}

/// Compares parity with data. `slots` are those of the sources, of P and of Q.
pub(super) fn compare_parity(
    sources: &[&[u8]],
    parity: (Option<&[u8]>, Option<&[u8]>),
    slots: &[usize],
    row: u32,
    kernel: Kernel,
    found: &mut Vec<Mismatch>,
) {
    let first = match parity {
        (Some(p), Some(q)) => kernel.check_pq(sources, p, q),
        (Some(p), None) => kernel.check_p(sources, p),
        // Rare: P's member is missing.
        (None, Some(_)) => Some(0),
        (None, None) => None,
    };
    if first.is_none() {
        return;
    }
    let (p, q) = parity;
    let len = p.or(q).map_or(0, <[u8]>::len);
    judge(len, row, found, |range| {
        let cut: Vec<&[u8]> = sources.iter().map(|source| &source[range.clone()]).collect();
        let [p, q] = [p, q].map(|parity| parity.map(|parity| &parity[range.clone()]));
        let (suspect, evidence) = locate(&cut, p, q)?;
        let slot = match suspect {
            Suspect::Source(index) => Some(slots[index]),
            Suspect::P => Some(slots[sources.len()]),
            Suspect::Q => Some(slots[sources.len() + 1]),
            Suspect::Unknown => None,
        };
        // A source that is constant zeroes cannot be wrong.
        Some((slot.filter(|slot| *slot != usize::MAX), evidence))
    });
}

/// Compares copies. With three or more, one that all others disagree with is the wrong one.
pub(super) fn compare_copies(
    copies: &[&[u8]],
    slots: &[usize],
    row: u32,
    found: &mut Vec<Mismatch>,
) {
    let first = copies[0];
    if copies.iter().all(|copy| *copy == first) {
        return;
    }
    judge(first.len(), row, found, |range| {
        let cut = |copy: usize| &copies[copy][range.clone()];
        let differs = |a: usize, b: usize| cut(a) != cut(b);
        let evidence = range.clone().filter(|&at| copies.iter().any(|copy| copy[at] != first[at]));
        let evidence = evidence.count() as u32;
        let outsider = (0..copies.len()).find(|&one| {
            let others: Vec<usize> = (0..copies.len()).filter(|&other| other != one).collect();
            others.len() > 1
                && others.iter().all(|&other| differs(one, other))
                && others.windows(2).all(|pair| !differs(pair[0], pair[1]))
        });
        (evidence > 0).then(|| (outsider.map(|copy| slots[copy]), evidence))
    });
}
