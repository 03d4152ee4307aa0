//! `uraid fail`, `remove`, `add`, `re-add` and `replace`: members of a served array.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cli::{Members, Replace};
use crate::control::{self, Request};
use crate::failure::Failure;

/// Asks for each member in turn.
///
/// # Errors
/// Fails with the first member that is refused; those before it are done.
pub(crate) fn run(
    options: &Members,
    request: impl Fn(PathBuf) -> Request,
) -> Result<ExitCode, Failure> {
    for member in &options.members {
        control::ask(&options.control, &request(absolute(member)?))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `replace`.
///
/// # Errors
/// Fails if the server refuses.
pub(crate) fn replace(options: &Replace) -> Result<ExitCode, Failure> {
    let member = absolute(&options.member)?;
    let with = options.with.as_deref().map(absolute).transpose()?;
    control::ask(&options.control, &Request::Replace { member, with })?;
    Ok(ExitCode::SUCCESS)
}

/// The serving process may be in another folder. Links are left as they are: what is typed is what
/// the server knows a member by.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}
