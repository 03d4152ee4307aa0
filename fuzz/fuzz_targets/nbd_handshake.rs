//! Handshakes of NBD: nothing reaches the engine before they are through.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _reached = raid_nbd::fuzz::handshake(bytes);
});
