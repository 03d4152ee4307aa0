//! `uraid cat`: the array's bytes to standard output.

use std::io::{self, Write};
use std::process::ExitCode;

use super::open_to_read;
use crate::cli::Cat;
use crate::failure::Failure;

/// Read and written at once: long enough for every member to be busy with full chunks.
const STEP_BYTES: u64 = 8 << 20;

/// Runs the command.
///
/// # Errors
/// Fails if the array cannot be opened or read, the range is outside of it, or the output fails.
pub(crate) fn run(options: &Cat) -> Result<ExitCode, Failure> {
    let array = open_to_read(&options.members)?;
    let size = array.limits().size_bytes;
    let length = options.length.unwrap_or_else(|| size.saturating_sub(options.offset));
    let end = options.offset.checked_add(length).filter(|end| *end <= size);
    let Some(end) = end.filter(|_| options.offset <= size) else {
        return Err(Failure::new(format!(
            "range {}+{length} is outside the array of {size} bytes",
            options.offset
        )));
    };
    let mut output = io::stdout().lock();
    let mut bytes = vec![0; STEP_BYTES.min(length) as usize];
    let mut offset = options.offset;
    while offset < end {
        let step = &mut bytes[..STEP_BYTES.min(end - offset) as usize];
        array.read_at(step, offset)?;
        match output.write_all(step) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            other => other.map_err(|error| Failure::new(format!("standard output: {error}")))?,
        }
        offset += step.len() as u64;
    }
    array.stop()?;
    Ok(ExitCode::SUCCESS)
}
