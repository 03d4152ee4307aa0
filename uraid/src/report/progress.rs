//! How far background work has come, and how fast it goes: two looks at the array, some time apart.

use std::time::Duration;

use raid_io::{GroupStatus, Status};

/// An earlier look, to tell the speed by.
#[derive(Debug)]
pub(crate) struct Earlier {
    /// What was seen.
    pub(crate) status: Status,
    /// How long ago.
    pub(crate) age: Duration,
}

/// Background work on one group.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Progress<'a> {
    /// md's word in /proc/mdstat: resync, recovery, check, repair.
    pub(crate) action: &'a str,
    /// KiB of each member passed.
    pub(crate) done: u64,
    /// KiB of each member to pass.
    pub(crate) total: u64,
    /// KiB of each member in a second; 0 while unknown.
    pub(crate) speed: u64,
}

impl<'a> Progress<'a> {
    /// What goes on in group `index` of `status`, if anything does.
    pub(crate) fn of(status: &'a Status, index: usize, earlier: Option<&Earlier>) -> Option<Self> {
        let group = status.groups.get(index)?;
        let action = action(group)?;
        let before = earlier.and_then(|e| Some((e.status.groups.get(index)?, e.age)));
        let speed = before.map_or(0, |(before, age)| {
            let kib = group.sync_done_bytes.saturating_sub(before.sync_done_bytes) >> 10;
            (u128::from(kib) * 1000 / age.as_millis().max(1)) as u64
        });
        let total = (group.sync_total_bytes >> 10).max(1);
        Some(Self { action, done: (group.sync_done_bytes >> 10).min(total), total, speed })
    }

    /// Thousandths done.
    pub(crate) fn permille(&self) -> u64 {
        (u128::from(self.done) * 1000 / u128::from(self.total)) as u64
    }

    /// Time left in tenths of a minute.
    pub(crate) fn tenth_minutes_left(&self) -> u64 {
        (self.total - self.done) / self.speed.max(1) / 6
    }
}

fn action(group: &GroupStatus) -> Option<&str> {
    match group.sync_action.as_str() {
        "" | "idle" => None,
        "recover" => Some("recovery"),
        other => Some(other),
    }
}

/// Says whether anything goes on, so that a second look is worth its time.
pub(crate) fn is_busy(status: &Status) -> bool {
    status.groups.iter().any(|group| action(group).is_some())
}
