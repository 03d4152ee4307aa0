//! Programs of others that the engine is tried against.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders that hold Debian's own programs, before whatever else the path has.
const SYSTEM: &str = "/usr/bin:/usr/sbin:/bin:/sbin";

/// Where a program is, looked for as [`command`] does.
fn find(program: &str) -> Option<PathBuf> {
    let path = search_path();
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn search_path() -> String {
    format!("{SYSTEM}:{}", env::var("PATH").unwrap_or_default())
}

/// A peer's command. nbdsh needs the system's Python, so system folders come first.
pub fn command(program: &str) -> Command {
    let path = find(program).unwrap_or_else(|| Path::new(program).to_owned());
    let mut command = Command::new(path);
    command.env("PATH", search_path());
    command
}

/// Says whether all of `programs` are there. If not, the test is to return: it passes with a word
/// on a user's machine, and fails in CI.
pub fn present(programs: &[&str]) -> bool {
    let missing: Vec<&str> = programs.iter().copied().filter(|name| find(name).is_none()).collect();
    missing.is_empty() || skip(&missing.join(", "))
}

/// Whether all of `programs` are there, without a word.
pub fn find_all(programs: &[&str]) -> bool {
    programs.iter().all(|name| find(name).is_some())
}

/// As [`present`], for what is no program: `what` is needed, and `is_there` says whether it is.
pub fn condition(what: &str, is_there: bool) -> bool {
    is_there || skip(what)
}

fn skip(what: &str) -> bool {
    assert!(env::var_os("CI").is_none(), "this needs {what}, and CI must not go without");
    // Past the capture of test output: a skipped test is to be seen.
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "skipped: needs {what}");
    false
}
