//! `raid-bench`: how fast, against which limit.
//!
//! ```text
//! arguments --cli--> profile --> bed (members) --> targets --> ports --> the load generator (job)
//!                        '--> report: figures, limits, ratios, flags --> text, JSON, HTML
//! ```
//!
//! Every figure stands beside a limit that was measured in the same run, in turns with it: a busy
//! machine moves both. Exit codes: 0 done, 1 failed with one line on standard error, 2 wrong usage.

#![deny(unsafe_code)]

mod atto;
mod bed;
mod build;
mod cards;
mod cli;
mod compare;
mod devices;
mod engine;
mod failure;
mod fio;
mod hdtune;
mod html;
mod job;
mod machine;
mod md;
mod nbd;
mod noise;
mod output;
mod parity;
mod port;
mod progress;
mod report;
mod scratch;
mod shape;
mod spool;
mod stats;
mod target;
mod text;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command, Output};
use crate::failure::Failure;
use crate::report::Report;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command.unwrap_or(Command::Compare(cli.compare)) {
        Command::Parity(options) => parity::run(&options).map_err(Failure::from),
        Command::Engine(options) => engine::run(&options).and_then(|r| tell(r, &options.output)),
        Command::Atto(options) => atto::run(&options).and_then(|r| tell(r, &options.bench.output)),
        Command::Hdtune(options) => hdtune::run(&options).and_then(|r| tell(r, &options.output)),
        Command::Spool(options) => spool::run(&options).and_then(|r| tell(r, &options.output)),
        Command::Build(options) => build::run(&options).and_then(|r| tell(r, &options.output)),
        Command::Compare(options) => compare::run(&options).and_then(|r| tell(r, &options.output)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("raid-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Writes a report where it is wanted.
fn tell(mut report: Report, output: &Output) -> Result<(), Failure> {
    report.published = cards::all()?;
    if let Some(path) = &output.html {
        output::write(path, &html::page(&report))?;
    }
    let mut is_printed = false;
    if let Some(path) = &output.json {
        let mut json = serde_json::to_string_pretty(&report)?;
        json.push('\n');
        is_printed = path.as_os_str() == "-";
        output::write(path, &json)?;
    }
    if !is_printed {
        output::print(&text::table(&report))?;
    }
    Ok(())
}
