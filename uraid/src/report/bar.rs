//! Background work as it goes on: bars on a terminal, plain lines elsewhere.
//!
//! Everything goes to standard error: standard output is the answer alone.

use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use raid_io::Status;

use super::progress::{Earlier, Progress};

/// The speed is that of the last so many looks.
const LOOKS: usize = 8;
/// Between two plain lines of one kind of work.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// What is shown.
pub(crate) struct Bars {
    looks: VecDeque<(Instant, Status)>,
    is_terminal: bool,
    screen: MultiProgress,
    bars: Vec<Option<ProgressBar>>,
    last_line: Option<Instant>,
}

impl Bars {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        Self {
            looks: VecDeque::new(),
            is_terminal: io::stderr().is_terminal(),
            screen: MultiProgress::new(),
            bars: Vec::new(),
            last_line: None,
        }
    }

    /// Shows what goes on in `status`, which is of this moment.
    pub(crate) fn show(&mut self, status: &Status) {
        let now = Instant::now();
        let earlier = self.looks.front().map(|(then, status)| Earlier {
            status: status.clone(),
            age: now.duration_since(*then),
        });
        self.looks.push_back((now, status.clone()));
        if self.looks.len() > LOOKS {
            self.looks.pop_front();
        }
        let all: Vec<Option<Progress<'_>>> = (0..status.groups.len())
            .map(|index| Progress::of(status, index, earlier.as_ref()))
            .collect();
        if self.is_terminal {
            self.draw(&all);
        } else if self.last_line.is_none_or(|then| now.duration_since(then) >= BETWEEN_LINES) {
            for progress in all.iter().flatten() {
                eprintln!("{}", line(progress));
                self.last_line = Some(now);
            }
        }
    }

    fn draw(&mut self, all: &[Option<Progress<'_>>]) {
        self.bars.resize_with(all.len(), || None);
        for (bar, progress) in self.bars.iter_mut().zip(all) {
            let Some(progress) = progress else {
                if let Some(bar) = bar.take() {
                    bar.finish_and_clear();
                }
                continue;
            };
            let bar = bar.get_or_insert_with(|| {
                let bar = ProgressBar::new(progress.total);
                let style = ProgressStyle::with_template("{prefix:8} [{bar:40}] {msg}");
                bar.set_style(
                    style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=>."),
                );
                self.screen.add(bar)
            });
            bar.set_prefix(progress.action.to_owned());
            bar.set_message(numbers(progress));
            bar.set_position(progress.done);
        }
    }
}

/// `8.5%, 253 MiB/s, 11.4 minutes left`
pub(crate) fn numbers(progress: &Progress<'_>) -> String {
    let permille = progress.permille();
    let mut text = format!("{}.{}%", permille / 10, permille % 10);
    if progress.speed > 0 {
        let left = progress.tenth_minutes_left();
        let (speed, unit) = match progress.speed {
            kib @ 0..10_240 => (kib, "KiB"),
            kib => (kib >> 10, "MiB"),
        };
        text += &format!(", {speed} {unit}/s, {}.{} minutes left", left / 10, left % 10);
    }
    text
}

fn line(progress: &Progress<'_>) -> String {
    format!("{}: {}", progress.action, numbers(progress))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_tell_what_is_known() {
        let mut progress =
            Progress { action: "recovery", done: 16_775_552, total: 195_310_144, speed: 0 };
        assert_eq!(line(&progress), "recovery: 8.5%");
        progress.speed = 259_783;
        assert_eq!(line(&progress), "recovery: 8.5%, 253 MiB/s, 11.4 minutes left");
        progress.speed = 10_239;
        assert_eq!(numbers(&progress), "8.5%, 10239 KiB/s, 290.6 minutes left");
    }
}
