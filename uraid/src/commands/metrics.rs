//! `uraid metrics`: Prometheus text, for a scraper or node_exporter's textfile collector.

use std::process::ExitCode;

use super::print;
use crate::cli::Control;
use crate::control::{self, Request};
use crate::failure::Failure;

/// Runs the command.
///
/// # Errors
/// Fails if nobody listens on the control socket.
pub(crate) fn run(options: &Control) -> Result<ExitCode, Failure> {
    let answer = control::ask(&options.control, &Request::Metrics {})?;
    let Some(text) = answer.as_str() else {
        return Err(Failure::new("metrics: the answer is no text"));
    };
    print(text)?;
    Ok(ExitCode::SUCCESS)
}
