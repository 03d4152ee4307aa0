//! `raid-bench`: how fast, against which limit.
//!
//! ```text
//! arguments --cli--> parity --raid-core--> table with limits and ratios --> text, JSON, HTML
//! ```
//!
//! Every figure stands beside a limit that was measured in the same run, in turns with it: a busy
//! machine moves both. Exit codes: 0 done, 1 failed with one line on standard error, 2 wrong usage.

#![deny(unsafe_code)]

mod cli;
mod machine;
mod output;
mod parity;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Parity(options) => parity::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("raid-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}
