//! Levels without parity: RAID 0, 1, 10 and linear. Every byte has one place or several equal
//! copies.

use super::{ComputeOp, IoKind, Plan, PlanError, Planner, Trust};
use crate::geometry::{Geometry, Level};
use crate::memory::Segment;
use crate::planted;
use crate::slots::SlotSet;

/// Neighbouring addresses are read from the same copy in runs of this many bytes, so that a member
/// sees sequential reads while the copies share the load. 64 KiB is md's default chunk of old and a
/// usual read-ahead unit.
const COPY_RUN_BYTES: u64 = 64 * 1024;

/// What the planner must know of an array without parity.
#[derive(Clone, Copy, Debug)]
pub struct MappedView<'a> {
    /// The array's geometry.
    pub geometry: &'a Geometry,
    /// Slots that may be read.
    pub readable: SlotSet,
    /// Slots that take writes.
    pub writable: SlotSet,
    /// Whether the copies are known to be equal.
    pub trust: Trust,
    /// Granularity of member I/O in bytes.
    pub block_bytes: u32,
}

impl MappedView<'_> {
    /// The readable copy of the byte at `offset` to be read: `(slot, member offset, contiguous
    /// bytes)`.
    ///
    /// While a resync is due it is always the first readable copy, so that repeated reads agree;
    /// later the copies take turns by address.
    pub fn read_place(&self, offset: u64) -> Option<(usize, u64, u64)> {
        let copies = self.geometry.copy_count();
        let balanced = self.trust == Trust::InSync && self.geometry.level() == Level::Raid1;
        let first = if balanced { (offset / COPY_RUN_BYTES) as usize % copies } else { 0 };
        let run = if balanced { COPY_RUN_BYTES - offset % COPY_RUN_BYTES } else { u64::MAX };
        (0..copies).map(|turn| (first + turn) % copies).find_map(|copy| {
            let place = self.geometry.copy(offset, copy);
            let contiguous = place.contiguous_bytes.min(run);
            let readable = self.readable.contains(place.slot);
            readable.then_some((place.slot, place.member_offset, contiguous))
        })
    }
}

impl Planner {
    /// Plans the read of the array bytes from `offset` on into `target`. Nothing needs to be
    /// aligned.
    ///
    /// # Errors
    /// [`PlanError::Unavailable`] if no copy of some byte is readable.
    pub fn read_mapped(
        &mut self,
        view: &MappedView<'_>,
        offset: u64,
        target: Segment,
        plan: &mut Plan,
    ) -> Result<(), PlanError> {
        if is_aligned(view, offset, &target) {
            read_pieces(view, offset, target, plan)?;
        } else {
            let (start, wide) = widen(view, offset, target.len, plan);
            read_pieces(view, start, wide, plan)?;
            let from = wide.slice((offset - start) as u32, target.len);
            plan.computes.push(ComputeOp::Copy { from, to: target });
        }
        plan.close_stage();
        Ok(())
    }

    /// Plans the write of `source` to the array bytes from `offset` on, to every writable copy.
    /// Constant zeroes become write-zeroes operations. Nothing needs to be aligned.
    ///
    /// # Errors
    /// [`PlanError::Unavailable`] if no copy of some byte is writable, or a block at the edge of an
    /// unaligned write is not readable.
    pub fn write_mapped(
        &mut self,
        view: &MappedView<'_>,
        offset: u64,
        source: Segment,
        unmap: bool,
        plan: &mut Plan,
    ) -> Result<(), PlanError> {
        if is_aligned(view, offset, &source) {
            write_pieces(view, offset, source, unmap, plan)?;
        } else {
            let block = view.block_bytes;
            let (start, wide) = widen(view, offset, source.len, plan);
            let end = start + u64::from(wide.len);
            let last = end - u64::from(block);
            let (head, tail) = (start != offset, end != offset + u64::from(source.len));
            if head {
                read_pieces(view, start, wide.slice(0, block), plan)?;
            }
            if tail && !(head && last == start) {
                read_pieces(view, last, wide.slice(wide.len - block, block), plan)?;
            }
            let to = wide.slice((offset - start) as u32, source.len);
            plan.computes.push(ComputeOp::Copy { from: source, to });
            write_pieces(view, start, wide, unmap, plan)?;
        }
        plan.close_stage();
        Ok(())
    }
}

fn is_aligned(view: &MappedView<'_>, offset: u64, segment: &Segment) -> bool {
    let memory = if segment.is_zero() { 0 } else { segment.offset };
    (offset | u64::from(memory | segment.len)) & u64::from(view.block_bytes - 1) == 0
}

/// The smallest block-aligned range around the bytes, in scratch memory.
fn widen(view: &MappedView<'_>, offset: u64, len: u32, plan: &mut Plan) -> (u64, Segment) {
    let block = u64::from(view.block_bytes);
    let start = offset - offset % block;
    let end = (offset + u64::from(len)).next_multiple_of(block);
    (start, plan.scratch((end - start) as u32))
}

fn read_pieces(
    view: &MappedView<'_>,
    offset: u64,
    target: Segment,
    plan: &mut Plan,
) -> Result<(), PlanError> {
    let mut done = 0;
    while done < target.len {
        let unavailable = PlanError::Unavailable { lost: view.geometry.copy_count(), spare: 0 };
        let place = view.read_place(offset + u64::from(done)).ok_or(unavailable)?;
        let (slot, member_offset, contiguous) = place;
        let len = contiguous.min(u64::from(target.len - done)) as u32;
        plan.read(slot, member_offset, target.slice(done, len));
        done += len;
    }
    Ok(())
}

fn write_pieces(
    view: &MappedView<'_>,
    offset: u64,
    source: Segment,
    unmap: bool,
    plan: &mut Plan,
) -> Result<(), PlanError> {
    let kind = if source.is_zero() { IoKind::WriteZeroes { unmap } } else { IoKind::Write };
    let copies = view.geometry.copy_count();
    let mut done = 0;
    while done < source.len {
        let mut len = source.len - done;
        let mut stored = 0;
        for copy in 0..copies {
            let place = view.geometry.copy(offset + u64::from(done), copy);
            len = len.min(u32::try_from(place.contiguous_bytes).unwrap_or(u32::MAX));
            let left_out = planted::is(14) && copy > 0 && copy + 1 == copies;
            if view.writable.contains(place.slot) && !left_out {
                plan.write(place.slot, kind, place.member_offset, source.slice(done, len));
                stored += 1;
            }
        }
        if stored == 0 {
            return Err(PlanError::Unavailable { lost: copies, spare: 0 });
        }
        done += len;
    }
    Ok(())
}
