//! `uraid fail`, `remove` and `add`: members of a served array come and go.

use std::path::Path;
use std::process::ExitCode;

use super::print;
use crate::cli::Manage;
use crate::control::{self, Request};
use crate::failure::Failure;

/// Runs the command, for one member after the other.
///
/// # Errors
/// Fails if nobody listens on the control socket, or at the first member that is refused.
pub(crate) fn run(verb: &str, options: &Manage, force: bool) -> Result<ExitCode, Failure> {
    for member in &options.members {
        // The serving process may be in another folder.
        let member = std::path::absolute(member)?;
        let request = Request { member: Some(member.clone()), force, ..Request::verb(verb) };
        let answer = control::send(&options.control, &request)?;
        print(&said(verb, &member, answer.as_str().unwrap_or_default()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What was done, in mdadm's words.
fn said(verb: &str, member: &Path, answer: &str) -> String {
    let member = member.display();
    match (verb, answer) {
        ("fail", _) => format!("set {member} faulty\n"),
        ("remove", _) => format!("hot removed {member}\n"),
        (_, "re-added") => format!("re-added {member}\n"),
        _ => format!("added {member}\n"),
    }
}
