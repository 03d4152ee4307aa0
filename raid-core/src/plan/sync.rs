//! Resync: redundancy is made to agree with the data, which is believed as it stands. Filling: what
//! joined gets what it lacks.

use super::parity_write::write_parity;
use super::{IoKind, MappedView, Plan, PlanError, Planner, StripeView};
use crate::planted;
use alloc::vec::Vec;

impl Planner {
    /// Plans the resync of `len` bytes of rows from row `start` on: every data chunk is read,
    /// parity is computed and stored.
    ///
    /// # Errors
    /// [`PlanError::Unavailable`] if a data chunk cannot be read: parity that is not in sync cannot
    /// replace it.
    pub fn resync_stripe(
        &mut self,
        view: &StripeView<'_>,
        start: u32,
        len: u32,
        plan: &mut Plan,
    ) -> Result<(), PlanError> {
        if planted::is(16) || view.writable_p().is_none() && view.writable_q().is_none() {
            return Ok(());
        }
        let wanted: Vec<_> = (0..view.data_count()).map(|_| None).collect();
        self.regenerate(view, &wanted, start, len, plan)?;
        let all = core::mem::take(&mut self.old);
        let new = self.generate(view, &all, len, plan);
        self.old = all;
        write_parity(view, start, new, plan);
        plan.close_stage();
        Ok(())
    }

    /// Plans the filling of the slots in `view.writable`, in `len` bytes of rows from row `start`
    /// on. A slot that can be read is copied (to its replacement), any other is regenerated.
    ///
    /// # Errors
    /// [`PlanError::Unavailable`] if the readable slots cannot replace what is to be filled.
    pub fn fill_stripe(
        &mut self,
        view: &StripeView<'_>,
        start: u32,
        len: u32,
        plan: &mut Plan,
    ) -> Result<(), PlanError> {
        for slot in view.writable.intersection(view.readable).iter() {
            let copy = plan.scratch(len);
            plan.read(slot, view.offset(start), copy);
            plan.write(slot, IoKind::Write, view.offset(start), copy);
        }
        let lacking = StripeView { writable: view.writable.difference(view.readable), ..*view };
        if !lacking.writable.is_empty() {
            let wanted: Vec<_> = (0..view.data_count()).map(|_| None).collect();
            self.regenerate(&lacking, &wanted, start, len, plan)?;
            let all = core::mem::take(&mut self.old);
            let new = self.generate(&lacking, &all, len, plan);
            for (chunk, &segment) in all.iter().enumerate() {
                if let (Some(segment), true) = (segment, lacking.data_writable(chunk)) {
                    let slot = view.stripe.data_slot(chunk);
                    plan.write(slot, IoKind::Write, view.offset(start), segment);
                }
            }
            self.old = all;
            write_parity(&lacking, start, new, plan);
        }
        plan.close_stage();
        Ok(())
    }

    /// Plans the filling of the slots in `view.writable`, in `len` array bytes of a level without
    /// parity: copies on them are taken from the same slot where it can be read (for its
    /// replacement), else from a readable copy.
    ///
    /// # Errors
    /// [`PlanError::Unavailable`] if no copy of some byte is readable.
    pub fn fill_mapped(
        &mut self,
        view: &MappedView<'_>,
        offset: u64,
        len: u32,
        plan: &mut Plan,
    ) -> Result<(), PlanError> {
        let copies = view.geometry.copy_count();
        let mut done = 0;
        while done < len {
            let at = offset + u64::from(done);
            let places = (0..copies).map(|copy| view.geometry.copy(at, copy));
            let contiguous = places.clone().map(|place| place.contiguous_bytes).min();
            let mut run = contiguous.unwrap_or(u64::MAX).min(u64::from(len - done)) as u32;
            let mut targets = places.filter(|place| view.writable.contains(place.slot)).peekable();
            if let Some(first) = targets.peek() {
                let own = (first.slot, first.member_offset, first.contiguous_bytes);
                let own = view.readable.contains(first.slot).then_some(own);
                let unavailable = PlanError::Unavailable { lost: copies, spare: 0 };
                let source = own.or_else(|| view.read_place(at)).ok_or(unavailable)?;
                run = run.min(u32::try_from(source.2).unwrap_or(u32::MAX));
                let segment = plan.scratch(run);
                plan.read(source.0, source.1, segment);
                for place in targets {
                    plan.write(place.slot, IoKind::Write, place.member_offset, segment);
                }
            }
            done += run;
        }
        plan.close_stage();
        Ok(())
    }

    /// Plans the resync of `len` array bytes of a level without parity: the copy that reads are
    /// answered from is written to the others.
    ///
    /// # Errors
    /// [`PlanError::Unavailable`] if no copy of some byte is readable.
    pub fn resync_mapped(
        &mut self,
        view: &MappedView<'_>,
        offset: u64,
        len: u32,
        plan: &mut Plan,
    ) -> Result<(), PlanError> {
        let copies = view.geometry.copy_count();
        if copies < 2 {
            return Ok(());
        }
        let buffer = plan.scratch(len);
        let mut done = 0;
        while done < len {
            let unavailable = PlanError::Unavailable { lost: copies, spare: 0 };
            let place = view.read_place(offset + u64::from(done)).ok_or(unavailable)?;
            let (source, member_offset, contiguous) = place;
            let run = contiguous.min(u64::from(len - done)) as u32;
            let segment = buffer.slice(done, run);
            plan.read(source, member_offset, segment);
            for copy in 0..copies {
                let place = view.geometry.copy(offset + u64::from(done), copy);
                let same = (place.slot, place.member_offset) == (source, member_offset);
                let left_out = planted::is(15) && copy + 1 == copies;
                if !same && !left_out && view.writable.contains(place.slot) {
                    plan.write(place.slot, IoKind::Write, place.member_offset, segment);
                }
            }
            done += run;
        }
        plan.close_stage();
        Ok(())
    }
}
