//! `uraid check`, `repair` and `wait`: work behind a served array.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use raid_io::Status;

use super::print;
use crate::cli::Check;
use crate::control;
use crate::failure::Failure;
use crate::report::progress::{Earlier, Progress, is_busy};

/// Between two looks at the array.
const PAUSE: Duration = Duration::from_millis(200);
/// Between two lines where nobody sees a bar.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

/// Runs the command.
///
/// # Errors
/// Fails if nobody listens on the control socket, or the array cannot be checked.
pub(crate) fn run(verb: &str, options: &Check) -> Result<ExitCode, Failure> {
    if options.stop {
        control::ask(&options.control, "stop-check")?;
        return Ok(ExitCode::SUCCESS);
    }
    let before = look(&options.control)?.statistics.scrubs;
    control::ask(&options.control, verb)?;
    if !options.wait {
        return Ok(ExitCode::SUCCESS);
    }
    let status = follow(&options.control, |status| status.statistics.scrubs > before)?;
    let sectors: u64 = status.groups.iter().map(|group| group.mismatch_sectors).sum();
    print(&format!("{sectors} sectors do not agree\n"))?;
    Ok(if sectors == 0 || verb != "check" { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Waits until nothing goes on.
///
/// # Errors
/// Fails if nobody listens on the control socket.
pub(crate) fn wait_only(control: &Path) -> Result<ExitCode, Failure> {
    follow(control, |status| !is_busy(status))?;
    Ok(ExitCode::SUCCESS)
}

fn look(control: &Path) -> Result<Status, Failure> {
    Ok(serde_json::from_value(control::ask(control, "status")?)?)
}

/// Shows how far it is until `done`: a bar on a terminal, a line now and then elsewhere.
fn follow(control: &Path, done: impl Fn(&Status) -> bool) -> Result<Status, Failure> {
    let bar = io::stderr().is_terminal().then(bar);
    let mut earlier: Option<Earlier> = None;
    let mut told = Instant::now();
    loop {
        let status = look(control)?;
        if done(&status) {
            if let Some(bar) = bar {
                bar.finish_and_clear();
            }
            return Ok(status);
        }
        let progress = (0..status.groups.len())
            .find_map(|group| Progress::of(&status, group, earlier.as_ref()));
        match (progress, &bar) {
            (Some(progress), Some(bar)) => {
                bar.set_length(progress.total);
                bar.set_position(progress.done);
                bar.set_message(line(&progress));
            }
            (Some(progress), None) if told.elapsed() >= BETWEEN_LINES => {
                told = Instant::now();
                eprintln!("{}", line(&progress));
            }
            _ => {}
        }
        earlier = Some(Earlier { status, age: PAUSE });
        thread::sleep(PAUSE);
    }
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("[{bar:30}] {msg}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(1).with_style(style)
}

/// As /proc/mdstat says it.
fn line(progress: &Progress<'_>) -> String {
    let (permille, tenths) = (progress.permille(), progress.tenth_minutes_left());
    format!(
        "{} = {}.{}% ({}/{}) finish={}.{}min speed={}K/sec",
        progress.action,
        permille / 10,
        permille % 10,
        progress.done,
        progress.total,
        tenths / 10,
        tenths % 10,
        progress.speed
    )
}
