//! What goes on, for somebody who waits: a line on a terminal, nothing elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A line that tells what is being measured, and how far the run is.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A run of so many steps; more can be added later.
    pub(crate) fn new(steps: u64) -> Self {
        let bar = ProgressBar::new(steps);
        let style = ProgressStyle::with_template("{spinner} {bar:30} {pos}/{len} {elapsed} {msg}");
        let bar = match style {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    pub(crate) fn expect(&self, steps: u64) {
        self.0.inc_length(steps);
    }

    /// Begins a step.
    pub(crate) fn step(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
