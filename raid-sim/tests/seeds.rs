//! Fixed seeds: every promise holds, and the oracle notices members that lie.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use raid_sim::{Counts, run, run_with_lie};

/// Plays seeds on two threads; the sum of their counts, and the seeds that broke a promise.
fn play(first: u64, count: u64) -> (Counts, Vec<String>) {
    let next = AtomicU64::new(0);
    let results: Mutex<(Counts, Vec<String>)> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        return;
                    }
                    let verdict = run(first + index);
                    let mut results = results.lock().expect("no thread panicked");
                    results.0 += verdict.counts;
                    if let Some(violation) = verdict.violation {
                        results.1.push(format!("seed {}: {violation}", verdict.seed));
                    }
                }
            });
        }
    });
    results.into_inner().expect("no thread panicked")
}

/// Over all levels, thousands of crashes and losses, and nothing that was promised is broken.
#[test]
fn every_promise_holds() {
    let (counts, violations) = play(1, 2400);
    println!("{counts}");
    assert!(violations.is_empty(), "{}", violations.join("\n"));
    assert!(counts.seeds >= 2000, "{} seeds", counts.seeds);
    assert!(counts.crashes() >= 10_000, "{} crashes", counts.crashes());
    assert!(counts.losses >= 2000, "{} losses", counts.losses);
    assert!(counts.crashes_in_recovery > 100 && counts.forced > 100 && counts.resyncs > 1000);
    assert!(counts.hole_sectors > 0, "the write hole of degraded crashes is there, and measured");
}

/// Two runs of a seed are the same, event by event.
#[test]
fn a_seed_decides_everything() {
    for seed in 1..100 {
        let (first, second) = (run(seed), run(seed));
        assert_eq!((first.trace, first.counts), (second.trace, second.counts), "seed {seed}");
    }
}

/// Members that lie about flushes, writes, places and bits: no array without checksums survives
/// that, and the oracle sees it within a few hundred stories.
#[test]
fn lies_are_noticed() {
    std::panic::set_hook(Box::new(|_| {}));
    for lie in ["flush", "lost-write", "misdirected", "bit-rot", "torn-sector"] {
        let noticed = (1..400).find_map(|seed| run_with_lie(seed, lie)?.violation.map(|_| seed));
        println!("{lie}: seed {noticed:?}");
        assert!(noticed.is_some(), "{lie} was never noticed");
    }
    assert!(run_with_lie(1, "no such lie").is_none());
}
