//! `raid-bench engine`: each pattern of requests against what the members can do, in turns.
//!
//! ```text
//! for each pattern, for each round:  raw members, the limit  -->  the array  -->  next round
//! ```

use std::time::Duration;

use crate::bed::Bed;
use crate::build;
use crate::cli::{Bench, MemberKind};
use crate::failure::Failure;
use crate::fio;
use crate::job::{Job, Order, Sample};
use crate::progress::Progress;
use crate::report::{self, Circumstances, Figures, Report, Row, Run, Unit};
use crate::shape::Shape;
use crate::stats::{Summary, paired_ratio};
use crate::target::Target;

/// What is asked of the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    SeqRead,
    SeqWrite,
    RandRead,
    RandWrite,
    DegradedSeqRead,
    DegradedRandRead,
}

impl Pattern {
    pub(crate) const ALL: [Self; 6] = [
        Self::SeqRead,
        Self::SeqWrite,
        Self::RandRead,
        Self::RandWrite,
        Self::DegradedSeqRead,
        Self::DegradedRandRead,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SeqRead => "seq_read",
            Self::SeqWrite => "seq_write",
            Self::RandRead => "rand_read_4k",
            Self::RandWrite => "rand_write_4k",
            Self::DegradedSeqRead => "degraded_seq_read",
            Self::DegradedRandRead => "degraded_rand_read_4k",
        }
    }

    /// The part of the limit that is aimed at.
    fn goal(self) -> f64 {
        match self {
            Self::SeqRead => 0.97,
            Self::RandWrite => 0.90,
            _ => 0.95,
        }
    }

    fn order(self) -> Order {
        match self {
            Self::SeqRead | Self::SeqWrite | Self::DegradedSeqRead => Order::Sequential,
            _ => Order::Random,
        }
    }

    fn unit(self) -> Unit {
        if self.order() == Order::Sequential { Unit::Bytes } else { Unit::Operations }
    }

    fn is_degraded(self) -> bool {
        matches!(self, Self::DegradedSeqRead | Self::DegradedRandRead)
    }

    fn is_write(self) -> bool {
        matches!(self, Self::SeqWrite | Self::RandWrite)
    }
}

/// The bytes of small requests.
const SMALL_BYTES: u64 = 4096;

/// What raw members are asked for beside a pattern, and what of it an array could have.
struct Limit {
    job: Job,
    members: Vec<usize>,
    part: f64,
    words: String,
}

/// Measures, and tells everything.
pub(crate) fn run(options: &Bench) -> Result<Report, Failure> {
    let mut run = Run::begin("engine", options);
    let progress = Progress::new(1);
    progress.step("making members and filling them with noise");
    let bed = Bed::new(options)?;
    prepare(&mut run, &bed, options, &progress)?;
    measure(&mut run, &bed, options, &progress)?;
    drop(progress);
    Ok(run.end())
}

/// Makes the array, and notes how it is driven. Its redundancy is right afterwards.
pub(crate) fn prepare(
    run: &mut Run,
    bed: &Bed,
    options: &Bench,
    progress: &Progress,
) -> Result<(), Failure> {
    progress.expect(1);
    progress.step("making the array's redundancy");
    let array = bed.create(false, false)?;
    if bed.has_superblocks() && bed.shape.is_redundant() {
        build::wait_in_sync(&array)?;
    }
    let settings = &mut run.report.settings;
    settings.backend = array.status().backend;
    settings.direct = bed.is_direct() && options.member_kind == MemberKind::File;
    settings.members = bed.shape.members;
    array.stop()?;
    if bed.share_a_disk() {
        run.report.notes.push(
            "all members lie on one file system: one of them alone has its whole speed, together \
             they share it; the rows of build are to be read by their same I/O at once"
                .to_owned(),
        );
    }
    if !bed.has_superblocks()
        && bed.shape.is_redundant()
        && options.member_kind == MemberKind::Memory
    {
        run.report.notes.push(
            "members in memory have no superblocks: their parity is that of the writes here, and \
             nothing is rebuilt"
                .to_owned(),
        );
    }
    Ok(())
}

/// Measures every pattern that the level has.
pub(crate) fn measure(
    run: &mut Run,
    bed: &Bed,
    options: &Bench,
    progress: &Progress,
) -> Result<(), Failure> {
    let redundant = bed.shape.is_redundant();
    let has = |pattern: &Pattern| redundant || !pattern.is_degraded();
    let patterns: Vec<Pattern> = Pattern::ALL.into_iter().filter(has).collect();
    let rounds = u64::from(options.repeats);
    progress.expect(patterns.len() as u64 * rounds);
    for pattern in patterns {
        compare(run, bed, options, pattern, progress)?;
    }
    if !redundant {
        let level = bed.shape.choice.name();
        let note = format!("{level} has no redundancy: no degraded rows, rebuild, check or bitmap");
        run.report.notes.push(note);
        return Ok(());
    }
    if bed.has_superblocks() {
        progress.expect(3 * rounds);
        build::rebuild_row(run, bed, options, progress)?;
        build::check_row(run, bed, options, progress)?;
        bitmap_row(run, bed, options, progress)?;
    } else {
        let note = "rebuild, check and bitmap_cost need superblocks: members of kind file";
        run.report.notes.push(note.to_owned());
    }
    Ok(())
}

/// The job of a pattern on an array of `len` bytes.
fn job_of(pattern: Pattern, options: &Bench, shape: &Shape, len: u64, seed: u64) -> Job {
    let order = pattern.order();
    let (bytes, depth) = match order {
        Order::Sequential => (shape.long_request_bytes(), long_depth(options)),
        Order::Random => (SMALL_BYTES, options.depth),
    };
    let job = Job::new(pattern.name(), order, bytes, depth, len);
    timed(job.reads(if pattern.is_write() { 0 } else { 100 }), options, seed)
}

/// Long requests under way: enough for every member to have one.
pub(crate) fn long_depth(options: &Bench) -> u32 {
    (options.depth / 4).max(1)
}

/// Gives a job the time of a sample, and a warm-up before it.
pub(crate) fn timed(job: Job, options: &Bench, seed: u64) -> Job {
    let time = Duration::from_secs_f64(options.seconds);
    Job { time, warmup: time / 4, seed, ..job }
}

fn limit_of(pattern: Pattern, options: &Bench, shape: &Shape, seed: u64) -> Limit {
    let all: Vec<usize> = (0..shape.members).collect();
    let survivors = all[1..].to_vec();
    // Its length is set when the members are open.
    let job = job_of(pattern, options, shape, 0, seed);
    let (members, part, words) = match pattern {
        Pattern::SeqRead => (all, 1.0, "sum of raw reads".to_owned()),
        Pattern::SeqWrite => {
            let part = shape.data_part();
            (all, part, format!("{part:.2} of the sum of raw writes"))
        }
        Pattern::RandRead => (all, 1.0, "sum of raw 4 KiB reads".to_owned()),
        Pattern::RandWrite => {
            let cost = shape.write_cost();
            let (percent, total) = (cost.read_percent(), cost.total());
            let words = format!("1/{total:.0} of raw 4 KiB I/O, {percent} % reads");
            return Limit { job: job.reads(percent), members: all, part: 1.0 / total, words };
        }
        Pattern::DegradedSeqRead => (survivors, 1.0, "sum of raw reads of the survivors".into()),
        Pattern::DegradedRandRead => {
            let cost = shape.degraded_read_cost().total();
            let words = format!("raw 4 KiB reads of the survivors / {cost:.2}");
            (survivors, 1.0 / cost, words)
        }
    };
    Limit { job, members, part, words }
}

/// Raw members and the array in turns.
fn compare(
    run: &mut Run,
    bed: &Bed,
    options: &Bench,
    pattern: Pattern,
    progress: &Progress,
) -> Result<(), Failure> {
    let (mut raw, mut ours) = (Vec::new(), Vec::new());
    let (mut limit, mut job) = (limit_of(pattern, options, &bed.shape, 0), None);
    let array = bed.open(None)?;
    let array_bytes = array.limits().size_bytes;
    array.stop()?;
    for round in 0..u64::from(options.repeats) {
        progress.step(format!("{}, round {}", pattern.name(), round + 1));
        limit = limit_of(pattern, options, &bed.shape, round);
        let own = job_of(pattern, options, &bed.shape, array_bytes, round);
        for ours_now in turns(round) {
            if ours_now {
                let target = Target::Array(bed.open(pattern.is_degraded().then_some(0))?);
                ours.push(target.run(&own, options.queues)?);
                target.stop()?;
            } else {
                let target = bed.raw(&limit.members, limit.job.bytes.1)?;
                limit.job.region = (0, target.size_bytes());
                raw.push(target.run(&limit.job, options.queues)?);
            }
        }
        job = Some(own);
    }
    let Some(job) = job else { return Ok(()) };
    let name = pattern.name();
    run.report.jobs.push(fio::job(name, &job, &ours, options.queues));
    let raw_name = format!("{name}:raw");
    run.report.jobs.push(fio::job(&raw_name, &limit.job, &raw, options.queues));
    let contest = Contest { bed, options, pattern: name, unit: pattern.unit(), job: &job };
    let row = contest.row(run, &ours, &raw, limit.part, limit.words, Some(pattern.goal()));
    run.report.rows.push(row);
    Ok(())
}

/// Who is measured in a round, in order: the first one of two gets more of a disk that saves what
/// it was not asked for, so they change places.
pub(crate) fn turns(round: u64) -> [bool; 2] {
    let ours_first = round % 2 == 1;
    [ours_first, !ours_first]
}

/// What samples of two sides have in common.
struct Contest<'a> {
    bed: &'a Bed,
    options: &'a Bench,
    pattern: &'static str,
    unit: Unit,
    job: &'a Job,
}

impl Contest<'_> {
    fn row(
        &self,
        run: &Run,
        ours: &[Sample],
        raw: &[Sample],
        part: f64,
        limit_is: String,
        goal: Option<f64>,
    ) -> Row {
        let from = circumstances(run, self.bed);
        let rates: Vec<f64> = ours.iter().map(|sample| self.unit.of(sample)).collect();
        let limits: Vec<f64> = raw.iter().map(|sample| part * self.unit.of(sample)).collect();
        let (achieved, limit) = (Summary::of(rates.clone()), Summary::of(limits.clone()));
        let ratio = paired_ratio(&rates, &limits);
        let mut flags = report::flags(ours, achieved.spread, from);
        for flag in report::flags(raw, limit.spread, from) {
            flags.push(format!("limit {flag}"));
        }
        report::flag_ratio(&mut flags, ratio);
        let durable: Vec<f64> = ours.iter().filter_map(Sample::durable_rate).collect();
        let to_unit = if self.unit == Unit::Bytes { 1.0 } else { self.job.bytes.1 as f64 };
        let durable = Summary::of(durable).median / to_unit;
        let figures = Figures::of(ours);
        Row {
            target: "ours".to_owned(),
            level: self.bed.shape.choice.name(),
            members: self.bed.shape.members,
            member_kind: self.bed.kind,
            queues: self.options.queues,
            depth: self.job.depth,
            request_bytes: self.job.bytes.1,
            pattern: self.pattern,
            unit: self.unit,
            achieved: achieved.median,
            spread: achieved.spread,
            limit: limit.median,
            limit_spread: limit.spread,
            limit_is,
            ratio,
            goal,
            same_io: None,
            same_io_ratio: None,
            walking: None,
            durable: (durable > 0.0).then_some(durable),
            p50_us: figures.p50_us,
            p99_us: figures.p99_us,
            p999_us: figures.p999_us,
            depth_achieved: figures.depth_achieved,
            cpu_seconds_per_gb: figures.cpu_seconds_per_gb,
            samples: ours.len(),
            flags,
        }
    }
}

pub(crate) fn circumstances(run: &Run, bed: &Bed) -> Circumstances {
    let cache_bytes = run.report.machine.last_cache_bytes;
    Circumstances { kind: bed.kind, direct: bed.is_direct(), cache_bytes }
}

/// Small writes with a write-intent bitmap against the same without one. The last row: the array
/// is made anew for each side, its parity is right in both.
fn bitmap_row(
    run: &mut Run,
    bed: &Bed,
    options: &Bench,
    progress: &Progress,
) -> Result<(), Failure> {
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let mut job = None;
    for round in 0..u64::from(options.repeats) {
        progress.step(format!("bitmap_cost, round {}", round + 1));
        for bitmap in turns(round) {
            let samples = if bitmap { &mut with } else { &mut without };
            let target = Target::Array(bed.create(true, bitmap)?);
            let len = target.size_bytes();
            let own = job_of(Pattern::RandWrite, options, &bed.shape, len, round);
            samples.push(target.run(&own, options.queues)?);
            target.stop()?;
            job = Some(own);
        }
    }
    let Some(job) = job else { return Ok(()) };
    run.report.jobs.push(fio::job("bitmap_cost", &job, &with, options.queues));
    let unit = Unit::Operations;
    let contest = Contest { bed, options, pattern: "bitmap_cost", unit, job: &job };
    let words = "the same writes without a bitmap".to_owned();
    let row = contest.row(run, &with, &without, 1.0, words, Some(0.97));
    run.report.rows.push(row);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_has_a_name_a_goal_and_a_limit() {
        let options = Bench::of(&["--members", "5"]);
        let shape = Shape { choice: options.level, members: 5, chunk_bytes: 64 << 10 };
        let parts = [1.0, 0.8, 1.0, 0.25, 1.0, 1.0 / 1.6];
        for (pattern, part) in Pattern::ALL.into_iter().zip(parts) {
            let limit = limit_of(pattern, &options, &shape, 3);
            assert!((limit.part - part).abs() < 1e-9, "{}", pattern.name());
            assert_eq!(limit.members.len(), if pattern.is_degraded() { 4 } else { 5 });
            let job = job_of(pattern, &options, &shape, 1 << 30, 3);
            // The same requests of both sides, and the same depth.
            assert_eq!((job.bytes, job.depth), (limit.job.bytes, limit.job.depth));
            assert_eq!(job.seed, limit.job.seed);
            assert!((0.9..1.0).contains(&pattern.goal()));
        }
    }
}
