//! AVX-512 (F, BW): vectors of 64 bytes, three-way XOR; Q by Horner's rule with one byte shuffle a
//! step.

use crate::parity::gf::{NIBBLES, POLYNOMIAL};
use crate::parity::kernel::kernel_table;
use crate::parity::simd::{QMethod, SAMPLE_COUNT, Simd};
use core::arch::x86_64::*;

/// The truth table of three-way XOR, for `vpternlog`.
const XOR3: i32 = 0x96;

kernel_table!(
    #[target_feature(enable = "avx512f,avx512bw")]
    TABLE,
    "avx512",
    Avx512
);

/// The token: whoever holds one runs on a CPU with AVX-512 F and BW.
#[derive(Copy, Clone)]
struct Avx512(());

impl Avx512 {
    fn is_available() -> bool {
        super::has_features!("avx512f", "avx512bw")
    }

    /// # Safety
    ///
    /// The CPU has AVX-512 F and BW.
    #[inline(always)]
    unsafe fn assume() -> Self {
        Self(())
    }
}

// SAFETY: an `__m512i` is 64 bytes without invalid patterns, and so much is loaded and stored.
unsafe impl Simd for Avx512 {
    const WIDTH: usize = 64;
    const Q_METHOD: QMethod = QMethod::Horner;
    /// See [`Simd::double_and_add`] below.
    const HORNER_OFFSET: u8 = super::SHUFFLE_OFFSET;

    const STREAMS: bool = true;

    type Vector = __m512i;
    /// The products with the low and with the high nibbles.
    type Factor = [__m512i; 2];

    #[inline(always)]
    fn splat(self, byte: u8) -> __m512i {
        // SAFETY: the token proves AVX-512 F.
        unsafe { _mm512_set1_epi8(byte as i8) }
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token proves AVX-512 F.
        unsafe { _mm512_xor_si512(a, b) }
    }

    #[inline(always)]
    fn xor3(self, a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        // SAFETY: the token proves AVX-512 F.
        unsafe { _mm512_ternarylogic_epi64::<XOR3>(a, b, c) }
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token proves AVX-512 F.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    fn is_zero(self, a: __m512i) -> bool {
        // SAFETY: the token proves AVX-512 F.
        unsafe { _mm512_test_epi64_mask(a, a) == 0 }
    }

    /// See `avx2.rs`.
    #[inline(always)]
    fn double_and_add(self, sum: __m512i, term: __m512i) -> __m512i {
        let table = self.splat(POLYNOMIAL);
        // SAFETY: the token proves AVX-512 BW.
        let reduction = unsafe { _mm512_shuffle_epi8(table, sum) };
        // SAFETY: the token proves AVX-512 BW.
        let doubled = unsafe { _mm512_add_epi8(sum, sum) };
        self.xor3(doubled, reduction, term)
    }

    #[inline(always)]
    fn factor(self, value: u8) -> [__m512i; 2] {
        let table = NIBBLES[usize::from(value)].as_ptr();
        // SAFETY: the token proves SSE2, and the first half of a table has 16 bytes.
        let low = unsafe { _mm_loadu_si128(table.cast()) };
        // SAFETY: a table has 32 bytes.
        let high = unsafe { table.add(16) };
        // SAFETY: so the second half has 16 as well.
        let high = unsafe { _mm_loadu_si128(high.cast()) };
        // SAFETY: the token proves AVX-512 F.
        let low = unsafe { _mm512_broadcast_i32x4(low) };
        // SAFETY: the token proves AVX-512 F.
        let high = unsafe { _mm512_broadcast_i32x4(high) };
        [low, high]
    }

    #[inline(always)]
    fn multiply(self, factor: [__m512i; 2], a: __m512i) -> __m512i {
        let mask = self.splat(0x0f);
        // SAFETY: the token proves AVX-512 F.
        let low = unsafe { _mm512_and_si512(a, mask) };
        // SAFETY: the token proves AVX-512 F.
        let high = unsafe { _mm512_srli_epi64::<4>(a) };
        // SAFETY: the token proves AVX-512 F.
        let high = unsafe { _mm512_and_si512(high, mask) };
        // SAFETY: the token proves AVX-512 BW.
        let low = unsafe { _mm512_shuffle_epi8(factor[0], low) };
        // SAFETY: the token proves AVX-512 BW.
        let high = unsafe { _mm512_shuffle_epi8(factor[1], high) };
        self.xor(low, high)
    }

    #[inline(always)]
    unsafe fn load(self, pointer: *const u8) -> __m512i {
        // SAFETY: the token proves AVX-512 F, and the caller grants 64 bytes at any alignment.
        unsafe { _mm512_loadu_si512(pointer.cast()) }
    }

    #[inline(always)]
    unsafe fn store(self, pointer: *mut u8, vector: __m512i) {
        // SAFETY: the token proves AVX-512 F, and the caller grants 64 bytes at any alignment.
        unsafe { _mm512_storeu_si512(pointer.cast(), vector) }
    }

    #[inline(always)]
    unsafe fn stream(self, pointer: *mut u8, vector: __m512i) {
        // SAFETY: the token proves AVX-512 F, and the caller grants 64 bytes, aligned.
        unsafe { _mm512_stream_si512(pointer.cast(), vector) }
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
