//! `uraid`: RAID arrays as an ordinary process.
//!
//! ```text
//! arguments --cli--> commands --raid-io--> members
//!                        |---raid-nbd----> NBD clients        (serve)
//!                        |---control-----> status, detail, stop, fail, add, check, ...
//!                        '---report------> text, JSON, /proc/mdstat
//! ```
//!
//! Exit codes: 0 done, 1 failed with one line on standard error, 2 wrong usage; `detail --test` has
//! mdadm's. State changes are logged to standard error; standard output is the answer alone.

mod cli;
mod commands;
mod control;
mod failure;
mod report;
mod size;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::failure::Failure;

fn main() -> ExitCode {
    log_to_stderr();
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("uraid: {failure}");
            ExitCode::from(failure.code)
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode, Failure> {
    match cli.command {
        None => commands::serve::run(&cli::Serve::alone()),
        Some(Command::Serve(options)) => commands::serve::run(&options),
        Some(Command::Create(options)) => commands::create::run(&options),
        Some(Command::Examine(options)) => commands::examine::run(&options),
        Some(Command::Detail(options)) => commands::detail::run(&options),
        Some(Command::Status(options)) => commands::status::run(&options),
        Some(Command::Stop(options)) => commands::stop::run(&options),
        Some(Command::Fail(options)) => commands::manage::run("fail", &options, false),
        Some(Command::Remove(options)) => commands::manage::run("remove", &options, false),
        Some(Command::Add(options)) => commands::manage::run("add", &options.manage, options.force),
        Some(Command::Check(options)) => commands::check::run("check", &options),
        Some(Command::Repair(options)) => {
            commands::check::run(repair_verb(&options), &options.check)
        }
        Some(Command::Wait(options)) => commands::check::wait_only(&options.control),
        Some(Command::Cat(options)) => commands::cat::run(&options),
    }
}

/// How much a repair may do, in the words of the control socket.
fn repair_verb(options: &cli::Repair) -> &'static str {
    if options.trust_data { "repair-trusting-data" } else { "repair" }
}

/// State changes, one line each; `URAID_LOG` (error, warn, info, debug, trace) sets how much.
fn log_to_stderr() {
    let level = std::env::var("URAID_LOG").ok().and_then(|level| level.parse().ok());
    tracing_subscriber::fmt()
        .with_max_level(level.unwrap_or(tracing::Level::INFO))
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .init();
}
