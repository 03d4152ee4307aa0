//! Deterministic simulation of raid-core: whole arrays from one seed.
//!
//! ```text
//!   seed -> Script (array, boots, requests, faults, crashes)
//!             |
//!             v
//!   Machine (members with volatile caches, oracle)  -- outlives every crash
//!             |
//!   assemble -> World (queues on one volume, virtual time) -> crash or stop -> assemble ...
//! ```
//!
//! - The engine is the real one, driven through the calls that any embedder uses; metadata goes to
//!   the simulated members as real superblocks and bitmaps, step by step, with flushes.
//! - What a read may return is decided by `oracle`, where bytes belong and what parity is by
//!   `checks`; neither uses the engine.
//! - Everything follows from the seed: two runs have the same trace hash.
//!
//! The fault model, and what is not simulated, is docs/fault-model.md; how to replay, shrink and
//! extend is docs/testing.md.

mod assembly;
mod checks;
mod disk;
mod flow;
mod machine;
mod memory;
mod metadata;
mod monitor;
mod options;
mod oracle;
mod random;
mod report;
mod shrink;
mod story;
mod sync;
mod verify;
mod workload;
mod world;

pub use report::{Counts, Violation};

use disk::Lie;
use options::Script;

/// What a seed's story came to.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The seed.
    pub seed: u64,
    /// What was simulated.
    pub counts: Counts,
    /// A hash over all events; the same in every run of the seed.
    pub trace: u64,
    /// The first broken promise.
    pub violation: Option<Violation>,
}

/// Plays the story of a seed.
#[must_use]
pub fn run(seed: u64) -> Verdict {
    verdict(seed, None)
}

/// Plays the story that a tape of bytes tells: array, requests, faults and crashes are read from
/// it, four bytes for each decision, and any bytes tell some story. For fuzzers, which turn bytes
/// over until something new happens.
#[must_use]
pub fn run_tape(tape: &[u8]) -> Verdict {
    let script = Script::of_tape(tape);
    let outcome = story::play(&script);
    let (counts, trace, violation) = (outcome.counts, outcome.trace, outcome.violation);
    Verdict { seed: script.options.seed, counts, trace, violation }
}

/// Plays the story of a seed with a member that lies (`flush`, `lost-write`, `misdirected`,
/// `bit-rot` or `torn-sector`), which no array without checksums survives: the oracle is tested.
/// `None` if there is no such lie.
#[must_use]
pub fn run_with_lie(seed: u64, lie: &str) -> Option<Verdict> {
    let lie = match lie {
        "bit-rot" => Lie::BitRot,
        "flush" => Lie::Flush,
        "lost-write" => Lie::LostWrite,
        "misdirected" => Lie::Misdirected,
        "torn-sector" => Lie::TornSector,
        _ => return None,
    };
    Some(verdict(seed, Some(lie)))
}

/// The mistakes that can be planted into the engine: number, and what is done wrong.
#[cfg(feature = "planted")]
#[must_use]
pub fn mistakes() -> &'static [(u32, &'static str)] {
    raid_core::planted::LIST
}

/// Plants a mistake and plays stories from `seed` on until one breaks a promise or the time is up.
/// The mistake is taken out again; nothing else may be simulated meanwhile.
#[cfg(feature = "planted")]
#[must_use]
pub fn hunt(mistake: u32, seed: u64, limit: std::time::Duration) -> Option<Verdict> {
    let start = std::time::Instant::now();
    raid_core::planted::plant(mistake);
    let found = (seed..)
        .take_while(|_| start.elapsed() < limit)
        .map(run)
        .find(|verdict| verdict.violation.is_some());
    raid_core::planted::plant(0);
    found
}

fn verdict(seed: u64, lie: Option<Lie>) -> Verdict {
    let outcome = story::play(&Script::of_seed(seed, lie));
    let (counts, trace, violation) = (outcome.counts, outcome.trace, outcome.violation);
    Verdict { seed, counts, trace, violation }
}

/// Events shown of the smallest story.
const LOG_LINES: usize = 60;

/// Looks for the smallest story like a seed's that still breaks a promise; returns it in words,
/// with what it breaks.
#[must_use]
pub fn shrink(seed: u64) -> Option<(String, Violation)> {
    shrink::shrink(Script::of_seed(seed, None)).map(|(script, violation)| {
        let log = story::play_logged(&script, true).log;
        let last = &log[log.len().saturating_sub(LOG_LINES)..];
        (format!("{script}the last events:\n{}\n", last.join("\n")), violation)
    })
}
