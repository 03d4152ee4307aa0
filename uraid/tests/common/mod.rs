//! What the tests of the command share: running it, serving with it, peers, images, scratch
//! folders.
#![allow(dead_code, unreachable_pub, reason = "every test binary uses its own part of this module")]

pub mod breakable;
pub mod fio;
pub mod image;
pub mod nbd;
pub mod peer;
pub mod rawcheck;
pub mod server;
pub mod shape;
pub mod traveller;
pub mod uml;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use sha2::{Digest, Sha256};

/// The built command.
pub fn uraid() -> Command {
    Command::new(env!("CARGO_BIN_EXE_uraid"))
}

/// Runs a command to its end, whatever the end.
pub fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Runs a command that must succeed, and returns its standard output.
pub fn succeed(command: &mut Command) -> Vec<u8> {
    let output = run(command);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// As [`succeed`], as text.
pub fn succeed_text(command: &mut Command) -> String {
    String::from_utf8(succeed(command)).unwrap()
}

/// A folder that goes away with the test, on disk rather than in memory, as members want
/// `O_DIRECT`.
pub fn scratch() -> tempfile::TempDir {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(target).unwrap();
    // Short, because a unix socket's path has 107 bytes.
    tempfile::Builder::new().prefix("t").rand_bytes(4).tempdir_in(target).unwrap()
}

/// SHA-256 of each file.
pub fn hashes(paths: &[PathBuf]) -> Vec<Vec<u8>> {
    paths.iter().map(|path| Sha256::digest(std::fs::read(path).unwrap()).to_vec()).collect()
}

/// Copies files into a folder under their own names, holes included.
pub fn copy_into(paths: &[PathBuf], folder: &Path) -> Vec<PathBuf> {
    let mut command = Command::new("cp");
    succeed(command.arg("--sparse=always").args(paths).arg(folder));
    paths.iter().map(|path| folder.join(path.file_name().unwrap())).collect()
}
