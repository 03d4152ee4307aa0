//! `uraid stop`: has the serving process drain, flush, mark the array clean and end.

use std::process::ExitCode;

use crate::cli::Stop;
use crate::control;
use crate::failure::Failure;

/// Runs the command; returns when the array is stopped.
///
/// # Errors
/// Fails if nobody listens on the control socket, or the array could not be marked clean.
pub(crate) fn run(options: &Stop) -> Result<ExitCode, Failure> {
    control::ask(&options.control, "stop")?;
    Ok(ExitCode::SUCCESS)
}
