//! Kernels for x86-64, one module for each instruction set.

pub(super) mod avx2;
pub(super) mod avx2_gfni;
pub(super) mod avx512;
pub(super) mod avx512_gfni;
pub(super) mod sse2;
pub(super) mod ssse3;

use crate::parity::simd::SAMPLE_COUNT;
use core::arch::x86_64::{
    _MM_HINT_ET0, _MM_HINT_T0, _mm_lfence, _mm_mfence, _mm_prefetch, _mm_sfence, _rdtsc,
};
use core::ptr;

/// Tells whether this CPU has all the named features: by asking it with feature `std`, by what the
/// build was told without.
macro_rules! has_features {
    ($($feature:tt),*) => {{
        #[cfg(feature = "std")]
        let has = true $(&& std::arch::is_x86_feature_detected!($feature))*;
        #[cfg(not(feature = "std"))]
        let has = true $(&& cfg!(target_feature = $feature))*;
        has
    }};
}
use has_features;

/// The constant `c` that Q sums are shifted by while Horner's rule runs on `pshufb`.
///
/// Doubling wants `2s + r(s)`, where `r` is 0x1d for a set top bit. The shuffle gives
/// `r(s) + 0x1d`. For a shifted sum `s + c`, with the top bit of `c` clear, it gives the same, and
/// `2(s + c)` is `2s + 2c`; so what comes out is too large by `2c + 0x1d`, which is to be `c`
/// again: `c + 2c = 0x1d` has the solution 0x0b.
const SHUFFLE_OFFSET: u8 = 0x0b;

const _: () = assert!(SHUFFLE_OFFSET ^ SHUFFLE_OFFSET << 1 == crate::parity::gf::POLYNOMIAL);

/// Orders streamed stores before all later ones, as the memory model of Rust wants it.
fn fence() {
    // SAFETY: SSE is in every x86-64.
    unsafe { _mm_sfence() }
}

/// Hints that a line will be read.
#[inline(always)]
fn prefetch(pointer: *const u8) {
    // SAFETY: SSE is in every x86-64; a hint never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(pointer.cast()) }
}

/// Hints that a line will be written.
#[inline(always)]
fn prefetch_write(pointer: *const u8) {
    // SAFETY: every x86-64 takes the instruction, at worst as one that does nothing; a hint never
    // faults.
    unsafe { _mm_prefetch::<_MM_HINT_ET0>(pointer.cast()) }
}

/// Ticks of the time stamp counter that separate loads from the nearer caches, with the cost of
/// looking, from loads that went to memory: some 50 to 70 against 450 and more (Xeon at 2.6 GHz,
/// 2026-12). A last-level cache lies between, at 150 to 350; with a border of 150 enough hot
/// sources were taken for cold to lose a third of the speed of P and Q.
const COLD_TICKS_MIN: u64 = 250;

/// Times loads of all samples at once. An interruption makes hot look cold, once.
///
/// Stores that the call before left behind are waited for: on their way to memory they hold the
/// buffers that loads from the second cache need. Without, P and Q of eight hot sources fell into
/// a trap: a streamed call drops its targets from the caches, the stores of the next one go to
/// memory, the one behind that finds its sources slow, streams, and so on at a quarter of the
/// speed.
#[inline(never)]
fn are_cold(samples: [&u8; SAMPLE_COUNT]) -> bool {
    // SAFETY: SSE2 is in every x86-64.
    unsafe { _mm_mfence() };
    let start = ticks();
    for sample in samples {
        // SAFETY: a reference is readable; volatile only keeps the load from being left out.
        unsafe { ptr::read_volatile(sample) };
    }
    ticks().wrapping_sub(start) >= COLD_TICKS_MIN
}

/// Reads the time stamp counter when all that stands before is done, and before what follows.
#[inline(always)]
fn ticks() -> u64 {
    // SAFETY: SSE2 is in every x86-64.
    unsafe { _mm_lfence() };
    // SAFETY: every x86-64 has the instruction.
    let ticks = unsafe { _rdtsc() };
    // SAFETY: SSE2 is in every x86-64.
    unsafe { _mm_lfence() };
    ticks
}
