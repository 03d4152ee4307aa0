//! Walking over a group in large steps: resync, recovery, check.
//!
//! A walk has a queue of its own and few requests under way, fewer while the array is busy. Its
//! progress counts only as long as nothing changes under it (a write fails, a member comes or
//! goes): then it asks again what is due.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use raid_core::geometry::Geometry;
use raid_core::layout::Level;
use raid_core::request::{Repair, RequestKind};

use crate::shared::Shared;
use crate::status::component_position;
use crate::{Error, Queue};

/// Group bytes of one request: enough for long member I/O, and soon over.
const STEP_BYTES: u64 = 4 << 20;
/// Requests under way while nobody else wants anything, and while somebody does.
const DEPTH_IDLE: usize = 4;
const DEPTH_BUSY: usize = 1;
/// How often the position of a recovery is kept in the superblocks.
const CHECKPOINT: Duration = Duration::from_secs(5);

/// What a walk is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Redundancy is made to agree with the data.
    Resync,
    /// Members that joined are filled.
    Recover,
    /// Redundancy and data are compared.
    Check(Repair),
}

impl Goal {
    /// md's word for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Resync => "resync",
            Self::Recover => "recover",
            Self::Check(Repair::None) => "check",
            Self::Check(_) => "repair",
        }
    }
}

/// A walk over one group.
pub(crate) struct Walk<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) group: usize,
    pub(crate) goal: Goal,
}

/// What must stay as it is for progress to count.
type Circumstances = (u64, u64);

impl Walk<'_> {
    /// Walks until nothing is left to do.
    ///
    /// # Errors
    /// Returns an error if a step fails, or the array stops.
    pub(crate) fn go_all(&self, queue: &mut Queue) -> Result<(), Error> {
        let Self { shared, group, goal } = *self;
        let volume = &shared.volume;
        tracing::info!("group {group}: {} begins", goal.name());
        match goal {
            Goal::Resync => self.go_due(queue, |from| volume.next_unsynced(group, from))?,
            Goal::Recover => {
                while !volume.recovering(group).is_empty() || !volume.replacing(group).is_empty() {
                    self.go_due(queue, |from| volume.next_unrecovered(group, from))?;
                    shared.finish_recovery(group)?;
                }
            }
            Goal::Check(_) => {
                let size = volume.geometry(group).array_bytes();
                self.go(queue, (0, size), self.circumstances())?;
                let sectors = volume.mismatch_sectors(group);
                tracing::info!("group {group}: {sectors} sectors do not agree");
            }
        }
        tracing::info!("group {group}: {} done", goal.name());
        Ok(())
    }

    fn circumstances(&self) -> Circumstances {
        let volume = &self.shared.volume;
        (volume.suspicion(self.group), volume.membership(self.group))
    }

    /// Walks over run after run that is due, from the start whenever something changed.
    fn go_due(
        &self,
        queue: &mut Queue,
        next: impl Fn(u64) -> Option<(u64, u64)>,
    ) -> Result<(), Error> {
        let mut before = self.circumstances();
        let mut from = 0;
        loop {
            let now = self.circumstances();
            if now != before {
                (before, from) = (now, 0);
            }
            match next(from) {
                Some(run) => {
                    if self.go(queue, run, now)? {
                        from = run.1;
                    }
                }
                None if from == 0 => return Ok(()),
                None => from = 0,
            }
        }
    }

    /// Walks over one run, a few steps at a time. False if something changed meanwhile.
    fn go(
        &self,
        queue: &mut Queue,
        (start, end): (u64, u64),
        circumstances: Circumstances,
    ) -> Result<bool, Error> {
        let unit = self.shared.volume.resync_unit(self.group);
        let geometry = self.shared.volume.geometry(self.group);
        let step = (STEP_BYTES / unit).max(1) * unit;
        tracing::debug!("group {}: {} of {start}..{end}", self.group, self.goal.name());
        // By start, the end of what has been done behind a gap.
        let mut ended: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut next, mut below) = (start, start);
        let began = Instant::now();
        let mut kept = Instant::now();
        let result = loop {
            if below >= end {
                break Ok(true);
            }
            if self.is_cancelled() {
                break Err(Error::Stopped);
            }
            let passed = component_position(geometry, below - start);
            let gives_way =
                self.shared.others_in_flight(queue) && self.shared.is_fast_enough(passed, began);
            let depth = if gives_way { DEPTH_BUSY } else { DEPTH_IDLE };
            // What is under way counts: a burst is no longer than one step.
            let is_too_fast = |next: u64| {
                self.shared.is_too_fast(component_position(geometry, next - start), began)
            };
            if next < end && is_too_fast(next) {
                queue.wait(Some(Duration::from_millis(5)))?;
            }
            while next < end && queue.in_flight() < depth && !is_too_fast(next) {
                let len = step.min(end - next);
                queue.submit_background(self.kind(), next, len)?;
                next += len;
            }
            let Some(completion) = queue.poll() else {
                if queue.in_flight() > 0 {
                    queue.wait(Some(Duration::from_millis(500)))?;
                }
                continue;
            };
            if let Err(error) = completion.result {
                break Err(error);
            }
            let len = step.min(end - completion.user_data);
            ended.insert(completion.user_data, completion.user_data + len);
            let before = below;
            while let Some(end) = ended.remove(&below) {
                below = end;
            }
            if below > before {
                self.shared.advance_activity(below, below - before);
                match self.note(start, before, below, circumstances) {
                    Ok(true) => {}
                    other => break other,
                }
            }
            if self.goal == Goal::Recover && kept.elapsed() > CHECKPOINT {
                kept = Instant::now();
                self.shared.volume.request_update(self.group);
                self.shared.update_now();
            }
        };
        // What is still under way belongs to no walk any more.
        while queue.in_flight() > 0 {
            if queue.poll().is_none() {
                queue.wait(Some(Duration::from_millis(100)))?;
            }
        }
        while queue.poll().is_some() {}
        result
    }

    fn kind(&self) -> RequestKind {
        let group = self.group as u32;
        match self.goal {
            Goal::Resync => RequestKind::Resync { group },
            Goal::Recover => RequestKind::Recover { group },
            Goal::Check(repair) => RequestKind::Check { group, repair },
        }
    }

    fn is_cancelled(&self) -> bool {
        let called_off = matches!(self.goal, Goal::Check(_)) && self.shared.bell.is_called_off();
        self.shared.bell.is_finished() || called_off
    }

    /// Notes that the run is done from its `start` to `below`, where it was `before` the last time.
    fn note(
        &self,
        start: u64,
        before: u64,
        below: u64,
        (suspicion, membership): Circumstances,
    ) -> Result<bool, Error> {
        let Self { shared, group, goal } = *self;
        let volume = &shared.volume;
        let unit = volume.resync_unit(group);
        // Regions of the bitmap that end in this step began at most one region before it.
        let region = shared.region_bytes(group);
        let first = region.map(|region| (before.saturating_sub(region) / unit * unit).max(start));
        match goal {
            Goal::Check(_) => {
                shared.take_findings();
                Ok(true)
            }
            Goal::Recover => {
                // What could not be had must be known as lost before the rest counts as filled.
                shared.record_losses(group)?;
                let first = first.unwrap_or(before);
                Ok(volume.note_recovered(group, first, below, membership))
            }
            Goal::Resync => Ok(match first {
                None => volume.note_synced(group, below, suspicion),
                Some(first) => {
                    let noted = volume.note_region_synced(group, first, below, suspicion);
                    if volume.synced(group) < volume.geometry(group).array_bytes() {
                        volume.note_synced(group, below, suspicion)
                    } else {
                        noted
                    }
                }
            }),
        }
    }
}

/// Returns how md counts a group's resync position: in bytes of a member, but of the array in RAID
/// 10.
pub(crate) fn position_of(geometry: &Geometry, group_bytes: u64) -> u64 {
    let bytes = group_bytes.min(geometry.array_bytes());
    if geometry.level() == Level::Raid10 { bytes } else { bytes / geometry.data_slots() as u64 }
}

/// Returns the group bytes below md's resync position.
pub(crate) fn group_bytes_of(geometry: &Geometry, position: u64) -> u64 {
    let width = if geometry.level() == Level::Raid10 { 1 } else { geometry.data_slots() as u64 };
    position.saturating_mul(width).min(geometry.array_bytes())
}

/// Returns how md counts the position of a recovery: in bytes of the member. RAID 10 is filled in
/// the order of the array, of which its members have no prefix: it begins anew.
pub(crate) fn recovery_position(geometry: &Geometry, group_bytes: u64) -> u64 {
    if geometry.level() == Level::Raid10 { 0 } else { position_of(geometry, group_bytes) }
}

/// Returns the group bytes below md's recovery position, in whole units of `unit` bytes.
pub(crate) fn recovered_group_bytes(geometry: &Geometry, position: u64, unit: u64) -> u64 {
    if geometry.level() == Level::Raid10 {
        0
    } else {
        group_bytes_of(geometry, position) / unit * unit
    }
}
