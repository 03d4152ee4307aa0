//! `uraid create`: an array out of members.

use std::process::ExitCode;

use raid_io::{Array, BitmapChoice, CreateOptions, Level, MetadataVersion};

use super::print;
use crate::cli::{self, Create};
use crate::failure::Failure;
use crate::report;

/// Runs the command.
///
/// # Errors
/// Fails if the options or the members are unsuited; then nothing has been written to any member.
pub(crate) fn run(options: &Create) -> Result<ExitCode, Failure> {
    let array = Array::create(&create_options(options)?, &options.members)?;
    let detail = array.detail();
    array.stop()?;
    if options.json {
        print(&report::json(&detail)?)?;
    } else {
        print(&report::detail::render(&detail))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn create_options(options: &Create) -> Result<CreateOptions, Failure> {
    let (level, groups_default) = match options.level {
        cli::Level::Raid0 => (Level::Raid0, 1),
        cli::Level::Raid1 => (Level::Raid1, 1),
        cli::Level::Raid4 => (Level::Raid4, 1),
        cli::Level::Raid5 => (Level::Raid5, 1),
        cli::Level::Raid6 => (Level::Raid6, 1),
        cli::Level::Raid10 => (Level::Raid10, 1),
        cli::Level::Raid50 => (Level::Raid5, 2),
        cli::Level::Raid60 => (Level::Raid6, 2),
    };
    let groups = options.groups.unwrap_or(groups_default);
    if groups < groups_default {
        return Err(Failure::usage("levels 50 and 60 have two groups at least"));
    }
    let mut create = CreateOptions::new(level);
    create.layout.clone_from(&options.layout);
    create.chunk_bytes = options.chunk;
    create.groups = groups;
    create.size_bytes = options.size;
    create.member_bytes = options.member_size;
    create.spares.clone_from(&options.spare);
    create.metadata = match options.metadata {
        cli::Metadata::V0_90 => MetadataVersion::V0_90,
        cli::Metadata::V1_0 => MetadataVersion::V1_0,
        cli::Metadata::V1_1 => MetadataVersion::V1_1,
        cli::Metadata::V1_2 => MetadataVersion::V1_2,
    };
    create.bitmap = match options.bitmap {
        None => BitmapChoice::Automatic,
        Some(cli::Bitmap::None) => BitmapChoice::None,
        Some(cli::Bitmap::Internal) => BitmapChoice::Internal,
    };
    create.bitmap_chunk_bytes = options.bitmap_chunk;
    create.name.clone_from(&options.name);
    create.assume_clean = options.assume_clean;
    create.force = options.force;
    Ok(create)
}
