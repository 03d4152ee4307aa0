//! Superblocks of every version: what is accepted encodes to the same bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    raid_core::md::fuzz::fuzz_superblock(bytes);
});
