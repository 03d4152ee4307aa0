//! `uraid examine`: what each member's superblock says, in the words of `mdadm --examine`.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::process::ExitCode;

use raid_core::md::Superblock;
use raid_core::md::superblock::{AREA_BYTES, Minor, find};

use super::print;
use crate::cli::Examine;
use crate::failure::Failure;
use crate::report;

/// Runs the command: every member is shown; the first that could not be decides the exit.
///
/// # Errors
/// Fails if a member cannot be read or holds no valid superblock.
pub(crate) fn run(options: &Examine) -> Result<ExitCode, Failure> {
    let mut views = Vec::new();
    let mut failures = Vec::new();
    for path in &options.members {
        match superblock_of(path) {
            Ok((superblock, member_bytes)) => {
                views.push(report::examine::View::new(path, &superblock, member_bytes));
            }
            Err(failure) => failures.push(failure),
        }
    }
    if options.json {
        print(&report::json(&views)?)?;
    } else {
        print(&views.iter().map(report::examine::render).collect::<String>())?;
    }
    let mut failures = failures.into_iter();
    let Some(first) = failures.next() else { return Ok(ExitCode::SUCCESS) };
    for other in failures {
        eprintln!("uraid: {other}");
    }
    Err(first)
}

/// Reads the superblock of a member, wherever it is, and the member's size.
fn superblock_of(path: &Path) -> Result<(Superblock, u64), Failure> {
    let failed = |what: &str| {
        let text = format!("{}: {what}", path.display());
        Failure::new(text)
    };
    let file = File::open(path).map_err(|error| failed(&error.to_string()))?;
    let kind = file.metadata().map_err(|error| failed(&error.to_string()))?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(failed("neither a file nor a block device"));
    }
    let size = (&file).seek(SeekFrom::End(0)).map_err(|error| failed(&error.to_string()))?;
    let mut areas = Vec::new();
    for minor in Minor::ALL {
        let Some(offset) = minor.super_offset_bytes(size) else { continue };
        let mut area = vec![0; AREA_BYTES];
        file.read_exact_at(&mut area, offset).map_err(|error| failed(&error.to_string()))?;
        areas.push((minor, area));
    }
    let areas: Vec<_> = areas.iter().map(|(minor, area)| (*minor, area.as_slice())).collect();
    match find(&areas, size, None) {
        Ok(superblock) => Ok((superblock, size)),
        Err(error) => Err(failed(&error.to_string())),
    }
}
