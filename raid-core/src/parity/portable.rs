//! Words of 64 bits, for CPUs without a kernel of their own: no intrinsics, any architecture.

use super::gf::POLYNOMIAL;
use super::kernel::kernel_table;
use super::simd::{QMethod, Simd};

kernel_table!(TABLE, "portable", Portable);

/// The token: nothing to prove.
#[derive(Copy, Clone)]
struct Portable;

/// The lowest bit of each byte.
const LOW_BITS: u64 = 0x0101_0101_0101_0101;

impl Portable {
    fn is_available() -> bool {
        true
    }

    /// # Safety
    ///
    /// None needed; the signature is that of all tokens.
    #[inline(always)]
    unsafe fn assume() -> Self {
        Self
    }
}

/// Doubles each byte: shift all, and reduce where the top bit was set.
#[inline(always)]
fn double(word: u64) -> u64 {
    let carries = word >> 7 & LOW_BITS;
    // No byte of `carries` is above 1, so that the product stays within each byte.
    let reduction = carries.wrapping_mul(POLYNOMIAL as u64);
    (word & !(LOW_BITS << 7)) << 1 ^ reduction
}

// SAFETY: a `u64` is 8 bytes without invalid patterns, and so much is loaded and stored.
unsafe impl Simd for Portable {
    const WIDTH: usize = 8;
    const Q_METHOD: QMethod = QMethod::Horner;
    const HORNER_OFFSET: u8 = 0;

    type Vector = u64;
    type Factor = u8;

    #[inline(always)]
    fn splat(self, byte: u8) -> u64 {
        u64::from_ne_bytes([byte; 8])
    }

    #[inline(always)]
    fn xor(self, a: u64, b: u64) -> u64 {
        a ^ b
    }

    #[inline(always)]
    fn or(self, a: u64, b: u64) -> u64 {
        a | b
    }

    #[inline(always)]
    fn is_zero(self, a: u64) -> bool {
        a == 0
    }

    #[inline(always)]
    fn double_and_add(self, sum: u64, term: u64) -> u64 {
        double(sum) ^ term
    }

    #[inline(always)]
    fn factor(self, value: u8) -> u8 {
        value
    }

    #[inline(always)]
    fn multiply(self, factor: u8, a: u64) -> u64 {
        let mut product = 0;
        let mut shifted = a;
        for bit in 0..8 {
            // All ones where the factor has this bit: a branch would be mispredicted.
            let mask = u64::from(factor >> bit & 1).wrapping_neg();
            product ^= shifted & mask;
            shifted = double(shifted);
        }
        product
    }

    #[inline(always)]
    unsafe fn load(self, pointer: *const u8) -> u64 {
        // SAFETY: the caller grants 8 bytes; no alignment is asked for.
        unsafe { pointer.cast::<u64>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, pointer: *mut u8, vector: u64) {
        // SAFETY: the caller grants 8 bytes; no alignment is asked for.
        unsafe { pointer.cast::<u64>().write_unaligned(vector) }
    }
}
