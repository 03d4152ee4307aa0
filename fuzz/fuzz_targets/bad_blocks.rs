//! Bad-block logs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    raid_core::md::fuzz::fuzz_bad_blocks(bytes);
});
