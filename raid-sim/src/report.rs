//! What came of it: counts, and the first thing that was wrong.

use std::fmt;
use std::ops::AddAssign;

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The oracle that saw it (O1 to O13 of docs/fault-model.md), or `engine` for a panic.
    pub oracle: &'static str,
    /// What was seen.
    pub message: String,
}

impl Violation {
    pub(crate) fn new(oracle: &'static str, message: impl Into<String>) -> Self {
        Self { oracle, message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.oracle, self.message)
    }
}

/// Counts of what was simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Stories.
    pub seeds: u64,
    /// Requests of clients.
    pub ops: u64,
    /// Requests that failed because more was broken than the level bears.
    pub failed_ops: u64,
    /// Power cuts.
    pub power_cuts: u64,
    /// Processes killed.
    pub kills: u64,
    /// Orderly stops.
    pub stops: u64,
    /// Crashes while a recovery was under way.
    pub crashes_in_recovery: u64,
    /// Members that left the array, or were not there any more at an assembly.
    pub losses: u64,
    /// Assemblies that started the array.
    pub reassemblies: u64,
    /// Assemblies that were refused, rightly: too much was missing, or dirty and degraded.
    pub refusals: u64,
    /// Of these, dirty and degraded ones that were started by force.
    pub forced: u64,
    /// Assemblies refused because superblocks of one event count contradict each other.
    pub disagreements: u64,
    /// Resyncs that came to their end.
    pub resyncs: u64,
    /// Checks of the whole array at rest.
    pub checks: u64,
    /// Sets of lost members under which everything was read back.
    pub loss_sets: u64,
    /// Sectors read and compared.
    pub sectors: u64,
    /// Unreadable sectors that reads met.
    pub latent_errors: u64,
    /// Sectors that the write hole of a dirty and degraded crash took. Not a violation.
    pub hole_sectors: u64,
    /// Virtual time in nanoseconds.
    pub nanoseconds: u64,
}

impl Counts {
    /// All crashes.
    pub fn crashes(&self) -> u64 {
        self.power_cuts + self.kills
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.ops += other.ops;
        self.failed_ops += other.failed_ops;
        self.power_cuts += other.power_cuts;
        self.kills += other.kills;
        self.stops += other.stops;
        self.crashes_in_recovery += other.crashes_in_recovery;
        self.losses += other.losses;
        self.reassemblies += other.reassemblies;
        self.refusals += other.refusals;
        self.forced += other.forced;
        self.disagreements += other.disagreements;
        self.resyncs += other.resyncs;
        self.checks += other.checks;
        self.loss_sets += other.loss_sets;
        self.sectors += other.sectors;
        self.latent_errors += other.latent_errors;
        self.hole_sectors += other.hole_sectors;
        self.nanoseconds += other.nanoseconds;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds, {} ops ({} failed), {} crashes ({} power cuts, {} kills, {} in recovery), \
             {} stops, {} losses, {} reassemblies, {} refusals ({} forced), {} \
             disagreements, {} resyncs, {} checks \
             with {} loss sets, {} sectors compared, {} latent errors met, {} s of virtual time, \
             {} sectors lost in the write hole of a degraded crash",
            self.seeds,
            self.ops,
            self.failed_ops,
            self.crashes(),
            self.power_cuts,
            self.kills,
            self.crashes_in_recovery,
            self.stops,
            self.losses,
            self.reassemblies,
            self.refusals,
            self.forced,
            self.disagreements,
            self.resyncs,
            self.checks,
            self.loss_sets,
            self.sectors,
            self.latent_errors,
            self.nanoseconds / 1_000_000_000,
            self.hole_sectors
        )
    }
}
