//! Parity: P is the XOR of a stripe's data, Q a weighted sum over GF(2^8), bit for bit as Linux md
//! computes them.
//!
//! ```text
//! Kernel (checks arguments)  ->  Table of one instruction set  ->  operations over Simd
//!                                naive (the specification)
//! ```
//!
//! - [`Kernel`] is the only way in; one exists only for instruction sets that this CPU has.
//! - Operations read each source once, keep all sums in registers and write each target once. They
//!   allocate nothing and touch no byte outside of their slices.
//! - `naive` is the specification; every kernel equals it for every input.
//!
//! Which bytes are the sources of a stripe is not decided here, see the geometry. The mathematics
//! and the measured speed of each kernel are in `docs/parity.md`; the tests that cover all kernels
//! in `tests/kernels.rs`.

#[allow(unsafe_code, reason = "loads and stores at offsets that were checked once for all")]
mod generic;
mod gf;
#[allow(unsafe_code, reason = "calls of functions that need what the CPU was found to have")]
mod kernel;
mod locate;
mod naive;
#[cfg(target_arch = "aarch64")]
#[allow(unsafe_code, reason = "intrinsics")]
mod neon;
#[allow(unsafe_code, reason = "walks over slices that were checked once for all")]
mod operations;
#[allow(unsafe_code, reason = "loads and stores of words")]
mod portable;
#[allow(unsafe_code, reason = "the trait's promises about memory")]
mod simd;
#[allow(unsafe_code, reason = "loads and stores at offsets that were checked once for all")]
mod step;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "intrinsics")]
mod x86;

pub use kernel::Kernel;
pub use locate::{Suspect, locate};
