//! `uraid detail`: one array, from its members or from the process that serves it.

use std::process::ExitCode;

use raid_io::Error;

use super::{open_to_read, print};
use crate::cli::Detail;
use crate::control::{self, Request};
use crate::failure::Failure;
use crate::report;

/// `detail --test`: the array cannot be used.
const UNUSABLE: u8 = 2;
/// `detail --test`: nothing could be found out.
const ERROR: u8 = 4;

/// Runs the command.
///
/// # Errors
/// Fails if the array cannot be looked at; with `--test` under mdadm's exit codes.
pub(crate) fn run(options: &Detail) -> Result<ExitCode, Failure> {
    let detail = look(options)?;
    if options.json {
        print(&report::json(&detail)?)?;
    } else {
        print(&report::detail::render(&detail))?;
    }
    let code = if options.test { report::detail::exit_code(&detail.status) } else { 0 };
    Ok(ExitCode::from(code))
}

fn look(options: &Detail) -> Result<raid_io::Detail, Failure> {
    if let Some(path) = &options.control {
        let answer = control::ask(path, &Request::Detail {})
            .map_err(|failure| tested(options, failure, ERROR))?;
        return Ok(serde_json::from_value(answer)?);
    }
    let array = open_to_read(&options.members).map_err(|error| {
        let code = if matches!(error, Error::Assemble(_)) { UNUSABLE } else { ERROR };
        tested(options, error.into(), code)
    })?;
    let detail = array.detail();
    array.stop()?;
    Ok(detail)
}

fn tested(options: &Detail, failure: Failure, code: u8) -> Failure {
    if options.test { failure.with_code(code) } else { failure }
}
