//! The engine alone: Volume and Queue over members that complete at once, so that nothing but the
//! engine costs time.
//!
//! `cargo bench -p benches --bench engine`. One thread, depth 32 for 4 KiB requests and 8 for full
//! stripes, five members, 64 KiB chunk, random offsets. Sources and targets of compute steps lie in
//! separate arenas of the sizes that a driver would have: the parity is really computed, of bytes
//! that nobody reads.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use raid_core::geometry::{Geometry, GeometrySpec, Layout, Level};
use raid_core::memory::{BufferName, ComputeStep, Memory, Segment, ZERO_BYTES};
use raid_core::parity::Kernel;
use raid_core::plan::Trust;
use raid_core::queue::{Queue, QueueConfig};
use raid_core::request::{Request, RequestKind};
use raid_core::slots::SlotSet;
use raid_core::volume::{GroupConfig, Volume, VolumeConfig};
use std::sync::Arc;

const DEPTH_MAX: u32 = 32;
const REQUEST_BYTES: usize = 512 << 10;

struct Arenas {
    requests: Vec<u8>,
    sources: Vec<u8>,
    targets: Vec<u8>,
    zeroes: Vec<u8>,
}

impl Memory for Arenas {
    fn with(&mut self, sources: &[Segment], targets: &[Segment], f: &mut ComputeStep<'_>) {
        let mut from: [&[u8]; 8] = [&[]; 8];
        for (slot, segment) in from.iter_mut().zip(sources) {
            let (arena, base) = match segment.buffer {
                BufferName::Request(tag) => (&self.requests, tag as usize * REQUEST_BYTES),
                BufferName::Scratch => (&self.sources, 0),
                BufferName::Zero => (&self.zeroes, 0),
            };
            let start = base + segment.offset as usize;
            *slot = &arena[start..start + segment.len as usize];
        }
        // Targets are disjoint and come in ascending order from the planner.
        let mut to: [&mut [u8]; 2] = [&mut [], &mut []];
        let mut rest = &mut self.targets[..];
        let mut done = 0;
        for (slot, segment) in to.iter_mut().zip(targets) {
            let (_, tail) = rest.split_at_mut(segment.offset as usize - done);
            let (here, tail) = tail.split_at_mut(segment.len as usize);
            *slot = here;
            rest = tail;
            done = (segment.offset + segment.len) as usize;
        }
        f(&from[..sources.len()], &mut to[..targets.len()]);
    }
}

struct Engine {
    queue: Queue,
    memory: Arenas,
    tokens: Vec<u32>,
    random: u64,
    size: u64,
}

impl Engine {
    fn new(level: Level, slots: usize, absent: &SlotSet) -> Self {
        let sizes = vec![1u64 << 40; slots];
        let geometry = Geometry::new(GeometrySpec {
            level,
            layout: Layout::default_for(level),
            slot_count: slots,
            chunk_bytes: 64 << 10,
            member_data_bytes: &sizes,
        })
        .expect("a valid geometry");
        let size = geometry.array_bytes();
        let group = GroupConfig {
            in_sync: geometry.slots().difference(*absent),
            geometry,
            data_offsets: vec![1 << 20; slots],
            trust: Trust::InSync,
            dirty: true,
            intent: None,
            recovering: Vec::new(),
            doubtful: false,
        };
        let config =
            VolumeConfig { groups: vec![group], outer: None, block_bytes: 512, read_only: false };
        let volume = Arc::new(Volume::new(config).expect("a valid volume"));
        let scratch_bytes = volume.scratch_bytes_min().max(16 << 20);
        let config =
            QueueConfig { request_count_max: DEPTH_MAX, scratch_bytes, kernel: Kernel::best() };
        Self {
            queue: Queue::new(volume, config).expect("a queue"),
            memory: Arenas {
                requests: vec![1; DEPTH_MAX as usize * REQUEST_BYTES],
                sources: vec![2; scratch_bytes as usize],
                targets: vec![3; scratch_bytes as usize],
                zeroes: vec![0; ZERO_BYTES as usize],
            },
            tokens: Vec::with_capacity(1024),
            random: 0x9e37_79b9_7f4a_7c15,
            size,
        }
    }

    /// One round: `depth` requests in, everything answered, `depth` completions out.
    fn round(&mut self, kind: RequestKind, len: u64, depth: u32) {
        for tag in 0..depth {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            let offset = self.random % (self.size / len) * len;
            let request = Request { tag, kind, offset, len, fua: false };
            self.queue.submit(request).expect("acceptable");
        }
        let mut done = 0;
        while done < depth {
            self.queue.run_computes(&mut self.memory);
            self.tokens.clear();
            while let Some(io) = self.queue.poll_io() {
                self.tokens.push(io.token);
            }
            for &token in &self.tokens {
                self.queue.handle_io(token, Ok(()));
            }
            while self.queue.poll_completion().is_some() {
                done += 1;
            }
        }
    }
}

fn requests(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("4KiB-depth-32");
    group.throughput(Throughput::Elements(u64::from(DEPTH_MAX)));
    let none = SlotSet::new();
    for (level, slots) in
        [(Level::Raid0, 4), (Level::Raid1, 2), (Level::Raid5, 5), (Level::Raid6, 6)]
    {
        for (name, kind) in [("read", RequestKind::Read), ("write", RequestKind::Write)] {
            let mut engine = Engine::new(level, slots, &none);
            let id = BenchmarkId::new(name, format!("{level:?}"));
            group.bench_function(id, |b| b.iter(|| engine.round(kind, 4096, DEPTH_MAX)));
        }
    }
    let mut engine = Engine::new(Level::Raid5, 5, &SlotSet::one(2));
    group.bench_function("degraded-read/Raid5", |b| {
        b.iter(|| engine.round(RequestKind::Read, 4096, DEPTH_MAX));
    });
    group.finish();
}

fn full_stripes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("full-stripe-256KiB-depth-8");
    group.throughput(Throughput::Bytes(8 * (256 << 10)));
    for (level, slots) in [(Level::Raid5, 5), (Level::Raid6, 6)] {
        let mut engine = Engine::new(level, slots, &SlotSet::new());
        let id = BenchmarkId::new("write", format!("{level:?}"));
        group.bench_function(id, |b| b.iter(|| engine.round(RequestKind::Write, 256 << 10, 8)));
    }
    group.finish();
}

criterion_group!(benches, requests, full_stripes);
criterion_main!(benches);
