//! `uraid wait`: returns when no background work goes on.

use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use crate::cli::Control;
use crate::control::{self, Request};
use crate::failure::Failure;
use crate::report::bar::Bars;
use crate::report::progress::is_busy;

/// Between two looks.
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);

/// Runs the command.
///
/// # Errors
/// Fails if nobody listens on the control socket, or the array is stopped meanwhile.
pub(crate) fn run(options: &Control) -> Result<ExitCode, Failure> {
    until_idle(&options.control)
}

/// Returns when nothing goes on behind `control`, and shows what does.
///
/// # Errors
/// See [`run`].
pub(super) fn until_idle(control: &Path) -> Result<ExitCode, Failure> {
    let mut bars = Bars::new();
    loop {
        let status = serde_json::from_value(control::ask(control, &Request::Status {})?)?;
        bars.show(&status);
        if !is_busy(&status) {
            return Ok(ExitCode::SUCCESS);
        }
        thread::sleep(BETWEEN_LOOKS);
    }
}
