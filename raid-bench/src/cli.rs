//! What can be typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use regex::Regex;

/// Measures uraid against the limits of this machine, and against its peers.
#[derive(Debug, Parser)]
#[command(version, about)]
pub(crate) struct Cli {
    /// What to measure.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure the parity kernels against reading and moving the same bytes.
    Parity(Parity),
}

/// Where the result goes.
#[derive(Args, Debug)]
pub(crate) struct Output {
    /// Write the result as JSON; to standard output, in place of the table, for `-`
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the result as one page of HTML that needs nothing else
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// Options of `parity`.
///
/// One thread is pinned to a CPU. Kernels, limits and peers take turns, round by round; each figure
/// is a median. Samples during which the thread was preempted are taken again. GB/s (10^9) of
/// source data; of an update, the sources are the old and the new data.
#[derive(Args, Debug)]
pub(crate) struct Parity {
    /// Where the result goes.
    #[command(flatten)]
    pub(crate) output: Output,
    /// Fewer shapes and shorter samples: some ten seconds
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only cases that match a regular expression; a case reads like gen_pq/8x64K/cold
    #[arg(long, value_name = "REGEX")]
    pub(crate) filter: Option<Regex>,
    /// Only this kernel; may be given several times (default: all that this CPU has but naive)
    #[arg(long = "kernel", value_name = "NAME")]
    pub(crate) kernels: Vec<String>,
    /// Samples of each figure
    #[arg(long, value_name = "N", default_value_t = 9)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1001))]
    pub(crate) repeats: u32,
    /// Also measure a library that does the same, where it is installed
    #[arg(long = "peer", value_name = "NAME")]
    pub(crate) peers: Vec<Peer>,
}

/// Libraries to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// Intel's ISA-L, libisal.so.2: xor_gen and pq_gen
    Isal,
}
