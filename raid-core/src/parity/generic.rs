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

use super::gf::POWERS;
use super::simd::{QMethod, Simd, WIDTH_MAX};
use core::slice;

// ==== Access ====

/// How the vectors of a step lie in memory.
pub(super) trait Access: Copy {
    /// Loads the vector at the start of `from`.
    ///
    /// # Safety
    ///
    /// As many bytes as this access covers are readable and initialised at `from`.
    unsafe fn load<S: Simd>(self, simd: S, from: *const u8) -> S::Vector;

    /// Stores the vector to the start of `to`.
    ///
    /// # Safety
    ///
    /// As many bytes as this access covers are writable at `to`.
    unsafe fn store<S: Simd>(self, simd: S, to: *mut u8, vector: S::Vector);

    /// Bytes that one vector of this access covers.
    fn extent<S: Simd>(self) -> usize;
}

/// Whole vectors.
#[derive(Copy, Clone)]
struct Whole;

impl Access for Whole {
    #[inline(always)]
    unsafe fn load<S: Simd>(self, simd: S, from: *const u8) -> S::Vector {
        // SAFETY: the caller grants `S::WIDTH` bytes, the extent of this access.
        unsafe { simd.load(from) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(self, simd: S, to: *mut u8, vector: S::Vector) {
        // SAFETY: the caller grants `S::WIDTH` bytes, the extent of this access.
        unsafe { simd.store(to, vector) }
    }

    #[inline(always)]
    fn extent<S: Simd>(self) -> usize {
        S::WIDTH
    }
}

/// The first few bytes of a vector; the others read as zero and are not written.
#[derive(Copy, Clone)]
struct Partial(usize);

impl Access for Partial {
    #[inline(always)]
    unsafe fn load<S: Simd>(self, simd: S, from: *const u8) -> S::Vector {
        let mut buffer = [0; WIDTH_MAX];
        // SAFETY: the caller grants `self.0` bytes, the extent of this access.
        let bytes = unsafe { slice::from_raw_parts(from, self.0) };
        buffer[..self.0].copy_from_slice(bytes);
        // SAFETY: the buffer holds `WIDTH_MAX` bytes, and no vector is wider.
        unsafe { simd.load(buffer.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(self, simd: S, to: *mut u8, vector: S::Vector) {
        let mut buffer = [0; WIDTH_MAX];
        // SAFETY: the buffer holds `WIDTH_MAX` bytes, and no vector is wider.
        unsafe { simd.store(buffer.as_mut_ptr(), vector) };
        // SAFETY: the caller grants `self.0` bytes, the extent of this access, and holds the
        // slice that they belong to as `&mut`.
        let bytes = unsafe { slice::from_raw_parts_mut(to, self.0) };
        bytes.copy_from_slice(&buffer[..self.0]);
    }

    #[inline(always)]
    fn extent<S: Simd>(self) -> usize {
        self.0
    }
}

/// One step: a token, where it is, and how memory is accessed there.
#[derive(Copy, Clone)]
pub(super) struct Step<S, A> {
    pub(super) simd: S,
    at: usize,
    access: A,
}

impl<S: Simd, A: Access> Step<S, A> {
    /// Loads vector `lane` of this step from a slice.
    ///
    /// # Safety
    ///
    /// The step's vectors up to `lane` lie within `slice`.
    #[inline(always)]
    pub(super) unsafe fn load(self, slice: &[u8], lane: usize) -> S::Vector {
        let at = self.at + lane * S::WIDTH;
        debug_assert!(at + self.access.extent::<S>() <= slice.len());
        // SAFETY: the caller says that `at` is within the slice.
        let from = unsafe { slice.as_ptr().add(at) };
        // SAFETY: so are the bytes that the access covers.
        unsafe { self.access.load(self.simd, from) }
    }

    /// Stores vector `lane` of this step to a slice.
    ///
    /// # Safety
    ///
    /// The step's vectors up to `lane` lie within `slice`.
    #[inline(always)]
    pub(super) unsafe fn store(self, slice: &mut [u8], lane: usize, vector: S::Vector) {
        let at = self.at + lane * S::WIDTH;
        debug_assert!(at + self.access.extent::<S>() <= slice.len());
        // SAFETY: the caller says that `at` is within the slice.
        let to = unsafe { slice.as_mut_ptr().add(at) };
        // SAFETY: so are the bytes that the access covers.
        unsafe { self.access.store(self.simd, to, vector) }
    }
}

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

/// Walks `operation` over `len` bytes in steps of `LANES` vectors at most. Returns the offset of
/// the step that said stop.
///
/// # Safety
///
/// Every slice of the operation is `len` bytes long.
#[inline(always)]
pub(super) unsafe fn drive<const LANES: usize, S: Simd>(
    simd: S,
    len: usize,
    operation: &mut impl Operation<S>,
) -> Option<usize> {
    let mut at = 0;
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

/// Sources in syndrome order, cut at the lost ones.
#[derive(Copy, Clone)]
pub(super) struct Sources<'a> {
    /// What lies before, between and behind the lost ones; `lost_count + 1` are in use.
    segments: [&'a [&'a [u8]]; 3],
    lost_count: usize,
}

impl<'a> Sources<'a> {
    pub(super) fn all(sources: &'a [&'a [u8]]) -> Self {
        Self { segments: [sources, &[], &[]], lost_count: 0 }
    }

    pub(super) fn without(sources: &'a [&'a [u8]], lost: usize) -> Self {
        let segments = [&sources[..lost], &sources[lost + 1..], &[]];
        Self { segments, lost_count: 1 }
    }

    /// All but the lost one, and P in its place.
    pub(super) fn with_p_for(sources: &'a [&'a [u8]], lost: usize, p: &'a [&'a [u8]; 1]) -> Self {
        let segments = [&sources[..lost], &sources[lost + 1..], p];
        Self { segments, lost_count: 2 }
    }

    pub(super) fn without_two(sources: &'a [&'a [u8]], a: usize, b: usize) -> Self {
        let (low, high) = if a < b { (a, b) } else { (b, a) };
        let segments = [&sources[..low], &sources[low + 1..high], &sources[high + 1..]];
        Self { segments, lost_count: 2 }
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
    pub(super) unsafe fn sum_p<const LANES: usize>(
        self,
        sources: &Sources<'_>,
    ) -> [S::Vector; LANES] {
        let mut p = [self.simd.splat(0); LANES];
        for segment in &sources.segments[..=sources.lost_count] {
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
    pub(super) unsafe fn sum_pq<const LANES: usize>(
        self,
        sources: &Sources<'_>,
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
    unsafe fn sum_pq_horner<const LANES: usize>(
        self,
        sources: &Sources<'_>,
    ) -> Sums<S::Vector, LANES> {
        let simd = self.simd;
        let zero = simd.splat(0);
        let offset = simd.splat(S::HORNER_OFFSET);
        let mut sums = Sums { p: [zero; LANES], q: [offset; LANES] };
        for index in (0..=sources.lost_count).rev() {
            if index < sources.lost_count {
                for q in &mut sums.q {
                    *q = simd.double_and_add(*q, zero);
                }
            }
            let (rest, pairs) = sources.segments[index].as_rchunks::<2>();
            for [first, second] in pairs.iter().rev() {
                for lane in 0..LANES {
                    // SAFETY: the caller says so.
                    let second = unsafe { self.load(second, lane) };
                    // SAFETY: the caller says so.
                    let first = unsafe { self.load(first, lane) };
                    sums.p[lane] = simd.xor3(sums.p[lane], first, second);
                    let q = simd.double_and_add(sums.q[lane], second);
                    sums.q[lane] = simd.double_and_add(q, first);
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
    unsafe fn sum_pq_multiply<const LANES: usize>(
        self,
        sources: &Sources<'_>,
    ) -> Sums<S::Vector, LANES> {
        let simd = self.simd;
        let zero = simd.splat(0);
        let mut sums = Sums { p: [zero; LANES], q: [zero; LANES] };
        let mut exponent = 0;
        for index in 0..=sources.lost_count {
            let (pairs, rest) = sources.segments[index].as_chunks::<2>();
            for [first, second] in pairs {
                let by_first = simd.factor(POWERS[exponent]);
                let by_second = simd.factor(POWERS[exponent + 1]);
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
                exponent += 2;
            }
            for source in rest {
                let by = simd.factor(POWERS[exponent]);
                for lane in 0..LANES {
                    // SAFETY: the caller says so.
                    let source = unsafe { self.load(source, lane) };
                    sums.p[lane] = simd.xor(sums.p[lane], source);
                    sums.q[lane] = simd.xor(sums.q[lane], simd.multiply(by, source));
                }
                exponent += 1;
            }
            // The lost source behind this segment has its own power, which nobody needs.
            exponent += 1;
        }
        sums
    }
}
