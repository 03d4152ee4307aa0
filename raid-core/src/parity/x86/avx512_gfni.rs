//! GFNI with AVX-512 F: vectors of 64 bytes, three-way XOR; any multiplication is one instruction.
//!
//! `gf2p8mulb` computes in another field (0x11b), so it is the affine instruction that multiplies.

use crate::parity::gf::{MATRICES, POWER_MATRICES};
use crate::parity::kernel::kernel_table;
use crate::parity::simd::{QMethod, SAMPLE_COUNT, Simd};
use core::arch::x86_64::*;

/// The truth table of three-way XOR, for `vpternlog`.
const XOR3: i32 = 0x96;

kernel_table!(
    #[target_feature(enable = "avx512f,gfni")]
    TABLE,
    "avx512-gfni",
    Avx512Gfni
);

/// The token: whoever holds one runs on a CPU with AVX-512 F and GFNI.
#[derive(Copy, Clone)]
struct Avx512Gfni(());

impl Avx512Gfni {
    fn is_available() -> bool {
        super::has_features!("avx512f", "gfni")
    }

    /// # Safety
    ///
    /// The CPU has AVX-512 F and GFNI.
    #[inline(always)]
    unsafe fn assume() -> Self {
        Self(())
    }
}

// SAFETY: an `__m512i` is 64 bytes without invalid patterns, and so much is loaded and stored.
unsafe impl Simd for Avx512Gfni {
    const WIDTH: usize = 64;
    const Q_METHOD: QMethod = QMethod::Multiply;
    const HORNER_OFFSET: u8 = 0;

    const STREAMS: bool = true;

    type Vector = __m512i;
    /// The matrix of the multiplication, in each 64-bit lane.
    type Factor = __m512i;

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

    /// Not used for Q here, but a step of Horner's rule all the same.
    #[inline(always)]
    fn double_and_add(self, sum: __m512i, term: __m512i) -> __m512i {
        self.xor(self.multiply(self.factor(2), sum), term)
    }

    #[inline(always)]
    fn factor(self, value: u8) -> __m512i {
        // SAFETY: the token proves AVX-512 F.
        unsafe { _mm512_set1_epi64(MATRICES[usize::from(value)].cast_signed()) }
    }

    #[inline(always)]
    fn power(self, exponent: usize) -> __m512i {
        // SAFETY: the token proves AVX-512 F.
        unsafe { _mm512_set1_epi64(POWER_MATRICES[exponent % 256].cast_signed()) }
    }

    #[inline(always)]
    fn multiply(self, factor: __m512i, a: __m512i) -> __m512i {
        // SAFETY: the token proves GFNI.
        unsafe { _mm512_gf2p8affine_epi64_epi8::<0>(a, factor) }
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
