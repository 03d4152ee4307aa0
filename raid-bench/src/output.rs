//! Files and standard output.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}", .0.display(), .1)]
pub(crate) struct WriteFailed(PathBuf, io::Error);

/// Writes `text` to a file, or to standard output for `-`.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), WriteFailed> {
    if path.as_os_str() == "-" {
        return print(text);
    }
    fs::write(path, text).map_err(|error| WriteFailed(path.to_owned(), error))
}

/// Writes `text` to standard output.
pub(crate) fn print(text: &str) -> Result<(), WriteFailed> {
    let result = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
    match result {
        // Whoever reads it has had enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|error| WriteFailed("standard output".into(), error)),
    }
}
