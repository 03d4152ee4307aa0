//! RAID as pure logic: geometry, parity, plans, the state of an array, and md's metadata.
//!
//! Nothing here does I/O or looks at a clock: time and entropy are arguments, effects are values.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
// Only to ask the CPU what it has, and for tests.
#[cfg(any(feature = "std", test))]
extern crate std;

pub mod counters;
pub mod geometry;
pub mod intent;
pub mod layout;
mod lock;
pub mod md;
pub mod memory;
pub mod parity;
pub mod plan;
#[cfg(feature = "planted")]
pub mod planted;
#[cfg(not(feature = "planted"))]
mod planted;
pub mod queue;
pub mod request;
pub mod slots;
pub mod volume;

pub use lock::QUEUE_COUNT_MAX;
