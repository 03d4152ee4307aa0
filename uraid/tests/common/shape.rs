//! Arrays to try: level, layout, number of members, and which members each can lose.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{succeed, uraid};

/// One kind of array.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub level: &'static str,
    pub layout: Option<&'static str>,
    pub members: usize,
}

const fn shape(level: &'static str, layout: Option<&'static str>, members: usize) -> Shape {
    Shape { level, layout, members }
}

pub const RAID0: &[Shape] = &[shape("0", None, 3), shape("0", None, 4)];
pub const RAID1: &[Shape] = &[shape("1", None, 2), shape("1", None, 3)];
pub const RAID4: &[Shape] = &[shape("4", None, 4)];
pub const RAID5: &[Shape] = &[
    shape("5", Some("left-symmetric"), 5),
    shape("5", Some("left-asymmetric"), 4),
    shape("5", Some("right-symmetric"), 4),
    shape("5", Some("right-asymmetric"), 3),
];
pub const RAID6: &[Shape] = &[shape("6", None, 4), shape("6", None, 6)];
pub const RAID10_NEAR: &[Shape] = &[
    shape("10", Some("n2"), 4),
    shape("10", Some("n2"), 5),
    shape("10", Some("n3"), 4),
    shape("10", Some("n3"), 5),
];
pub const RAID10_FAR: &[Shape] = &[
    shape("10", Some("f2"), 4),
    shape("10", Some("f2"), 3),
    shape("10", Some("o2"), 4),
    shape("10", Some("o2"), 3),
];
pub const RAID50: &[Shape] = &[shape("50", None, 6)];
pub const RAID60: &[Shape] = &[shape("60", None, 8)];

impl Shape {
    /// The paths of this shape's members in `folder`.
    pub fn paths(&self, folder: &Path) -> Vec<PathBuf> {
        (0..self.members).map(|slot| folder.join(format!("m{slot}.img"))).collect()
    }

    /// `uraid create` of this shape; members are made with `member_bytes` each.
    pub fn create_command(&self, folder: &Path, chunk: &str, member_bytes: u64) -> Command {
        let mut command = uraid();
        command.args(["create", "--level", self.level, "--chunk", chunk]);
        command.args(["--member-size", &member_bytes.to_string()]);
        if let Some(layout) = self.layout {
            command.args(["--layout", layout]);
        }
        command.args(self.paths(folder));
        command
    }

    /// Creates the array and returns its members.
    pub fn create(&self, folder: &Path, chunk: &str, member_bytes: u64) -> Vec<PathBuf> {
        succeed(&mut self.create_command(folder, chunk, member_bytes));
        self.paths(folder)
    }

    /// Every set of members that may be lost together; for RAID 60 every pair, and both parities'
    /// worth of each group.
    pub fn tolerated(&self) -> Vec<Vec<usize>> {
        let singles = (0..self.members).map(|slot| vec![slot]);
        let pairs = (0..self.members).flat_map(|b| (0..b).map(move |a| vec![a, b]));
        let all = singles.chain(pairs).filter(|lost| self.survives(lost));
        let mut sets: Vec<Vec<usize>> = all.collect();
        if self.level == "60" {
            sets.extend([vec![0, 1, 4, 5], vec![2, 3, 6, 7], vec![1, 2, 4, 7]]);
        }
        sets
    }

    fn survives(&self, lost: &[usize]) -> bool {
        let group = |slot: usize| slot / (self.members / 2);
        match self.level {
            "0" => false,
            "1" => lost.len() < self.members,
            "4" | "5" => lost.len() == 1,
            "6" | "60" => true,
            "50" => lost.len() == 1 || group(lost[0]) != group(lost[1]),
            "10" => lost.len() == 1 || self.mirrors_survive(lost[0], lost[1]),
            level => panic!("level {level} is not known"),
        }
    }

    /// Whether a RAID 10 bears the loss of two members.
    fn mirrors_survive(&self, a: usize, b: usize) -> bool {
        let layout = self.layout.unwrap_or("n2");
        let neighbours = b - a == 1 || (a == 0 && b == self.members - 1);
        match layout {
            "n3" => true,
            // Pairs of copies start at even places; with an odd number of members at every place.
            "n2" if self.members.is_multiple_of(2) => a / 2 != b / 2,
            _ => !neighbours,
        }
    }
}
