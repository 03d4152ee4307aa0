//! SSSE3: vectors of 16 bytes; Q by Horner's rule with one byte shuffle a step.

use crate::parity::gf::{NIBBLES, POLYNOMIAL};
use crate::parity::kernel::kernel_table;
use crate::parity::simd::{QMethod, SAMPLE_COUNT, Simd};
use core::arch::x86_64::*;

kernel_table!(
    #[target_feature(enable = "ssse3")]
    TABLE,
    "ssse3",
    Ssse3
);

/// The token: whoever holds one runs on a CPU with SSSE3.
#[derive(Copy, Clone)]
struct Ssse3(());

impl Ssse3 {
    fn is_available() -> bool {
        super::has_features!("ssse3")
    }

    /// # Safety
    ///
    /// The CPU has SSSE3.
    #[inline(always)]
    unsafe fn assume() -> Self {
        Self(())
    }
}

// SAFETY: an `__m128i` is 16 bytes without invalid patterns, and so much is loaded and stored.
unsafe impl Simd for Ssse3 {
    const WIDTH: usize = 16;
    const Q_METHOD: QMethod = QMethod::Horner;
    /// See [`Simd::double_and_add`] below.
    const HORNER_OFFSET: u8 = super::SHUFFLE_OFFSET;

    const STREAMS: bool = true;

    type Vector = __m128i;
    /// The products with the low and with the high nibbles.
    type Factor = [__m128i; 2];

    #[inline(always)]
    fn splat(self, byte: u8) -> __m128i {
        // SAFETY: the token proves SSE2, a part of SSSE3.
        unsafe { _mm_set1_epi8(byte as i8) }
    }

    #[inline(always)]
    fn xor(self, a: __m128i, b: __m128i) -> __m128i {
        // SAFETY: the token proves SSE2, a part of SSSE3.
        unsafe { _mm_xor_si128(a, b) }
    }

    #[inline(always)]
    fn or(self, a: __m128i, b: __m128i) -> __m128i {
        // SAFETY: the token proves SSE2, a part of SSSE3.
        unsafe { _mm_or_si128(a, b) }
    }

    #[inline(always)]
    fn is_zero(self, a: __m128i) -> bool {
        let zero = self.splat(0);
        // SAFETY: the token proves SSE2, a part of SSSE3.
        let equal = unsafe { _mm_cmpeq_epi8(a, zero) };
        // SAFETY: the token proves SSE2, a part of SSSE3.
        unsafe { _mm_movemask_epi8(equal) == 0xffff }
    }

    /// See `avx2.rs`.
    #[inline(always)]
    fn double_and_add(self, sum: __m128i, term: __m128i) -> __m128i {
        let table = self.splat(POLYNOMIAL);
        // SAFETY: the token proves SSSE3.
        let reduction = unsafe { _mm_shuffle_epi8(table, sum) };
        // SAFETY: the token proves SSE2, a part of SSSE3.
        let doubled = unsafe { _mm_add_epi8(sum, sum) };
        self.xor(doubled, self.xor(reduction, term))
    }

    #[inline(always)]
    fn factor(self, value: u8) -> [__m128i; 2] {
        let table = NIBBLES[usize::from(value)].as_ptr();
        // SAFETY: the token proves SSE2, and the first half of a table has 16 bytes.
        let low = unsafe { _mm_loadu_si128(table.cast()) };
        // SAFETY: a table has 32 bytes.
        let high = unsafe { table.add(16) };
        // SAFETY: so the second half has 16 as well.
        let high = unsafe { _mm_loadu_si128(high.cast()) };
        [low, high]
    }

    #[inline(always)]
    fn multiply(self, factor: [__m128i; 2], a: __m128i) -> __m128i {
        let mask = self.splat(0x0f);
        // SAFETY: the token proves SSE2, a part of SSSE3.
        let low = unsafe { _mm_and_si128(a, mask) };
        // SAFETY: the token proves SSE2, a part of SSSE3.
        let high = unsafe { _mm_srli_epi64::<4>(a) };
        // SAFETY: the token proves SSE2, a part of SSSE3.
        let high = unsafe { _mm_and_si128(high, mask) };
        // SAFETY: the token proves SSSE3.
        let low = unsafe { _mm_shuffle_epi8(factor[0], low) };
        // SAFETY: the token proves SSSE3.
        let high = unsafe { _mm_shuffle_epi8(factor[1], high) };
        self.xor(low, high)
    }

    #[inline(always)]
    unsafe fn load(self, pointer: *const u8) -> __m128i {
        // SAFETY: the token proves SSE2, a part of SSSE3, and the caller grants 16 bytes at any
        // alignment.
        unsafe { _mm_loadu_si128(pointer.cast()) }
    }

    #[inline(always)]
    unsafe fn store(self, pointer: *mut u8, vector: __m128i) {
        // SAFETY: the token proves SSE2, a part of SSSE3, and the caller grants 16 bytes at any
        // alignment.
        unsafe { _mm_storeu_si128(pointer.cast(), vector) }
    }

    #[inline(always)]
    unsafe fn stream(self, pointer: *mut u8, vector: __m128i) {
        // SAFETY: the token proves SSE2, a part of SSSE3, and the caller grants 16 bytes, aligned.
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
