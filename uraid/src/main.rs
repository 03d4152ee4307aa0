//! `uraid`: RAID arrays as an ordinary process.
//!
//! ```text
//! arguments --cli--> commands --raid-io--> members
//!                        |---raid-nbd----> NBD clients        (serve)
//!                        |---control-----> requests of the other commands --service--> the array
//!                        |---events------> log, hook, file, listeners
//!                        '---report------> text, JSON, /proc/mdstat, metrics
//! ```
//!
//! Exit codes: 0 done, 1 failed with one line on standard error, 2 wrong usage; `detail --test` has
//! mdadm's. State changes are logged to standard error; standard output is the answer alone.

mod cli;
mod commands;
mod control;
mod events;
mod failure;
mod log;
mod report;
mod service;
mod size;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Add, Cli, Command, Repair};
use crate::commands::members;
use crate::control::Request;
use crate::failure::Failure;

fn main() -> ExitCode {
    log::start();
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
        Some(Command::Wait(options)) => commands::wait::run(&options),
        Some(Command::Events(options)) => commands::events::run(&options),
        Some(Command::Metrics(options)) => commands::metrics::run(&options),
        Some(Command::Cat(options)) => commands::cat::run(&options),
        Some(Command::Fail(options)) => members::run(&options, |member| Request::Fail { member }),
        Some(Command::Remove(options)) => {
            members::run(&options, |member| Request::Remove { member })
        }
        Some(Command::Add(Add { force, members })) => {
            members::run(&members, |member| Request::Add { member, force })
        }
        Some(Command::ReAdd(options)) => members::run(&options, |member| Request::ReAdd { member }),
        Some(Command::Replace(options)) => members::replace(&options),
        Some(Command::Check(options)) => commands::scrub::run(&options, Request::Check {}),
        Some(Command::Repair(Repair { trust_data, scrub })) => {
            commands::scrub::run(&scrub, Request::Repair { trust_data })
        }
        Some(Command::StopCheck(options)) => commands::scrub::stop(&options),
        Some(Command::SetSpeed(options)) => commands::scrub::set_speed(&options),
    }
}
