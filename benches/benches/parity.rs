//! Parity kernels: every operation, kernel, number of sources and chunk size, hot and cold.
//!
//! Throughput counts the bytes of the sources (of an update: old and new data). *Hot* repeats one
//! set of buffers; *cold* rotates through more memory than a cache holds, with huge pages where the
//! system gives them. All is a matter of minutes; a filter picks some, for example
//! `cargo bench -p benches --bench parity -- 'gen_pq/.*/8x64K'`.

#![allow(missing_docs, reason = "criterion's macros make public items")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use memmap2::MmapMut;
use raid_core::parity::Kernel;
use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Duration;

const SOURCE_COUNTS: [usize; 4] = [2, 4, 8, 16];
const CHUNK_SIZES_KIB: [usize; 3] = [4, 64, 512];

/// Twice the largest cache that a current server has for one core to use.
const COLD_BYTES: usize = 1 << 30;

/// An operation on a stripe, as the kernel's method of the same name.
#[derive(Copy, Clone)]
enum Operation {
    CheckP,
    CheckPq,
    GenP,
    GenPq,
    RecoverData,
    RecoverDataP,
    RecoverTwoData,
    UpdateP,
    UpdatePq,
}

const OPERATIONS: [(Operation, &str); 9] = [
    (Operation::GenP, "gen_p"),
    (Operation::GenPq, "gen_pq"),
    (Operation::UpdateP, "update_p"),
    (Operation::UpdatePq, "update_pq"),
    (Operation::RecoverData, "recover_data"),
    (Operation::RecoverDataP, "recover_data_p"),
    (Operation::RecoverTwoData, "recover_two_data"),
    (Operation::CheckP, "check_p"),
    (Operation::CheckPq, "check_pq"),
];

impl Operation {
    /// An update has two sources, old and new data, whatever the stripe.
    fn is_update(self) -> bool {
        matches!(self, Self::UpdateP | Self::UpdatePq)
    }

    /// Runs on a set of `source_count + 4` chunks: the sources, P, Q and two targets. All zeroes
    /// are consistent, so that checks go through to the end.
    fn run(self, kernel: Kernel, set: &mut [u8], source_count: usize, chunk_bytes: usize) {
        let (data, parity) = set.split_at_mut(source_count * chunk_bytes);
        let (p, rest) = parity.split_at_mut(chunk_bytes);
        let (q, rest) = rest.split_at_mut(chunk_bytes);
        let (x, y) = rest.split_at_mut(chunk_bytes);
        let mut sources: [&[u8]; 16] = [&[]; 16];
        let sources = &mut sources[..source_count];
        for (source, chunk) in sources.iter_mut().zip(data.chunks_exact(chunk_bytes)) {
            *source = chunk;
        }
        let (lost, also_lost) = (source_count / 2, source_count - 1);
        match self {
            Self::GenP => kernel.gen_p(sources, x),
            Self::GenPq => kernel.gen_pq(sources, x, y),
            Self::UpdateP => kernel.update_p(sources[0], sources[1], p),
            Self::UpdatePq => kernel.update_pq(1, sources[0], sources[1], p, q),
            Self::RecoverData => {
                sources[lost] = &[];
                kernel.recover_data(lost, sources, p, x);
            }
            Self::RecoverDataP => {
                sources[lost] = &[];
                kernel.recover_data_p(lost, sources, q, x, y);
            }
            Self::RecoverTwoData => {
                sources[0] = &[];
                sources[also_lost] = &[];
                kernel.recover_two_data(0, also_lost, sources, p, q, x, y);
            }
            Self::CheckP => assert_eq!(black_box(kernel.check_p(sources, p)), None),
            Self::CheckPq => assert_eq!(black_box(kernel.check_pq(sources, p, q)), None),
        }
    }
}

/// Anonymous memory, touched, in huge pages if there are any.
fn memory(len: usize) -> MmapMut {
    let mut memory = MmapMut::map_anon(len).expect("memory for the benches");
    // A refusal leaves small pages, which cost a few percent.
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    memory.fill(0);
    memory
}

fn bench_shape(
    criterion: &mut Criterion,
    (operation, name): (Operation, &str),
    kernel: Kernel,
    source_count: usize,
    chunk_kib: usize,
) {
    let chunk_bytes = chunk_kib << 10;
    let set_bytes = (source_count + 4) * chunk_bytes;
    let source_bytes = source_count * chunk_bytes;
    let mut group = criterion.benchmark_group(format!("{name}/{}", kernel.name()));
    group.throughput(Throughput::Bytes(source_bytes as u64));
    group.sample_size(10).warm_up_time(Duration::from_millis(50));
    group.measurement_time(Duration::from_millis(200));
    let shape = format!("{source_count}x{chunk_kib}K");
    group.bench_function(BenchmarkId::new(&shape, "hot"), |bencher| {
        let mut memory = memory(set_bytes);
        bencher.iter(|| operation.run(kernel, &mut memory, source_count, chunk_bytes));
    });
    group.bench_function(BenchmarkId::new(&shape, "cold"), |bencher| {
        let memory = cold_memory();
        let mut sets = 0;
        bencher.iter(|| {
            let start = sets % (COLD_BYTES / set_bytes) * set_bytes;
            sets += 1;
            let mut memory = memory.lock().expect("no bench has panicked");
            let set = &mut memory[start..start + set_bytes];
            operation.run(kernel, set, source_count, chunk_bytes);
        });
    });
    group.finish();
}

/// Made when the first cold bench runs, so that a filter for hot ones needs no memory.
fn cold_memory() -> &'static std::sync::Mutex<MmapMut> {
    static MEMORY: OnceLock<std::sync::Mutex<MmapMut>> = OnceLock::new();
    MEMORY.get_or_init(|| std::sync::Mutex::new(memory(COLD_BYTES)))
}

fn parity(criterion: &mut Criterion) {
    for operation in OPERATIONS {
        for kernel in Kernel::available().filter(|kernel| kernel.name() != "naive") {
            let counts = if operation.0.is_update() { &[2][..] } else { &SOURCE_COUNTS };
            for &source_count in counts {
                for chunk_kib in CHUNK_SIZES_KIB {
                    bench_shape(criterion, operation, kernel, source_count, chunk_kib);
                }
            }
        }
    }
}

criterion_group!(benches, parity);
criterion_main!(benches);
