//! Kernels for x86-64, one module for each instruction set.

pub(super) mod avx2;
pub(super) mod avx2_gfni;
pub(super) mod avx512;
pub(super) mod avx512_gfni;
pub(super) mod sse2;
pub(super) mod ssse3;

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
