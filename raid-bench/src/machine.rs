//! The machine as a report names it.

use std::fs;

use serde::Serialize;

/// What the figures depend on.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cpu_count: usize,
    pub(crate) architecture: &'static str,
    pub(crate) system: String,
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
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
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
