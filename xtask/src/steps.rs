//! The one test command: every step in order, the first that fails ends it.

use std::process::Command;
use std::time::Instant;

use crate::{arm, peers, tidy};

type Step<'a> = (&'a str, &'a [&'a str], &'a [(&'a str, &'a str)]);

/// Steps that are a call of cargo: a title, arguments, environment.
const BEFORE_TESTS: [Step<'_>; 4] = [
    ("formatting", &["fmt", "--all", "--check"], &[]),
    (
        "lints",
        &["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"],
        &[],
    ),
    ("documentation", &["doc", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")]),
    ("raid-core without std", &["check", "-p", "raid-core", "--no-default-features"], &[]),
];

/// Runs everything; `install` lets it install peers.
pub(crate) fn test(install: bool) -> Result<(), String> {
    let start = Instant::now();
    if install {
        peers::install();
    }
    println!("== tidy");
    tidy::run()?;
    for step in BEFORE_TESTS {
        cargo(step)?;
    }
    tests()?;
    let planted = ["test", "--package", "raid-sim", "--features", "planted", "--test", "planted"];
    cargo(("planted mistakes", &planted, &[]))?;
    arm::run(install)?;
    println!("== all passed in {} s", start.elapsed().as_secs());
    Ok(())
}

/// All tests of the workspace, peer tests among them; nextest where it is installed.
fn tests() -> Result<(), String> {
    let probe = Command::new(cargo_path()).args(["nextest", "--version"]).output();
    if probe.is_ok_and(|output| output.status.success()) {
        cargo(("tests", &["nextest", "run", "--workspace", "--no-fail-fast"], &[]))?;
        // nextest leaves documentation's examples out.
        return cargo(("examples in documentation", &["test", "--workspace", "--doc"], &[]));
    }
    cargo(("tests", &["test", "--workspace", "--no-fail-fast"], &[]))
}

/// Mistakes in the engine, which the simulator must notice: the oracle is tested.
pub(crate) fn planted() -> Result<(), String> {
    let run = ["run", "--release", "--package", "raid-sim", "--features", "planted", "--"];
    cargo(("planted mistakes", &[&run[..], &["--seed", "1", "--planted"]].concat(), &[]))
}

fn cargo_path() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

fn cargo((title, arguments, environment): Step<'_>) -> Result<(), String> {
    println!("== {title}: cargo {}", arguments.join(" "));
    let start = Instant::now();
    let mut command = Command::new(cargo_path());
    command.args(arguments).envs(environment.iter().copied()).current_dir(tidy::root());
    let status = command.status().map_err(|error| format!("{title}: {error}"))?;
    if !status.success() {
        return Err(format!("{title}: {status}"));
    }
    println!("== {title}: passed in {} s", start.elapsed().as_secs());
    Ok(())
}
