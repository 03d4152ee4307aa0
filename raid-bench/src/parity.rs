//! `raid-bench parity`: the kernels of raid-core beside what the machine does with the same bytes.
//!
//! ```text
//! cases (operation x sources x strip x cache)
//!   each: rounds in which limits, kernels and peers take turns  -->  rows: medians and ratios
//! between cases: samples of the machine's own limits            -->  limits
//! ```

mod html;
#[allow(unsafe_code, reason = "calls a library of others through its C interface")]
mod isal;
mod limits;
mod measure;
mod operation;
mod report;
mod rounds;
mod text;

use std::io;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use memmap2::MmapMut;
use pulp::Arch;
use raid_core::parity::Kernel;
use regex::Regex;

use crate::cli::{Output, Parity, Peer};
use crate::machine::{self, Machine};
use crate::output;
use isal::Isal;
use measure::Clock;
use operation::{OPERATIONS, Shape};
use report::{Cache, Report, Settings};
use rounds::{Case, Rounds};

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("no kernel {name} on this CPU; it has {available}")]
    NoKernel { name: String, available: String },
    #[error("no case matches the filter; a case reads like gen_pq/8x64K/cold")]
    NoCase,
    #[error("libisal.so.2 with xor_gen and pq_gen is not installed (Debian: apt install libisal2)")]
    NoIsal,
    #[error("cold cases need {need_mib} MiB of memory, {available_mib} MiB are available")]
    NoMemory { need_mib: u64, available_mib: u64 },
    #[error("no memory: {0}")]
    Map(io::Error),
    #[error("kernel {kernel} found wrong parity in {case}")]
    Mismatch { kernel: &'static str, case: String },
    #[error(transparent)]
    Write(#[from] output::WriteFailed),
    #[error("JSON: {0}")]
    Json(#[from] serde_json::Error),
}

const SOURCE_COUNTS: [usize; 4] = [2, 4, 8, 16];
const STRIP_BYTES: [usize; 3] = [4 << 10, 64 << 10, 512 << 10];

/// The least memory that cold cases rotate through.
const ROTATION_BYTES_MIN: u64 = 640 << 20;
/// The most, whatever the caches.
const ROTATION_BYTES_MAX: u64 = 2 << 30;
/// Memory that must remain for others.
const SPARE_BYTES: u64 = 128 << 20;

/// Measures, and writes the result where it is wanted.
pub(crate) fn run(options: &Parity) -> Result<(), Failure> {
    let report = measure(options)?;
    let mut is_printed = false;
    if let Some(path) = &options.output.json {
        let mut json = serde_json::to_string_pretty(&report)?;
        json.push('\n');
        is_printed = path.as_os_str() == "-";
        output::write(path, &json)?;
    }
    if let Some(path) = &options.output.html {
        output::write(path, &html::page(&report))?;
    }
    if !is_printed {
        output::print(&text::table(&report))?;
    }
    Ok(())
}

/// A few rows for a report of everything: P and P+Q by the kernel that the engine uses.
pub(crate) fn short() -> Result<Vec<crate::report::ParityRow>, Failure> {
    let filter = Regex::new("^gen_(p|pq)/8x64K/").map_err(|_| Failure::NoCase)?;
    let kernels = vec![Kernel::best().name().to_owned()];
    let output = Output { json: None, html: None };
    let (filter, peers) = (Some(filter), Vec::new());
    let options = Parity { output, quick: true, filter, kernels, repeats: 5, peers };
    let report = measure(&options)?;
    let row = |row: &report::Row| crate::report::ParityRow {
        case: format!("{} {}", row.op, text::shape(row)),
        kernel: row.kernel,
        gb_s: row.gb_s,
        limit_gb_s: row.limit_gb_s,
        ratio: row.limit_ratio,
    };
    Ok(report.rows.iter().map(row).collect())
}

fn measure(options: &Parity) -> Result<Report, Failure> {
    let start = Instant::now();
    let date = jiff::Timestamp::now().round(jiff::Unit::Second);
    let mut machine = Machine::look();
    let kernels = kernels(&options.kernels)?;
    let cases = cases(options)?;
    let isal = if options.peers.contains(&Peer::Isal) { Some(Isal::load()?) } else { None };
    let mut memory = memory(rotation_bytes(machine.last_cache_bytes)?)?;
    let clock = Clock::pin();
    let arch = Arch::new();
    let sample = Duration::from_micros(if options.quick { 500 } else { 1000 });
    let mut limits = limits::Machine::new(arch);
    let mut rounds =
        Rounds { arch, kernels: &kernels, isal: isal.as_ref(), clock, sample, position: 0 };
    let mut rows = Vec::new();
    let progress = progress(cases.len() as u64);
    for case in &cases {
        progress.set_message(case.to_string());
        limits.sample(&mut rounds.clock, &mut memory);
        rows.extend(rounds.run(case, options.repeats, &mut memory)?);
        progress.inc(1);
    }
    progress.finish_and_clear();
    while limits.sample_count() < options.repeats as usize {
        limits.sample(&mut rounds.clock, &mut memory);
    }
    let limits = limits.result();
    for row in rows.iter_mut().filter(|row| row.cache == Cache::Cold) {
        row.dram_read_ratio = Some(row.gb_s / limits.dram_read_gb_s);
    }
    machine.load_after = machine::load();
    let settings = Settings {
        repeats: options.repeats,
        sample_ms: sample.as_secs_f64() * 1e3,
        rotation_bytes: memory.len() as u64,
        retaken_count: rounds.clock.retaken_count,
        seconds: start.elapsed().as_secs_f64(),
    };
    let tool = concat!("raid-bench ", env!("CARGO_PKG_VERSION")).to_owned();
    let date = date.map_or_else(|_| String::new(), |date| date.to_string());
    Ok(Report { tool, date, command: command(), machine, settings, limits, rows })
}

/// All kernels of this CPU but the specification, or those that were asked for.
fn kernels(names: &[String]) -> Result<Vec<Kernel>, Failure> {
    if names.is_empty() {
        return Ok(Kernel::available().filter(|kernel| kernel.name() != "naive").collect());
    }
    let find = |name: &String| {
        Kernel::named(name).ok_or_else(|| {
            let available: Vec<&str> = Kernel::available().map(Kernel::name).collect();
            Failure::NoKernel { name: name.clone(), available: available.join(", ") }
        })
    };
    names.iter().map(find).collect()
}

/// All cases that pass the filter, by operation.
fn cases(options: &Parity) -> Result<Vec<Case>, Failure> {
    let counts: &[usize] = if options.quick { &[4, 8] } else { &SOURCE_COUNTS };
    let strips = if options.quick { &STRIP_BYTES[..2] } else { &STRIP_BYTES };
    let mut cases = Vec::new();
    for operation in OPERATIONS {
        let counts = if operation.is_update() { &[2] } else { counts };
        for &source_count in counts {
            for &strip_bytes in strips {
                let shape = Shape { operation, source_count, strip_bytes };
                cases.extend([Cache::Hot, Cache::Cold].map(|cache| Case { shape, cache }));
            }
        }
    }
    if let Some(filter) = &options.filter {
        cases.retain(|case| filter.is_match(&case.to_string()));
    }
    if cases.is_empty() { Err(Failure::NoCase) } else { Ok(cases) }
}

/// Twice the largest cache: what a virtual machine sees may be the whole host's.
fn rotation_bytes(last_cache_bytes: u64) -> Result<u64, Failure> {
    let bytes = (2 * last_cache_bytes).clamp(ROTATION_BYTES_MIN, ROTATION_BYTES_MAX);
    match machine::available_bytes() {
        Some(available) if available < ROTATION_BYTES_MIN + SPARE_BYTES => Err(Failure::NoMemory {
            need_mib: (ROTATION_BYTES_MIN + SPARE_BYTES) >> 20,
            available_mib: available >> 20,
        }),
        Some(available) => Ok(bytes.min(available - SPARE_BYTES)),
        None => Ok(bytes),
    }
}

/// Anonymous memory full of noise, in huge pages if there are any.
fn memory(bytes: u64) -> Result<MmapMut, Failure> {
    let len = usize::try_from(bytes).map_err(|error| Failure::Map(io::Error::other(error)))?;
    let mut memory = MmapMut::map_anon(len).map_err(Failure::Map)?;
    // A refusal leaves small pages, which cost a few percent.
    let _ = memory.advise(memmap2::Advice::HugePage);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for word in memory.as_chunks_mut().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state.to_le_bytes();
    }
    Ok(memory)
}

/// A bar on a terminal; nothing elsewhere.
fn progress(case_count: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg:32} {eta} left");
    let bar = ProgressBar::new(case_count);
    style.map_or(bar.clone(), |style| bar.with_style(style))
}

fn command() -> String {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    format!("raid-bench {}", arguments.join(" "))
}
