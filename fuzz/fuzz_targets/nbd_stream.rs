//! Requests of NBD, in arbitrary pieces: each is answered once.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _answers = raid_nbd::fuzz::stream(bytes);
});
