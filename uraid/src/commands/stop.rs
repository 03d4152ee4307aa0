//! `uraid stop`: has the serving process drain, flush, mark the array clean and end.

use std::process::ExitCode;

use crate::cli::Control;
use crate::control::{self, Request};
use crate::failure::Failure;

/// Runs the command; returns when the array is stopped.
///
/// # Errors
/// Fails if nobody listens on the control socket, or the array could not be marked clean.
pub(crate) fn run(options: &Control) -> Result<ExitCode, Failure> {
    control::ask(&options.control, &Request::Stop {})?;
    Ok(ExitCode::SUCCESS)
}
