//! What an instruction set must offer for the algorithms in `generic.rs`.
//!
//! An implementor of [`Simd`] is a token of size zero. Holding one proves that this CPU has the
//! instructions, so that all arithmetic is safe to call; only loads and stores, which take
//! pointers, are not. Methods are `#[inline(always)]` and never `#[target_feature]`, because the
//! two cannot be combined: the instructions are switched on by the leaf functions that
//! `kernel_table!` makes, into which everything is inlined.

use super::gf::power;

/// A token for one instruction set, and its vector operations.
///
/// # Safety
///
/// - Each vector is exactly `WIDTH` bytes of memory, at most [`WIDTH_MAX`], and has no invalid
///   bit patterns.
/// - `load`, `store` and `stream` touch exactly the `WIDTH` bytes at the pointer.
pub(super) unsafe trait Simd: Copy {
    /// Bytes in a vector.
    const WIDTH: usize;

    /// How this instruction set sums Q fastest.
    const Q_METHOD: QMethod;

    /// The value that a Q sum by Horner's rule starts from and is XORed with at its end. Zero,
    /// unless [`Simd::double_and_add`] works on sums shifted by a constant.
    const HORNER_OFFSET: u8;

    /// Whether [`Simd::stream`] bypasses the caches.
    const STREAMS: bool = false;

    /// `WIDTH` bytes in a register.
    type Vector: Copy;

    /// A constant made ready to multiply vectors with.
    type Factor: Copy;

    /// Fills a vector with one byte.
    fn splat(self, byte: u8) -> Self::Vector;

    /// `a + b`.
    fn xor(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// `a + b + c`: one instruction where the machine has it.
    #[inline(always)]
    fn xor3(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        self.xor(a, self.xor(b, c))
    }

    /// `a | b`.
    fn or(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// Tells whether all bytes are zero.
    fn is_zero(self, a: Self::Vector) -> bool;

    /// `g * sum + term`, one step of Horner's rule. With a [`Simd::HORNER_OFFSET`] of `c`, both
    /// the sum that goes in and the one that comes out are the true ones XORed with `c`.
    fn double_and_add(self, sum: Self::Vector, term: Self::Vector) -> Self::Vector;

    /// Makes `value` ready for [`Simd::multiply`].
    fn factor(self, value: u8) -> Self::Factor;

    /// Makes `g^exponent` ready for [`Simd::multiply`].
    #[inline(always)]
    fn power(self, exponent: usize) -> Self::Factor {
        self.factor(power(exponent))
    }

    /// `factor * a`, byte by byte.
    fn multiply(self, factor: Self::Factor, a: Self::Vector) -> Self::Vector;

    /// Loads a vector.
    ///
    /// # Safety
    ///
    /// `WIDTH` bytes at `pointer` are readable and initialised.
    unsafe fn load(self, pointer: *const u8) -> Self::Vector;

    /// Stores a vector.
    ///
    /// # Safety
    ///
    /// `WIDTH` bytes at `pointer` are writable.
    unsafe fn store(self, pointer: *mut u8, vector: Self::Vector);

    /// Stores a vector past the caches, where the machine can. [`Simd::fence`] must follow before
    /// anybody else may look.
    ///
    /// # Safety
    ///
    /// - `WIDTH` bytes at `pointer` are writable.
    /// - `pointer` is aligned to `WIDTH`.
    #[inline(always)]
    unsafe fn stream(self, pointer: *mut u8, vector: Self::Vector) {
        // SAFETY: the caller grants the bytes.
        unsafe { self.store(pointer, vector) }
    }

    /// Hints that the line at `pointer` will be read. Any pointer will do.
    #[inline(always)]
    fn prefetch(self, _pointer: *const u8) {}

    /// Hints that the line at `pointer` will be written. Any pointer will do.
    #[inline(always)]
    fn prefetch_write(self, _pointer: *const u8) {}

    /// Orders streamed stores before all later ones.
    #[inline(always)]
    fn fence(self) {}

    /// Guesses whether these bytes come from memory rather than from a cache. The answer decides
    /// about speed only.
    #[inline(always)]
    fn are_cold(self, _samples: [&u8; SAMPLE_COUNT]) -> bool {
        false
    }
}

/// How many bytes are looked at to tell cold sources from hot ones.
pub(super) const SAMPLE_COUNT: usize = 4;

/// The widest vector there is (AVX-512): the size of the buffers that tails go through.
pub(super) const WIDTH_MAX: usize = 64;

/// The two ways to sum Q.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum QMethod {
    /// From the last source to the first, doubling the sum at each: no multiplication at all.
    Horner,
    /// Each source times its own power: for machines with one-instruction multiplication.
    #[allow(dead_code, reason = "not every architecture has such a kernel")]
    Multiply,
}
