//! The subcommands, one file each.

pub(crate) mod cat;
pub(crate) mod create;
pub(crate) mod detail;
pub(crate) mod events;
pub(crate) mod examine;
mod listen;
pub(crate) mod members;
pub(crate) mod metrics;
pub(crate) mod scrub;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod wait;

use std::io::{self, Write};
use std::path::PathBuf;

use raid_io::{Array, Error, OpenOptions};

use crate::failure::Failure;

/// Writes a command's answer. A reader that has gone away wanted no more of it.
fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| Failure::new(format!("standard output: {error}"))),
    }
}

/// Opens an array for looking at it: nothing is written, no right to write is needed.
fn open_to_read(members: &[PathBuf]) -> Result<Array, Error> {
    let mut options = OpenOptions::default();
    options.read_only = true;
    // Not refused for being dirty and degraded: looking is how its owner finds out.
    options.force = true;
    Array::open(members, &options)
}
