//! A clock that knows when it was cheated, and what to make of many samples.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Attempts at a sample that nobody interrupts; then the last one counts.
pub(super) const ATTEMPTS_MAX: usize = 8;

/// Times work of this thread, which it pins to one CPU.
pub(super) struct Clock {
    /// How often this thread was put on a CPU; `None` if the system does not tell.
    schedule: Option<File>,
    /// Samples that were thrown away.
    pub(super) retaken_count: u64,
}

/// What `/proc/thread-self/schedstat` says: one short line.
type Schedule = [u8; 96];

impl Clock {
    /// Pins this thread. Both pinning and counting are best effort: without them more samples are
    /// bad, which medians and spreads show.
    pub(super) fn pin() -> Self {
        if let Ok(allowed) = sched_getaffinity(None) {
            let last = (0..CpuSet::MAX_CPU).rev().find(|&cpu| allowed.is_set(cpu));
            if let Some(cpu) = last {
                let mut one = CpuSet::new();
                one.set(cpu);
                // Refused by some sandboxes; see above.
                let _ = sched_setaffinity(None, &one);
            }
        }
        Self { schedule: File::open("/proc/thread-self/schedstat").ok(), retaken_count: 0 }
    }

    /// Runs `work`; returns the seconds that it took, and whether this thread was on its CPU all
    /// the time.
    pub(super) fn time(&self, work: impl FnOnce()) -> (f64, bool) {
        let before = self.slice_count();
        let start = Instant::now();
        work();
        let seconds = start.elapsed().as_secs_f64();
        (seconds, before == self.slice_count())
    }

    /// The third number of the line counts how often the thread was put on a CPU.
    fn slice_count(&self) -> Option<u64> {
        let mut line: Schedule = [0; 96];
        let len = self.schedule.as_ref()?.read_at(&mut line, 0).ok()?;
        let text = str::from_utf8(&line[..len]).ok()?;
        text.split_whitespace().nth(2)?.parse().ok()
    }
}

/// The value in the middle; 0 of none.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    quantile(&sorted(values), 0.5)
}

/// The width of the middle half, as a part of the median.
pub(super) fn spread(values: impl IntoIterator<Item = f64>) -> f64 {
    let values = sorted(values);
    let middle = quantile(&values, 0.5);
    if middle == 0.0 { 0.0 } else { (quantile(&values, 0.75) - quantile(&values, 0.25)) / middle }
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Between two neighbours where the place is between them.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = part * last as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    low + (high - low) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spreads() {
        assert_eq!(median([]), 0.0);
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(spread([5.0; 9]), 0.0);
        assert_eq!(spread([1.0, 2.0, 3.0, 4.0, 5.0]), 2.0 / 3.0);
    }

    #[test]
    fn the_clock_runs() {
        let (seconds, _) =
            Clock::pin().time(|| std::thread::sleep(std::time::Duration::from_millis(2)));
        assert!(seconds >= 0.002);
    }
}
