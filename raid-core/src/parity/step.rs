//! One step of an operation: how memory is accessed there.
//!
//! Whole vectors go through the caches or, when [`drive`](super::generic::drive) is told so, past
//! them; what is left of less than a vector goes through a buffer on the stack.

use super::generic::Sources;
use super::simd::{Simd, WIDTH_MAX};
use core::slice;

/// Bytes that a cache moves at once.
const LINE: usize = 64;

/// How far ahead of a step memory is asked for: 256 bytes do as well, 1 KiB does worse.
const AHEAD: usize = 512;

/// How the vectors of a step lie in memory.
pub(super) trait Access: Copy {
    /// Whether this access is for cold sources and targets past the caches.
    const STREAMS: bool = false;

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
pub(super) struct Whole;

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

/// Whole vectors, stored past the caches to aligned targets.
#[derive(Copy, Clone)]
pub(super) struct Streamed;

impl Access for Streamed {
    const STREAMS: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(self, simd: S, from: *const u8) -> S::Vector {
        // SAFETY: the caller grants `S::WIDTH` bytes, the extent of this access.
        unsafe { simd.load(from) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(self, simd: S, to: *mut u8, vector: S::Vector) {
        debug_assert!(to.addr().is_multiple_of(S::WIDTH));
        // SAFETY: the caller grants `S::WIDTH` bytes, the extent of this access; `drive` uses it
        // for targets that `Targets::choose` has found aligned, at multiples of `S::WIDTH`.
        unsafe { simd.stream(to, vector) }
    }

    #[inline(always)]
    fn extent<S: Simd>(self) -> usize {
        S::WIDTH
    }
}

/// The first few bytes of a vector; the others read as zero and are not written.
#[derive(Copy, Clone)]
pub(super) struct Partial(pub(super) usize);

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
    pub(super) at: usize,
    pub(super) access: A,
}

impl<S: Simd, A: Access> Step<S, A> {
    /// Loads vector `lane` of this step from a slice.
    ///
    /// # Safety
    ///
    /// The step's vectors up to `lane` lie within `slice`.
    #[inline(always)]
    pub(super) unsafe fn load(self, slice: &[u8], lane: usize) -> S::Vector {
        // No sum within the slice overflows; a release build would check it at each load.
        let at = self.at.wrapping_add(lane * S::WIDTH);
        debug_assert!(at + self.access.extent::<S>() <= slice.len());
        if A::STREAMS && (lane * S::WIDTH).is_multiple_of(LINE) {
            self.simd.prefetch(slice.as_ptr().wrapping_add(at).wrapping_add(AHEAD));
        }
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
        let at = self.at.wrapping_add(lane * S::WIDTH);
        debug_assert!(at + self.access.extent::<S>() <= slice.len());
        // SAFETY: the caller says that `at` is within the slice.
        let to = unsafe { slice.as_mut_ptr().add(at) };
        // SAFETY: so are the bytes that the access covers.
        unsafe { self.access.store(self.simd, to, vector) }
    }
}

impl<S: Simd, A: Access> Step<S, A> {
    /// Asks for the lines of a target that a later step writes, so that its stores need not wait
    /// for them. With up to four hot sources that is a tenth faster (AVX-512), with more of them
    /// it is slower.
    #[inline(always)]
    pub(super) fn prepare_target<const LANES: usize, const SEGMENTS: usize>(
        self,
        sources: &Sources<'_, SEGMENTS>,
        target: &[u8],
    ) {
        let at = self.at.wrapping_add(AHEAD);
        if S::WIDTH == LINE && !A::STREAMS && sources.are_few && at < target.len() {
            for line in 0..(LANES * S::WIDTH) / LINE {
                self.simd.prefetch_write(target.as_ptr().wrapping_add(at + line * LINE));
            }
        }
    }
}
