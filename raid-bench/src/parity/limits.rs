//! What the machine can do with the same bytes when nothing is computed.
//!
//! - *Read* loads every strip that an operation reads, all at once, and combines the vectors so
//!   that no load can be left out.
//! - *Move* does the same and stores to every target of the operation, or copies what must be
//!   written, by the system's memcpy or past the caches, and reads the rest. The fastest of the
//!   three is the limit: which one that is depends on sizes and caches.
//!
//! The vectors are the widest of this CPU.

use std::hint::black_box;

use bytemuck::{cast_slice, pod_align_to_mut};
use pulp::{Arch, Simd, WithSimd};
use raid_core::parity::Kernel;

use super::measure::{ATTEMPTS_MAX, Clock, median, spread};
use super::operation::{Operation, SOURCE_COUNT_MAX, Set, Shape};
use super::report::Limits;

/// Vectors of a strip that are handled together.
const LANES: usize = 8;

/// The most strips that an operation reads: all sources and both parities.
const READ_COUNT_MAX: usize = SOURCE_COUNT_MAX + 2;

/// Loads all strips that `set` reads, those that it updates among them.
pub(super) fn read(arch: Arch, set: &Set<'_>) {
    let mut strips: [&[u64]; READ_COUNT_MAX] = [&[]; READ_COUNT_MAX];
    let mut count = set.reads.len();
    strips[..count].copy_from_slice(&set.reads);
    if set.is_in_place() {
        for target in set.targets.iter().filter(|target| !target.is_empty()) {
            strips[count] = cast_slice(target);
            count += 1;
        }
    }
    arch.dispatch(Read(&strips[..count]));
}

/// Loads all strips that `set` reads and stores to all that it writes.
pub(super) fn load_and_store(arch: Arch, set: &mut Set<'_>) {
    let is_in_place = set.is_in_place();
    // An empty target need not be aligned; the others are.
    let targets = set.targets.each_mut().map(|target| pod_align_to_mut(target).1);
    arch.dispatch(LoadAndStore { strips: &set.reads, targets, is_in_place });
}

/// Copies as many of the strips that `set` reads as it writes, and only loads the others.
pub(super) fn read_and_copy(arch: Arch, set: &mut Set<'_>, copy: impl Fn(&[u8], &mut [u8])) {
    let mut reads = set.reads.as_slice();
    for target in set.targets.iter_mut().filter(|target| !target.is_empty()) {
        let Some((source, rest)) = reads.split_first() else { return };
        copy(cast_slice(source), target);
        reads = rest;
    }
    arch.dispatch(Read(reads));
}

/// Copies by the system's memcpy.
pub(super) fn copy_by_system(from: &[u8], to: &mut [u8]) {
    to.copy_from_slice(from);
}

/// Copies as the kernels do, past the caches if the source is cold: P of one source is a copy.
pub(super) fn copy_by_kernel(from: &[u8], to: &mut [u8]) {
    Kernel::best().gen_p(&[from], to);
}

struct Read<'a>(&'a [&'a [u64]]);

impl WithSimd for Read<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let mut room: Blocks<'_, S> = [&[]; READ_COUNT_MAX];
        let strips = blocks::<S>(self.0, &mut room);
        let Some(first) = strips.first() else { return };
        let mut sums = [simd.splat_u64s(0); LANES];
        for step in 0..first.len() {
            add(simd, &mut sums, strips, step);
        }
        black_box(sums);
    }
}

struct LoadAndStore<'a> {
    strips: &'a [&'a [u64]],
    /// Either may be empty.
    targets: [&'a mut [u64]; 2],
    is_in_place: bool,
}

impl WithSimd for LoadAndStore<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let mut room: Blocks<'_, S> = [&[]; READ_COUNT_MAX];
        let strips = blocks::<S>(self.strips, &mut room);
        let Some(first) = strips.first() else { return };
        let mut targets =
            self.targets.map(|target| S::as_mut_simd_u64s(target).0.as_chunks_mut().0);
        for step in 0..first.len() {
            let mut sums: [S::u64s; LANES] = [simd.splat_u64s(0); LANES];
            add(simd, &mut sums, strips, step);
            for block in targets.iter_mut().filter_map(|target| target.get_mut(step)) {
                if self.is_in_place {
                    for (vector, sum) in block.iter_mut().zip(sums) {
                        *vector = simd.or_u64s(*vector, sum);
                    }
                } else {
                    *block = sums;
                }
            }
        }
    }
}

/// Room for strips as blocks of the vectors of one step each.
type Blocks<'a, S> = [&'a [[<S as Simd>::u64s; LANES]]; READ_COUNT_MAX];

#[inline(always)]
fn blocks<'a, 'b, S: Simd>(
    strips: &[&'a [u64]],
    room: &'b mut Blocks<'a, S>,
) -> &'b [&'a [[S::u64s; LANES]]] {
    for (blocks, strip) in room.iter_mut().zip(strips) {
        *blocks = S::as_simd_u64s(strip).0.as_chunks().0;
    }
    &room[..strips.len()]
}

/// Adds one step of all strips, two strips at a time: one instruction where there is a three-way
/// one.
#[inline(always)]
fn add<S: Simd>(simd: S, sums: &mut [S::u64s; LANES], strips: &[&[[S::u64s; LANES]]], step: usize) {
    let (pairs, rest) = strips.as_chunks::<2>();
    for [one, two] in pairs {
        let (one, two) = (&one[step], &two[step]);
        for lane in 0..LANES {
            sums[lane] = simd.or_u64s(sums[lane], simd.or_u64s(one[lane], two[lane]));
        }
    }
    for strip in rest {
        let strip = &strip[step];
        for lane in 0..LANES {
            sums[lane] = simd.or_u64s(sums[lane], strip[lane]);
        }
    }
}

// ==== Limits of the machine ====

/// Bytes of one sample from memory.
const DRAM_SAMPLE_BYTES: usize = 32 << 20;
/// Bytes that a sample from the caches goes over in all.
const CACHE_SAMPLE_BYTES: usize = 64 << 20;

/// Collects samples of the machine's limits throughout a run.
pub(super) struct Machine {
    arch: Arch,
    /// The place in memory that comes next.
    position: usize,
    series: [Vec<f64>; 7],
}

/// One limit of the machine.
#[derive(Clone, Copy)]
enum Limit {
    DramReadOne,
    DramReadEight,
    DramCopy,
    DramFill,
    ReadL1,
    ReadL2,
    CopyHot,
}

const LIMITS: [Limit; 7] = [
    Limit::DramReadOne,
    Limit::DramReadEight,
    Limit::DramCopy,
    Limit::DramFill,
    Limit::ReadL1,
    Limit::ReadL2,
    Limit::CopyHot,
];

impl Machine {
    pub(super) fn new(arch: Arch) -> Self {
        Self { arch, position: 0, series: Default::default() }
    }

    /// Takes one sample of each limit.
    pub(super) fn sample(&mut self, clock: &mut Clock, memory: &mut [u8]) {
        for limit in LIMITS {
            for attempt in 1..=ATTEMPTS_MAX {
                if self.position + DRAM_SAMPLE_BYTES > memory.len() {
                    self.position = 0;
                }
                let part = &mut memory[self.position..][..DRAM_SAMPLE_BYTES];
                self.position += DRAM_SAMPLE_BYTES;
                let (bytes, seconds, is_undisturbed) = self.run(limit, clock, part);
                if is_undisturbed || attempt == ATTEMPTS_MAX {
                    self.series[limit as usize].push(bytes as f64 / seconds / 1e9);
                    break;
                }
                clock.retaken_count += 1;
            }
        }
    }

    /// Returns the bytes that were read, copied or written, the time, and whether it was this
    /// thread's alone.
    fn run(&self, limit: Limit, clock: &Clock, part: &mut [u8]) -> (usize, f64, bool) {
        let half = part.len() / 2;
        let read_one = |bytes: &[u8]| self.arch.dispatch(Read(&[cast_slice(bytes)]));
        let (bytes, (seconds, is_undisturbed)) = match limit {
            Limit::DramReadOne => (part.len(), clock.time(|| read_one(part))),
            Limit::DramReadEight => {
                let shape =
                    Shape { operation: Operation::CheckP, source_count: 7, strip_bytes: 64 << 10 };
                let sets = part.chunks_exact_mut(shape.set_bytes());
                let sets: Vec<Set<'_>> = sets.map(|memory| shape.carve(memory)).collect();
                let bytes = sets.len() * 8 * shape.strip_bytes;
                (bytes, clock.time(|| sets.iter().for_each(|set| read(self.arch, set))))
            }
            Limit::DramCopy => {
                let (from, to) = part.split_at_mut(half);
                (half, clock.time(|| to.copy_from_slice(from)))
            }
            Limit::DramFill => (half, clock.time(|| part[..half].fill(0x5a))),
            Limit::ReadL1 => repeat(clock, 16 << 10, part, |part| read_one(part)),
            Limit::ReadL2 => repeat(clock, 512 << 10, part, |part| read_one(part)),
            Limit::CopyHot => {
                let (bytes, time) = repeat(clock, 2 * (64 << 10), part, |part| {
                    let (from, to) = part.split_at_mut(64 << 10);
                    to.copy_from_slice(from);
                    black_box(to);
                });
                (bytes / 2, time)
            }
        };
        (bytes, seconds, is_undisturbed)
    }

    /// How often all limits have been sampled.
    pub(super) fn sample_count(&self) -> usize {
        self.series[0].len()
    }

    pub(super) fn result(self) -> Limits {
        let figure = |limit: Limit| median(self.series[limit as usize].iter().copied());
        let best = if figure(Limit::DramReadOne) < figure(Limit::DramReadEight) {
            Limit::DramReadEight
        } else {
            Limit::DramReadOne
        };
        Limits {
            dram_read_gb_s: figure(best),
            dram_read_spread: spread(self.series[best as usize].iter().copied()),
            dram_read_one_stream_gb_s: figure(Limit::DramReadOne),
            dram_read_eight_streams_gb_s: figure(Limit::DramReadEight),
            dram_memcpy_gb_s: figure(Limit::DramCopy),
            dram_fill_gb_s: figure(Limit::DramFill),
            l1_read_gb_s: figure(Limit::ReadL1),
            l2_read_gb_s: figure(Limit::ReadL2),
            memcpy_64k_gb_s: figure(Limit::CopyHot),
            samples: self.series[0].len(),
        }
    }
}

/// Runs over the first `bytes` of `part` again and again, once more before the clock runs.
fn repeat(
    clock: &Clock,
    bytes: usize,
    part: &mut [u8],
    mut work: impl FnMut(&mut [u8]),
) -> (usize, (f64, bool)) {
    let part = &mut part[..bytes];
    let count = CACHE_SAMPLE_BYTES / bytes;
    work(part);
    let time = clock.time(|| (0..count).for_each(|_| work(part)));
    (count * bytes, time)
}
