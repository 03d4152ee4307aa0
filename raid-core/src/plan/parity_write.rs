//! Writes to levels 4, 5 and 6.
//!
//! Rows are cut where the set of overwritten chunks changes, and each run of rows takes the method
//! that reads least (every method writes the same: the overwritten data and each parity that can be
//! stored). With d data chunks, w of them overwritten, and m parities:
//!
//! | method | reads for each row | possible when |
//! |---|---|---|
//! | data only | 0 | no parity can be stored |
//! | full stripe | 0 | w = d |
//! | reconstruct-write | d - w | every chunk that is not overwritten is readable |
//! | read-modify-write | w + m | parity in sync; overwritten chunks and parities readable |
//! | regenerate | (d - lost) + lost | parity in sync; at most as many lost as parities readable |
//!
//! On a tie reconstruct-write is taken (md: `rmw_level` 1, read-modify-write only if it saves I/O),
//! and read-modify-write before regenerate. Where a resync is due parity is never read, so only the
//! first three remain.

use super::{ComputeOp, Extent, IoKind, Method, Plan, PlanError, Planner, StripeView, Trust};
use crate::memory::Segment;
use crate::planted;

/// What a write stores as P and Q.
#[derive(Clone, Copy, Default)]
pub(super) struct NewParity {
    pub(super) p: Option<Segment>,
    pub(super) q: Option<Segment>,
}

impl Planner {
    /// Plans the write of `extents` of one stripe. `unmap` says whether whole rows of zeroes may be
    /// freed by the members. Rows and memory may be unaligned.
    ///
    /// # Errors
    /// [`PlanError::Unavailable`] if the data cannot be stored so that it can be read again, or if
    /// old data that the parity needs is lost.
    pub fn write_stripe(
        &mut self,
        view: &StripeView<'_>,
        extents: &[Extent],
        unmap: bool,
        plan: &mut Plan,
    ) -> Result<(), PlanError> {
        if extents.iter().all(|extent| extent.is_aligned(view.block_bytes)) {
            self.write_aligned(view, extents, unmap, plan)?;
        } else {
            let aligned = self.complete_edges(view, extents, plan)?;
            let result = self.write_aligned(view, &aligned, unmap, plan);
            self.aligned = aligned;
            result?;
        }
        plan.close_stage();
        Ok(())
    }

    fn write_aligned(
        &mut self,
        view: &StripeView<'_>,
        extents: &[Extent],
        unmap: bool,
        plan: &mut Plan,
    ) -> Result<(), PlanError> {
        let lost = view.geometry.slot_count() - view.writable.len();
        let spare = view.geometry.parity_count();
        if lost > spare {
            return Err(PlanError::Unavailable { lost, spare });
        }
        self.cut_rows(extents);
        let cuts = core::mem::take(&mut self.cuts);
        let mut result = Ok(());
        let mut most_written = 0;
        for rows in cuts.windows(2) {
            let written = self.load_row(extents, view.data_count(), rows[0], rows[1]);
            if written == 0 {
                continue;
            }
            match self.write_row(view, rows[0], rows[1] - rows[0], unmap, plan) {
                Ok(method) if written > most_written => {
                    most_written = written;
                    plan.method = Some(method);
                }
                Ok(_) => {}
                Err(error) => result = Err(error),
            }
        }
        self.cuts = cuts;
        result
    }

    /// Writes the chunks of `self.row` in the `len` bytes from row `start` on.
    fn write_row(
        &mut self,
        view: &StripeView<'_>,
        start: u32,
        len: u32,
        unmap: bool,
        plan: &mut Plan,
    ) -> Result<Method, PlanError> {
        let method = self.choose(view)?;
        let new = match method {
            Method::DataOnly => NewParity::default(),
            Method::FullStripe => {
                if self.row.iter().flatten().all(Segment::is_zero) {
                    zero_row(view, start, len, unmap, plan);
                    return Ok(method);
                }
                let row = core::mem::take(&mut self.row);
                let new = self.generate(view, &row, len, plan);
                self.row = row;
                new
            }
            Method::ReconstructWrite => self.reconstruct(view, start, len, plan),
            Method::ReadModifyWrite => self.modify(view, start, len, plan),
            Method::Regenerate => {
                let nothing_wanted = alloc::vec![None; view.data_count()];
                self.regenerate(view, &nothing_wanted, start, len, plan)?;
                let mut all = core::mem::take(&mut self.old);
                for (old, new) in all.iter_mut().zip(&self.row) {
                    *old = new.or(*old);
                }
                let mut new = self.generate(view, &all, len, plan);
                self.old = all;
                if planted::is(34) {
                    new.p = None;
                }
                new
            }
        };
        for chunk in 0..view.data_count() {
            if let (Some(segment), true) = (self.row[chunk], view.data_writable(chunk)) {
                let slot = view.stripe.data_slot(chunk);
                plan.write(slot, IoKind::Write, view.offset(start), segment);
            }
        }
        write_parity(view, start, new, plan);
        Ok(method)
    }

    /// Chooses the method with the fewest reads for the rows in `self.row`.
    fn choose(&self, view: &StripeView<'_>) -> Result<Method, PlanError> {
        let data_count = view.data_count();
        let parities =
            usize::from(view.writable_p().is_some()) + usize::from(view.writable_q().is_some());
        let written = self.row.iter().flatten().count();
        if parities == 0 {
            return Ok(Method::DataOnly);
        }
        if written + usize::from(planted::is(12)) >= data_count {
            return Ok(Method::FullStripe);
        }
        let (mut lost, mut lost_kept, mut lost_written) = (0, 0, 0);
        for chunk in 0..data_count {
            if !view.data_readable(chunk) {
                lost += 1;
                if self.row[chunk].is_some() {
                    lost_written += 1;
                } else {
                    lost_kept += 1;
                }
            }
        }
        let in_sync = view.trust == Trust::InSync;
        let parities_readable = view.writable_p().is_none_or(|p| view.readable.contains(p))
            && view.writable_q().is_none_or(|q| view.readable.contains(q));
        let candidates = [
            (lost_kept == 0).then_some((data_count - written, Method::ReconstructWrite)),
            (in_sync && lost_written == 0 && parities_readable)
                .then_some((written + parities, Method::ReadModifyWrite)),
            (in_sync && lost_kept > 0 && lost <= view.parity_sources())
                .then_some((data_count, Method::Regenerate)),
        ];
        let best = candidates.into_iter().flatten().min_by_key(|&(reads, _)| reads);
        let unavailable = PlanError::Unavailable { lost, spare: view.parity_sources() };
        best.map(|(_, method)| method).ok_or(unavailable)
    }

    /// Reads the chunks that are kept and computes parity from all.
    fn reconstruct(
        &mut self,
        view: &StripeView<'_>,
        start: u32,
        len: u32,
        plan: &mut Plan,
    ) -> NewParity {
        let mut all = core::mem::take(&mut self.old);
        all.clear();
        for (chunk, new) in self.row.iter().enumerate() {
            let segment = new.unwrap_or_else(|| {
                let kept = plan.scratch(len);
                plan.read(view.stripe.data_slot(chunk), view.offset(start), kept);
                kept
            });
            all.push(Some(segment));
        }
        let new = self.generate(view, &all, len, plan);
        self.old = all;
        new
    }

    /// Reads old data and old parity and applies the difference.
    fn modify(
        &mut self,
        view: &StripeView<'_>,
        start: u32,
        len: u32,
        plan: &mut Plan,
    ) -> NewParity {
        let mut old = core::mem::take(&mut self.old);
        old.clear();
        for (chunk, new) in self.row.iter().enumerate() {
            old.push(new.map(|_| {
                let segment = plan.scratch(len);
                plan.read(view.stripe.data_slot(chunk), view.offset(start), segment);
                segment
            }));
        }
        let mut parity = |slot: usize| {
            let segment = plan.scratch(len);
            plan.read(slot, view.offset(start), segment);
            segment
        };
        let mut p = view.writable_p().map(&mut parity);
        let q = view.writable_q().map(&mut parity);
        let written = self.row.iter().flatten().count();
        if written > 1
            && let Some(old_p) = p
        {
            // One pass over all sources instead of one for each chunk.
            let news = self.row.iter().flatten().filter(|new| !new.is_zero());
            let sources = old.iter().flatten().chain(news).copied().chain([old_p]);
            let sources = plan.operands(sources);
            let new_p = plan.scratch(len);
            plan.computes.push(ComputeOp::GenP { sources, p: new_p });
            p = Some(new_p);
        }
        for chunk in 0..view.data_count() {
            let (Some(old), Some(new)) = (old[chunk], self.row[chunk]) else { continue };
            let index = if planted::is(8) { 0 } else { view.stripe.syndrome_index(chunk) };
            let op = match (p, q) {
                (Some(p), Some(q)) if written == 1 => ComputeOp::UpdatePq { index, old, new, p, q },
                (Some(p), None) if written == 1 => ComputeOp::UpdateP { old, new, p },
                (_, Some(q)) => ComputeOp::UpdateQ { index, old, new, q },
                (_, None) => continue,
            };
            plan.computes.push(op);
        }
        self.old = old;
        NewParity { p, q }
    }

    /// Computes the parities that can be stored from `data`, which names every data chunk.
    pub(super) fn generate(
        &mut self,
        view: &StripeView<'_>,
        data: &[Option<Segment>],
        len: u32,
        plan: &mut Plan,
    ) -> NewParity {
        let (p_wanted, q_wanted) = (view.writable_p().is_some(), view.writable_q().is_some());
        if data.iter().flatten().all(Segment::is_zero) {
            let zero = Segment::zero(len);
            return NewParity { p: p_wanted.then_some(zero), q: q_wanted.then_some(zero) };
        }
        if q_wanted {
            self.order(&view.stripe, data, len);
            let sources = plan.operands(self.ordered.iter().copied());
            let (p, q) = (plan.scratch(len), plan.scratch(len));
            plan.computes.push(ComputeOp::GenPq { sources, p, q });
            return NewParity { p: p_wanted.then_some(p), q: Some(q) };
        }
        let mut filled = data.iter().flatten().copied().filter(|segment| !segment.is_zero());
        if let (Some(only), None) = (filled.next(), filled.next()) {
            // The XOR of one chunk is the chunk itself: nothing to compute, nothing to copy.
            return NewParity { p: Some(only), q: None };
        }
        let filled = data.iter().flatten().copied().filter(|segment| !segment.is_zero());
        let sources = plan.operands(filled);
        let p = plan.scratch(len);
        plan.computes.push(ComputeOp::GenP { sources, p });
        NewParity { p: Some(p), q: None }
    }
}

/// Stores new parities on the slots that take them.
pub(super) fn write_parity(view: &StripeView<'_>, start: u32, new: NewParity, plan: &mut Plan) {
    let new = if planted::is(9) { NewParity { p: new.q.or(new.p), q: new.p } } else { new };
    for (slot, segment) in [(view.writable_p(), new.p), (view.writable_q(), new.q)] {
        if let (Some(slot), Some(segment)) = (slot, segment) {
            plan.write(slot, IoKind::Write, view.offset(start), segment);
        }
    }
}

/// Zero data has zero parity: every member stores zeroes, which it may do without a transfer.
fn zero_row(view: &StripeView<'_>, start: u32, len: u32, unmap: bool, plan: &mut Plan) {
    for slot in view.writable.iter() {
        plan.write(slot, IoKind::WriteZeroes { unmap }, view.offset(start), Segment::zero(len));
    }
}
