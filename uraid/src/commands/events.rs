//! `uraid events`: what happens to a served array, a line of JSON each.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::cli::Events;
use crate::control::{self, Request};
use crate::failure::Failure;

/// Runs the command; returns when the array is stopped, or nobody reads any more.
///
/// # Errors
/// Fails if nobody listens on the control socket.
pub(crate) fn run(options: &Events) -> Result<ExitCode, Failure> {
    if options.test {
        control::ask(&options.control, &Request::TestMessage {})?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut stream = control::subscribe(&options.control)?;
    while let Some(line) = stream.next_line()? {
        let mut output = io::stdout().lock();
        match output.write_all(line.as_bytes()).and_then(|()| output.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            other => other?,
        }
    }
    Ok(ExitCode::SUCCESS)
}
