//! GFNI with AVX2, for CPUs with GFNI and without AVX-512: vectors of 32 bytes; see
//! `avx512_gfni.rs`.

use crate::parity::gf::{MATRICES, POWER_MATRICES};
use crate::parity::kernel::kernel_table;
use crate::parity::simd::{QMethod, SAMPLE_COUNT, Simd};
use core::arch::x86_64::*;

kernel_table!(
    #[target_feature(enable = "avx2,gfni")]
    TABLE,
    "avx2-gfni",
    Avx2Gfni
);

/// The token: whoever holds one runs on a CPU with AVX2 and GFNI.
#[derive(Copy, Clone)]
struct Avx2Gfni(());

impl Avx2Gfni {
    fn is_available() -> bool {
        super::has_features!("avx2", "gfni")
    }

    /// # Safety
    ///
    /// The CPU has AVX2 and GFNI.
    #[inline(always)]
    unsafe fn assume() -> Self {
        Self(())
    }
}

// SAFETY: an `__m256i` is 32 bytes without invalid patterns, and so much is loaded and stored.
unsafe impl Simd for Avx2Gfni {
    const WIDTH: usize = 32;
    const Q_METHOD: QMethod = QMethod::Multiply;
    const HORNER_OFFSET: u8 = 0;

    const STREAMS: bool = true;

    type Vector = __m256i;
    /// The matrix of the multiplication, in each 64-bit lane.
    type Factor = __m256i;

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

    /// Not used for Q here, but a step of Horner's rule all the same.
    #[inline(always)]
    fn double_and_add(self, sum: __m256i, term: __m256i) -> __m256i {
        self.xor(self.multiply(self.factor(2), sum), term)
    }

    #[inline(always)]
    fn factor(self, value: u8) -> __m256i {
        // SAFETY: the token proves AVX2.
        unsafe { _mm256_set1_epi64x(MATRICES[usize::from(value)].cast_signed()) }
    }

    #[inline(always)]
    fn power(self, exponent: usize) -> __m256i {
        // SAFETY: the token proves AVX2.
        unsafe { _mm256_set1_epi64x(POWER_MATRICES[exponent % 256].cast_signed()) }
    }

    #[inline(always)]
    fn multiply(self, factor: __m256i, a: __m256i) -> __m256i {
        // SAFETY: the token proves GFNI.
        unsafe { _mm256_gf2p8affine_epi64_epi8::<0>(a, factor) }
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
