//! Partial parity logs, with the checksums made right.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    raid_core::md::fuzz::fuzz_ppl(bytes);
});
