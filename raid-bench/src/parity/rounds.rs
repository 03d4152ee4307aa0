//! One case: everybody takes turns, round by round.

use std::fmt;
use std::hint::black_box;
use std::time::Duration;

use pulp::Arch;
use raid_core::parity::Kernel;

use super::Failure;
use super::isal::Isal;
use super::limits;
use super::measure::{ATTEMPTS_MAX, Clock, median, spread};
use super::operation::{Operation, Set, Shape};
use super::report::{Cache, Row};

/// A shape, hot or cold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) shape: Shape,
    pub(super) cache: Cache,
}

impl fmt::Display for Case {
    /// As a filter sees it: `gen_pq/8x64K/cold`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { operation, source_count, strip_bytes } = self.shape;
        let (op, kib, cache) = (operation.name(), strip_bytes >> 10, self.cache.name());
        write!(f, "{op}/{source_count}x{kib}K/{cache}")
    }
}

/// Who takes a turn.
#[derive(Clone, Copy)]
enum Contender<'a> {
    Read,
    LoadAndStore,
    ReadAndCopy,
    ReadAndStream,
    Kernel(Kernel),
    Isal(&'a Isal),
}

/// Seconds a call, one figure of each round.
type Series = Vec<f64>;

/// What all cases have in common.
pub(super) struct Rounds<'a> {
    pub(super) arch: Arch,
    pub(super) kernels: &'a [Kernel],
    pub(super) isal: Option<&'a Isal>,
    pub(super) clock: Clock,
    /// How long a sample should take.
    pub(super) sample: Duration,
    /// The set that cold calls use next.
    pub(super) position: usize,
}

impl<'a> Rounds<'a> {
    /// Measures one case; returns a row for each kernel and peer.
    pub(super) fn run(
        &mut self,
        case: &Case,
        repeats: u32,
        memory: &mut [u8],
    ) -> Result<Vec<Row>, Failure> {
        if case.shape.operation.is_check() {
            prepare(case, memory);
        }
        let contenders = self.contenders(case);
        let mut call_counts = Vec::new();
        for contender in &contenders {
            call_counts.push(self.calibrate(*contender, case, memory)?);
        }
        let mut series: Vec<Series> = vec![Vec::new(); contenders.len()];
        for _ in 0..repeats {
            for ((contender, &calls), series) in
                contenders.iter().zip(&call_counts).zip(&mut series)
            {
                series.push(self.sample(*contender, case, calls, memory)?);
            }
        }
        Ok(rows(case, &contenders, &series))
    }

    fn contenders(&self, case: &Case) -> Vec<Contender<'a>> {
        let operation = case.shape.operation;
        let mut contenders = vec![Contender::Read];
        if !operation.is_check() {
            contenders.extend([Contender::LoadAndStore, Contender::ReadAndCopy]);
        }
        // Targets that are updated in place come into the caches anyway.
        if !operation.is_check() && !operation.is_update() && case.cache == Cache::Cold {
            contenders.push(Contender::ReadAndStream);
        }
        contenders.extend(self.kernels.iter().copied().map(Contender::Kernel));
        if matches!(operation, Operation::GenP | Operation::GenPq) {
            contenders.extend(self.isal.map(Contender::Isal));
        }
        contenders
    }

    /// Finds how many calls make a sample long enough.
    fn calibrate(
        &mut self,
        contender: Contender<'_>,
        case: &Case,
        memory: &mut [u8],
    ) -> Result<usize, Failure> {
        let want = self.sample.as_secs_f64();
        let mut calls = 1;
        // A cold sample cannot be longer than half a rotation, nor a loop of this endless.
        let calls_max = match case.cache {
            Cache::Hot => 1 << 24,
            Cache::Cold => (memory.len() / case.shape.set_bytes() / 2).max(1),
        };
        loop {
            let seconds = calls as f64 * self.sample(contender, case, calls, memory)?;
            if seconds >= want * 0.8 || calls >= calls_max {
                return Ok(calls);
            }
            let factor = (want / seconds).clamp(1.5, 16.0);
            calls = ((calls as f64 * factor).ceil() as usize).min(calls_max);
        }
    }

    /// Returns the seconds of one call: the mean over `calls` calls, taken again as long as the
    /// thread loses its CPU meanwhile.
    fn sample(
        &mut self,
        contender: Contender<'_>,
        case: &Case,
        calls: usize,
        memory: &mut [u8],
    ) -> Result<f64, Failure> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let (seconds, is_undisturbed, is_right) = match case.cache {
                Cache::Hot => self.sample_hot(contender, case.shape, calls, memory),
                Cache::Cold => self.sample_cold(contender, case.shape, calls, memory),
            };
            if let (false, Contender::Kernel(kernel)) = (is_right, contender) {
                return Err(Failure::Mismatch { kernel: kernel.name(), case: case.to_string() });
            }
            if is_undisturbed || attempt == ATTEMPTS_MAX {
                return Ok(seconds / calls as f64);
            }
            self.clock.retaken_count += 1;
        }
    }

    fn sample_hot(
        &self,
        contender: Contender<'_>,
        shape: Shape,
        calls: usize,
        memory: &mut [u8],
    ) -> (f64, bool, bool) {
        let mut set = shape.carve(&mut memory[..shape.set_bytes()]);
        let mut is_right = self.call(contender, &mut set);
        let (seconds, is_undisturbed) = self.clock.time(|| {
            for _ in 0..calls {
                is_right &= self.call(contender, &mut set);
            }
        });
        (seconds, is_undisturbed, is_right)
    }

    fn sample_cold(
        &mut self,
        contender: Contender<'_>,
        shape: Shape,
        calls: usize,
        memory: &mut [u8],
    ) -> (f64, bool, bool) {
        let set_bytes = shape.set_bytes();
        if (self.position + calls) * set_bytes > memory.len() {
            self.position = 0;
        }
        let part = &mut memory[self.position * set_bytes..][..calls * set_bytes];
        self.position += calls;
        let sets = part.chunks_exact_mut(set_bytes);
        let mut sets: Vec<Set<'_>> = sets.map(|memory| shape.carve(memory)).collect();
        let mut is_right = true;
        let (seconds, is_undisturbed) = self.clock.time(|| {
            for set in &mut sets {
                is_right &= self.call(contender, set);
            }
        });
        (seconds, is_undisturbed, is_right)
    }

    #[inline]
    fn call(&self, contender: Contender<'_>, set: &mut Set<'_>) -> bool {
        let set = black_box(set);
        match contender {
            Contender::Read => limits::read(self.arch, set),
            Contender::LoadAndStore => limits::load_and_store(self.arch, set),
            Contender::ReadAndCopy => {
                limits::read_and_copy(self.arch, set, limits::copy_by_system);
            }
            Contender::ReadAndStream => {
                limits::read_and_copy(self.arch, set, limits::copy_by_kernel);
            }
            Contender::Kernel(kernel) => return set.run(kernel),
            Contender::Isal(isal) => isal.generate(&set.sources, &mut set.targets),
        }
        true
    }
}

/// Makes parity right in all memory that the case uses.
fn prepare(case: &Case, memory: &mut [u8]) {
    let set_bytes = case.shape.set_bytes();
    let shape = Shape { operation: case.shape.operation.generator(), ..case.shape };
    let count = if case.cache == Cache::Hot { 1 } else { memory.len() / set_bytes };
    for memory in memory.chunks_exact_mut(set_bytes).take(count) {
        shape.carve(memory).run(Kernel::best());
    }
}

/// Turns times into rows.
fn rows(case: &Case, contenders: &[Contender<'_>], series: &[Series]) -> Vec<Row> {
    let bytes = case.shape.source_bytes() as f64;
    let gb_s = |series: &Series| median(series.iter().map(|seconds| bytes / seconds / 1e9));
    let all = || contenders.iter().zip(series);
    let read = all().find(|(one, _)| matches!(one, Contender::Read)).map(|(_, series)| series);
    // What moves the bytes of a check only reads them.
    let is_move = |one: &Contender<'_>| {
        matches!(one, Contender::LoadAndStore | Contender::ReadAndCopy | Contender::ReadAndStream)
    };
    let moves = all().filter(|(one, _)| is_move(one)).map(|(_, series)| series);
    let limit = moves.max_by(|a, b| gb_s(a).total_cmp(&gb_s(b))).or(read);
    let isal = all().find(|(one, _)| matches!(one, Contender::Isal(_))).map(|(_, series)| series);
    let row = |(contender, series): (&Contender<'_>, &Series)| {
        let kernel = match contender {
            Contender::Kernel(kernel) => kernel.name(),
            Contender::Isal(_) => "isal",
            _ => return None,
        };
        let ratio = |other: &Series| median(other.iter().zip(series).map(|(a, b)| a / b));
        let is_peer = matches!(contender, Contender::Isal(_));
        Some(Row {
            op: case.shape.operation.name(),
            kernel,
            sources: case.shape.source_count,
            strip_bytes: case.shape.strip_bytes,
            cache: case.cache,
            gb_s: gb_s(series),
            spread: spread(series.iter().map(|seconds| 1.0 / seconds)),
            samples: series.len(),
            read_gb_s: read.map_or(0.0, gb_s),
            read_ratio: read.map_or(0.0, ratio),
            limit_gb_s: limit.map_or(0.0, gb_s),
            limit_ratio: limit.map_or(0.0, ratio),
            dram_read_ratio: None,
            isal_ratio: isal.filter(|_| !is_peer).map(ratio),
        })
    };
    all().filter_map(row).collect()
}
