//! The load generator: keeps a number of requests under way for a time, and counts.
//!
//! ```text
//! warm-up (not counted) -> writes: drained and flushed -> sample: requests that end in its time
//!                                                      -> writes: drained, flushed = durable
//! ```

use std::time::Duration;

use hdrhistogram::Histogram;
use raid_io::Buffer;

use crate::failure::Failure;
use crate::machine::{self, CpuTime};
use crate::noise::{self, Look, Random};
use crate::port::{Done, Kind, Port};
use crate::stats;

/// In which order addresses are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// One after the other, from the start again behind the end.
    Sequential,
    /// Anywhere, at multiples of the size.
    Random,
}

/// What to ask for.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) order: Order,
    /// Reads of a hundred requests; the rest are writes.
    pub(crate) read_percent: u32,
    /// Bytes of a request: the least and the most, in steps of the least.
    pub(crate) bytes: (u64, u64),
    /// Requests under way at once.
    pub(crate) depth: u32,
    /// Where, as start and length.
    pub(crate) region: (u64, u64),
    pub(crate) warmup: Duration,
    /// How long the sample takes at most.
    pub(crate) time: Duration,
    /// The sample ends as well when so much has been moved.
    pub(crate) bytes_max: u64,
    pub(crate) seed: u64,
}

impl Job {
    /// A job of requests of one size over a whole target of `len` bytes, without warm-up.
    pub(crate) fn new(name: &str, order: Order, bytes: u64, depth: u32, len: u64) -> Self {
        Self {
            name: name.to_owned(),
            order,
            read_percent: 100,
            bytes: (bytes, bytes),
            depth,
            region: (0, len),
            warmup: Duration::ZERO,
            time: Duration::from_millis(250),
            bytes_max: u64::MAX,
            seed: 1,
        }
    }

    /// The same with so many reads of a hundred.
    pub(crate) fn reads(self, read_percent: u32) -> Self {
        Self { read_percent, ..self }
    }

    fn writes(&self) -> bool {
        self.read_percent < 100
    }
}

/// What was counted of reads or writes.
#[derive(Clone, Debug)]
pub(crate) struct Count {
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
    /// From submission to completion, in nanoseconds.
    pub(crate) latency: Histogram<u64>,
}

impl Default for Count {
    fn default() -> Self {
        // One nanosecond to a quarter of an hour, three digits: bounds that are right by
        // construction.
        let latency = Histogram::new_with_bounds(1, 1 << 40, 3);
        let latency = latency.unwrap_or_else(|_| unreachable!("valid bounds of a histogram"));
        Self { ops: 0, bytes: 0, latency }
    }
}

impl Count {
    fn add(&mut self, bytes: u64, latency: Duration) {
        self.ops += 1;
        self.bytes += bytes;
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.latency.saturating_record(nanos.max(1));
    }

    fn merge(&mut self, other: &Self) {
        self.ops += other.ops;
        self.bytes += other.bytes;
        self.latency += &other.latency;
    }
}

/// One measurement.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) reads: Count,
    pub(crate) writes: Count,
    /// How long it took, in seconds.
    pub(crate) seconds: f64,
    /// How long it was to have taken, unless all its bytes were moved before.
    pub(crate) seconds_wanted: f64,
    /// Bytes written until the last flush had ended, and the time for them; zero without writes.
    pub(crate) durable: (u64, f64),
    pub(crate) depth: u32,
    /// Requests under way, on average.
    pub(crate) depth_achieved: f64,
    /// Processor time of the whole process, the generator included.
    pub(crate) cpu: CpuTime,
    /// Reads that were looked at, how many were zero, and how many could be made smaller.
    pub(crate) looked: u64,
    pub(crate) zero: u64,
    pub(crate) compressible: u64,
    /// The region and how much of it was moved, as a part; above one it came round again.
    pub(crate) region_bytes: u64,
    pub(crate) passes: f64,
}

impl Sample {
    pub(crate) fn ops(&self) -> u64 {
        self.reads.ops + self.writes.ops
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.reads.bytes + self.writes.bytes
    }

    /// Bytes a second, acknowledged.
    pub(crate) fn rate(&self) -> f64 {
        stats::rate(self.bytes(), self.seconds)
    }

    /// Bytes a second that were durable at the end; `None` when nothing was written.
    pub(crate) fn durable_rate(&self) -> Option<f64> {
        (self.writes.ops > 0).then(|| stats::rate(self.durable.0, self.durable.1))
    }

    /// Operations a second.
    pub(crate) fn iops(&self) -> f64 {
        stats::rate(self.ops(), self.seconds)
    }

    /// A percentile of the latency of all operations, in seconds.
    pub(crate) fn latency(&self, percentile: f64) -> f64 {
        let mut all = self.reads.latency.clone();
        all += &self.writes.latency;
        all.value_at_percentile(percentile) as f64 / 1e9
    }

    /// Processor seconds for 10^9 bytes.
    pub(crate) fn cpu_seconds_per_gb(&self) -> f64 {
        stats::ratio(self.cpu.total(), self.bytes() as f64 / 1e9)
    }

    /// What this and another thread did side by side.
    pub(crate) fn beside(mut self, other: &Self) -> Self {
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
        self.durable.0 += other.durable.0;
        self.durable.1 = self.durable.1.max(other.durable.1);
        self.seconds = self.seconds.max(other.seconds);
        self.depth += other.depth;
        self.depth_achieved += other.depth_achieved;
        // Each saw the time of the whole process.
        self.cpu = self.cpu.max(other.cpu);
        self.looked += other.looked;
        self.zero += other.zero;
        self.compressible += other.compressible;
        self.region_bytes += other.region_bytes;
        self.passes = self.passes.max(other.passes);
        self
    }
}

/// Pieces that a request is cut into at most.
const PIECES_MAX: usize = 64;
/// The tag of the generator's own flush.
const FLUSH: u64 = u64::MAX;
/// The first reads are looked at, then one of so many: a look costs as much as a small request.
const LOOK_FIRST: u64 = 32;
const LOOK_STRIDE: u64 = 128;

/// Carries a job out.
///
/// # Errors
/// Returns the first error of a request: a rate of requests that fail means nothing.
pub(crate) fn run(port: &mut dyn Port, job: &Job) -> Result<Sample, Failure> {
    let mut runner = Runner::new(port, job)?;
    if !job.warmup.is_zero() {
        runner.phase(job.warmup, u64::MAX)?;
        if job.writes() {
            runner.drain()?;
            runner.flush()?;
        }
    }
    runner.begin_sample();
    let begin = runner.port.now();
    let end = runner.phase(job.time, job.bytes_max)?;
    let cpu = machine::cpu_time().since(&runner.cpu);
    let mut sample = runner.sample(begin, end, cpu);
    if job.writes() {
        runner.drain()?;
        runner.flush()?;
        let seconds = runner.port.now().saturating_sub(begin).as_secs_f64();
        sample.durable = (runner.written, seconds);
    } else {
        runner.drain()?;
    }
    Ok(sample)
}

/// A request under way.
struct Slot {
    kind: Kind,
    bytes: u64,
    begun: Duration,
    /// Pieces under way.
    left: usize,
    /// Memory of the pieces that are not.
    buffers: Vec<Option<Buffer>>,
}

struct Runner<'a> {
    port: &'a mut dyn Port,
    job: &'a Job,
    random: Random,
    slots: Vec<Slot>,
    idle: Vec<usize>,
    /// Where the next sequential request begins, within the region.
    cursor: u64,
    /// Reads owed, in hundredths.
    owed: u32,
    reads: Count,
    writes: Count,
    /// Bytes submitted since the sample began.
    issued: u64,
    /// Bytes written since the sample began, the ones after its end included.
    written: u64,
    /// The time that requests were under way, added up over all of them.
    busy: f64,
    last: Duration,
    looked: (u64, u64, u64),
    cpu: CpuTime,
}

impl<'a> Runner<'a> {
    fn new(port: &'a mut dyn Port, job: &'a Job) -> Result<Self, Failure> {
        let (min, max) = job.bytes;
        let fits = min > 0 && max >= min && job.region.1 >= max && job.depth > 0;
        let end = job.region.0.checked_add(job.region.1);
        if !fits || end.is_none_or(|end| end > port.size_bytes()) {
            return Err(Failure::Impossible(format!(
                "{}: requests of {} do not fit a region of {} in {}",
                job.name,
                stats::short_size(max),
                stats::short_size(job.region.1),
                stats::short_size(port.size_bytes()),
            )));
        }
        let mut random = Random::new(job.seed);
        let piece = (port.request_bytes_max() as u64).min(max);
        let pieces = max.div_ceil(piece.max(1)) as usize;
        if pieces > PIECES_MAX {
            return Err(Failure::Impossible(format!("{}: {pieces} pieces a request", job.name)));
        }
        let slot = |_| {
            let buffers = (0..pieces).map(|index| {
                let left = max - index as u64 * piece;
                let mut buffer = port.buffer(left.min(piece) as usize);
                random.fill(&mut buffer);
                Some(buffer)
            });
            let buffers = buffers.collect();
            Slot { kind: Kind::Read, bytes: 0, begun: Duration::ZERO, left: 0, buffers }
        };
        let slots: Vec<Slot> = (0..job.depth).map(slot).collect();
        let idle = (0..slots.len()).rev().collect();
        let last = port.now();
        Ok(Self {
            port,
            job,
            random,
            slots,
            idle,
            cursor: 0,
            owed: 0,
            reads: Count::default(),
            writes: Count::default(),
            issued: 0,
            written: 0,
            busy: 0.0,
            last,
            looked: (0, 0, 0),
            cpu: machine::cpu_time(),
        })
    }

    /// Forgets what has been counted so far.
    fn begin_sample(&mut self) {
        (self.reads, self.writes) = (Count::default(), Count::default());
        (self.issued, self.written, self.busy) = (0, 0, 0.0);
        self.looked = (0, 0, 0);
        self.cpu = machine::cpu_time();
        self.last = self.port.now();
    }

    /// Keeps the depth until the time is over, or so many bytes have been moved. Returns when the
    /// last request that counts has ended.
    fn phase(&mut self, time: Duration, bytes_max: u64) -> Result<Duration, Failure> {
        let mut now = self.port.now();
        let end = now.saturating_add(time);
        while now < end {
            while self.issued < bytes_max
                && let Some(index) = self.idle.pop()
            {
                self.submit(index, now)?;
            }
            if self.idle.len() == self.slots.len() {
                break;
            }
            match self.port.poll()? {
                Some(done) => {
                    now = self.port.now();
                    self.handle(done, now, now <= end)?;
                }
                None => {
                    self.port.wait()?;
                    now = self.port.now();
                }
            }
        }
        self.account(now.min(end));
        Ok(now.min(end))
    }

    /// Adds the time up to `now` to what the requests under way have been so.
    fn account(&mut self, now: Duration) {
        let under_way = (self.slots.len() - self.idle.len()) as f64;
        self.busy += under_way * now.saturating_sub(self.last).as_secs_f64();
        self.last = self.last.max(now);
    }

    fn submit(&mut self, index: usize, now: Duration) -> Result<(), Failure> {
        let (min, max) = self.job.bytes;
        let bytes = if min == max { max } else { min * (1 + self.random.below(max / min)) };
        let (start, len) = self.job.region;
        let offset = match self.job.order {
            Order::Random => start + self.random.below((len - bytes) / min + 1) * min,
            Order::Sequential => {
                if self.cursor + bytes > len {
                    self.cursor = 0;
                }
                self.cursor += bytes;
                start + self.cursor - bytes
            }
        };
        self.owed += self.job.read_percent;
        let kind = if self.owed >= 100 { Kind::Read } else { Kind::Write };
        self.owed %= 100;
        self.issued += bytes;
        let slot = &mut self.slots[index];
        (slot.kind, slot.bytes, slot.begun) = (kind, bytes, now);
        let mut done = 0;
        for piece in 0..slot.buffers.len() {
            if done == bytes {
                break;
            }
            let Some(mut buffer) = slot.buffers[piece].take() else { continue };
            let len = (bytes - done).min(buffer.capacity() as u64);
            // Of a buffer that was shorter only for the last request.
            buffer.resize(len as usize);
            if kind == Kind::Write {
                noise::stamp(&mut buffer, &mut self.random);
            }
            slot.left += 1;
            let tag = (index * PIECES_MAX + piece) as u64;
            self.port.submit(tag, kind, offset + done, Some(buffer))?;
            done += len;
        }
        Ok(())
    }

    /// Takes a completion; `counts` says whether it came in time.
    fn handle(&mut self, done: Done, now: Duration, counts: bool) -> Result<(), Failure> {
        let failed = |error| Failure::Job { job: self.job.name.clone(), error };
        done.result.map_err(failed)?;
        let (index, piece) = (done.tag as usize / PIECES_MAX, done.tag as usize % PIECES_MAX);
        let slot = &mut self.slots[index];
        if let Some(buffer) = &done.buffer
            && slot.kind == Kind::Read
            && (self.reads.ops < LOOK_FIRST || self.reads.ops.is_multiple_of(LOOK_STRIDE))
        {
            let look = noise::look(buffer);
            self.looked.0 += 1;
            self.looked.1 += u64::from(look == Look::Zero);
            self.looked.2 += u64::from(look == Look::Compressible);
        }
        slot.buffers[piece] = done.buffer;
        slot.left -= 1;
        if slot.left > 0 {
            return Ok(());
        }
        let (kind, bytes, begun) = (slot.kind, slot.bytes, slot.begun);
        if counts {
            self.account(now);
            let count = if kind == Kind::Read { &mut self.reads } else { &mut self.writes };
            count.add(bytes, now.saturating_sub(begun));
        }
        if kind == Kind::Write {
            self.written += bytes;
        }
        self.idle.push(index);
        Ok(())
    }

    /// Waits for all that is under way, without counting it.
    fn drain(&mut self) -> Result<(), Failure> {
        while self.idle.len() < self.slots.len() {
            match self.port.poll()? {
                Some(done) => self.handle(done, Duration::ZERO, false)?,
                None => self.port.wait()?,
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.port.submit(FLUSH, Kind::Flush, 0, None)?;
        loop {
            match self.port.poll()? {
                Some(done) => {
                    let failed = |error| Failure::Job { job: self.job.name.clone(), error };
                    return done.result.map_err(failed);
                }
                None => self.port.wait()?,
            }
        }
    }

    fn sample(&self, begin: Duration, end: Duration, cpu: CpuTime) -> Sample {
        let seconds = end.saturating_sub(begin).as_secs_f64();
        let bytes = self.reads.bytes + self.writes.bytes;
        let is_whole = bytes >= self.job.bytes_max;
        Sample {
            reads: self.reads.clone(),
            writes: self.writes.clone(),
            seconds,
            seconds_wanted: if is_whole { seconds } else { self.job.time.as_secs_f64() },
            durable: (0, 0.0),
            depth: self.job.depth,
            depth_achieved: if seconds > 0.0 { self.busy / seconds } else { 0.0 },
            cpu,
            looked: self.looked.0,
            zero: self.looked.1,
            compressible: self.looked.2,
            region_bytes: self.job.region.1,
            passes: bytes as f64 / self.job.region.1 as f64,
        }
    }
}

#[cfg(test)]
mod tests;
