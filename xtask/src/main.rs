//! The project's own commands: `cargo xtask test`, `cargo xtask arm`,
//! `cargo xtask planted`, `cargo xtask tidy`.

mod arm;
mod peers;
mod steps;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask COMMAND

commands:
  test [--no-install]  everything that must hold: formatting, lints, documentation, no_std, all
                       tests, peers included; as root on Debian the peers are installed first
  arm [--no-install]   the parity tests on an emulated 64-bit Arm (NEON) and on emulated x86-64
                       CPUs without AVX; a part of test
  planted              plants mistakes into the engine, one after the other: the simulator must
                       notice each within ten minutes
  tidy                 the project's own rules about its files";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["test"] => steps::test(true),
        ["test", "--no-install"] => steps::test(false),
        ["arm"] => arm::run(true),
        ["arm", "--no-install"] => arm::run(false),
        ["planted"] => steps::planted(),
        ["tidy"] => tidy::run(),
        ["--help" | "-h" | "help"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("xtask: {problem}");
            ExitCode::FAILURE
        }
    }
}
