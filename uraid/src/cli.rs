//! What can be typed. Words follow mdadm's where it has them.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::size;

/// A RAID engine as an ordinary process: Linux md arrays without the kernel's md.
///
/// Without a subcommand, `uraid` does what `uraid serve` does: it makes a RAID 5 of five files in
/// ./uraid-data if there is none yet, and serves it over NBD.
#[derive(Debug, Parser)]
#[command(version, about, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make an array out of members.
    Create(Create),
    /// Open an array and serve it until told to stop.
    Serve(Serve),
    /// Show what each member's superblock says.
    Examine(Examine),
    /// Show an array, from its members or from the process that serves it.
    Detail(Detail),
    /// Show the state and the counters of a served array.
    Status(Status),
    /// Stop a served array: drain, flush, mark clean.
    Stop(Control),
    /// Wait until no resync, recovery or check of a served array goes on.
    Wait(Control),
    /// Print what happens to a served array, a line of JSON for each event.
    Events(Events),
    /// Print the metrics of a served array as Prometheus text.
    Metrics(Control),
    /// Write the array's bytes to standard output; opens the members read-only.
    Cat(Cat),
    /// Take a member of a served array for broken.
    #[command(alias = "set-faulty")]
    Fail(Members),
    /// Let go of members that are faulty or spares.
    Remove(Members),
    /// Take devices in: back into their slot if they can catch up, else as spares.
    Add(Add),
    /// Take members back that can catch up; refused where they would have to be filled anew.
    ReAdd(Members),
    /// Copy a member in use to another one, which then takes its slot.
    Replace(Replace),
    /// Compare copies and parity with the data.
    Check(Scrub),
    /// As check, and make right what can be proved.
    Repair(Repair),
    /// End a check or repair.
    #[command(alias = "idle")]
    StopCheck(Control),
    /// Limit resync, recovery and check.
    SetSpeed(SetSpeed),
}

/// Options of `create`.
#[derive(Args, Debug)]
pub(crate) struct Create {
    /// The level: 0, 1, 4, 5, 6, 10, 50 or 60
    #[arg(long, short, value_name = "LEVEL")]
    pub(crate) level: Level,
    /// The chunk size; a power of two, 4K at least
    #[arg(long, short, value_name = "SIZE", default_value = "64K")]
    #[arg(value_parser = size::parse_chunk)]
    pub(crate) chunk: u32,
    /// The layout by mdadm's name: left-symmetric, ..., n2, f2, o2
    #[arg(long, alias = "parity", value_name = "NAME")]
    pub(crate) layout: Option<String>,
    /// Groups that the members are divided into, in order (50 and 60: 2 when not given)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=128))]
    pub(crate) groups: Option<u32>,
    /// How much of each member to use; all of the smallest when not given
    #[arg(long, short = 'z', value_name = "SIZE", value_parser = size::parse)]
    pub(crate) size: Option<u64>,
    /// Make members that do not exist, as sparse files of this size
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) member_size: Option<u64>,
    /// A member that stands by; may be given several times
    #[arg(long, value_name = "MEMBER")]
    pub(crate) spare: Vec<PathBuf>,
    /// The version of the superblock
    #[arg(long, short = 'e', value_name = "VERSION", default_value = "1.2")]
    pub(crate) metadata: Metadata,
    /// The write-intent bitmap, which makes a resync after a crash short; when not given: internal
    /// if the level has redundancy and more than 100 GiB of each member are used, as with mdadm
    #[arg(long, short, value_name = "KIND")]
    pub(crate) bitmap: Option<Bitmap>,
    /// How much of a member one bit of the bitmap stands for; a power of two, 4K at least
    /// [default: 64M, or more where the bits would not have room]
    #[arg(long, value_name = "SIZE", value_parser = size::parse_chunk)]
    pub(crate) bitmap_chunk: Option<u32>,
    /// The array's name, 32 bytes at most
    #[arg(long, short = 'N', value_name = "NAME", default_value = "")]
    pub(crate) name: String,
    /// Take what the members hold for consistent already
    #[arg(long)]
    pub(crate) assume_clean: bool,
    /// Overwrite members that look like somebody's data
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the new array as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Files or block devices, in the order of their slots
    #[arg(required = true, value_name = "MEMBER")]
    pub(crate) members: Vec<PathBuf>,
}

/// The levels by their numbers; 50 and 60 are striped sets over groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    /// Striped, no redundancy.
    #[value(name = "0", aliases = ["raid0", "stripe"])]
    Raid0,
    /// Mirrors.
    #[value(name = "1", aliases = ["raid1", "mirror"])]
    Raid1,
    /// Parity on the last member.
    #[value(name = "4", alias = "raid4")]
    Raid4,
    /// Rotating parity.
    #[value(name = "5", alias = "raid5")]
    Raid5,
    /// Two rotating parities.
    #[value(name = "6", alias = "raid6")]
    Raid6,
    /// Striped mirrors.
    #[value(name = "10", alias = "raid10")]
    Raid10,
    /// Striped over RAID 5 groups.
    #[value(name = "50", alias = "raid50")]
    Raid50,
    /// Striped over RAID 6 groups.
    #[value(name = "60", alias = "raid60")]
    Raid60,
}

/// Superblock versions that can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Metadata {
    /// Near the end; for at most 27 members of 4 TiB.
    #[value(name = "0.90", alias = "0")]
    V0_90,
    /// At the end.
    #[value(name = "1.0")]
    V1_0,
    /// At the start.
    #[value(name = "1.1")]
    V1_1,
    /// 4 KiB from the start.
    #[value(name = "1.2", alias = "1")]
    V1_2,
}

/// Kinds of write-intent bitmap that can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Bitmap {
    /// No bitmap.
    None,
    /// On every member, near its superblock.
    Internal,
}

/// Options of `serve`.
#[derive(Args, Debug)]
pub(crate) struct Serve {
    /// Where NBD clients connect, unix:PATH or tcp:HOST:PORT; may be given several times
    /// [default: unix:uraid-data/nbd.sock]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) nbd: Vec<String>,
    /// The control socket, for all that is asked of a served array
    /// [default: uraid-data/control.sock]
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// Run `PROGRAM EVENT ARRAY [MEMBER]` for each event, as mdadm's --program
    #[arg(long, alias = "program", value_name = "PROGRAM")]
    pub(crate) hook: Option<PathBuf>,
    /// Append a line of JSON for each event to a file, or - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) events: Option<PathBuf>,
    /// Refuse writes; the members are opened read-only
    #[arg(long, alias = "readonly", short = 'o')]
    pub(crate) read_only: bool,
    /// Start a dirty and degraded parity array; what is regenerated may be wrong
    #[arg(long)]
    pub(crate) force: bool,
    /// Mark the array clean when nothing was written for so many seconds; 0: only when it stops
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2)]
    pub(crate) safe_mode_delay: f64,
    /// At least so many bytes of each member in a second go to background work, whatever clients do
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "1000K")]
    pub(crate) speed_min: u64,
    /// How long a member may take to answer before it is taken for broken; 0: any time
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    pub(crate) io_timeout: f64,
    /// At most so many bytes of each member in a second go to background work; no limit without
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) speed_max: Option<u64>,
    /// The array's members, in any order; without any, five files in ./uraid-data
    #[arg(value_name = "MEMBER")]
    pub(crate) members: Vec<PathBuf>,
}

impl Serve {
    /// What `uraid` without arguments does.
    pub(crate) fn alone() -> Self {
        match Cli::parse_from(["uraid", "serve"]).command {
            Some(Command::Serve(serve)) => serve,
            other => unreachable!("serve is parsed as {other:?}"),
        }
    }
}

/// Options of `examine`.
#[derive(Args, Debug)]
pub(crate) struct Examine {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Files or block devices
    #[arg(required = true, value_name = "MEMBER")]
    pub(crate) members: Vec<PathBuf>,
}

/// Options of `detail`.
#[derive(Args, Debug)]
pub(crate) struct Detail {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Answer by the exit code too: 0 fine, 1 degraded, 2 unusable, 4 error
    #[arg(long, short)]
    pub(crate) test: bool,
    /// Ask the process behind this control socket
    #[arg(long, value_name = "PATH", conflicts_with = "members")]
    pub(crate) control: Option<PathBuf>,
    /// The array's members, in any order; opened read-only
    #[arg(required_unless_present = "control", value_name = "MEMBER")]
    pub(crate) members: Vec<PathBuf>,
}

/// Options of `status`.
#[derive(Args, Debug)]
pub(crate) struct Status {
    /// Print JSON, all counters included
    #[arg(long, conflicts_with = "mdstat")]
    pub(crate) json: bool,
    /// Print the form of /proc/mdstat
    #[arg(long)]
    pub(crate) mdstat: bool,
    /// The control socket
    #[arg(long, value_name = "PATH", default_value = "uraid-data/control.sock")]
    pub(crate) control: PathBuf,
}

/// Options of commands that only need to know which array.
#[derive(Args, Debug)]
pub(crate) struct Control {
    /// The control socket
    #[arg(long, value_name = "PATH", default_value = "uraid-data/control.sock")]
    pub(crate) control: PathBuf,
}

/// Options of commands about members of a served array.
#[derive(Args, Debug)]
pub(crate) struct Members {
    /// The control socket
    #[arg(long, value_name = "PATH", default_value = "uraid-data/control.sock")]
    pub(crate) control: PathBuf,
    /// Files or block devices, one after the other; the first that is refused ends it
    #[arg(required = true, value_name = "MEMBER")]
    pub(crate) members: Vec<PathBuf>,
}

/// Options of `add`.
#[derive(Args, Debug)]
pub(crate) struct Add {
    /// Take devices in that look like somebody's data, which is lost then
    #[arg(long, short)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) members: Members,
}

/// Options of `replace`.
#[derive(Args, Debug)]
pub(crate) struct Replace {
    /// The control socket
    #[arg(long, value_name = "PATH", default_value = "uraid-data/control.sock")]
    pub(crate) control: PathBuf,
    /// The member to be replaced
    #[arg(value_name = "MEMBER")]
    pub(crate) member: PathBuf,
    /// Its successor; any spare when not given
    #[arg(value_name = "WITH")]
    pub(crate) with: Option<PathBuf>,
}

/// Options of `repair`.
#[derive(Args, Debug)]
pub(crate) struct Repair {
    /// Where nothing tells who is wrong, make copies and parity agree with the data (as md does)
    #[arg(long)]
    pub(crate) trust_data: bool,
    #[command(flatten)]
    pub(crate) scrub: Scrub,
}

/// Options of `check` and `repair`.
#[derive(Args, Debug)]
pub(crate) struct Scrub {
    /// Return when it has ended, and show how far it is
    #[arg(long, short = 'W')]
    pub(crate) wait: bool,
    /// The control socket
    #[arg(long, value_name = "PATH", default_value = "uraid-data/control.sock")]
    pub(crate) control: PathBuf,
}

/// Options of `set-speed`; bytes of each member in a second.
#[derive(Args, Debug)]
pub(crate) struct SetSpeed {
    /// At least this, whatever clients do
    #[arg(long, value_name = "SIZE", value_parser = size::parse, required_unless_present = "max")]
    pub(crate) min: Option<u64>,
    /// At most this
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) max: Option<u64>,
    /// The control socket
    #[arg(long, value_name = "PATH", default_value = "uraid-data/control.sock")]
    pub(crate) control: PathBuf,
}

/// Options of `events`.
#[derive(Args, Debug)]
pub(crate) struct Events {
    /// Send a TestMessage to every listener, the hook included, and return
    #[arg(long, short)]
    pub(crate) test: bool,
    /// The control socket
    #[arg(long, value_name = "PATH", default_value = "uraid-data/control.sock")]
    pub(crate) control: PathBuf,
}

/// Options of `cat`.
#[derive(Args, Debug)]
pub(crate) struct Cat {
    /// Where to start
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "0")]
    pub(crate) offset: u64,
    /// How much to write; everything up to the end when not given
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) length: Option<u64>,
    /// The array's members, in any order
    #[arg(required = true, value_name = "MEMBER")]
    pub(crate) members: Vec<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_subcommand_is_allowed() {
        assert!(Cli::try_parse_from(["uraid"]).unwrap().command.is_none());
    }

    #[test]
    fn levels_go_by_number_and_by_name() {
        for (text, level) in [("5", Level::Raid5), ("raid5", Level::Raid5), ("50", Level::Raid50)] {
            let cli = Cli::try_parse_from(["uraid", "create", "--level", text, "a", "b"]).unwrap();
            let Some(Command::Create(create)) = cli.command else { panic!("not create") };
            assert_eq!(create.level, level);
        }
    }

    #[test]
    fn detail_wants_members_or_a_socket() {
        assert!(Cli::try_parse_from(["uraid", "detail"]).is_err());
        assert!(Cli::try_parse_from(["uraid", "detail", "--control", "x"]).is_ok());
        assert!(Cli::try_parse_from(["uraid", "detail", "--control", "x", "m"]).is_err());
    }
}
