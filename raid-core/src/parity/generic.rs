//! The algorithms, once, over any [`Simd`].
//!
//! ```text
//!              at            at + LANES * WIDTH
//! source 0  ---|=============|---------------     every source is read once;
//! source 1  ---|=============|---------------     the sums stay in registers;
//! ...          |   |   |   | |                    each target is written once
//! target    ---|=============|---------------
//! ```
//!
//! An [`Operation`] handles one step of `LANES` vectors at one offset; [`drive`] walks it over the
//! length: first wide steps, then single vectors, then the rest of less than a vector, which is
//! copied through a buffer on the stack, so that no byte outside of the slices is touched and the
//! arithmetic exists only once.
//!
//! Lost sources cut the list of sources into up to three [`Sources`] segments, so that the inner
//! loops have no branch for them.

use super::simd::{QMethod, SAMPLE_COUNT, Simd};
use super::step::{Access, Partial, Step, Streamed, Whole};

// ==== Driver ====

/// What is done to `LANES` vectors at one offset.
pub(super) trait Operation<S: Simd> {
    /// Handles one step; `false` stops the walk.
    ///
    /// # Safety
    ///
    /// All vectors of the step lie within every slice of the operation.
    unsafe fn step<const LANES: usize, A: Access>(&mut self, step: Step<S, A>) -> bool;
}

/// How an operation's targets are written.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Targets {
    /// Through the caches; also when there are none, or they are read as well.
    Cached,
    /// Past the caches.
    Streamed,
}

/// The shortest targets that are ever streamed: for less, telling hot from cold costs too much.
const STREAM_LEN_MIN: usize = 16 << 10;

impl Targets {
    /// Streams long targets of cold sources: their lines need not be read before they are
    /// written, and cold sources are the sign of bulk work that has no use for them in the caches.
    /// With hot sources the same stores would cost up to two fifths of the speed. If all sources
    /// are lost, `parity` stands for them.
    #[inline(always)]
    pub(super) fn choose<S: Simd, const SEGMENTS: usize>(
        simd: S,
        sources: &Sources<'_, SEGMENTS>,
        parity: &[u8],
        targets: [&[u8]; 2],
    ) -> Self {
        let is_aligned = |target: &[u8]| target.as_ptr().addr().is_multiple_of(S::WIDTH);
        let is_worth_it = || {
            targets[0].len() >= STREAM_LEN_MIN
                && sources.samples(parity).is_some_and(|samples| simd.are_cold(samples))
        };
        if S::STREAMS
            && targets.iter().all(|target| target.is_empty() || is_aligned(target))
            && (is_streaming_forced() || is_worth_it())
        {
            Self::Streamed
        } else {
            Self::Cached
        }
    }
}

/// Tests stream whatever they like; nobody else does.
#[cfg(not(test))]
fn is_streaming_forced() -> bool {
    false
}

#[cfg(test)]
use tests::is_streaming_forced;

/// Walks `operation` over `len` bytes in steps of `LANES` vectors at most. Returns the offset of
/// the step that said stop.
///
/// # Safety
///
/// - Every slice of the operation is `len` bytes long.
/// - If `targets` are streamed, they are aligned to `S::WIDTH`.
#[inline(always)]
pub(super) unsafe fn drive<const LANES: usize, S: Simd>(
    simd: S,
    len: usize,
    targets: Targets,
    operation: &mut impl Operation<S>,
) -> Option<usize> {
    let mut at = 0;
    if S::STREAMS && targets == Targets::Streamed {
        while len - at >= LANES * S::WIDTH {
            // SAFETY: `LANES` whole vectors fit between `at` and `len`; targets are aligned.
            if !unsafe { operation.step::<LANES, _>(Step { simd, at, access: Streamed }) } {
                return Some(at);
            }
            at += LANES * S::WIDTH;
        }
        // Only operations without targets stop early, and those never stream.
        simd.fence();
    }
    while len - at >= LANES * S::WIDTH {
        // SAFETY: `LANES` whole vectors fit between `at` and `len`.
        if !unsafe { operation.step::<LANES, _>(Step { simd, at, access: Whole }) } {
            return Some(at);
        }
        at += LANES * S::WIDTH;
    }
    while len - at >= S::WIDTH {
        // SAFETY: one whole vector fits between `at` and `len`.
        if !unsafe { operation.step::<1, _>(Step { simd, at, access: Whole }) } {
            return Some(at);
        }
        at += S::WIDTH;
    }
    if at < len {
        let access = Partial(len - at);
        // SAFETY: the access covers just what is left between `at` and `len`.
        if !unsafe { operation.step::<1, _>(Step { simd, at, access }) } {
            return Some(at);
        }
    }
    None
}

// ==== Sums ====

/// Sources in syndrome order, cut at the lost ones into `SEGMENTS` lists: a constant, so that the
/// compiler sees that nothing is cut when nothing is lost (a fifth of the speed of P and Q).
#[derive(Copy, Clone)]
pub(super) struct Sources<'a, const SEGMENTS: usize> {
    segments: [&'a [&'a [u8]]; SEGMENTS],
    /// So few that the writing of targets is what takes long.
    pub(super) are_few: bool,
}

/// What counts as few sources.
const FEW: usize = 4;

impl<'a> Sources<'a, 1> {
    pub(super) fn all(sources: &'a [&'a [u8]]) -> Self {
        Self::new([sources])
    }
}

impl<'a> Sources<'a, 2> {
    pub(super) fn without(sources: &'a [&'a [u8]], lost: usize) -> Self {
        Self::new([&sources[..lost], &sources[lost + 1..]])
    }
}

impl<'a> Sources<'a, 3> {
    pub(super) fn without_two(sources: &'a [&'a [u8]], a: usize, b: usize) -> Self {
        let (low, high) = if a < b { (a, b) } else { (b, a) };
        Self::new([&sources[..low], &sources[low + 1..high], &sources[high + 1..]])
    }

    /// All but the lost one, and P with them: sources of a plain sum only.
    pub(super) fn with_p_for(sources: &'a [&'a [u8]], lost: usize, p: &'a [&'a [u8]; 1]) -> Self {
        Self::new([&sources[..lost], &sources[lost + 1..], p])
    }
}

impl<'a, const SEGMENTS: usize> Sources<'a, SEGMENTS> {
    fn new(segments: [&'a [&'a [u8]]; SEGMENTS]) -> Self {
        let count: usize = segments.iter().map(|segment| segment.len()).sum();
        Self { segments, are_few: count <= FEW }
    }

    /// Bytes from the middle of sources all over the list, where neither the caller nor a
    /// prefetcher has been just now; of `parity` if all sources are lost. `None` if that is empty.
    fn samples<'b>(&self, parity: &'b [u8]) -> Option<[&'b u8; SAMPLE_COUNT]>
    where
        'a: 'b,
    {
        let sources = || self.segments.iter().copied().flatten();
        let count = sources().count();
        let sample = |i: usize| {
            if count == 0 {
                return parity.get((2 * i + 1) * parity.len() / (2 * SAMPLE_COUNT));
            }
            let source: &'b [u8] = sources().nth(i * count / SAMPLE_COUNT)?;
            source.get(source.len() / 2)
        };
        Some([sample(0)?, sample(1)?, sample(2)?, sample(3)?])
    }
}

/// The two running sums of one step.
pub(super) struct Sums<V, const LANES: usize> {
    pub(super) p: [V; LANES],
    pub(super) q: [V; LANES],
}

impl<S: Simd, A: Access> Step<S, A> {
    /// Sums P over all sources that are not lost.
    ///
    /// # Safety
    ///
    /// All vectors of the step lie within every source.
    #[inline(always)]
    pub(super) unsafe fn sum_p<const LANES: usize, const SEGMENTS: usize>(
        self,
        sources: &Sources<'_, SEGMENTS>,
    ) -> [S::Vector; LANES] {
        let mut p = [self.simd.splat(0); LANES];
        for segment in sources.segments {
            // SAFETY: the caller says so.
            unsafe { self.add_p(segment, &mut p) };
        }
        p
    }

    /// Adds the sources of `segment` to `p`, two at a time for the sake of three-way XOR.
    ///
    /// # Safety
    ///
    /// All vectors of the step lie within every source.
    #[inline(always)]
    unsafe fn add_p<const LANES: usize>(self, segment: &[&[u8]], p: &mut [S::Vector; LANES]) {
        let (pairs, rest) = segment.as_chunks::<2>();
        for [first, second] in pairs {
            for (lane, p) in p.iter_mut().enumerate() {
                // SAFETY: the caller says so.
                let first = unsafe { self.load(first, lane) };
                // SAFETY: the caller says so.
                let second = unsafe { self.load(second, lane) };
                *p = self.simd.xor3(*p, first, second);
            }
        }
        for source in rest {
            for (lane, p) in p.iter_mut().enumerate() {
                // SAFETY: the caller says so.
                let source = unsafe { self.load(source, lane) };
                *p = self.simd.xor(*p, source);
            }
        }
    }

    /// Sums P and Q over all sources that are not lost.
    ///
    /// # Safety
    ///
    /// All vectors of the step lie within every source.
    #[inline(always)]
    pub(super) unsafe fn sum_pq<const LANES: usize, const SEGMENTS: usize>(
        self,
        sources: &Sources<'_, SEGMENTS>,
    ) -> Sums<S::Vector, LANES> {
        match S::Q_METHOD {
            // SAFETY: the caller says so.
            QMethod::Horner => unsafe { self.sum_pq_horner(sources) },
            // SAFETY: the caller says so.
            QMethod::Multiply => unsafe { self.sum_pq_multiply(sources) },
        }
    }

    /// # Safety
    ///
    /// As [`Step::sum_pq`].
    #[inline(always)]
    unsafe fn sum_pq_horner<const LANES: usize, const SEGMENTS: usize>(
        self,
        sources: &Sources<'_, SEGMENTS>,
    ) -> Sums<S::Vector, LANES> {
        let simd = self.simd;
        let zero = simd.splat(0);
        let offset = simd.splat(S::HORNER_OFFSET);
        let mut sums = Sums { p: [zero; LANES], q: [offset; LANES] };
        for (passed, segment) in sources.segments.iter().rev().enumerate() {
            if passed > 0 {
                // Past the lost source between the last segment and this one.
                for q in &mut sums.q {
                    *q = simd.double_and_add(*q, zero);
                }
            }
            let (rest, pairs) = segment.as_rchunks::<2>();
            for [first, second] in pairs.iter().rev() {
                // Source by source, so that neighbouring instructions belong to different sums.
                let mut seconds = [zero; LANES];
                for (lane, vector) in seconds.iter_mut().enumerate() {
                    // SAFETY: the caller says so.
                    *vector = unsafe { self.load(second, lane) };
                    sums.q[lane] = simd.double_and_add(sums.q[lane], *vector);
                }
                for (lane, second) in seconds.into_iter().enumerate() {
                    // SAFETY: the caller says so.
                    let first = unsafe { self.load(first, lane) };
                    sums.p[lane] = simd.xor3(sums.p[lane], first, second);
                    sums.q[lane] = simd.double_and_add(sums.q[lane], first);
                }
            }
            for source in rest {
                for lane in 0..LANES {
                    // SAFETY: the caller says so.
                    let source = unsafe { self.load(source, lane) };
                    sums.p[lane] = simd.xor(sums.p[lane], source);
                    sums.q[lane] = simd.double_and_add(sums.q[lane], source);
                }
            }
        }
        for q in &mut sums.q {
            *q = simd.xor(*q, offset);
        }
        sums
    }

    /// # Safety
    ///
    /// As [`Step::sum_pq`].
    #[inline(always)]
    unsafe fn sum_pq_multiply<const LANES: usize, const SEGMENTS: usize>(
        self,
        sources: &Sources<'_, SEGMENTS>,
    ) -> Sums<S::Vector, LANES> {
        let simd = self.simd;
        let zero = simd.splat(0);
        let mut sums = Sums { p: [zero; LANES], q: [zero; LANES] };
        // Counted without a check in the inner loop: there are no more than 255 sources.
        let mut exponent = 0usize;
        for segment in sources.segments {
            let (pairs, rest) = segment.as_chunks::<2>();
            for [first, second] in pairs {
                let by_first = simd.power(exponent);
                let by_second = simd.power(exponent.wrapping_add(1));
                for lane in 0..LANES {
                    // SAFETY: the caller says so.
                    let first = unsafe { self.load(first, lane) };
                    // SAFETY: the caller says so.
                    let second = unsafe { self.load(second, lane) };
                    sums.p[lane] = simd.xor3(sums.p[lane], first, second);
                    let first = simd.multiply(by_first, first);
                    let second = simd.multiply(by_second, second);
                    sums.q[lane] = simd.xor3(sums.q[lane], first, second);
                }
                exponent = exponent.wrapping_add(2);
            }
            for source in rest {
                let by = simd.power(exponent);
                for lane in 0..LANES {
                    // SAFETY: the caller says so.
                    let source = unsafe { self.load(source, lane) };
                    sums.p[lane] = simd.xor(sums.p[lane], source);
                    sums.q[lane] = simd.xor(sums.q[lane], simd.multiply(by, source));
                }
                exponent = exponent.wrapping_add(1);
            }
            // The lost source behind this segment has its own power, which nobody needs.
            exponent = exponent.wrapping_add(1);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use crate::parity::Kernel;
    use alloc::vec;
    use alloc::vec::Vec;
    use core::cell::Cell;

    std::thread_local! {
        static FORCED: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn is_streaming_forced() -> bool {
        FORCED.get()
    }

    const WIDTH: usize = 64;

    /// Four targets of `len` bytes, each aligned for streaming and followed by a guard.
    struct Aligned {
        memory: Vec<u8>,
        len: usize,
    }

    impl Aligned {
        fn new(len: usize) -> Self {
            Self { memory: vec![0xa5; 4 * Self::stride(len) + WIDTH], len }
        }

        fn stride(len: usize) -> usize {
            (len + 1).next_multiple_of(WIDTH)
        }

        fn all(&mut self) -> [&mut [u8]; 4] {
            let (len, start) = (self.len, self.memory.as_ptr().align_offset(WIDTH));
            let mut strides = self.memory[start..].chunks_exact_mut(Self::stride(len));
            [(); 4].map(|()| &mut strides.next().unwrap()[..len])
        }

        fn assert_guarded(&self) {
            let start = self.memory.as_ptr().align_offset(WIDTH);
            for stride in self.memory[start..].chunks_exact(Self::stride(self.len)) {
                assert!(stride[self.len..].iter().all(|&byte| byte == 0xa5));
            }
        }
    }

    /// Streamed targets hold the same bytes as those of the specification, which never streams.
    #[test]
    fn streamed_targets_are_right() {
        let naive = Kernel::named("naive").unwrap();
        let lens = (0..=3 * WIDTH + 1).chain(4 * WIDTH - 1..=4 * WIDTH + 1);
        for len in lens.chain([8 * WIDTH, 16 * WIDTH + 7, 40 * WIDTH]) {
            let data: Vec<Vec<u8>> = (1..=5usize)
                .map(|k| (0..len).map(|i| (i * k * 37 + (i >> 7) * k) as u8).collect())
                .collect();
            let all: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            let (mut p, mut q) = (vec![0; len], vec![0; len]);
            naive.gen_pq(&all, &mut p, &mut q);
            let one_lost = [all[0], all[1], &[], all[3], all[4]];
            let two_lost = [all[0], &[], all[2], all[3], &[]];
            FORCED.set(true);
            for kernel in Kernel::available() {
                let mut targets = Aligned::new(len);
                let [a, b, c, d] = targets.all();
                kernel.gen_p(&all, a);
                kernel.gen_pq(&all, b, c);
                kernel.recover_data(2, &one_lost, &p, d);
                assert_eq!((&*a, &*b, &*c, &*d), (&p[..], &p[..], &q[..], all[2]), "{kernel:?}");
                targets.assert_guarded();
                let mut targets = Aligned::new(len);
                let [a, b, c, d] = targets.all();
                kernel.recover_data_p(2, &one_lost, &q, a, b);
                kernel.recover_two_data(4, 1, &two_lost, &p, &q, c, d);
                assert_eq!((&*a, &*b, &*c, &*d), (all[2], &p[..], all[4], all[1]), "{kernel:?}");
                kernel.recover_data_q(2, &one_lost, &q, c);
                assert_eq!(c, all[2], "{kernel:?}");
                targets.assert_guarded();
            }
            FORCED.set(false);
        }
    }
}
