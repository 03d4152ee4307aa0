//! The result of a run as data; its JSON form is these fields, beside fio's.

use serde::Serialize;
use serde_json::Value;

use crate::cli::{Bench, MemberKind};
use crate::job::Sample;
use crate::machine::{self, Machine};
use crate::stats::{Summary, short_size};

/// Rates in JSON are in bytes (or operations) a second; MB is 10^6 bytes, MiB is 2^20.
const UNITS: &str = "rates in bytes or operations a second, times in microseconds where a name \
                     ends in _us and in seconds elsewhere; MB = 10^6 bytes, MiB = 2^20 bytes";

/// A whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// fio's own name for its version: tools that read its JSON look for it.
    #[serde(rename = "fio version")]
    pub(crate) fio_version: String,
    /// Seconds of the Unix clock.
    pub(crate) timestamp: i64,
    /// The program and its version.
    pub(crate) tool: String,
    /// When the run began, RFC 3339.
    pub(crate) date: String,
    /// How it was called.
    pub(crate) command: String,
    pub(crate) profile: &'static str,
    pub(crate) units: &'static str,
    pub(crate) machine: Machine,
    pub(crate) settings: Settings,
    /// What was measured against a limit.
    pub(crate) rows: Vec<Row>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) atto: Vec<crate::atto::AttoRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hdtune: Option<crate::hdtune::HdTune>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) spool: Vec<crate::spool::SpoolRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) parity: Vec<ParityRow>,
    /// What others have published about other hardware; nothing of it was run here.
    pub(crate) published: Vec<crate::cards::Card>,
    /// Every measurement in fio's form.
    pub(crate) jobs: Vec<Value>,
    /// What was not measured, and why.
    pub(crate) notes: Vec<String>,
}

/// How it was measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Settings {
    pub(crate) level: String,
    pub(crate) members: usize,
    pub(crate) member_kind: MemberKind,
    /// Where members are: a folder, or their paths.
    pub(crate) place: Vec<String>,
    /// Bytes of each member that the array uses; as many are raw.
    pub(crate) member_bytes: u64,
    pub(crate) chunk_bytes: u64,
    pub(crate) queues: u32,
    pub(crate) depth: u32,
    pub(crate) repeats: u32,
    pub(crate) sample_seconds: f64,
    /// Member I/O passes the page cache by.
    pub(crate) direct: bool,
    /// "io_uring" or "blocking".
    pub(crate) backend: String,
    /// Seconds of the whole run.
    pub(crate) seconds: f64,
}

/// One figure against its limit. Ratios are medians of the ratios of each round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) target: String,
    pub(crate) level: String,
    pub(crate) members: usize,
    pub(crate) member_kind: MemberKind,
    pub(crate) queues: u32,
    pub(crate) depth: u32,
    /// Bytes of a request.
    pub(crate) request_bytes: u64,
    pub(crate) pattern: &'static str,
    pub(crate) unit: Unit,
    pub(crate) achieved: f64,
    pub(crate) spread: f64,
    pub(crate) limit: f64,
    pub(crate) limit_spread: f64,
    /// What the limit is, in words.
    pub(crate) limit_is: String,
    pub(crate) ratio: f64,
    /// The part of the limit that is aimed at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) goal: Option<f64>,
    /// The same member I/O, raw, at the same time: what is left when members share a bus or disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) same_io: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) same_io_ratio: Option<f64>,
    /// Of a build: the speed of the walk alone, without what comes before and behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) walking: Option<f64>,
    /// What was durable, of what was acknowledged; only of writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) durable: Option<f64>,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) depth_achieved: f64,
    pub(crate) cpu_seconds_per_gb: f64,
    pub(crate) samples: usize,
    /// What makes the row doubtful or worthless.
    pub(crate) flags: Vec<String>,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Unit {
    #[serde(rename = "bytes/s")]
    Bytes,
    #[serde(rename = "operations/s")]
    Operations,
}

impl Unit {
    pub(crate) fn of(self, sample: &Sample) -> f64 {
        match self {
            Self::Bytes => sample.rate(),
            Self::Operations => sample.iops(),
        }
    }
}

/// A parity kernel beside its limit, as `raid-bench parity` measures it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ParityRow {
    pub(crate) case: String,
    pub(crate) kernel: &'static str,
    pub(crate) gb_s: f64,
    pub(crate) limit_gb_s: f64,
    pub(crate) ratio: f64,
}

/// What samples came to, whatever they are compared with.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) depth_achieved: f64,
    pub(crate) cpu_seconds_per_gb: f64,
}

impl Figures {
    pub(crate) fn of(samples: &[Sample]) -> Self {
        let median = |f: &dyn Fn(&Sample) -> f64| Summary::of(samples.iter().map(f)).median;
        Self {
            p50_us: median(&|sample| sample.latency(50.0) * 1e6),
            p99_us: median(&|sample| sample.latency(99.0) * 1e6),
            p999_us: median(&|sample| sample.latency(99.9) * 1e6),
            depth_achieved: median(&|sample| sample.depth_achieved),
            cpu_seconds_per_gb: median(&Sample::cpu_seconds_per_gb),
        }
    }
}

/// Where the samples of a row came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances {
    pub(crate) kind: MemberKind,
    pub(crate) direct: bool,
    /// The largest cache of the CPU.
    pub(crate) cache_bytes: u64,
}

/// Below so many operations a sample says little.
const OPS_MIN: u64 = 50;
/// Above this part of the median the middle half of the samples lies too far apart.
const SPREAD_MAX: f64 = 0.15;
/// A region that is gone over more often may sit in a cache below.
const PASSES_MAX: f64 = 2.0;

/// Says what makes samples doubtful or worthless.
pub(crate) fn flags(samples: &[Sample], spread: f64, from: Circumstances) -> Vec<String> {
    let mut flags = Vec::new();
    let sum = |f: &dyn Fn(&Sample) -> u64| samples.iter().map(f).sum::<u64>();
    let (looked, zero) = (sum(&|s| s.looked), sum(&|s| s.zero));
    let compressible = sum(&|s| s.compressible);
    // Members that keep nothing give back what was in memory.
    if from.kind != MemberKind::Null {
        if zero * 100 > looked {
            flags.push(format!("unwritten: {zero} of {looked} reads looked at were zeroes"));
        }
        if compressible * 100 > looked {
            flags.push(format!("compressible: {compressible} of {looked} reads looked at"));
        }
    }
    if from.kind == MemberKind::File && !from.direct {
        flags.push("cached: the page cache answers, not a device".to_owned());
    }
    let passes = samples.iter().map(|sample| sample.passes).fold(0.0, f64::max);
    let region = samples.iter().map(|sample| sample.region_bytes).min().unwrap_or(0);
    match from.kind {
        MemberKind::File if passes > PASSES_MAX => {
            let region = short_size(region);
            flags.push(format!("short working set: {region}, gone over {passes:.0} times"));
        }
        MemberKind::Memory if region < 2 * from.cache_bytes => {
            let (region, cache) = (short_size(region), short_size(from.cache_bytes));
            flags.push(format!("short working set: {region} beside {cache} of CPU cache"));
        }
        _ => {}
    }
    let is_short = |sample: &Sample| {
        sample.ops() < OPS_MIN && sample.seconds < 1.0
            || sample.seconds < 0.9 * sample.seconds_wanted
    };
    if let Some(sample) = samples.iter().find(|sample| is_short(sample)) {
        let (ops, seconds) = (sample.ops(), sample.seconds);
        flags.push(format!("short: a sample of {ops} operations in {seconds:.2} s"));
    }
    let wanted = samples.first().map_or(0, |sample| sample.depth);
    let depth = Summary::of(samples.iter().map(|sample| sample.depth_achieved)).median;
    if depth < 0.9 * f64::from(wanted) {
        flags.push(format!("depth {depth:.1} of {wanted}"));
    }
    if spread > SPREAD_MAX {
        flags
            .push(format!("noisy: the middle half of the samples spreads {:.0} %", spread * 100.0));
    }
    flags
}

/// Says so when a figure is above what there can be.
pub(crate) fn flag_ratio(flags: &mut Vec<String>, ratio: f64) {
    if ratio > 1.05 {
        flags.push("above the limit: a cache answered, or the limit was disturbed".to_owned());
    }
}

/// Collects a run.
pub(crate) struct Run {
    pub(crate) report: Report,
    started: std::time::Instant,
}

impl Run {
    pub(crate) fn begin(profile: &'static str, options: &Bench) -> Self {
        let date = jiff::Timestamp::now().round(jiff::Unit::Second).unwrap_or_default();
        let tool = concat!("raid-bench ", env!("CARGO_PKG_VERSION")).to_owned();
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let place = match options.member_kind {
            MemberKind::File if options.members.len() == 1 => {
                vec![options.scratch.display().to_string()]
            }
            MemberKind::File => options.members.clone(),
            _ => Vec::new(),
        };
        let settings = Settings {
            level: options.level.name(),
            members: 0,
            member_kind: options.member_kind,
            place,
            member_bytes: options.member_size,
            chunk_bytes: options.chunk,
            queues: options.queues,
            depth: options.depth,
            repeats: options.repeats,
            sample_seconds: options.seconds,
            direct: false,
            backend: String::new(),
            seconds: 0.0,
        };
        let report = Report {
            fio_version: tool.clone(),
            timestamp: date.as_second(),
            tool,
            date: date.to_string(),
            command: format!("raid-bench {}", arguments.join(" ")).trim_end().to_owned(),
            profile,
            units: UNITS,
            machine: Machine::look(),
            settings,
            rows: Vec::new(),
            atto: Vec::new(),
            hdtune: None,
            spool: Vec::new(),
            parity: Vec::new(),
            published: Vec::new(),
            jobs: Vec::new(),
            notes: Vec::new(),
        };
        Self { report, started: std::time::Instant::now() }
    }

    pub(crate) fn end(mut self) -> Report {
        self.report.machine.load_after = machine::load();
        self.report.settings.seconds = self.started.elapsed().as_secs_f64();
        self.report
    }
}

/// A row for tests of what is made of rows.
#[cfg(test)]
pub(crate) fn sample_row() -> Row {
    Row {
        target: "ours".into(),
        level: "raid5".into(),
        members: 5,
        member_kind: MemberKind::File,
        queues: 1,
        depth: 8,
        request_bytes: 1 << 20,
        pattern: "seq_read",
        unit: Unit::Bytes,
        achieved: 1.9e9,
        spread: 0.02,
        limit: 2e9,
        limit_spread: 0.03,
        limit_is: "sum of raw reads".into(),
        ratio: 0.95,
        goal: Some(0.97),
        same_io: Some(1e9),
        same_io_ratio: Some(1.9),
        walking: None,
        durable: Some(1e9),
        p50_us: 100.0,
        p99_us: 200.0,
        p999_us: 300.0,
        depth_achieved: 7.9,
        cpu_seconds_per_gb: 0.1,
        samples: 5,
        flags: vec!["noisy: <&>".into()],
    }
}

#[cfg(test)]
mod tests;
