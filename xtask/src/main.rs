//! The project's own commands: `cargo xtask test`, `cargo xtask tidy`.

mod peers;
mod steps;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask COMMAND

commands:
  test [--no-install]  everything that must hold: formatting, lints, documentation, no_std, all
                       tests, peers included; as root on Debian the peers are installed first
  tidy                 the project's own rules about its files";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["test"] => steps::test(true),
        ["test", "--no-install"] => steps::test(false),
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
