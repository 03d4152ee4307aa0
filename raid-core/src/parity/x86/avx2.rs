//! AVX2: vectors of 32 bytes; Q by Horner's rule with one byte shuffle a step.

use crate::parity::gf::{NIBBLES, POLYNOMIAL};
use crate::parity::kernel::kernel_table;
use crate::parity::simd::{QMethod, SAMPLE_COUNT, Simd};
use core::arch::x86_64::*;

kernel_table!(
    #[target_feature(enable = "avx2")]
    TABLE,
    "avx2",
    Avx2
);

/// The token: whoever holds one runs on a CPU with AVX2.
#[derive(Copy, Clone)]
struct Avx2(());

impl Avx2 {
    fn is_available() -> bool {
        super::has_features!("avx2")
    }

    /// # Safety
    ///
    /// The CPU has AVX2.
    #[inline(always)]
    unsafe fn assume() -> Self {
        Self(())
    }
}

// SAFETY: an `__m256i` is 32 bytes without invalid patterns, and so much is loaded and stored.
unsafe impl Simd for Avx2 {
    const WIDTH: usize = 32;
    const Q_METHOD: QMethod = QMethod::Horner;
    /// See [`Simd::double_and_add`] below.
    const HORNER_OFFSET: u8 = super::SHUFFLE_OFFSET;

    const STREAMS: bool = true;

    type Vector = __m256i;
    /// The products with the low and with the high nibbles.
    type Factor = [__m256i; 2];

    #[inline(always)]
    fn splat(self, byte: u8) -> __m256i {
        // SAFETY: the token proves AVX2.
        unsafe { _mm256_set1_epi8(byte as i8) }
    }

    #[inline(always)]
    fn xor(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the token proves AVX2.
        unsafe { _mm256_xor_si256(a, b) }
    }

    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the token proves AVX2.
        unsafe { _mm256_or_si256(a, b) }
    }

    #[inline(always)]
    fn is_zero(self, a: __m256i) -> bool {
        // SAFETY: the token proves AVX, a part of AVX2.
        unsafe { _mm256_testz_si256(a, a) == 1 }
    }

    /// `vpshufb` in a table of nothing but 0x1d gives 0 where the top bit of the index is set,
    /// 0x1d elsewhere: the reduction, inverted. A sum shifted by 0x0b makes up for that, see
    /// [`SHUFFLE_OFFSET`](super::SHUFFLE_OFFSET); a comparison and a mask cost one more.
    #[inline(always)]
    fn double_and_add(self, sum: __m256i, term: __m256i) -> __m256i {
        let table = self.splat(POLYNOMIAL);
        // SAFETY: the token proves AVX2.
        let reduction = unsafe { _mm256_shuffle_epi8(table, sum) };
        // SAFETY: the token proves AVX2.
        let doubled = unsafe { _mm256_add_epi8(sum, sum) };
        self.xor(doubled, self.xor(reduction, term))
    }

    #[inline(always)]
    fn factor(self, value: u8) -> [__m256i; 2] {
        let table = NIBBLES[usize::from(value)].as_ptr();
        // SAFETY: the token proves AVX2, and the first half of a table has 16 bytes.
        let low = unsafe { _mm_loadu_si128(table.cast()) };
        // SAFETY: a table has 32 bytes.
        let high = unsafe { table.add(16) };
        // SAFETY: so the second half has 16 as well.
        let high = unsafe { _mm_loadu_si128(high.cast()) };
        // SAFETY: the token proves AVX2.
        let low = unsafe { _mm256_broadcastsi128_si256(low) };
        // SAFETY: the token proves AVX2.
        let high = unsafe { _mm256_broadcastsi128_si256(high) };
        [low, high]
    }

    #[inline(always)]
    fn multiply(self, factor: [__m256i; 2], a: __m256i) -> __m256i {
        let mask = self.splat(0x0f);
        // SAFETY: the token proves AVX2.
        let low = unsafe { _mm256_and_si256(a, mask) };
        // SAFETY: the token proves AVX2.
        let high = unsafe { _mm256_srli_epi64::<4>(a) };
        // SAFETY: the token proves AVX2.
        let high = unsafe { _mm256_and_si256(high, mask) };
        // SAFETY: the token proves AVX2.
        let low = unsafe { _mm256_shuffle_epi8(factor[0], low) };
        // SAFETY: the token proves AVX2.
        let high = unsafe { _mm256_shuffle_epi8(factor[1], high) };
        self.xor(low, high)
    }

    #[inline(always)]
    unsafe fn load(self, pointer: *const u8) -> __m256i {
        // SAFETY: the token proves AVX2, and the caller grants 32 bytes at any alignment.
        unsafe { _mm256_loadu_si256(pointer.cast()) }
    }

    #[inline(always)]
    unsafe fn store(self, pointer: *mut u8, vector: __m256i) {
        // SAFETY: the token proves AVX2, and the caller grants 32 bytes at any alignment.
        unsafe { _mm256_storeu_si256(pointer.cast(), vector) }
    }

    #[inline(always)]
    unsafe fn stream(self, pointer: *mut u8, vector: __m256i) {
        // SAFETY: the token proves AVX, a part of AVX2, and the caller grants 32 bytes, aligned.
        unsafe { _mm256_stream_si256(pointer.cast(), vector) }
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
