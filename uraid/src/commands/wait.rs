//! `uraid wait`: returns when no background work goes on.

use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use raid_io::Status;

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
    until(&options.control, |status| !is_busy(status))
}

/// Returns when `done`, and shows what goes on behind `control` meanwhile.
///
/// # Errors
/// See [`run`].
pub(super) fn until(control: &Path, done: impl Fn(&Status) -> bool) -> Result<ExitCode, Failure> {
    let mut bars = Bars::new();
    loop {
        let status: Status = serde_json::from_value(control::ask(control, &Request::Status {})?)?;
        bars.show(&status);
        if done(&status) {
            return Ok(ExitCode::SUCCESS);
        }
        thread::sleep(BETWEEN_LOOKS);
    }
}
