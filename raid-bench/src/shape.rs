//! The shape of an array, and what follows from it: how much of raw speed it could have.

use raid_io::Level;
use serde::Serialize;

/// A level as it is typed: 0, 1, 4, 5, 6, 10, 50, 60.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LevelChoice {
    pub(crate) level: Level,
    /// Striped over groups of this level.
    pub(crate) nested: bool,
}

impl LevelChoice {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (level, nested) = match text.trim_start_matches("raid") {
            "0" => (Level::Raid0, false),
            "1" => (Level::Raid1, false),
            "4" => (Level::Raid4, false),
            "5" => (Level::Raid5, false),
            "6" => (Level::Raid6, false),
            "10" => (Level::Raid10, false),
            "50" => (Level::Raid5, true),
            "60" => (Level::Raid6, true),
            _ => return Err(format!("no level {text}; there are 0, 1, 4, 5, 6, 10, 50, 60")),
        };
        Ok(Self { level, nested })
    }

    /// "raid5", "raid50".
    pub(crate) fn name(self) -> String {
        let zero = if self.nested { "0" } else { "" };
        format!("{}{zero}", self.level)
    }

    /// The fewest members that make sense.
    pub(crate) fn members_min(self) -> usize {
        let one = match self.level {
            Level::Raid0 | Level::Raid1 | Level::Raid10 => 2,
            Level::Raid6 => 4,
            _ => 3,
        };
        if self.nested { 2 * one } else { one }
    }
}

/// The shape of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) choice: LevelChoice,
    pub(crate) members: usize,
    pub(crate) chunk_bytes: u64,
}

/// The member I/O that a small request costs, on average.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Cost {
    pub(crate) reads: f64,
    pub(crate) writes: f64,
}

impl Cost {
    pub(crate) fn total(self) -> f64 {
        self.reads + self.writes
    }

    /// Reads of a hundred.
    pub(crate) fn read_percent(self) -> u32 {
        (self.reads / self.total() * 100.0).round() as u32
    }
}

impl Shape {
    pub(crate) fn groups(&self) -> usize {
        if self.choice.nested { 2 } else { 1 }
    }

    /// Members of a group.
    fn width(&self) -> usize {
        self.members / self.groups()
    }

    /// Parity chunks of a stripe.
    fn parities(&self) -> usize {
        match self.choice.level {
            Level::Raid4 | Level::Raid5 => 1,
            Level::Raid6 => 2,
            _ => 0,
        }
    }

    /// Copies of each byte.
    fn copies(&self) -> usize {
        match self.choice.level {
            Level::Raid1 => self.members,
            Level::Raid10 => 2,
            _ => 1,
        }
    }

    pub(crate) fn is_redundant(&self) -> bool {
        self.parities() > 0 || self.copies() > 1
    }

    /// The part of what is written to members that is the user's data, when whole stripes are
    /// written.
    pub(crate) fn data_part(&self) -> f64 {
        let width = self.width() as f64;
        (width - self.parities() as f64) / width / self.copies() as f64
    }

    /// Bytes of a full stripe, in all groups together.
    pub(crate) fn stripe_bytes(&self) -> u64 {
        let columns = (self.width() - self.parities()) / self.copies();
        self.chunk_bytes * columns.max(1) as u64 * self.groups() as u64
    }

    /// What a small write costs: the cheaper of read-modify-write and reconstruct-write.
    pub(crate) fn write_cost(&self) -> Cost {
        let parities = self.parities() as f64;
        if parities == 0.0 {
            return Cost { reads: 0.0, writes: self.copies() as f64 };
        }
        let others = self.width() as f64 - parities - 1.0;
        Cost { reads: others.min(1.0 + parities), writes: 1.0 + parities }
    }

    /// What a small read costs when the first member is lost, and the rest is asked for all.
    pub(crate) fn degraded_read_cost(&self) -> Cost {
        let (all, width) = (self.members as f64, self.width() as f64);
        let regenerate = if self.parities() == 0 {
            1.0
        } else {
            // All other data and one parity.
            width - self.parities() as f64
        };
        Cost { reads: (all - 1.0) / all + regenerate / all, writes: 0.0 }
    }

    /// The size of a sequential request: whole stripes, a mebibyte or the next above.
    pub(crate) fn long_request_bytes(&self) -> u64 {
        let stripe = self.stripe_bytes();
        (1_u64 << 20).div_ceil(stripe) * stripe
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(level: &str, members: usize) -> Shape {
        let choice = LevelChoice::parse(level).expect("a level");
        Shape { choice, members, chunk_bytes: 64 << 10 }
    }

    #[test]
    fn levels_are_read_and_named() {
        for level in ["0", "1", "4", "5", "6", "10", "50", "60"] {
            let choice = LevelChoice::parse(level).expect("a level");
            assert_eq!(choice.name(), format!("raid{level}"));
            assert_eq!(LevelChoice::parse(&choice.name()), Ok(choice));
        }
        assert!(LevelChoice::parse("7").is_err() && LevelChoice::parse("").is_err());
    }

    /// The table of limits: parts of raw speed that no array of that shape can pass.
    #[test]
    fn limits_are_parts_of_raw_speed() {
        for (level, members, data, reads, writes) in [
            ("0", 4, 1.0, 0.0, 1.0),
            ("1", 2, 0.5, 0.0, 2.0),
            ("5", 5, 0.8, 2.0, 2.0),
            // With two data chunks the other one is read in place of the old data and parity.
            ("5", 3, 2.0 / 3.0, 1.0, 2.0),
            ("6", 6, 4.0 / 6.0, 3.0, 3.0),
            ("6", 4, 0.5, 1.0, 3.0),
            ("10", 4, 0.5, 0.0, 2.0),
            ("50", 6, 2.0 / 3.0, 1.0, 2.0),
            ("50", 10, 0.8, 2.0, 2.0),
        ] {
            let shape = shape(level, members);
            assert!((shape.data_part() - data).abs() < 1e-9, "{level} {members}");
            assert_eq!(shape.write_cost(), Cost { reads, writes }, "{level} {members}");
        }
        assert_eq!(shape("5", 5).write_cost().read_percent(), 50);
        assert_eq!(shape("5", 5).write_cost().total(), 4.0);
    }

    /// Of five members one is lost: four reads of five cost one, the fifth all four others.
    #[test]
    fn a_degraded_read_costs_more_where_it_regenerates() {
        let cost = |level, members| shape(level, members).degraded_read_cost().total();
        assert!((cost("5", 5) - 1.6).abs() < 1e-9);
        assert!((cost("1", 2) - 1.0).abs() < 1e-9);
        assert!((cost("6", 6) - (5.0 + 4.0) / 6.0).abs() < 1e-9);
        assert!((cost("50", 10) - (9.0 + 4.0) / 10.0).abs() < 1e-9);
    }

    #[test]
    fn long_requests_are_whole_stripes() {
        assert_eq!(shape("5", 5).long_request_bytes(), 1 << 20);
        assert_eq!(shape("5", 4).long_request_bytes(), (6 * 192) << 10);
        assert_eq!(shape("50", 6).stripe_bytes(), (4 * 64) << 10);
        assert_eq!(shape("10", 5).stripe_bytes(), (2 * 64) << 10);
    }
}
