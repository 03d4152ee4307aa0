//! The oracle is tested too: mistakes are planted into the engine, and each is noticed soon.
//! `cargo xtask planted` gives each ten minutes and prints by what it was noticed.
#![cfg(feature = "planted")]

use std::time::Duration;

/// Far more than any needs on an idle machine: a slow one must not fail.
const LIMIT: Duration = Duration::from_secs(120);

/// Every planted mistake breaks a promise, and with none of them the same stories break nothing.
#[test]
fn planted_mistakes_are_noticed() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for &(number, what) in raid_sim::mistakes() {
        match raid_sim::hunt(number, 1, LIMIT) {
            Some(verdict) => println!("{number}: seed {}: {what}", verdict.seed),
            None => missed.push((number, what)),
        }
    }
    assert!(missed.is_empty(), "not noticed: {missed:?}");
    assert!((1..50).all(|seed| raid_sim::run(seed).violation.is_none()));
}
