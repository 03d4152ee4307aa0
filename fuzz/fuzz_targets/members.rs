//! Sets of members: assembled or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    raid_core::md::fuzz::fuzz_members(bytes);
});
