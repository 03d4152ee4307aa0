//! `uraid check`, `repair`, `stop-check` and `set-speed`.

use std::process::ExitCode;

use raid_io::Status;

use super::wait;
use crate::cli::{Control, Scrub, SetSpeed};
use crate::control::{self, Request};
use crate::failure::Failure;

/// Begins a check or a repair; with `--wait` returns when it has ended.
///
/// # Errors
/// Fails if the server refuses, or the array is stopped meanwhile.
pub(crate) fn run(options: &Scrub, request: Request) -> Result<ExitCode, Failure> {
    let look = || control::ask(&options.control, &Request::Status {});
    let before: Status = serde_json::from_value(look()?)?;
    control::ask(&options.control, &request)?;
    if options.wait {
        // Nothing may go on yet: what counts is that a check has ended since.
        let before = before.statistics.scrubs;
        return wait::until(&options.control, |status| status.statistics.scrubs > before);
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `stop-check`.
///
/// # Errors
/// Fails if the server refuses.
pub(crate) fn stop(options: &Control) -> Result<ExitCode, Failure> {
    control::ask(&options.control, &Request::StopCheck {})?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `set-speed`.
///
/// # Errors
/// Fails if the server refuses.
pub(crate) fn set_speed(options: &SetSpeed) -> Result<ExitCode, Failure> {
    let SetSpeed { min, max, control } = options;
    control::ask(control, &Request::SetSpeed { min: *min, max: *max })?;
    Ok(ExitCode::SUCCESS)
}
