//! The generator against models whose time is a number: what it reports must be what they do.

#![allow(clippy::unwrap_used, reason = "a test fails where its helper does")]

use std::collections::BTreeSet;

use super::*;

/// Members that take a fixed time for each request, one request at a time each; with a cache in
/// front, writes are acknowledged at once as long as it has room.
struct Model {
    now: Duration,
    service: Duration,
    /// When each server is free again.
    servers: Vec<Duration>,
    /// Requests under way: when they end, and what they were.
    out: Vec<(Duration, u64, Option<Buffer>)>,
    size: u64,
    request_max: usize,
    /// Bytes of a write-back cache, how many are in it, and the time to write one out.
    cache: u64,
    cached: u64,
    cache_time_per_byte: f64,
    drained: Duration,
    /// What was asked for.
    asked: Vec<(Kind, u64, usize)>,
    in_flight_max: usize,
    /// What reads give.
    fill: Option<u8>,
}

impl Model {
    fn new(servers: usize, service: Duration) -> Self {
        Self {
            now: Duration::ZERO,
            service,
            servers: vec![Duration::ZERO; servers],
            out: Vec::new(),
            size: 1 << 30,
            request_max: 1 << 20,
            cache: 0,
            cached: 0,
            cache_time_per_byte: 0.0,
            drained: Duration::ZERO,
            asked: Vec::new(),
            in_flight_max: 0,
            fill: None,
        }
    }

    /// Lets the cache write out until now.
    fn write_out(&mut self) {
        let time = self.now.saturating_sub(self.drained).as_secs_f64();
        if self.cache_time_per_byte > 0.0 {
            let bytes = (time / self.cache_time_per_byte) as u64;
            self.cached = self.cached.saturating_sub(bytes);
        }
        self.drained = self.now;
    }
}

impl Port for Model {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn request_bytes_max(&self) -> usize {
        self.request_max
    }

    fn submit(
        &mut self,
        tag: u64,
        kind: Kind,
        offset: u64,
        mut buffer: Option<Buffer>,
    ) -> Result<(), Failure> {
        let len = buffer.as_ref().map_or(0, |buffer| buffer.len());
        assert!(offset + len as u64 <= self.size, "{offset}+{len}");
        self.asked.push((kind, offset, len));
        if let (Some(byte), Some(buffer)) = (self.fill, &mut buffer) {
            buffer.fill(byte);
        }
        self.write_out();
        let end = match kind {
            Kind::Flush => {
                let time = Duration::from_secs_f64(self.cached as f64 * self.cache_time_per_byte);
                self.cached = 0;
                self.drained = self.now + time;
                self.now + time
            }
            Kind::Write if self.cached + len as u64 <= self.cache => {
                self.cached += len as u64;
                self.now + Duration::from_micros(1)
            }
            _ => {
                let server = self.servers.iter_mut().min().unwrap();
                *server = (*server).max(self.now) + self.service;
                *server
            }
        };
        self.out.push((end, tag, buffer));
        self.in_flight_max = self.in_flight_max.max(self.out.len());
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Done>, Failure> {
        let place = self.out.iter().position(|(end, ..)| *end <= self.now);
        Ok(place.map(|place| {
            let (_, tag, buffer) = self.out.remove(place);
            Done { tag, result: Ok(()), buffer }
        }))
    }

    fn wait(&mut self) -> Result<(), Failure> {
        self.now = self.out.iter().map(|(end, ..)| *end).min().unwrap();
        Ok(())
    }

    fn now(&self) -> Duration {
        self.now
    }
}

fn job(order: Order, bytes: u64, depth: u32) -> Job {
    let job = Job::new("test", order, bytes, depth, 64 << 20);
    Job { warmup: Duration::from_millis(100), time: Duration::from_secs(1), ..job }
}

/// Four servers of 100 us each give 40,000 a second, whatever the depth beyond four; the latency
/// is depth over rate, and never are there more requests under way than were asked for.
#[test]
fn rates_and_latencies_are_those_of_the_model() {
    for depth in [1, 2, 4, 8, 32] {
        let mut model = Model::new(4, Duration::from_micros(100));
        let sample = run(&mut model, &job(Order::Random, 4096, depth)).unwrap();
        let most = f64::from(depth.min(4)) * 10_000.0;
        assert!(sample.iops() <= most * 1.001, "depth {depth}: {}", sample.iops());
        assert!(sample.iops() >= most * 0.99, "depth {depth}: {}", sample.iops());
        let latency = f64::from(depth) / most;
        let median = sample.latency(50.0);
        assert!((median / latency - 1.0).abs() < 0.01, "depth {depth}: {median} not {latency}");
        assert!((sample.depth_achieved / f64::from(depth) - 1.0).abs() < 0.01);
        assert_eq!((sample.depth, model.in_flight_max), (depth, depth as usize));
    }
}

/// A cache of 64 MiB takes everything at first; durable is only what the members keep up with.
#[test]
fn a_cache_shows_as_acknowledged_far_above_durable() {
    let mut model = Model::new(1, Duration::from_millis(10));
    model.cache = 64 << 20;
    model.cache_time_per_byte = 1.0 / 100e6;
    let mut job = job(Order::Sequential, 1 << 20, 4).reads(0);
    job.warmup = Duration::ZERO;
    job.bytes_max = 64 << 20;
    let sample = run(&mut model, &job).unwrap();
    let (acked, durable) = (sample.rate(), sample.durable_rate().unwrap());
    assert!(acked > 10.0 * durable, "acked {acked}, durable {durable}");
    assert!((durable / 100e6 - 1.0).abs() < 0.05, "durable {durable}");
}

#[test]
fn sequential_requests_follow_each_other_and_come_round() {
    let mut model = Model::new(1, Duration::from_micros(1));
    let mut job = job(Order::Sequential, 64 << 10, 4);
    job.warmup = Duration::ZERO;
    job.region = (1 << 20, 1 << 20);
    job.bytes_max = 3 << 20;
    let sample = run(&mut model, &job).unwrap();
    assert_eq!((sample.ops(), sample.bytes(), sample.passes), (48, 3 << 20, 3.0));
    for (number, asked) in model.asked.iter().enumerate() {
        let offset = (1 << 20) + (number as u64 % 16) * (64 << 10);
        assert_eq!(*asked, (Kind::Read, offset, 64 << 10), "{number}");
    }
}

#[test]
fn random_requests_are_aligned_and_reach_the_whole_region() {
    let mut model = Model::new(1, Duration::from_micros(1));
    let mut job = job(Order::Random, 4096, 4);
    job.region = (4096, 16 * 4096);
    job.bytes_max = 1000 * 4096;
    run(&mut model, &job).unwrap();
    let offsets: BTreeSet<u64> = model.asked.iter().map(|(_, offset, _)| *offset).collect();
    assert_eq!(offsets, (1..17).map(|n| n * 4096).collect());
}

/// A request longer than the target takes goes out in pieces and counts once.
#[test]
fn long_requests_are_cut_and_count_once() {
    let mut model = Model::new(1, Duration::from_micros(1));
    let mut job = job(Order::Sequential, (2 << 20) + 4096, 2);
    job.warmup = Duration::ZERO;
    job.bytes_max = 4 << 20;
    let sample = run(&mut model, &job).unwrap();
    assert_eq!((sample.ops(), sample.bytes()), (2, 2 * ((2 << 20) + 4096)));
    let lens: Vec<usize> = model.asked.iter().map(|(.., len)| *len).collect();
    assert_eq!(lens, [1 << 20, 1 << 20, 4096, 1 << 20, 1 << 20, 4096]);
}

#[test]
fn mixes_have_the_share_of_reads_that_was_asked_for() {
    for percent in [0, 25, 50, 75, 100] {
        let mut model = Model::new(1, Duration::from_micros(10));
        let mut job = job(Order::Random, 4096, 4).reads(percent);
        job.warmup = Duration::ZERO;
        job.bytes_max = 400 * 4096;
        let sample = run(&mut model, &job).unwrap();
        assert_eq!(sample.reads.ops, 4 * u64::from(percent), "{percent}");
        assert_eq!(sample.ops(), 400);
    }
}

/// Random sizes stay within their bounds and are multiples of the least.
#[test]
fn sizes_are_drawn_between_their_bounds() {
    let mut model = Model::new(1, Duration::from_micros(10));
    let mut job = job(Order::Random, 512, 1);
    job.bytes = (512, 8192);
    run(&mut model, &job).unwrap();
    let lens: BTreeSet<usize> = model.asked.iter().map(|(.., len)| *len).collect();
    assert_eq!(lens, (1..=16).map(|n| n * 512).collect());
}

#[test]
fn data_that_was_never_written_is_noticed() {
    let looks = [(Some(0), 1.0, 0.0), (Some(7), 0.0, 1.0), (None, 0.0, 0.0)];
    for (fill, zero, compressible) in looks {
        let mut model = Model::new(1, Duration::from_micros(10));
        model.fill = fill;
        let sample = run(&mut model, &job(Order::Random, 4096, 1)).unwrap();
        assert!(sample.looked > 100, "{}", sample.looked);
        assert_eq!(sample.zero as f64 / sample.looked as f64, zero);
        assert_eq!(sample.compressible as f64 / sample.looked as f64, compressible);
    }
}

#[test]
fn jobs_that_do_not_fit_are_refused() {
    let mut model = Model::new(1, Duration::from_micros(1));
    for (bytes, region, depth) in [
        ((0, 0), (0, 4096), 1),
        ((4096, 4096), (0, 512), 1),
        ((4096, 4096), (1 << 30, 4096), 1),
        ((4096, 4096), (u64::MAX, 4096), 1),
        ((4096, 512), (0, 4096), 1),
        ((4096, 4096), (0, 4096), 0),
        ((1 << 30, 1 << 30), (0, 1 << 30), 1),
    ] {
        let mut job = job(Order::Random, 4096, depth);
        (job.bytes, job.region) = (bytes, region);
        assert!(run(&mut model, &job).is_err(), "{bytes:?} {region:?} {depth}");
    }
    assert!(model.asked.is_empty());
}

/// Threads side by side add up; processor time is the whole process's already.
#[test]
fn samples_of_threads_add_up() {
    let one = |depth| {
        let mut model = Model::new(1, Duration::from_micros(100));
        run(&mut model, &job(Order::Random, 4096, depth)).unwrap()
    };
    let (a, b) = (one(1), one(2));
    let ops = a.ops() + b.ops();
    let cpu = a.cpu.total().max(b.cpu.total());
    let both = a.beside(&b);
    assert_eq!((both.ops(), both.depth), (ops, 3));
    assert!((both.iops() / 20_000.0 - 1.0).abs() < 0.01);
    assert_eq!(both.cpu.total(), cpu);
}
