//! `raid-bench atto`: transfers of growing size over one length, written, then read, as ATTO Disk
//! Benchmark does it: 256 MiB, past the page cache, four transfers under way.

use std::time::Duration;

use serde::Serialize;

use crate::bed::Bed;
use crate::cli::{Atto, Bench};
use crate::engine::{circumstances, prepare};
use crate::failure::Failure;
use crate::fio;
use crate::job::{Job, Order, Sample};
use crate::progress::Progress;
use crate::report::{self, Report, Run};
use crate::shape::LevelChoice;
use crate::stats::{Summary, short_size};
use crate::target::Target;

/// The length that every size goes over.
const LENGTH_BYTES: u64 = 256 << 20;
/// Transfers under way.
const DEPTH: u32 = 4;
/// 0.5 KiB to 64 MiB; ATTO itself ends at 8 MiB in its usual run.
pub(crate) const SIZES: std::ops::RangeInclusive<u32> = 9..=26;

/// One transfer size on one target.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AttoRow {
    /// "ours", "nbd", or "member" for one raw member alone.
    pub(crate) target: String,
    pub(crate) level: String,
    pub(crate) members: usize,
    /// Bytes of a transfer.
    pub(crate) bytes: u64,
    pub(crate) write: f64,
    pub(crate) write_spread: f64,
    /// What was durable of the writes.
    pub(crate) write_durable: f64,
    pub(crate) read: f64,
    pub(crate) read_spread: f64,
    pub(crate) samples: usize,
    pub(crate) flags: Vec<String>,
}

/// Measures, and tells everything.
pub(crate) fn run(options: &Atto) -> Result<Report, Failure> {
    let bench = &options.bench;
    let mut run = Run::begin("atto", bench);
    let progress = Progress::new(1);
    progress.step("making members and filling them with noise");
    let mut bed = Bed::new(bench)?;
    prepare(&mut run, &bed, bench, &progress)?;
    let sizes: Vec<u64> = SIZES.map(|shift| 1 << shift).collect();
    measure(&mut run, &mut bed, bench, &options.levels(), &sizes, options.nbd, &progress)?;
    drop(progress);
    Ok(run.end())
}

/// Sweeps over levels, the last one over NBD as well if asked for, and one member alone.
pub(crate) fn measure(
    run: &mut Run,
    bed: &mut Bed,
    options: &Bench,
    levels: &[LevelChoice],
    sizes: &[u64],
    nbd: bool,
    progress: &Progress,
) -> Result<(), Failure> {
    let before = bed.shape.choice;
    let targets = levels.len() + 1 + usize::from(nbd);
    progress.expect((targets * sizes.len()) as u64);
    for &choice in levels {
        let groups = if choice.nested { 2 } else { 1 };
        let members = bed.shape.members;
        if members < choice.members_min() || !members.is_multiple_of(groups) {
            let note = format!("atto: no {} of {members} members", choice.name());
            run.report.notes.push(note);
            continue;
        }
        bed.shape.choice = choice;
        // Whether parity is right costs no time.
        let target = Target::Array(bed.create(true, false)?);
        sweep(run, bed, options, ("ours", &target), sizes, progress)?;
        let same = choice == before;
        target.stop()?;
        if nbd && same {
            let target = Target::nbd(bed.open(None)?)?;
            sweep(run, bed, options, ("nbd", &target), sizes, progress)?;
            target.stop()?;
        }
    }
    bed.shape.choice = before;
    // One member alone: what each of them is worth.
    let largest = sizes.iter().copied().max().unwrap_or(1);
    let target = bed.raw(&[0], largest)?;
    sweep(run, bed, options, ("member", &target), sizes, progress)?;
    target.stop()
}

fn sweep(
    run: &mut Run,
    bed: &Bed,
    options: &Bench,
    (name, target): (&str, &Target),
    sizes: &[u64],
    progress: &Progress,
) -> Result<(), Failure> {
    let is_array = name != "member";
    let level = if is_array { bed.shape.choice.name() } else { "member".to_owned() };
    for &bytes in sizes {
        progress.step(format!("atto {name} {level} {}", short_size(bytes)));
        let len = target.size_bytes().min(LENGTH_BYTES) / bytes * bytes;
        if len == 0 {
            continue;
        }
        let (mut written, mut read) = (Vec::new(), Vec::new());
        let mut job = Job::new("atto", Order::Sequential, bytes, DEPTH, len);
        (job.bytes_max, job.time) = (len, Duration::from_secs_f64(options.seconds));
        for round in 0..u64::from(options.repeats) {
            job.seed = round + 1;
            written.push(target.run(&job.clone().reads(0), 1)?);
            read.push(target.run(&job, 1)?);
        }
        let jobname = format!("atto:{name}:{level}:{}", short_size(bytes));
        let write_job = job.clone().reads(0);
        run.report.jobs.push(fio::job(&format!("{jobname}:write"), &write_job, &written, 1));
        run.report.jobs.push(fio::job(&format!("{jobname}:read"), &job, &read, 1));
        let rates = Summary::of(written.iter().map(Sample::rate));
        let read_rates = Summary::of(read.iter().map(Sample::rate));
        let from = circumstances(run, bed);
        let mut flags = report::flags(&read, read_rates.spread, from);
        for flag in report::flags(&written, rates.spread, from) {
            flags.push(format!("write {flag}"));
        }
        run.report.atto.push(AttoRow {
            target: name.to_owned(),
            level: level.clone(),
            members: if is_array { bed.shape.members } else { 1 },
            bytes,
            write: rates.median,
            write_spread: rates.spread,
            write_durable: Summary::of(written.iter().filter_map(Sample::durable_rate)).median,
            read: read_rates.median,
            read_spread: read_rates.spread,
            samples: written.len(),
            flags,
        });
    }
    Ok(())
}
