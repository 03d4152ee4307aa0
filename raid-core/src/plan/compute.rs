//! Executes compute steps: names become slices, slices go to the parity kernel.

use super::check::{compare_copies, compare_parity};
use super::{ComputeOp, Mismatch, Plan, Span};
use crate::memory::{BufferName, Memory, Segment};
use crate::parity::Kernel;
use alloc::vec::Vec;

/// Working memory of [`execute`], reused between calls.
#[derive(Debug, Default)]
pub struct Working {
    sources: Vec<Segment>,
    /// What the comparing steps have found.
    pub found: Vec<Mismatch>,
}

/// Executes one compute step of `plan`, whose scratch segments are relative to `scratch_base`.
pub fn execute(
    op: &ComputeOp,
    plan: &Plan,
    scratch_base: u32,
    kernel: Kernel,
    memory: &mut impl Memory,
    working: &mut Working,
) {
    let Working { sources, found } = working;
    let at = |segment: Segment| rebase(segment, scratch_base);
    let list = |span: Span, extra: &[Segment], sources: &mut Vec<Segment>| {
        sources.clear();
        sources.extend(plan.operands[span.range()].iter().chain(extra).map(|&segment| at(segment)));
    };
    match *op {
        ComputeOp::CheckCopies { copies, slots, row } => {
            list(copies, &[], sources);
            memory.with(sources, &[], &mut |copies, _| {
                compare_copies(copies, &plan.slots[slots.range()], row, found);
            });
        }
        ComputeOp::CheckParity { sources: span, p, q, slots, row } => {
            let count = span.range().len();
            list(span, &[], sources);
            sources.extend(p.into_iter().chain(q).map(at));
            memory.with(sources, &[], &mut |all, _| {
                let (data, parities) = all.split_at(count);
                let mut parities = parities.iter().copied();
                let parity = (p.and_then(|_| parities.next()), q.and_then(|_| parities.next()));
                compare_parity(data, parity, &plan.slots[slots.range()], row, kernel, found);
            });
        }
        ComputeOp::Copy { from, to } => memory.with(&[at(from)], &[at(to)], &mut |from, to| {
            to[0].copy_from_slice(from[0]);
        }),
        ComputeOp::GenP { sources: span, p } => {
            list(span, &[], sources);
            memory.with(sources, &[at(p)], &mut |data, out| kernel.gen_p(data, out[0]));
        }
        ComputeOp::GenPq { sources: span, p, q } => {
            list(span, &[], sources);
            memory.with(sources, &[at(p), at(q)], &mut |data, out| {
                let (p, q) = out.split_at_mut(1);
                kernel.gen_pq(data, p[0], q[0]);
            });
        }
        ComputeOp::RecoverFromQ { lost, sources: span, q, out } => {
            list(span, &[q], sources);
            memory.with(sources, &[at(out)], &mut |all, out| {
                let (data, q) = all.split_at(all.len() - 1);
                kernel.recover_data_q(lost, data, q[0], out[0]);
            });
        }
        ComputeOp::RecoverTwo { lost: [a, b], sources: span, p, q, out } => {
            list(span, &[p, q], sources);
            memory.with(sources, &[at(out[0]), at(out[1])], &mut |all, out| {
                let (data, pq) = all.split_at(all.len() - 2);
                let (first, second) = out.split_at_mut(1);
                kernel.recover_two_data(a, b, data, pq[0], pq[1], first[0], second[0]);
            });
        }
        ComputeOp::UpdateP { old, new, p } => {
            memory.with(&[at(old), at(new)], &[at(p)], &mut |data, out| {
                kernel.update_p(data[0], data[1], out[0]);
            });
        }
        ComputeOp::UpdatePq { index, old, new, p, q } => {
            memory.with(&[at(old), at(new)], &[at(p), at(q)], &mut |data, out| {
                let (p, q) = out.split_at_mut(1);
                kernel.update_pq(index, data[0], data[1], p[0], q[0]);
            });
        }
        ComputeOp::UpdateQ { index, old, new, q } => {
            memory.with(&[at(old), at(new)], &[at(q)], &mut |data, out| {
                kernel.update_q(index, data[0], data[1], out[0]);
            });
        }
    }
}

/// Moves a scratch segment from the plan's numbering to the arena's.
pub(crate) fn rebase(segment: Segment, scratch_base: u32) -> Segment {
    match segment.buffer {
        BufferName::Scratch => Segment { offset: segment.offset + scratch_base, ..segment },
        BufferName::Request(_) | BufferName::Zero => segment,
    }
}
