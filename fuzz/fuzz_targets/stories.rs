//! Arrays with faults, losses and crashes; degraded reads above all.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let verdict = raid_sim::run_tape(bytes);
    assert!(verdict.violation.is_none(), "{:?}", verdict.violation);
});
