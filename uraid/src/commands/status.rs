//! `uraid status`: the state and the counters of a served array.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use super::print;
use crate::cli::Status;
use crate::control::{self, Request};
use crate::failure::Failure;
use crate::report;
use crate::report::progress::{self, Earlier};

/// Between two looks that tell the speed of background work.
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);

/// Runs the command.
///
/// # Errors
/// Fails if nobody listens on the control socket.
pub(crate) fn run(options: &Status) -> Result<ExitCode, Failure> {
    let answer = control::ask(&options.control, &Request::Status {})?;
    if options.json {
        // As it came: fields that a newer server has are shown too.
        print(&report::json(&answer)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut status: raid_io::Status = serde_json::from_value(answer)?;
    let mut earlier = None;
    if progress::is_busy(&status) {
        thread::sleep(BETWEEN_LOOKS);
        let later = serde_json::from_value(control::ask(&options.control, &Request::Status {})?)?;
        let before = std::mem::replace(&mut status, later);
        earlier = Some(Earlier { status: before, age: BETWEEN_LOOKS });
    }
    let text = match options.mdstat {
        true => report::mdstat::render(&status, earlier.as_ref()),
        false => report::status::render(&status, earlier.as_ref()),
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
