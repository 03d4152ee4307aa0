//! What can be typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use regex::Regex;
use serde::Serialize;

use crate::shape::LevelChoice;
use crate::stats::parse_size;

/// Measures uraid against the limits of this machine, and against its peers.
#[derive(Debug, Parser)]
#[command(version, about, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    /// What to measure.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Options of `compare`, when no command is given.
    #[command(flatten)]
    pub(crate) compare: Bench,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure the array engine, each pattern against what its members can do.
    Engine(Bench),
    /// Measure transfers of growing size over 256 MiB, as ATTO Disk Benchmark does.
    Atto(Atto),
    /// Measure random access, the transfer curve and access times, as HD Tune does.
    Hdtune(Bench),
    /// Measure reading very many small files, in directory order and by name.
    Spool(Bench),
    /// Measure building, rebuilding and checking, with and without limit and load.
    Build(Bench),
    /// Measure a short version of all; the default.
    Compare(Bench),
    /// Measure the parity kernels against reading and moving the same bytes.
    Parity(Parity),
}

/// Where the result goes.
#[derive(Args, Clone, Debug)]
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

/// What members are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MemberKind {
    /// Nothing: they complete at once, and the engine's own work is left
    Null,
    /// Memory of this process
    Memory,
    /// Files or block devices
    File,
}

/// Options of every profile but `parity`.
///
/// Array and raw members are measured in turns by the same code on the same members: the first
/// part of each member is the array's, as much behind it is raw. Each figure is a median.
#[derive(Args, Clone, Debug)]
pub(crate) struct Bench {
    /// Where the result goes.
    #[command(flatten)]
    pub(crate) output: Output,
    /// The level: 0, 1, 4, 5, 6, 10, 50, 60
    #[arg(long, value_name = "LEVEL", value_parser = LevelChoice::parse, default_value = "5")]
    pub(crate) level: LevelChoice,
    /// How many members to make, or files and block devices to use (with --force: they are
    /// written over)
    #[arg(long, value_name = "N|PATH", num_args = 1.., default_values_t = [String::from("5")])]
    pub(crate) members: Vec<String>,
    /// What members are
    #[arg(long, value_name = "KIND", default_value = "file")]
    pub(crate) member_kind: MemberKind,
    /// Bytes of each member that the array uses; as many again are raw
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    pub(crate) member_size: u64,
    /// Chunk size
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64K")]
    pub(crate) chunk: u64,
    /// Threads, each with a queue of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) queues: u32,
    /// Small requests under way, of all queues together; long ones are a quarter of it
    #[arg(long, value_name = "N", default_value_t = 32)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) depth: u32,
    /// Samples of each figure
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=101))]
    pub(crate) repeats: u32,
    /// Seconds that a sample takes
    #[arg(long, value_name = "SECONDS", default_value_t = 0.4, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// The folder that member files are made in, and removed from
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub(crate) scratch: PathBuf,
    /// Write over members that are given by their paths
    #[arg(long)]
    pub(crate) force: bool,
}

/// Options of `atto`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Atto {
    /// What every profile takes.
    #[command(flatten)]
    pub(crate) bench: Bench,
    /// Levels to sweep over, instead of --level alone (0,5,10,50 need an even number of members,
    /// 6 at least)
    #[arg(long, value_name = "LEVELS", value_delimiter = ',', value_parser = LevelChoice::parse)]
    pub(crate) levels: Vec<LevelChoice>,
    /// Measure the array of --level over NBD as well
    #[arg(long)]
    pub(crate) nbd: bool,
}

impl Atto {
    /// Every level to sweep over.
    pub(crate) fn levels(&self) -> Vec<LevelChoice> {
        if self.levels.is_empty() { vec![self.bench.level] } else { self.levels.clone() }
    }
}

/// A time that a sample may take.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 0.001 to 3600".to_owned()),
    }
}

#[cfg(test)]
impl Bench {
    /// Options as they are typed, for tests.
    pub(crate) fn of(arguments: &[&str]) -> Self {
        let all = ["raid-bench"].iter().chain(arguments).copied();
        match Cli::try_parse_from(all) {
            Ok(cli) => cli.compare,
            Err(error) => panic!("{error}"),
        }
    }
}
