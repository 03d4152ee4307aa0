//! SSE2, which every x86-64 has: vectors of 16 bytes; Q by Horner's rule with a comparison a step.

use crate::parity::gf::POLYNOMIAL;
use crate::parity::kernel::kernel_table;
use crate::parity::simd::{QMethod, SAMPLE_COUNT, Simd};
use core::arch::x86_64::*;

kernel_table!(
    #[target_feature(enable = "sse2")]
    TABLE,
    "sse2",
    Sse2
);

/// The token: whoever holds one runs on a CPU with SSE2.
#[derive(Copy, Clone)]
struct Sse2(());

impl Sse2 {
    fn is_available() -> bool {
        super::has_features!("sse2")
    }

    /// # Safety
    ///
    /// The CPU has SSE2.
    #[inline(always)]
    unsafe fn assume() -> Self {
        Self(())
    }
}

// SAFETY: an `__m128i` is 16 bytes without invalid patterns, and so much is loaded and stored.
unsafe impl Simd for Sse2 {
    const WIDTH: usize = 16;
    const Q_METHOD: QMethod = QMethod::Horner;
    const HORNER_OFFSET: u8 = 0;

    const STREAMS: bool = true;

    type Vector = __m128i;
    type Factor = u8;

    #[inline(always)]
    fn splat(self, byte: u8) -> __m128i {
        // SAFETY: the token proves SSE2.
        unsafe { _mm_set1_epi8(byte as i8) }
    }

    #[inline(always)]
    fn xor(self, a: __m128i, b: __m128i) -> __m128i {
        // SAFETY: the token proves SSE2.
        unsafe { _mm_xor_si128(a, b) }
    }

    #[inline(always)]
    fn or(self, a: __m128i, b: __m128i) -> __m128i {
        // SAFETY: the token proves SSE2.
        unsafe { _mm_or_si128(a, b) }
    }

    #[inline(always)]
    fn is_zero(self, a: __m128i) -> bool {
        let zero = self.splat(0);
        // SAFETY: the token proves SSE2.
        let equal = unsafe { _mm_cmpeq_epi8(a, zero) };
        // SAFETY: the token proves SSE2.
        unsafe { _mm_movemask_epi8(equal) == 0xffff }
    }

    /// A comparison finds the top bits, since a byte with one is negative.
    #[inline(always)]
    fn double_and_add(self, sum: __m128i, term: __m128i) -> __m128i {
        let zero = self.splat(0);
        // SAFETY: the token proves SSE2.
        let negative = unsafe { _mm_cmpgt_epi8(zero, sum) };
        // SAFETY: the token proves SSE2.
        let reduction = unsafe { _mm_and_si128(negative, self.splat(POLYNOMIAL)) };
        // SAFETY: the token proves SSE2.
        let doubled = unsafe { _mm_add_epi8(sum, sum) };
        self.xor(doubled, self.xor(reduction, term))
    }

    #[inline(always)]
    fn factor(self, value: u8) -> u8 {
        value
    }

    /// Bit by bit: there is no byte shuffle, and this runs once for each vector of a target only.
    #[inline(always)]
    fn multiply(self, factor: u8, a: __m128i) -> __m128i {
        let zero = self.splat(0);
        let mut product = zero;
        for bit in (0..8).rev() {
            let mask = self.splat((factor >> bit & 1).wrapping_neg());
            // SAFETY: the token proves SSE2.
            let term = unsafe { _mm_and_si128(mask, a) };
            product = self.double_and_add(product, term);
        }
        product
    }

    #[inline(always)]
    unsafe fn load(self, pointer: *const u8) -> __m128i {
        // SAFETY: the token proves SSE2, and the caller grants 16 bytes at any alignment.
        unsafe { _mm_loadu_si128(pointer.cast()) }
    }

    #[inline(always)]
    unsafe fn store(self, pointer: *mut u8, vector: __m128i) {
        // SAFETY: the token proves SSE2, and the caller grants 16 bytes at any alignment.
        unsafe { _mm_storeu_si128(pointer.cast(), vector) }
    }

    #[inline(always)]
    unsafe fn stream(self, pointer: *mut u8, vector: __m128i) {
        // SAFETY: the token proves SSE2, and the caller grants 16 bytes, aligned.
        unsafe { _mm_stream_si128(pointer.cast(), vector) }
    }

    #[inline(always)]
    fn prefetch(self, pointer: *const u8) {
        super::prefetch(pointer);
    }

    #[inline(always)]
    fn prefetch_write(self, pointer: *const u8) {
        super::prefetch_write(pointer);
    }

    #[inline(always)]
    fn fence(self) {
        super::fence();
    }

    #[inline(always)]
    fn are_cold(self, samples: [&u8; SAMPLE_COUNT]) -> bool {
        super::are_cold(samples)
    }
}
