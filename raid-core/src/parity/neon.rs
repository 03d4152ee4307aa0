//! NEON, which every 64-bit Arm of a Linux machine has: vectors of 16 bytes; Q by Horner's rule.

use super::gf::{NIBBLES, POLYNOMIAL};
use super::kernel::kernel_table;
use super::simd::{QMethod, Simd};
use core::arch::aarch64::*;

kernel_table!(
    #[target_feature(enable = "neon")]
    TABLE,
    "neon",
    Neon
);

/// The token: whoever holds one runs on a CPU with NEON.
#[derive(Copy, Clone)]
struct Neon(());

impl Neon {
    /// The target's own floor says it, or else the CPU is asked.
    fn is_available() -> bool {
        #[cfg(feature = "std")]
        let detected = std::arch::is_aarch64_feature_detected!("neon");
        #[cfg(not(feature = "std"))]
        let detected = false;
        cfg!(target_feature = "neon") || detected
    }

    /// # Safety
    ///
    /// The CPU has NEON.
    #[inline(always)]
    unsafe fn assume() -> Self {
        Self(())
    }
}

// SAFETY: a `uint8x16_t` is 16 bytes without invalid patterns, and so much is loaded and stored.
unsafe impl Simd for Neon {
    const WIDTH: usize = 16;
    const Q_METHOD: QMethod = QMethod::Horner;
    const HORNER_OFFSET: u8 = 0;

    type Vector = uint8x16_t;
    /// The products with the low and with the high nibbles.
    type Factor = [uint8x16_t; 2];

    #[inline(always)]
    fn splat(self, byte: u8) -> uint8x16_t {
        // SAFETY: the token proves NEON.
        unsafe { vdupq_n_u8(byte) }
    }

    #[inline(always)]
    fn xor(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        // SAFETY: the token proves NEON.
        unsafe { veorq_u8(a, b) }
    }

    #[inline(always)]
    fn or(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        // SAFETY: the token proves NEON.
        unsafe { vorrq_u8(a, b) }
    }

    #[inline(always)]
    fn is_zero(self, a: uint8x16_t) -> bool {
        // SAFETY: the token proves NEON.
        unsafe { vmaxvq_u8(a) == 0 }
    }

    /// A comparison finds the top bits, since a byte with one is negative.
    #[inline(always)]
    fn double_and_add(self, sum: uint8x16_t, term: uint8x16_t) -> uint8x16_t {
        // SAFETY: the token proves NEON.
        let signed = unsafe { vreinterpretq_s8_u8(sum) };
        // SAFETY: the token proves NEON.
        let negative = unsafe { vcltzq_s8(signed) };
        // SAFETY: the token proves NEON.
        let reduction = unsafe { vandq_u8(negative, self.splat(POLYNOMIAL)) };
        // SAFETY: the token proves NEON.
        let doubled = unsafe { vaddq_u8(sum, sum) };
        self.xor(doubled, self.xor(reduction, term))
    }

    #[inline(always)]
    fn factor(self, value: u8) -> [uint8x16_t; 2] {
        let table = NIBBLES[usize::from(value)].as_ptr();
        // SAFETY: the token proves NEON, and the first half of a table has 16 bytes.
        let low = unsafe { vld1q_u8(table) };
        // SAFETY: a table has 32 bytes.
        let high = unsafe { table.add(16) };
        // SAFETY: so the second half has 16 as well.
        let high = unsafe { vld1q_u8(high) };
        [low, high]
    }

    #[inline(always)]
    fn multiply(self, factor: [uint8x16_t; 2], a: uint8x16_t) -> uint8x16_t {
        // SAFETY: the token proves NEON.
        let low = unsafe { vandq_u8(a, self.splat(0x0f)) };
        // SAFETY: the token proves NEON.
        let high = unsafe { vshrq_n_u8::<4>(a) };
        // SAFETY: the token proves NEON.
        let low = unsafe { vqtbl1q_u8(factor[0], low) };
        // SAFETY: the token proves NEON.
        let high = unsafe { vqtbl1q_u8(factor[1], high) };
        self.xor(low, high)
    }

    #[inline(always)]
    unsafe fn load(self, pointer: *const u8) -> uint8x16_t {
        // SAFETY: the token proves NEON, and the caller grants 16 bytes at any alignment.
        unsafe { vld1q_u8(pointer) }
    }

    #[inline(always)]
    unsafe fn store(self, pointer: *mut u8, vector: uint8x16_t) {
        // SAFETY: the token proves NEON, and the caller grants 16 bytes at any alignment.
        unsafe { vst1q_u8(pointer, vector) }
    }
}
