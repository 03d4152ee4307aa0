//! `raid-bench hdtune`: random access in a file of 512 MiB at several sizes, one request at a time;
//! the transfer curve over the whole array; access times over it.

use std::time::Duration;

use serde::Serialize;

use crate::bed::Bed;
use crate::cli::Bench;
use crate::engine::{circumstances, prepare};
use crate::failure::Failure;
use crate::fio;
use crate::job::{Job, Order, Sample};
use crate::noise::Random;
use crate::progress::Progress;
use crate::report::{self, Report, Run};
use crate::stats::Summary;
use crate::target::Target;

/// The region of random access.
const FILE_BYTES: u64 = 512 << 20;
/// Names and bounds of the sizes.
const ACCESSES: [(&str, (u64, u64)); 5] = [
    ("512 B", (512, 512)),
    ("4 KiB", (4096, 4096)),
    ("64 KiB", (64 << 10, 64 << 10)),
    ("1 MiB", (1 << 20, 1 << 20)),
    ("random", (512, 1 << 20)),
];
/// Requests of a point of the curve, and how much it reads.
const CURVE_BYTES: u64 = 1 << 20;
const CURVE_DEPTH: u32 = 4;
const POINT_BYTES: u64 = 16 << 20;

/// The whole picture.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct HdTune {
    pub(crate) target: String,
    pub(crate) level: String,
    pub(crate) members: usize,
    pub(crate) size_bytes: u64,
    pub(crate) random: Vec<Access>,
    /// Where, as a part of the array, and bytes a second there.
    pub(crate) curve: Vec<(f64, f64)>,
    /// Of the curve's points.
    pub(crate) transfer: Summary,
    /// Where, and milliseconds.
    pub(crate) dots: Vec<(f64, f64)>,
    pub(crate) access_ms: Summary,
    pub(crate) flags: Vec<String>,
}

/// Random access at one size.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Access {
    pub(crate) what: &'static str,
    /// "read" or "write".
    pub(crate) kind: &'static str,
    pub(crate) iops: f64,
    pub(crate) spread: f64,
    pub(crate) average_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) bytes_a_second: f64,
    pub(crate) flags: Vec<String>,
}

/// Measures, and tells everything.
pub(crate) fn run(options: &Bench) -> Result<Report, Failure> {
    let mut run = Run::begin("hdtune", options);
    let progress = Progress::new(1);
    progress.step("making members and filling them with noise");
    let bed = Bed::new(options)?;
    prepare(&mut run, &bed, options, &progress)?;
    measure(&mut run, &bed, options, (100, 500), &progress)?;
    drop(progress);
    Ok(run.end())
}

/// Measures with so many points of the curve and dots.
pub(crate) fn measure(
    run: &mut Run,
    bed: &Bed,
    options: &Bench,
    (points, dots): (u64, u64),
    progress: &Progress,
) -> Result<(), Failure> {
    progress.expect(2 * ACCESSES.len() as u64 + 2);
    let target = Target::Array(bed.open(None)?);
    let mut random = Vec::new();
    for (what, bytes) in ACCESSES {
        for (kind, percent) in [("read", 100), ("write", 0)] {
            progress.step(format!("hdtune {what} {kind}"));
            random.push(access(run, bed, options, &target, (what, bytes), (kind, percent))?);
        }
    }
    progress.step("hdtune transfer curve");
    let size = target.size_bytes();
    let (mut curve, mut samples) = (Vec::new(), Vec::new());
    let reach = size.saturating_sub(POINT_BYTES.min(size));
    for point in 0..points {
        let start = reach / points.max(1) * point / CURVE_BYTES * CURVE_BYTES;
        let mut job = Job::new("curve", Order::Sequential, CURVE_BYTES, CURVE_DEPTH, size);
        job.region = (start, POINT_BYTES.min(size) / CURVE_BYTES * CURVE_BYTES);
        (job.bytes_max, job.time) = (job.region.1, Duration::from_secs(5));
        let sample = target.run(&job, 1)?;
        curve.push((start as f64 / size as f64, sample.rate()));
        samples.push(sample);
    }
    progress.step("hdtune access times");
    let mut places = Random::new(0x7e57);
    let (mut port, mut dot_list) = (target.port()?, Vec::new());
    for _ in 0..dots {
        let start = places.below(size / 4096) * 4096;
        let mut job = Job::new("dot", Order::Random, 4096, 1, size);
        (job.region, job.bytes_max) = ((start, 4096), 4096);
        let sample = crate::job::run(port.as_mut(), &job)?;
        dot_list.push((start as f64 / size as f64, sample.latency(100.0) * 1e3));
    }
    drop(port);
    target.stop()?;
    let from = circumstances(run, bed);
    // Points are short on purpose.
    let flags = report::flags(&samples, 0.0, from);
    let flags = flags.into_iter().filter(|flag| !flag.starts_with("short: ")).collect();
    run.report.hdtune = Some(HdTune {
        target: "ours".to_owned(),
        level: bed.shape.choice.name(),
        members: bed.shape.members,
        size_bytes: size,
        random,
        transfer: Summary::of(curve.iter().map(|(_, rate)| *rate)),
        curve,
        access_ms: Summary::of(dot_list.iter().map(|(_, millis)| *millis)),
        dots: dot_list,
        flags,
    });
    Ok(())
}

fn access(
    run: &mut Run,
    bed: &Bed,
    options: &Bench,
    target: &Target,
    (what, bytes): (&'static str, (u64, u64)),
    (kind, percent): (&'static str, u32),
) -> Result<Access, Failure> {
    let len = target.size_bytes().min(FILE_BYTES);
    let mut samples = Vec::new();
    let mut job = Job::new("hdtune", Order::Random, bytes.1, 1, len).reads(percent);
    job.bytes = bytes;
    for round in 0..u64::from(options.repeats) {
        let time = Duration::from_secs_f64(options.seconds);
        job = Job { time, warmup: time / 8, seed: round + 1, ..job };
        samples.push(target.run(&job, 1)?);
    }
    let name = format!("hdtune:{what}:{kind}");
    run.report.jobs.push(fio::job(&name, &job, &samples, 1));
    let median = |f: &dyn Fn(&Sample) -> f64| Summary::of(samples.iter().map(f));
    let iops = median(&Sample::iops);
    let average = |sample: &Sample| {
        // One at a time: the time of one is the time over their number.
        if sample.ops() > 0 { sample.seconds / sample.ops() as f64 * 1e3 } else { 0.0 }
    };
    let flags = report::flags(&samples, iops.spread, circumstances(run, bed));
    Ok(Access {
        what,
        kind,
        iops: iops.median,
        spread: iops.spread,
        average_ms: median(&average).median,
        p99_ms: median(&|sample| sample.latency(99.0) * 1e3).median,
        bytes_a_second: median(&Sample::rate).median,
        flags,
    })
}
