//! The result as data; its JSON form is these fields.

use serde::Serialize;

use crate::machine::Machine;

/// A whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The program and its version.
    pub(super) tool: String,
    /// When the run began, RFC 3339.
    pub(super) date: String,
    /// How it was called.
    pub(super) command: String,
    pub(super) machine: Machine,
    pub(super) settings: Settings,
    pub(super) limits: Limits,
    pub(super) rows: Vec<Row>,
}

/// How it was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Settings {
    /// Samples of each figure.
    pub(super) repeats: u32,
    /// The least time of a sample, wanted.
    pub(super) sample_ms: f64,
    /// Memory that cold cases rotate through.
    pub(super) rotation_bytes: u64,
    /// Samples that were thrown away because the thread lost its CPU meanwhile.
    pub(super) retaken_count: u64,
    pub(super) seconds: f64,
}

/// What the machine does; medians over the whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Limits {
    /// The better of the two ways to read memory below.
    pub(super) dram_read_gb_s: f64,
    pub(super) dram_read_spread: f64,
    /// From one end to the other.
    pub(super) dram_read_one_stream_gb_s: f64,
    /// Eight strips of 64 KiB at once.
    pub(super) dram_read_eight_streams_gb_s: f64,
    /// Bytes copied from memory to memory.
    pub(super) dram_memcpy_gb_s: f64,
    pub(super) dram_fill_gb_s: f64,
    /// 16 KiB again and again.
    pub(super) l1_read_gb_s: f64,
    /// 512 KiB again and again.
    pub(super) l2_read_gb_s: f64,
    /// 64 KiB copied again and again.
    pub(super) memcpy_64k_gb_s: f64,
    pub(super) samples: usize,
}

/// Whether a call's memory was used just before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Cache {
    /// The same memory call after call.
    Hot,
    /// Memory that was last used a whole rotation ago.
    Cold,
}

impl Cache {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Cold => "cold",
        }
    }
}

/// One kernel in one case. Ratios are medians of the ratios of each round, larger is faster.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(super) op: &'static str,
    pub(super) kernel: &'static str,
    pub(super) sources: usize,
    pub(super) strip_bytes: usize,
    pub(super) cache: Cache,
    /// Source data per second, median.
    pub(super) gb_s: f64,
    /// The middle half of the samples, as a part of the median.
    pub(super) spread: f64,
    pub(super) samples: usize,
    /// The same sources per second if all that is read were read, and nothing else done.
    pub(super) read_gb_s: f64,
    pub(super) read_ratio: f64,
    /// The same if all that is read were read and all that is written were written.
    pub(super) limit_gb_s: f64,
    pub(super) limit_ratio: f64,
    /// To `limits.dram_read_gb_s`; only of cold cases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dram_read_ratio: Option<f64>,
    /// To ISA-L in the same rounds, where it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) isal_ratio: Option<f64>,
}
