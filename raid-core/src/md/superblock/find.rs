//! The superblock of a member among the places where one may lie.

use alloc::vec::Vec;

use super::{Context, Minor, Superblock, SuperblockError, decode};
use crate::md::MdUuid;

/// Finds the one superblock of a member.
///
/// `areas` holds what was read at [`Minor::super_offset_bytes`] of each version that is looked for
/// (all of [`Minor::ALL`] as a rule: a device that was used twice may have two). `array_uuid`
/// narrows it down to one array.
///
/// # Errors
///
/// [`SuperblockError::Several`] when more than one is valid. When none is, the error of the one
/// that came furthest: a damaged superblock is told from none at all.
pub fn find(
    areas: &[(Minor, &[u8])],
    member_bytes: u64,
    array_uuid: Option<MdUuid>,
) -> Result<Superblock, SuperblockError> {
    let mut found: Vec<Superblock> = Vec::new();
    let mut best = SuperblockError::Magic { magic: 0 };
    for &(minor, bytes) in areas {
        match decode(bytes, Context { minor, member_bytes }) {
            Ok(superblock) if array_uuid.is_none_or(|uuid| uuid == superblock.array_uuid) => {
                found.push(superblock);
            }
            Ok(superblock) => best = SuperblockError::OtherArray { uuid: superblock.array_uuid },
            Err(error) if progress(&error) > progress(&best) => best = error,
            Err(_) => {}
        }
    }
    match <[Superblock; 1]>::try_from(found) {
        Ok([superblock]) => Ok(superblock),
        Err(found) => match found.as_slice() {
            [first, second, ..] => {
                Err(SuperblockError::Several { first: first.minor, second: second.minor })
            }
            _ => Err(best),
        },
    }
}

/// How far a superblock came before it failed.
fn progress(error: &SuperblockError) -> u8 {
    match error {
        SuperblockError::Magic { magic: 0 } => 0,
        SuperblockError::MemberTooSmall { .. }
        | SuperblockError::TooShort { .. }
        | SuperblockError::Magic { .. } => 1,
        SuperblockError::Version { .. } | SuperblockError::OldVersion { .. } => 2,
        SuperblockError::MaxDev { .. } | SuperblockError::Checksum { .. } => 3,
        SuperblockError::SuperOffset { .. } => 4,
        SuperblockError::OtherArray { .. } => 5,
        _ => 6,
    }
}
