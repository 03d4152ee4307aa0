//! The operations over any [`Simd`], as values that [`drive`] walks over the length.
//!
//! Each ends in a function with the signature of its field in [`Table`](super::kernel::Table); an
//! instruction set gets its table by naming its token and features in `kernel_table!`.

use super::generic::{Operation, Sources, Targets, drive};
use super::gf::{INVERSES, inverse_power, power, product};
use super::naive;
use super::simd::{Simd, WIDTH_MAX};
use super::step::{Access, Step};

/// Vectors per step for operations with one sum: enough to hide the latency of a load.
const LANES_P: usize = 8;

/// Vectors per step for operations with two sums, which need twice the registers; of eight, some
/// do not fit into the sixteen that most instruction sets have.
const LANES_PQ: usize = 4;

/// Vectors per step for a check of both sums where the vectors are the widest, which come with 32
/// registers: 6 % faster. Operations that write gain nothing by it, or lose.
const LANES_PQ_WIDE: usize = 8;

// ==== P ====

/// `out = ` the sum of `sources` (and of `p`, which stands among them when data is recovered).
struct Sum<'a, const SEGMENTS: usize> {
    sources: Sources<'a, SEGMENTS>,
    out: &'a mut [u8],
}

impl<S: Simd, const SEGMENTS: usize> Operation<S> for Sum<'_, SEGMENTS> {
    #[inline(always)]
    unsafe fn step<const LANES: usize, A: Access>(&mut self, step: Step<S, A>) -> bool {
        step.prepare_target::<LANES, _>(&self.sources, self.out);
        // SAFETY: the sources are slices of this operation.
        let sum = unsafe { step.sum_p::<LANES, _>(&self.sources) };
        for (lane, sum) in sum.into_iter().enumerate() {
            // SAFETY: so is the target.
            unsafe { step.store(self.out, lane, sum) };
        }
        true
    }
}

#[inline(always)]
pub(super) fn gen_p<S: Simd>(simd: S, sources: &[&[u8]], p: &mut [u8]) {
    let len = p.len();
    let sources = Sources::all(sources);
    let targets = Targets::choose(simd, &sources, &[], [p, &[]]);
    let mut operation = Sum { sources, out: p };
    // SAFETY: `Kernel` has checked that all slices are of one length.
    unsafe { drive::<LANES_P, S>(simd, len, targets, &mut operation) };
}

#[inline(always)]
pub(super) fn recover_data<S: Simd>(
    simd: S,
    lost: usize,
    sources: &[&[u8]],
    p: &[u8],
    out: &mut [u8],
) {
    let len = out.len();
    let p = [p];
    let sources = Sources::with_p_for(sources, lost, &p);
    let targets = Targets::choose(simd, &sources, &[], [out, &[]]);
    let mut operation = Sum { sources, out };
    // SAFETY: `Kernel` has checked that all slices but the lost one are of one length.
    unsafe { drive::<LANES_P, S>(simd, len, targets, &mut operation) };
}

/// Compares the sum of `sources` with `p`; stops at the first step that differs.
struct CheckP<'a> {
    sources: Sources<'a, 1>,
    p: &'a [u8],
}

impl<S: Simd> Operation<S> for CheckP<'_> {
    #[inline(always)]
    unsafe fn step<const LANES: usize, A: Access>(&mut self, step: Step<S, A>) -> bool {
        let simd = step.simd;
        // SAFETY: the sources are slices of this operation.
        let sum = unsafe { step.sum_p::<LANES, _>(&self.sources) };
        let mut difference = simd.splat(0);
        for (lane, sum) in sum.into_iter().enumerate() {
            // SAFETY: so is P.
            let p = unsafe { step.load(self.p, lane) };
            difference = simd.or(difference, simd.xor(sum, p));
        }
        simd.is_zero(difference)
    }
}

#[inline(always)]
pub(super) fn check_p<S: Simd>(simd: S, sources: &[&[u8]], p: &[u8]) -> Option<usize> {
    let mut operation = CheckP { sources: Sources::all(sources), p };
    // SAFETY: `Kernel` has checked that all slices are of one length.
    let at = unsafe { drive::<LANES_P, S>(simd, p.len(), Targets::Cached, &mut operation) }?;
    // The specification finds the byte.
    naive::first_mismatch_p(sources, p, at)
}

// ==== P and Q ====

/// `p`, `q` = the syndrome of `sources`.
struct Syndrome<'a> {
    sources: Sources<'a, 1>,
    p: &'a mut [u8],
    q: &'a mut [u8],
}

impl<S: Simd> Operation<S> for Syndrome<'_> {
    #[inline(always)]
    unsafe fn step<const LANES: usize, A: Access>(&mut self, step: Step<S, A>) -> bool {
        step.prepare_target::<LANES, _>(&self.sources, self.p);
        step.prepare_target::<LANES, _>(&self.sources, self.q);
        // SAFETY: the sources are slices of this operation.
        let sums = unsafe { step.sum_pq::<LANES, _>(&self.sources) };
        for (lane, p) in sums.p.into_iter().enumerate() {
            // SAFETY: so is P.
            unsafe { step.store(self.p, lane, p) };
        }
        for (lane, q) in sums.q.into_iter().enumerate() {
            // SAFETY: so is Q.
            unsafe { step.store(self.q, lane, q) };
        }
        true
    }
}

#[inline(always)]
pub(super) fn gen_pq<S: Simd>(simd: S, sources: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    let len = p.len();
    let sources = Sources::all(sources);
    let targets = Targets::choose(simd, &sources, &[], [p, q]);
    let mut operation = Syndrome { sources, p, q };
    // SAFETY: `Kernel` has checked that all slices are of one length.
    unsafe { drive::<LANES_PQ, S>(simd, len, targets, &mut operation) };
}

/// Compares the syndrome of `sources` with `p` and `q`; stops at the first step that differs.
struct CheckPq<'a> {
    sources: Sources<'a, 1>,
    p: &'a [u8],
    q: &'a [u8],
}

impl<S: Simd> Operation<S> for CheckPq<'_> {
    #[inline(always)]
    unsafe fn step<const LANES: usize, A: Access>(&mut self, step: Step<S, A>) -> bool {
        let simd = step.simd;
        // SAFETY: the sources are slices of this operation.
        let sums = unsafe { step.sum_pq::<LANES, _>(&self.sources) };
        let mut difference = simd.splat(0);
        for lane in 0..LANES {
            // SAFETY: so is P.
            let p = unsafe { step.load(self.p, lane) };
            // SAFETY: so is Q.
            let q = unsafe { step.load(self.q, lane) };
            difference = simd.or(difference, simd.xor(sums.p[lane], p));
            difference = simd.or(difference, simd.xor(sums.q[lane], q));
        }
        simd.is_zero(difference)
    }
}

#[inline(always)]
pub(super) fn check_pq<S: Simd>(simd: S, sources: &[&[u8]], p: &[u8], q: &[u8]) -> Option<usize> {
    let mut operation = CheckPq { sources: Sources::all(sources), p, q };
    let at = if S::WIDTH == WIDTH_MAX {
        // SAFETY: `Kernel` has checked that all slices are of one length.
        unsafe { drive::<LANES_PQ_WIDE, S>(simd, p.len(), Targets::Cached, &mut operation) }
    } else {
        // SAFETY: see above.
        unsafe { drive::<LANES_PQ, S>(simd, p.len(), Targets::Cached, &mut operation) }
    }?;
    // The specification finds the byte.
    naive::first_mismatch_pq(sources, p, q, at)
}

/// Recovers one data source, and P on the way, from Q: `out_data` is Q and the others' part of it,
/// over `g^lost`.
struct RecoverByQ<'a, F> {
    sources: Sources<'a, 2>,
    inverse: F,
    q: &'a [u8],
    out_data: &'a mut [u8],
    /// Empty when P is not wanted.
    out_p: &'a mut [u8],
}

impl<S: Simd> Operation<S> for RecoverByQ<'_, S::Factor> {
    #[inline(always)]
    unsafe fn step<const LANES: usize, A: Access>(&mut self, step: Step<S, A>) -> bool {
        let simd = step.simd;
        step.prepare_target::<LANES, _>(&self.sources, self.out_data);
        step.prepare_target::<LANES, _>(&self.sources, self.out_p);
        // SAFETY: the sources are slices of this operation.
        let sums = unsafe { step.sum_pq::<LANES, _>(&self.sources) };
        for lane in 0..LANES {
            // SAFETY: so is Q.
            let q = unsafe { step.load(self.q, lane) };
            let data = simd.multiply(self.inverse, simd.xor(q, sums.q[lane]));
            // SAFETY: so is the target.
            unsafe { step.store(self.out_data, lane, data) };
            if !self.out_p.is_empty() {
                // SAFETY: so is this target, unless empty.
                unsafe { step.store(self.out_p, lane, simd.xor(data, sums.p[lane])) };
            }
        }
        true
    }
}

#[inline(always)]
pub(super) fn recover_data_q<S: Simd>(
    simd: S,
    lost: usize,
    sources: &[&[u8]],
    q: &[u8],
    out: &mut [u8],
) {
    recover_data_p(simd, lost, sources, q, out, &mut []);
}

#[inline(always)]
pub(super) fn recover_data_p<S: Simd>(
    simd: S,
    lost: usize,
    sources: &[&[u8]],
    q: &[u8],
    out_data: &mut [u8],
    out_p: &mut [u8],
) {
    let len = q.len();
    let sources = Sources::without(sources, lost);
    let targets = Targets::choose(simd, &sources, q, [out_data, out_p]);
    let inverse = simd.factor(inverse_power(lost));
    let mut operation = RecoverByQ { sources, inverse, q, out_data, out_p };
    // SAFETY: `Kernel` has checked that all slices but the lost one are of one length; an empty
    // `out_p` is not touched.
    unsafe { drive::<LANES_PQ, S>(simd, len, targets, &mut operation) };
}

/// Recovers two data sources. With `P'` and `Q'` what P and Q leave when the others are taken away:
/// `a = by_p P' + by_q Q'` and `b = P' + a`.
struct RecoverTwo<'a, F> {
    sources: Sources<'a, 3>,
    by_p: F,
    by_q: F,
    p: &'a [u8],
    q: &'a [u8],
    out_a: &'a mut [u8],
    out_b: &'a mut [u8],
}

impl<S: Simd> Operation<S> for RecoverTwo<'_, S::Factor> {
    #[inline(always)]
    unsafe fn step<const LANES: usize, A: Access>(&mut self, step: Step<S, A>) -> bool {
        let simd = step.simd;
        step.prepare_target::<LANES, _>(&self.sources, self.out_a);
        step.prepare_target::<LANES, _>(&self.sources, self.out_b);
        // SAFETY: the sources are slices of this operation.
        let sums = unsafe { step.sum_pq::<LANES, _>(&self.sources) };
        for lane in 0..LANES {
            // SAFETY: so is P.
            let p = unsafe { step.load(self.p, lane) };
            // SAFETY: so is Q.
            let q = unsafe { step.load(self.q, lane) };
            let p_rest = simd.xor(p, sums.p[lane]);
            let q_rest = simd.xor(q, sums.q[lane]);
            let by_p = simd.multiply(self.by_p, p_rest);
            let a = simd.xor(by_p, simd.multiply(self.by_q, q_rest));
            // SAFETY: so is the first target.
            unsafe { step.store(self.out_a, lane, a) };
            // SAFETY: so is the second target.
            unsafe { step.store(self.out_b, lane, simd.xor(p_rest, a)) };
        }
        true
    }
}

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the token and the operation's own seven")]
pub(super) fn recover_two_data<S: Simd>(
    simd: S,
    a: usize,
    b: usize,
    sources: &[&[u8]],
    p: &[u8],
    q: &[u8],
    out_a: &mut [u8],
    out_b: &mut [u8],
) {
    let len = p.len();
    let sources = Sources::without_two(sources, a, b);
    let targets = Targets::choose(simd, &sources, q, [out_a, out_b]);
    let inverse = INVERSES[usize::from(power(a) ^ power(b))];
    let by_p = simd.factor(product(power(b), inverse));
    let by_q = simd.factor(inverse);
    let mut operation = RecoverTwo { sources, by_p, by_q, p, q, out_a, out_b };
    // SAFETY: `Kernel` has checked that all slices but the lost ones are of one length.
    unsafe { drive::<LANES_PQ, S>(simd, len, targets, &mut operation) };
}

// ==== Updates ====

/// Adds `old + new` to `p`, and its product with `power` to `q`; either may be empty.
struct Update<'a, F> {
    old: &'a [u8],
    new: &'a [u8],
    power: F,
    p: &'a mut [u8],
    q: &'a mut [u8],
}

impl<S: Simd> Operation<S> for Update<'_, S::Factor> {
    #[inline(always)]
    unsafe fn step<const LANES: usize, A: Access>(&mut self, step: Step<S, A>) -> bool {
        let simd = step.simd;
        for lane in 0..LANES {
            // SAFETY: the old data is a slice of this operation.
            let old = unsafe { step.load(self.old, lane) };
            // SAFETY: so is the new data.
            let new = unsafe { step.load(self.new, lane) };
            if !self.p.is_empty() {
                // SAFETY: so is P, unless empty.
                let p = unsafe { step.load(self.p, lane) };
                // SAFETY: see above.
                unsafe { step.store(self.p, lane, simd.xor3(p, old, new)) };
            }
            if !self.q.is_empty() {
                let change = simd.multiply(self.power, simd.xor(old, new));
                // SAFETY: so is Q, unless empty.
                let q = unsafe { step.load(self.q, lane) };
                // SAFETY: see above.
                unsafe { step.store(self.q, lane, simd.xor(q, change)) };
            }
        }
        true
    }
}

#[inline(always)]
pub(super) fn update_p<S: Simd>(simd: S, old: &[u8], new: &[u8], p: &mut [u8]) {
    update_pq(simd, 0, old, new, p, &mut []);
}

#[inline(always)]
pub(super) fn update_q<S: Simd>(simd: S, index: usize, old: &[u8], new: &[u8], q: &mut [u8]) {
    update_pq(simd, index, old, new, &mut [], q);
}

#[inline(always)]
pub(super) fn update_pq<S: Simd>(
    simd: S,
    index: usize,
    old: &[u8],
    new: &[u8],
    p: &mut [u8],
    q: &mut [u8],
) {
    let mut operation = Update { old, new, power: simd.factor(power(index)), p, q };
    // SAFETY: `Kernel` has checked that all slices are of one length; an empty one is not touched.
    unsafe { drive::<LANES_PQ, S>(simd, old.len(), Targets::Cached, &mut operation) };
}
