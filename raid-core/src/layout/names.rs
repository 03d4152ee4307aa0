//! Names of levels and layouts, as mdadm prints and accepts them. Tests: `tests/layout_tables.rs`.

use super::{FarSets, Layout, Level, ParityLayout, Raid0Layout, Raid10Layout};
use core::fmt;

/// mdadm refuses more copies than this when it reads a RAID 10 layout.
const RAID10_COPIES_MAX: u8 = 200;

const LEVELS: [(&str, Level); 16] = [
    // The first name of a level is the one that is printed.
    ("linear", Level::Linear),
    ("raid0", Level::Raid0),
    ("0", Level::Raid0),
    ("stripe", Level::Raid0),
    ("raid1", Level::Raid1),
    ("1", Level::Raid1),
    ("mirror", Level::Raid1),
    ("raid4", Level::Raid4),
    ("4", Level::Raid4),
    ("raid5", Level::Raid5),
    ("5", Level::Raid5),
    ("raid6", Level::Raid6),
    ("6", Level::Raid6),
    ("raid10", Level::Raid10),
    ("10", Level::Raid10),
    ("-1", Level::Linear),
];

const PARITY_LAYOUTS: [(&str, ParityLayout); 18] = [
    ("left-asymmetric", ParityLayout::LeftAsymmetric),
    ("right-asymmetric", ParityLayout::RightAsymmetric),
    ("left-symmetric", ParityLayout::LeftSymmetric),
    ("right-symmetric", ParityLayout::RightSymmetric),
    ("parity-first", ParityLayout::ParityFirst),
    ("parity-last", ParityLayout::ParityLast),
    ("ddf-zero-restart", ParityLayout::DdfZeroRestart),
    ("ddf-N-restart", ParityLayout::DdfNRestart),
    ("ddf-N-continue", ParityLayout::DdfNContinue),
    ("left-asymmetric-6", ParityLayout::LeftAsymmetric6),
    ("right-asymmetric-6", ParityLayout::RightAsymmetric6),
    ("left-symmetric-6", ParityLayout::LeftSymmetric6),
    ("right-symmetric-6", ParityLayout::RightSymmetric6),
    ("parity-first-6", ParityLayout::ParityFirst6),
    ("la", ParityLayout::LeftAsymmetric),
    ("ra", ParityLayout::RightAsymmetric),
    ("ls", ParityLayout::LeftSymmetric),
    ("rs", ParityLayout::RightSymmetric),
];

/// DDF's names in RAID 5, where they mean layouts that have a name of their own.
const RAID5_DDF_LAYOUTS: [(&str, ParityLayout); 3] = [
    ("ddf-zero-restart", ParityLayout::RightAsymmetric),
    ("ddf-N-restart", ParityLayout::LeftAsymmetric),
    ("ddf-N-continue", ParityLayout::LeftSymmetric),
];

const RAID0_LAYOUTS: [(&str, Raid0Layout); 5] = [
    ("original", Raid0Layout::Original),
    ("alternate", Raid0Layout::Alternate),
    ("1", Raid0Layout::Original),
    ("2", Raid0Layout::Alternate),
    ("dangerous", Raid0Layout::Unspecified),
];

pub(super) fn level_name(level: Level) -> &'static str {
    LEVELS.iter().find(|(_, found)| *found == level).map_or("", |(name, _)| name)
}

pub(super) fn parse_level(name: &str) -> Option<Level> {
    lookup(&LEVELS, name)
}

pub(super) fn parse_layout(level: Level, name: &str) -> Option<Layout> {
    if name == "default" {
        return Some(Layout::default_for(level));
    }
    match level {
        Level::Linear | Level::Raid1 | Level::Raid4 => (name == "none").then_some(Layout::None),
        Level::Raid0 => lookup(&RAID0_LAYOUTS, name).map(Layout::Raid0),
        Level::Raid5 => lookup(&RAID5_DDF_LAYOUTS, name)
            .or_else(|| lookup(&PARITY_LAYOUTS, name))
            .filter(|layout| layout.fits(Level::Raid5))
            .map(Layout::Parity),
        Level::Raid6 => lookup(&PARITY_LAYOUTS, name).map(Layout::Parity),
        Level::Raid10 => parse_raid10(name).map(Layout::Raid10),
    }
}

pub(super) fn known_layouts(level: Level) -> &'static str {
    match level {
        Level::Linear | Level::Raid1 | Level::Raid4 => "default",
        Level::Raid0 => "original, alternate",
        Level::Raid5 => {
            "left-asymmetric, right-asymmetric, left-symmetric, right-symmetric, parity-first, \
             parity-last, ddf-zero-restart, ddf-N-restart, ddf-N-continue"
        }
        Level::Raid6 => {
            "left-asymmetric, right-asymmetric, left-symmetric, right-symmetric, parity-first, \
             parity-last, ddf-zero-restart, ddf-N-restart, ddf-N-continue, left-asymmetric-6, \
             right-asymmetric-6, left-symmetric-6, right-symmetric-6, parity-first-6"
        }
        Level::Raid10 => "n2, f2, o2 and so on (near, far, offset copies)",
    }
}

pub(super) fn write_layout(layout: Layout, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match layout {
        Layout::None => f.pad("none"),
        Layout::Raid0(layout) => f.pad(name_of(&RAID0_LAYOUTS, layout)),
        Layout::Parity(layout) => f.pad(name_of(&PARITY_LAYOUTS, layout)),
        Layout::Raid10(layout) => write_raid10(layout, f),
    }
}

fn write_raid10(layout: Raid10Layout, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Raid10Layout { near, far, offset, far_sets } = layout;
    let far_name = if offset { "offset" } else { "far" };
    match (near, far) {
        (1, 1) => f.write_str("NO REDUNDANCY")?,
        (_, 1) => write!(f, "near={near}")?,
        (1, _) => write!(f, "{far_name}={far}")?,
        _ => write!(f, "near={near}, {far_name}={far}")?,
    }
    // mdadm says nothing about far sets; two arrays that differ should not print the same.
    match far_sets {
        FarSets::Whole => Ok(()),
        FarSets::Divided => f.write_str(", far-sets=divided"),
        FarSets::Copies => f.write_str(", far-sets=copies"),
    }
}

/// Reads `n2`, `f2`, `o2`, and what [`write_raid10`] writes: `near=2, far=2`.
fn parse_raid10(name: &str) -> Option<Raid10Layout> {
    let (mut near, mut far) = (None, None);
    let mut far_sets = None;
    for part in name.split(',').map(str::trim) {
        let (word, value) = match part.split_once('=') {
            Some((word, value)) => (word, value),
            None => part.split_at_checked(1)?,
        };
        let is_new = match word {
            "n" | "near" => near.replace(parse_copies(value)?).is_none(),
            "f" | "far" => far.replace((parse_copies(value)?, false)).is_none(),
            "o" | "offset" => far.replace((parse_copies(value)?, true)).is_none(),
            "far-sets" => far_sets.replace(parse_far_sets(value)?).is_none(),
            _ => return None,
        };
        if !is_new {
            return None;
        }
    }
    if near.is_none() && far.is_none() {
        return None;
    }
    let (far, offset) = far.unwrap_or((1, false));
    let far_sets = far_sets.unwrap_or(FarSets::Whole);
    Some(Raid10Layout { near: near.unwrap_or(1), far, offset, far_sets })
}

fn parse_copies(digits: &str) -> Option<u8> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let copies = if is_number { digits.parse().ok()? } else { return None };
    (1..=RAID10_COPIES_MAX).contains(&copies).then_some(copies)
}

fn parse_far_sets(word: &str) -> Option<FarSets> {
    match word {
        "divided" => Some(FarSets::Divided),
        "copies" => Some(FarSets::Copies),
        _ => None,
    }
}

fn lookup<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(found, _)| *found == name).map(|(_, value)| *value)
}

fn name_of<T: PartialEq>(table: &[(&'static str, T)], value: T) -> &'static str {
    table.iter().find(|(_, found)| *found == value).map_or("", |(name, _)| name)
}
