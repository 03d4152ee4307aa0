//! `raid-bench build`: how fast redundancy is made, remade and checked.
//!
//! - `resync`: a new array over members full of noise until its parity is right;
//! - `rebuild`: from the moment that a member is taken in until it is in sync;
//! - `check`: of the whole array.
//!
//! Rates are in bytes of *each member* a second, as md counts, so that arrays of different size can
//! be compared. The limit is what one member does alone. Where members share a disk or a bus, that
//! is more than they can do together: `same_io` is the same mix of member I/O, raw, at once.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use raid_io::{Array, Level, Repair, Status};

use crate::bed::Bed;
use crate::cli::Bench;
use crate::engine::{circumstances, long_depth, prepare, timed};
use crate::failure::Failure;
use crate::job::{Job, Order, Sample};
use crate::progress::Progress;
use crate::report::{self, Figures, Report, Row, Run, Unit};
use crate::stats::{Summary, paired_ratio, rate};
use crate::target::Target;

/// How often a state is looked at.
const GLANCE: Duration = Duration::from_millis(2);
/// What takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(1800);
/// The part of the limit that is aimed at.
const GOAL: f64 = 0.90;
/// The member that goes and comes.
const VICTIM: usize = 0;
/// Long requests of raw members under way.
const RAW_DEPTH: u32 = 8;
const RAW_BYTES: u64 = 1 << 20;

/// Measures, and tells everything.
pub(crate) fn run(options: &Bench) -> Result<Report, Failure> {
    let mut run = Run::begin("build", options);
    let progress = Progress::new(1);
    progress.step("making members and filling them with noise");
    let bed = Bed::new(options)?;
    if !bed.has_superblocks() || !bed.shape.is_redundant() {
        let reason = "there is something to build on members of kind file, in a redundant level";
        return Err(Failure::Impossible(reason.into()));
    }
    prepare(&mut run, &bed, options, &progress)?;
    measure(&mut run, &bed, options, &progress)?;
    drop(progress);
    Ok(run.end())
}

/// Every row of the profile.
pub(crate) fn measure(
    run: &mut Run,
    bed: &Bed,
    options: &Bench,
    progress: &Progress,
) -> Result<(), Failure> {
    progress.expect(2 * u64::from(options.repeats));
    rebuild_row(run, bed, options, progress)?;
    check_row(run, bed, options, progress)?;
    measure_rest(run, bed, options, progress)
}

/// What `engine` does not have: the initial build, speed limits, and load.
pub(crate) fn measure_rest(
    run: &mut Run,
    bed: &Bed,
    options: &Bench,
    progress: &Progress,
) -> Result<(), Failure> {
    progress.expect(u64::from(options.repeats));
    resync_row(run, bed, options, progress)?;
    limited_rows(run, bed, progress)?;
    loaded_row(run, bed, options, progress)
}

/// How long something took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    seconds: f64,
    /// The speed that the array told last, since its walk had begun: without what comes before and
    /// behind.
    walking: f64,
}

/// Waits until a state has come; returns how long that took.
fn wait_until(array: &Array, wanted: impl Fn(&Status) -> bool) -> Result<Time, Failure> {
    let began = Instant::now();
    let mut walking = 0;
    loop {
        let status = array.status();
        if wanted(&status) {
            break;
        }
        let speeds = status.groups.iter().map(|group| group.sync_bytes_per_second);
        walking = speeds.max().filter(|speed| *speed > 0).unwrap_or(walking);
        if began.elapsed() > PATIENCE {
            let reason = format!("nothing has come of it after {PATIENCE:?}");
            return Err(Failure::Impossible(reason));
        }
        thread::sleep(GLANCE);
    }
    Ok(Time { seconds: began.elapsed().as_secs_f64(), walking: walking as f64 })
}

/// Waits until redundancy is right and nothing goes on.
pub(crate) fn wait_in_sync(array: &Array) -> Result<Time, Failure> {
    wait_until(array, |status| {
        let is_quiet = |group: &raid_io::GroupStatus| group.in_sync && group.sync_action == "idle";
        status.degraded == 0 && status.groups.iter().all(is_quiet)
    })
}

/// Takes the victim out and in again; returns the time until it is in sync.
fn rebuild(bed: &Bed, array: &Array) -> Result<Time, Failure> {
    let victim: &Path = &bed.paths[VICTIM];
    array.fail(victim)?;
    array.remove(victim)?;
    let began = Instant::now();
    array.add(victim, true)?;
    let time = wait_until(array, |status| status.degraded == 0)?;
    Ok(Time { seconds: began.elapsed().as_secs_f64(), ..time })
}

/// Checks everything; returns the time it took.
fn check(array: &Array) -> Result<Time, Failure> {
    let before = array.status().statistics.scrubs;
    array.scrub(Repair::None)?;
    wait_until(array, |status| status.statistics.scrubs > before)
}

/// Raw members: each with the same I/O at the same time, one of them written if asked for.
fn raw(
    bed: &Bed,
    options: &Bench,
    members: &[usize],
    written: Option<usize>,
    seed: u64,
) -> Result<Sample, Failure> {
    let mut target = bed.raw(members, RAW_BYTES)?;
    if let Target::Raw { map, .. } = &mut target {
        map.written = written;
    }
    let len = target.size_bytes();
    // As deep on each member as alone.
    let depth = RAW_DEPTH * members.len() as u32;
    let job = Job::new("raw", Order::Sequential, RAW_BYTES, depth.min(256), len);
    // All count as writes where one is: the rest of the I/O is what that one waits for.
    let job = timed(job.reads(if written.is_some() { 0 } else { 100 }), options, seed);
    let sample = target.run(&job, 1)?;
    target.stop()?;
    Ok(sample)
}

/// One side of a build row: seconds of each round, raw rates of one member and of all together.
struct Rounds {
    times: Vec<Time>,
    alone: Vec<Sample>,
    together: Vec<Sample>,
    together_members: usize,
}

fn row(run: &Run, bed: &Bed, pattern: &'static str, limit_is: &str, rounds: &Rounds) -> Row {
    let bytes = bed.part_bytes;
    let rates: Vec<f64> = rounds.times.iter().map(|time| rate(bytes, time.seconds)).collect();
    let limits: Vec<f64> = rounds.alone.iter().map(Sample::rate).collect();
    let each = |sample: &Sample| sample.rate() / rounds.together_members as f64;
    let together: Vec<f64> = rounds.together.iter().map(each).collect();
    let (achieved, limit) = (Summary::of(rates.clone()), Summary::of(limits.clone()));
    let ratio = paired_ratio(&rates, &limits);
    let from = circumstances(run, bed);
    let mut flags = Vec::new();
    let shortest = Summary::of(rounds.times.iter().map(|time| time.seconds)).min;
    if shortest < 0.1 {
        flags.push(format!("short: the whole took {shortest:.3} s; see --member-size"));
    }
    if achieved.spread > 0.15 {
        let spread = achieved.spread * 100.0;
        flags.push(format!("noisy: the middle half of the samples spreads {spread:.0} %"));
    }
    for flag in report::flags(&rounds.alone, limit.spread, from) {
        flags.push(format!("limit {flag}"));
    }
    report::flag_ratio(&mut flags, ratio);
    let figures = Figures::of(&[]);
    let is_shared = !together.is_empty();
    Row {
        target: "ours".to_owned(),
        level: bed.shape.choice.name(),
        members: bed.shape.members,
        member_kind: bed.kind,
        queues: 1,
        depth: 0,
        request_bytes: 0,
        pattern,
        unit: Unit::Bytes,
        achieved: achieved.median,
        spread: achieved.spread,
        limit: limit.median,
        limit_spread: limit.spread,
        limit_is: limit_is.to_owned(),
        ratio,
        goal: Some(GOAL),
        same_io: is_shared.then(|| Summary::of(together.iter().copied()).median),
        same_io_ratio: is_shared.then(|| paired_ratio(&rates, &together)),
        walking: Some(Summary::of(rounds.times.iter().map(|time| time.walking)).median),
        durable: None,
        p50_us: figures.p50_us,
        p99_us: figures.p99_us,
        p999_us: figures.p999_us,
        depth_achieved: figures.depth_achieved,
        cpu_seconds_per_gb: 0.0,
        samples: rounds.times.len(),
        flags,
    }
}

/// The members whose I/O a rebuild of the victim is made of: those read, and the victim last.
fn rebuild_members(bed: &Bed) -> Vec<usize> {
    let width = bed.shape.members / bed.shape.groups();
    let sources = match bed.shape.choice.level {
        Level::Raid1 | Level::Raid10 => 1,
        Level::Raid6 => width - 2,
        _ => width - 1,
    };
    (1..=sources).chain([VICTIM]).collect()
}

/// A new array over members full of noise.
fn resync_row(
    run: &mut Run,
    bed: &Bed,
    options: &Bench,
    progress: &Progress,
) -> Result<(), Failure> {
    // Data is read, parity or the other copies are written: in number as much as for a rebuild.
    let members = rebuild_members(bed);
    let together_members = members.len();
    let mut rounds =
        Rounds { times: Vec::new(), alone: Vec::new(), together: Vec::new(), together_members };
    for round in 0..u64::from(options.repeats) {
        progress.step(format!("resync, round {}", round + 1));
        rounds.alone.push(raw(bed, options, &[VICTIM], Some(VICTIM), round)?);
        rounds.together.push(raw(bed, options, &members, Some(VICTIM), round)?);
        let began = Instant::now();
        let array = bed.create(false, false)?;
        let time = wait_in_sync(&array)?;
        let seconds = began.elapsed().as_secs_f64();
        rounds.times.push(Time { seconds, ..time });
        array.stop()?;
    }
    let row = row(run, bed, "resync", "one raw member's writes", &rounds);
    run.report.rows.push(row);
    Ok(())
}

/// A fresh member gets what it should hold.
pub(crate) fn rebuild_row(
    run: &mut Run,
    bed: &Bed,
    options: &Bench,
    progress: &Progress,
) -> Result<(), Failure> {
    let members = rebuild_members(bed);
    let together_members = members.len();
    let mut rounds =
        Rounds { times: Vec::new(), alone: Vec::new(), together: Vec::new(), together_members };
    for round in 0..u64::from(options.repeats) {
        progress.step(format!("rebuild, round {}", round + 1));
        rounds.alone.push(raw(bed, options, &[VICTIM], Some(VICTIM), round)?);
        rounds.together.push(raw(bed, options, &members, Some(VICTIM), round)?);
        let array = bed.open(None)?;
        rounds.times.push(rebuild(bed, &array)?);
        array.stop()?;
    }
    let row = row(run, bed, "rebuild", "one raw member's writes", &rounds);
    run.report.rows.push(row);
    Ok(())
}

/// Everything is read and compared.
pub(crate) fn check_row(
    run: &mut Run,
    bed: &Bed,
    options: &Bench,
    progress: &Progress,
) -> Result<(), Failure> {
    let all: Vec<usize> = (0..bed.shape.members).collect();
    let together_members = all.len();
    let mut rounds =
        Rounds { times: Vec::new(), alone: Vec::new(), together: Vec::new(), together_members };
    let mut mismatches = 0;
    for round in 0..u64::from(options.repeats) {
        progress.step(format!("check, round {}", round + 1));
        rounds.alone.push(raw(bed, options, &[VICTIM], None, round)?);
        rounds.together.push(raw(bed, options, &all, None, round)?);
        let array = bed.open(None)?;
        rounds.times.push(check(&array)?);
        let status = array.status();
        mismatches += status.groups.iter().map(|group| group.mismatch_sectors).sum::<u64>();
        array.stop()?;
    }
    let mut row = row(run, bed, "check", "one raw member's reads", &rounds);
    if mismatches > 0 {
        row.flags.push(format!("wrong: {mismatches} sectors did not agree"));
    }
    run.report.rows.push(row);
    Ok(())
}

/// The part of its own speed that a build is held to.
const HELD_TO: f64 = 0.25;

/// With a speed limit the speed is the limit.
fn limited_rows(run: &mut Run, bed: &Bed, progress: &Progress) -> Result<(), Failure> {
    let full = |run: &Run, pattern: &str| {
        let row = run.report.rows.iter().find(|row| row.pattern == pattern);
        row.map_or(0.0, |row| row.achieved)
    };
    progress.expect(2);
    for (pattern, name) in [("rebuild", "rebuild_limited"), ("check", "check_limited")] {
        progress.step(name);
        let speed = (full(run, pattern) * HELD_TO) as u64;
        let array = bed.open(None)?;
        array.set_speed(Some(0), Some(speed.max(1)));
        let time = match pattern {
            "rebuild" => rebuild(bed, &array)?,
            _ => check(&array)?,
        };
        array.stop()?;
        let rounds = Rounds {
            times: vec![time],
            alone: Vec::new(),
            together: Vec::new(),
            together_members: 1,
        };
        let mut row = row(run, bed, name, "the speed limit that was set", &rounds);
        (row.limit, row.ratio) = (speed as f64, row.achieved / (speed as f64).max(1.0));
        (row.goal, row.flags) = (None, Vec::new());
        run.report.rows.push(row);
    }
    Ok(())
}

/// A rebuild while somebody works: it gives way, and still ends. The row's ratio is what is left
/// of the rebuild's own speed; a note says what is left of the work's.
fn loaded_row(
    run: &mut Run,
    bed: &Bed,
    options: &Bench,
    progress: &Progress,
) -> Result<(), Failure> {
    progress.expect(1);
    progress.step("rebuild under load");
    let full = run.report.rows.iter().find(|row| row.pattern == "rebuild");
    let full = full.map_or(0.0, |row| row.achieved);
    let target = Target::Array(bed.open(None)?);
    let Target::Array(array) = &target else { return Ok(()) };
    let len = target.size_bytes();
    let depth = long_depth(options);
    let job = Job::new("load", Order::Random, 64 << 10, depth, len).reads(70);
    let quiet = target.run(&timed(job.clone(), options, 1), 1)?;
    let over = AtomicBool::new(false);
    let (time, loaded) = thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut samples = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let mut job = timed(job.clone(), options, 2 + samples.len() as u64);
                (job.warmup, job.time) = (Duration::ZERO, job.time.min(Duration::from_millis(100)));
                samples.push(target.run(&job, 1)?);
            }
            Ok::<_, Failure>(samples)
        });
        let time = rebuild(bed, array);
        over.store(true, Ordering::Relaxed);
        let samples = load.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok::<_, Failure>((time?, samples?))
    })?;
    target.stop()?;
    let rounds =
        Rounds { times: vec![time], alone: Vec::new(), together: Vec::new(), together_members: 1 };
    let mut row = row(run, bed, "rebuild_under_load", "the rebuild without load", &rounds);
    (row.limit, row.ratio) = (full, if full > 0.0 { row.achieved / full } else { 0.0 });
    (row.goal, row.flags) = (None, Vec::new());
    run.report.rows.push(row);
    let during = Summary::of(loaded.iter().map(Sample::iops)).median;
    let note = format!(
        "rebuild_under_load: random 64 KiB requests (70 % reads, depth {depth}) had {:.0} a second \
         without the rebuild and {during:.0} with it ({:.0} %)",
        quiet.iops(),
        during / quiet.iops().max(1.0) * 100.0,
    );
    run.report.notes.push(note);
    Ok(())
}
