//! `uraid status`: the state and the counters of a served array.

use std::process::ExitCode;

use super::print;
use crate::cli::Status;
use crate::control;
use crate::failure::Failure;
use crate::report;

/// Runs the command.
///
/// # Errors
/// Fails if nobody listens on the control socket.
pub(crate) fn run(options: &Status) -> Result<ExitCode, Failure> {
    let answer = control::ask(&options.control, "status")?;
    if options.json {
        // As it came: fields that a newer server has are shown too.
        print(&report::json(&answer)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let status: raid_io::Status = serde_json::from_value(answer)?;
    let text = match options.mdstat {
        true => report::mdstat::render(&status),
        false => report::status::render(&status),
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
