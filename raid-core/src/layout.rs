//! Levels and layouts: their md numbers and the names that mdadm prints and accepts.
//!
//! A layout says where inside a level the chunks go. The numbers are those of an md superblock, so
//! they are never changed here. The rules themselves are in the submodules: [`parity`] for levels
//! 4, 5 and 6, `raid0` for unequal members, `raid10` for copies. [`crate::geometry`] puts them
//! together with sizes.

pub(crate) mod divider;
mod names;
pub mod parity;
pub(crate) mod raid0;
pub(crate) mod raid10;

pub use parity::ParityLayout;

use core::fmt;

/// RAID level. `repr` is the md number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(i32)]
pub enum Level {
    /// Members one after the other.
    Linear = -1,
    /// Striped, no redundancy.
    Raid0 = 0,
    /// Mirrored.
    Raid1 = 1,
    /// Parity on the last slot.
    Raid4 = 4,
    /// Rotating parity.
    Raid5 = 5,
    /// Two rotating parities, P and Q.
    Raid6 = 6,
    /// Striped mirrors: near, far and offset copies over any number of slots.
    Raid10 = 10,
}

impl Level {
    /// Every level, by md number.
    pub const ALL: [Self; 7] = [
        Self::Linear,
        Self::Raid0,
        Self::Raid1,
        Self::Raid4,
        Self::Raid5,
        Self::Raid6,
        Self::Raid10,
    ];

    /// The level of an md superblock.
    ///
    /// # Errors
    /// [`LayoutError::UnknownLevel`] for any other number (md's multipath, faulty and containers
    /// among them).
    pub fn from_md(number: i32) -> Result<Self, LayoutError> {
        let found = Self::ALL.into_iter().find(|level| level.to_md() == number);
        found.ok_or(LayoutError::UnknownLevel { number })
    }

    /// The number in an md superblock.
    #[must_use]
    pub const fn to_md(self) -> i32 {
        self as i32
    }

    /// Parity chunks in each stripe: 0, 1 or 2.
    #[must_use]
    pub const fn parity_count(self) -> usize {
        match self {
            Self::Linear | Self::Raid0 | Self::Raid1 | Self::Raid10 => 0,
            Self::Raid4 | Self::Raid5 => 1,
            Self::Raid6 => 2,
        }
    }

    /// Fewest slots that make sense (and that md accepts).
    #[must_use]
    pub const fn slot_count_min(self) -> usize {
        match self {
            Self::Linear | Self::Raid0 | Self::Raid1 => 1,
            Self::Raid4 | Self::Raid5 | Self::Raid10 => 2,
            Self::Raid6 => 4,
        }
    }

    /// Whether losing a member can be survived at all.
    #[must_use]
    pub const fn is_redundant(self) -> bool {
        !matches!(self, Self::Linear | Self::Raid0)
    }
}

/// How a level lays its chunks out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// The level knows one way only: linear, RAID 1 and RAID 4. md writes 0 (and ignores the field
    /// on RAID 4).
    None,
    /// RAID 0: matters only where members are unequal.
    Raid0(Raid0Layout),
    /// RAID 5 and 6.
    Parity(ParityLayout),
    /// RAID 10.
    Raid10(Raid10Layout),
}

impl Layout {
    /// The layout that mdadm chooses for a new array of `level`.
    #[must_use]
    pub const fn default_for(level: Level) -> Self {
        match level {
            Level::Linear | Level::Raid1 | Level::Raid4 => Self::None,
            Level::Raid0 => Self::Raid0(Raid0Layout::Original),
            Level::Raid5 | Level::Raid6 => Self::Parity(ParityLayout::LeftSymmetric),
            Level::Raid10 => Self::Raid10(Raid10Layout::near(2)),
        }
    }

    /// The layout of an md superblock's `level` and `layout`.
    ///
    /// The number is ignored where md ignores it: linear, RAID 1 and RAID 4.
    ///
    /// # Errors
    /// [`LayoutError::UnknownNumber`] when md has no such layout in this level.
    pub fn from_md(level: Level, number: u32) -> Result<Self, LayoutError> {
        let unknown = LayoutError::UnknownNumber { level, number };
        match level {
            Level::Linear | Level::Raid1 | Level::Raid4 => Ok(Self::None),
            Level::Raid0 => Raid0Layout::from_md(number).map(Self::Raid0).ok_or(unknown),
            Level::Raid5 | Level::Raid6 => {
                let found = ParityLayout::ALL.into_iter().find(|layout| layout.to_md() == number);
                found.filter(|layout| layout.fits(level)).map(Self::Parity).ok_or(unknown)
            }
            Level::Raid10 => Raid10Layout::from_md(number).map(Self::Raid10).ok_or(unknown),
        }
    }

    /// The number in an md superblock.
    #[must_use]
    pub const fn to_md(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Raid0(layout) => layout as u32,
            Self::Parity(layout) => layout.to_md(),
            Self::Raid10(layout) => layout.to_md(),
        }
    }

    /// Reads a layout as `mdadm --layout` does, and as `mdadm --detail` prints it.
    ///
    /// # Errors
    /// [`LayoutError::UnknownName`] when `level` has no layout of that name.
    pub fn parse(level: Level, name: &str) -> Result<Self, LayoutError> {
        names::parse_layout(level, name).ok_or(LayoutError::UnknownName { level })
    }

    /// Whether this layout belongs to `level`.
    #[must_use]
    pub const fn fits(self, level: Level) -> bool {
        match self {
            Self::None => matches!(level, Level::Linear | Level::Raid1 | Level::Raid4),
            Self::Raid0(_) => matches!(level, Level::Raid0),
            Self::Parity(layout) => layout.fits(level),
            Self::Raid10(_) => matches!(level, Level::Raid10),
        }
    }
}

/// What happens behind the end of the shorter members of a RAID 0.
///
/// Linux 3.14 changed the rule by mistake; the superblock has said since 5.4 which one an array was
/// written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Raid0Layout {
    /// Not said: fine while all members are equal, refused otherwise, since a guess would give
    /// wrong bytes.
    Unspecified = 0,
    /// Before Linux 3.14: the chunk's number in the array decides the slot in every zone.
    Original = 1,
    /// Since 3.14: the chunk's number in its zone decides.
    Alternate = 2,
}

impl Raid0Layout {
    fn from_md(number: u32) -> Option<Self> {
        [Self::Unspecified, Self::Original, Self::Alternate]
            .into_iter()
            .find(|l| *l as u32 == number)
    }
}

/// How many copies a RAID 10 keeps and where.
///
/// `near` copies lie side by side, `far` times in different parts of the members (or, with
/// `offset`, in neighbouring rows). An array has `near * far` copies of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Raid10Layout {
    /// Copies in the same row.
    pub near: u8,
    /// Copies in other rows.
    pub far: u8,
    /// Whether far copies are in the next rows in place of another part of the member.
    pub offset: bool,
    /// Groups of slots within which far copies rotate.
    pub far_sets: FarSets,
}

/// The group of slots within which the far copies of a RAID 10 rotate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum FarSets {
    /// All slots are one group: what mdadm creates.
    Whole = 0,
    /// Groups of `slots / far`: a first try in Linux 3.9, kept for arrays that have it (bit 17).
    Divided = 1,
    /// Groups of `near * far`: lets more pairs of members be lost (bit 18).
    Copies = 2,
}

const RAID10_OFFSET_BIT: u32 = 1 << 16;
const RAID10_FAR_SETS_SHIFT: u32 = 17;

impl Raid10Layout {
    /// `count` copies side by side (mdadm `nCOUNT`).
    #[must_use]
    pub const fn near(count: u8) -> Self {
        Self { near: count, far: 1, offset: false, far_sets: FarSets::Whole }
    }

    /// `count` copies in different parts of the members (mdadm `fCOUNT`).
    #[must_use]
    pub const fn far(count: u8) -> Self {
        Self { near: 1, far: count, offset: false, far_sets: FarSets::Whole }
    }

    /// `count` copies in neighbouring rows (mdadm `oCOUNT`).
    #[must_use]
    pub const fn offset(count: u8) -> Self {
        Self { near: 1, far: count, offset: true, far_sets: FarSets::Whole }
    }

    /// Copies of every chunk.
    #[must_use]
    pub const fn copy_count(self) -> usize {
        self.near as usize * self.far as usize
    }

    fn from_md(number: u32) -> Option<Self> {
        let far_sets = match number >> RAID10_FAR_SETS_SHIFT {
            0 => FarSets::Whole,
            1 => FarSets::Divided,
            2 => FarSets::Copies,
            _ => return None,
        };
        let [near, far, ..] = number.to_le_bytes();
        let layout = Self { near, far, offset: number & RAID10_OFFSET_BIT != 0, far_sets };
        (near >= 1 && far >= 1).then_some(layout)
    }

    const fn to_md(self) -> u32 {
        let offset = if self.offset { RAID10_OFFSET_BIT } else { 0 };
        self.near as u32
            | (self.far as u32) << 8
            | offset
            | (self.far_sets as u32) << RAID10_FAR_SETS_SHIFT
    }
}

/// A level or a layout that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The level's number is none of ours.
    #[error("level {number} is not one of -1 (linear), 0, 1, 4, 5, 6, 10")]
    UnknownLevel {
        /// The number found.
        number: i32,
    },
    /// The level's name is none of ours.
    #[error("level name is not one of linear, raid0, raid1, raid4, raid5, raid6, raid10")]
    UnknownLevelName,
    /// The level has no layout of that number.
    #[error("{level} has no layout {number:#x}")]
    UnknownNumber {
        /// The level asked for.
        level: Level,
        /// The number found.
        number: u32,
    },
    /// The level has no layout of that name.
    #[error("{level} has no layout of that name; it knows {}", names::known_layouts(*level))]
    UnknownName {
        /// The level asked for.
        level: Level,
    },
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(names::level_name(*self))
    }
}

impl core::str::FromStr for Level {
    type Err = LayoutError;

    fn from_str(name: &str) -> Result<Self, LayoutError> {
        names::parse_level(name).ok_or(LayoutError::UnknownLevelName)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        names::write_layout(*self, f)
    }
}
