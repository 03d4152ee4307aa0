//! Reads from levels 4, 5 and 6: directly where the chunk's member is readable, regenerated
//! elsewhere.
//!
//! Rows are cut where the set of wanted chunks changes. In rows where every wanted chunk is
//! readable the cost is one read for each; where one is lost, the other data chunks and as many
//! parities as are lost are read, and wanted ones among them go straight to the caller's memory, so
//! nothing is read twice.

use super::{ComputeOp, Extent, Plan, PlanError, Planner, StripeView, Trust};
use crate::memory::Segment;
use crate::planted;
use alloc::vec::Vec;

impl Planner {
    /// Plans the read of `extents` of one stripe. Rows and memory may be unaligned: whole blocks
    /// are then read into scratch memory and copied.
    ///
    /// # Errors
    /// [`PlanError::Unavailable`] if a wanted chunk is lost and cannot be regenerated.
    pub fn read_stripe(
        &mut self,
        view: &StripeView<'_>,
        extents: &[Extent],
        plan: &mut Plan,
    ) -> Result<(), PlanError> {
        if extents.iter().all(|extent| extent.is_aligned(view.block_bytes)) {
            self.read_aligned(view, extents, plan)?;
        } else {
            let mut aligned = core::mem::take(&mut self.aligned);
            aligned.clear();
            aligned.extend(extents.iter().map(|extent| widen(extent, view.block_bytes, plan)));
            let result = self.read_aligned(view, &aligned, plan);
            for (extent, wide) in extents.iter().zip(&aligned) {
                let from = wide.segment.slice(extent.row - wide.row, extent.segment.len);
                plan.computes.push(ComputeOp::Copy { from, to: extent.segment });
            }
            self.aligned = aligned;
            result?;
        }
        plan.close_stage();
        Ok(())
    }

    /// Adds the reads and the regeneration of block-aligned extents, without closing the stage.
    pub(super) fn read_aligned(
        &mut self,
        view: &StripeView<'_>,
        extents: &[Extent],
        plan: &mut Plan,
    ) -> Result<(), PlanError> {
        self.cut_rows(extents);
        let cuts = core::mem::take(&mut self.cuts);
        let mut result = Ok(());
        for rows in cuts.windows(2) {
            let wanted = self.load_row(extents, view.data_count(), rows[0], rows[1]);
            if wanted > 0 {
                result = self.read_row(view, rows[0], rows[1] - rows[0], plan);
            }
            if result.is_err() {
                break;
            }
        }
        self.cuts = cuts;
        result
    }

    /// Reads the chunks of `self.row` in the `len` bytes from row `start` on.
    fn read_row(
        &mut self,
        view: &StripeView<'_>,
        start: u32,
        len: u32,
        plan: &mut Plan,
    ) -> Result<(), PlanError> {
        let all_readable = (0..view.data_count())
            .all(|chunk| self.row[chunk].is_none() || view.data_readable(chunk));
        if all_readable {
            for chunk in 0..view.data_count() {
                if let Some(target) = self.row[chunk] {
                    plan.read(view.stripe.data_slot(chunk), view.offset(start), target);
                }
            }
            return Ok(());
        }
        plan.regenerates = true;
        let wanted = core::mem::take(&mut self.row);
        let result = self.regenerate(view, &wanted, start, len, plan);
        self.row = wanted;
        result
    }

    /// Reads every readable data chunk of the rows and regenerates the lost ones; afterwards
    /// `self.old` names all of them. Chunks go to their `target` where there is one, else to
    /// scratch memory.
    pub(super) fn regenerate(
        &mut self,
        view: &StripeView<'_>,
        target: &[Option<Segment>],
        start: u32,
        len: u32,
        plan: &mut Plan,
    ) -> Result<(), PlanError> {
        self.lost.clear();
        self.lost.extend((0..view.data_count()).filter(|&chunk| !view.data_readable(chunk)));
        let spare = view.parity_sources();
        if self.lost.len() > spare {
            return Err(PlanError::Unavailable { lost: self.lost.len(), spare });
        }
        let mut old = core::mem::take(&mut self.old);
        old.clear();
        for (chunk, wanted) in target.iter().enumerate() {
            let readable = view.data_readable(chunk);
            let segment = readable.then(|| wanted.unwrap_or_else(|| plan.scratch(len)));
            if let Some(segment) = segment {
                plan.read(view.stripe.data_slot(chunk), view.offset(start), segment);
            }
            old.push(segment);
        }
        let parity = |slot: usize, plan: &mut Plan| {
            let segment = plan.scratch(len);
            plan.read(slot, view.offset(start), segment);
            segment
        };
        match (self.lost.as_slice(), view.readable_p(), view.readable_q()) {
            (&[], _, _) => {}
            (&[chunk], Some(p_slot), _) => {
                let p = parity(p_slot, plan);
                let sources = plan.operands(old.iter().flatten().copied().chain([p]));
                let out = target[chunk].unwrap_or_else(|| plan.scratch(len));
                plan.computes.push(ComputeOp::GenP { sources, p: out });
                old[chunk] = Some(out);
            }
            (&[chunk], None, Some(q_slot)) => {
                let q = parity(q_slot, plan);
                self.order(&view.stripe, &old, len);
                let sources = plan.operands(self.ordered.iter().copied());
                let out = target[chunk].unwrap_or_else(|| plan.scratch(len));
                let mut lost = view.stripe.syndrome_index(chunk);
                if planted::is(10) {
                    lost = (lost + 1) % view.data_count();
                }
                plan.computes.push(ComputeOp::RecoverFromQ { lost, sources, q, out });
                old[chunk] = Some(out);
            }
            (&[first, second], Some(p_slot), Some(q_slot)) => {
                let (p, q) = (parity(p_slot, plan), parity(q_slot, plan));
                self.order(&view.stripe, &old, len);
                let sources = plan.operands(self.ordered.iter().copied());
                let mut pair = [first, second].map(|chunk| {
                    let out = target[chunk].unwrap_or_else(|| plan.scratch(len));
                    old[chunk] = Some(out);
                    (view.stripe.syndrome_index(chunk), out)
                });
                pair.sort_unstable_by_key(|&(index, _)| index);
                let lost = pair.map(|(index, _)| index);
                let mut out = pair.map(|(_, out)| out);
                if planted::is(21) {
                    out.reverse();
                }
                plan.computes.push(ComputeOp::RecoverTwo { lost, sources, p, q, out });
            }
            (lost, _, _) => {
                unreachable!("{} chunks lost with {spare} parity sources", lost.len())
            }
        }
        self.old = old;
        Ok(())
    }

    /// Turns unaligned extents of a write into aligned ones in scratch memory: the blocks at their
    /// edges are read (and regenerated where lost) first, then the caller's bytes are laid over
    /// them.
    pub(super) fn complete_edges(
        &mut self,
        view: &StripeView<'_>,
        extents: &[Extent],
        plan: &mut Plan,
    ) -> Result<Vec<Extent>, PlanError> {
        let block = view.block_bytes;
        let mut aligned = core::mem::take(&mut self.aligned);
        let mut edges = core::mem::take(&mut self.edges);
        aligned.clear();
        edges.clear();
        for extent in extents {
            let wide = widen(extent, block, plan);
            let edge = |row: u32| Extent {
                chunk: wide.chunk,
                row,
                segment: wide.segment.slice(row - wide.row, block),
            };
            let last = wide.row_end() - block;
            let (head, tail) = (extent.row != wide.row, extent.row_end() != wide.row_end());
            if head {
                edges.push(edge(wide.row));
            }
            if tail && !(head && last == wide.row) && !planted::is(24) {
                edges.push(edge(last));
            }
            aligned.push(wide);
        }
        let result = self.read_aligned(view, &edges, plan);
        for (extent, wide) in extents.iter().zip(&aligned) {
            let to = wide.segment.slice(extent.row - wide.row, extent.segment.len);
            plan.computes.push(ComputeOp::Copy { from: extent.segment, to });
        }
        plan.close_stage();
        self.edges = edges;
        result.map(|()| aligned)
    }
}

/// The smallest block-aligned extent around `extent`, in scratch memory.
fn widen(extent: &Extent, block_bytes: u32, plan: &mut Plan) -> Extent {
    let row = extent.row & !(block_bytes - 1);
    let end = extent.row_end().next_multiple_of(block_bytes);
    Extent { chunk: extent.chunk, row, segment: plan.scratch(end - row) }
}

impl StripeView<'_> {
    pub(super) fn data_count(&self) -> usize {
        self.geometry.data_slots()
    }

    /// Offset of a row of this stripe on every member.
    pub(super) fn offset(&self, row: u32) -> u64 {
        self.geometry.member_offset_of_stripe(self.stripe.index) + u64::from(row)
    }

    pub(super) fn data_readable(&self, chunk: usize) -> bool {
        self.readable.contains(self.stripe.data_slot(chunk))
    }

    pub(super) fn data_writable(&self, chunk: usize) -> bool {
        self.writable.contains(self.stripe.data_slot(chunk))
    }

    /// P's slot, if P may be a source.
    pub(super) fn readable_p(&self) -> Option<usize> {
        self.source(self.stripe.p)
    }

    /// Q's slot, if Q may be a source.
    pub(super) fn readable_q(&self) -> Option<usize> {
        self.source(self.stripe.q)
    }

    fn source(&self, parity: Option<usize>) -> Option<usize> {
        parity.filter(|&slot| {
            (self.trust == Trust::InSync || planted::is(11)) && self.readable.contains(slot)
        })
    }

    /// How many lost chunks the readable parities can replace.
    pub(super) fn parity_sources(&self) -> usize {
        usize::from(self.readable_p().is_some()) + usize::from(self.readable_q().is_some())
    }

    pub(super) fn writable_p(&self) -> Option<usize> {
        self.stripe.p.filter(|&slot| self.writable.contains(slot))
    }

    pub(super) fn writable_q(&self) -> Option<usize> {
        self.stripe.q.filter(|&slot| self.writable.contains(slot))
    }
}
