//! The machine as a report names it.

use std::fs;

use raid_core::parity::Kernel;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// What the figures depend on.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cpu_count: usize,
    pub(crate) architecture: &'static str,
    pub(crate) system: String,
    /// What of the CPU's instruction sets the parity kernels could use.
    pub(crate) cpu_flags: Vec<String>,
    /// The parity kernel that the engine uses here.
    pub(crate) parity_kernel: &'static str,
    pub(crate) memory_bytes: u64,
    /// The largest cache that the system tells of.
    pub(crate) last_cache_bytes: u64,
    /// Processes that wanted to run in the last minute, before the run.
    pub(crate) load_before: f64,
    /// The same after it.
    pub(crate) load_after: f64,
}

impl Machine {
    pub(crate) fn look() -> Self {
        let uname = rustix::system::uname();
        let (name, release) = (uname.sysname(), uname.release());
        Self {
            cpu: cpu_name(),
            cpu_count: std::thread::available_parallelism().map_or(1, Into::into),
            architecture: std::env::consts::ARCH,
            system: format!("{} {}", name.to_string_lossy(), release.to_string_lossy()),
            cpu_flags: cpu_flags(),
            parity_kernel: Kernel::best().name(),
            memory_bytes: memory_bytes("MemTotal:").unwrap_or(0),
            last_cache_bytes: last_cache_bytes(),
            load_before: load(),
            load_after: 0.0,
        }
    }
}

/// The load average of the last minute.
pub(crate) fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// Memory that can be had without swapping, if the system tells.
pub(crate) fn available_bytes() -> Option<u64> {
    memory_bytes("MemAvailable:")
}

/// A line of what the system tells of its memory.
fn memory_bytes(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Processor time of this process, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct CpuTime {
    /// In user space and in the kernel together, to the nanosecond.
    total: f64,
    /// In the kernel, in ticks of 10 ms.
    system: f64,
}

impl CpuTime {
    pub(crate) fn since(&self, before: &Self) -> Self {
        let system = (self.system - before.system).max(0.0);
        Self { total: (self.total - before.total).max(0.0), system }
    }

    pub(crate) fn max(self, other: Self) -> Self {
        if other.total > self.total { other } else { self }
    }

    pub(crate) fn total(&self) -> f64 {
        self.total
    }

    /// The part in the kernel, as far as ticks tell.
    pub(crate) fn system(&self) -> f64 {
        self.system.min(self.total)
    }

    pub(crate) fn user(&self) -> f64 {
        self.total - self.system()
    }
}

/// Processor time of all threads so far.
pub(crate) fn cpu_time() -> CpuTime {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let total = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name, which may hold anything; the 15th field of all is the 13th of these.
    let fields = text.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let ticks: f64 = fields.split(' ').nth(12).and_then(|word| word.parse().ok()).unwrap_or(0.0);
    let ticks_a_second = rustix::param::clock_ticks_per_second() as f64;
    CpuTime { total, system: ticks / ticks_a_second }
}

/// The flags of the CPU that matter to parity.
fn cpu_flags() -> Vec<String> {
    const WANTED: [&str; 9] =
        ["sse2", "ssse3", "avx", "avx2", "avx512f", "avx512bw", "avx512vl", "gfni", "asimd"];
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let is_flags = |line: &&str| line.starts_with("flags") || line.starts_with("Features");
    let line = text.lines().find(is_flags).unwrap_or_default();
    let has = |flag: &&str| line.split_whitespace().any(|word| word == *flag);
    WANTED.into_iter().filter(has).map(str::to_owned).collect()
}

/// The CPU's name with family and model, where there are such.
fn cpu_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
    };
    let name = field("model name").unwrap_or_else(|| "unknown CPU".to_owned());
    match (field("cpu family"), field("model")) {
        (Some(family), Some(model)) => format!("{name} (family {family}, model {model})"),
        _ => name,
    }
}

fn last_cache_bytes() -> u64 {
    let size = |index: u32| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = fs::read_to_string(path).ok()?;
        let kib: u64 = text.trim().strip_suffix('K')?.parse().ok()?;
        kib.checked_mul(1024)
    };
    (0..8).filter_map(size).max().unwrap_or(0)
}
