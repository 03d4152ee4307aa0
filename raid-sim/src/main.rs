//! `raid-sim --seed N [--count M] [--hours H]`: plays stories, last line a summary, exit status 1
//! on a broken promise.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use raid_sim::{Counts, Verdict, run, shrink};

/// Simulates whole arrays, one story for each seed, and checks every promise.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The first seed.
    #[arg(long)]
    seed: u64,
    /// How many seeds, one after the other.
    #[arg(long, default_value_t = 1)]
    count: u64,
    /// Go on for so many hours, whatever the count.
    #[arg(long)]
    hours: Option<f64>,
    /// Threads; each plays stories of its own.
    #[arg(long, default_value_t = 1)]
    threads: u64,
    /// Show every seed's counts and trace.
    #[arg(long)]
    verbose: bool,
    /// Do not look for a smaller story.
    #[arg(long)]
    no_shrink: bool,
    /// Go on after a violation, and list them all.
    #[arg(long)]
    keep_going: bool,
    /// Plant every mistake into the engine, one after the other: each must be noticed in time.
    #[cfg(feature = "planted")]
    #[arg(long)]
    planted: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Panics of the engine are caught and reported as what they are.
    std::panic::set_hook(Box::new(|_| {}));
    #[cfg(feature = "planted")]
    if arguments.planted {
        return plant_all(arguments.seed);
    }
    let start = Instant::now();
    let limit = arguments.hours.map(|hours| Duration::from_secs_f64(hours * 3600.0));
    let next = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let results: Mutex<(Counts, Vec<Verdict>)> = Mutex::default();
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let over = match limit {
                Some(limit) => start.elapsed() >= limit,
                None => index >= arguments.count,
            };
            if over || failed.load(Ordering::Relaxed) && !arguments.keep_going {
                return;
            }
            let verdict = run(arguments.seed.wrapping_add(index));
            if arguments.verbose {
                println!(
                    "seed {}: trace {:#018x}: {}",
                    verdict.seed, verdict.trace, verdict.counts
                );
            }
            let Ok(mut results) = results.lock() else { return };
            results.0 += verdict.counts;
            if let Some(violation) = &verdict.violation {
                println!("seed {}: {violation}", verdict.seed);
                failed.store(true, Ordering::Relaxed);
                results.1.push(verdict);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads.max(1) {
            scope.spawn(work);
        }
    });
    let (counts, mut failures) = results.into_inner().unwrap_or_default();
    failures.sort_by_key(|verdict| verdict.seed);
    if let Some(first) = failures.first().filter(|_| !arguments.no_shrink) {
        println!("seed {}: the smallest story found:", first.seed);
        if let Some((story, violation)) = shrink(first.seed) {
            print!("{story}");
            println!("{violation}");
        }
        println!("replay: cargo run --release -p raid-sim -- --seed {}", first.seed);
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{counts}, {} violations, {seconds:.1} s", failures.len());
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Time in which each planted mistake must be noticed.
#[cfg(feature = "planted")]
const HUNT: Duration = Duration::from_secs(600);

/// Plants each mistake; says when and by which oracle it is noticed.
#[cfg(feature = "planted")]
fn plant_all(seed: u64) -> ExitCode {
    let mut missed = 0;
    for &(number, what) in raid_sim::mistakes() {
        let start = Instant::now();
        let found = raid_sim::hunt(number, seed, HUNT);
        let seconds = start.elapsed().as_secs_f64();
        match found.as_ref().and_then(|verdict| Some((verdict.seed, verdict.violation.as_ref()?))) {
            Some((at, violation)) => {
                let (oracle, stories) = (violation.oracle, at - seed + 1);
                println!("{number:>2} {what}: {oracle}, after {stories} stories, {seconds:.2} s");
            }
            None => {
                missed += 1;
                println!("{number:>2} {what}: NOT NOTICED in {seconds:.0} s");
            }
        }
    }
    println!("{} mistakes planted, {missed} not noticed", raid_sim::mistakes().len());
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
