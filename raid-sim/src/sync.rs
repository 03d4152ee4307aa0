//! Recovery as an embedder does it: a queue of its own walks over what is not to be believed, by
//! position or by the bitmap's regions, beside the clients.

use raid_core::request::{Request, RequestKind};

use crate::report::Violation;
use crate::world::{Errand, Flight, World};

/// Lock units of one request.
const STEP_UNITS: u64 = 2;

/// How far the resync of one group is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sync {
    /// [`raid_core::volume::Volume::suspicion`] when this pass began.
    suspicion: u64,
    /// Where the pass goes on.
    next: u64,
    /// Where the run of unsynced units began that the pass is in: what is noted starts here, as a
    /// region of the bitmap may be larger than a step.
    run_start: u64,
    running: bool,
    /// It failed: what is unreadable stays so until it is written.
    given_up: bool,
    passes: u64,
}

impl World<'_> {
    /// True if the group needs no resync, or has been given up.
    pub(crate) fn is_synced(&self, group: usize) -> bool {
        self.volume.is_trusted(group) || self.sync[group].given_up
    }

    /// True if a resync ended without making the group whole.
    pub(crate) fn is_given_up(&self, group: usize) -> bool {
        self.sync[group].given_up
    }

    /// Lets a resync try again after what stopped it may have gone.
    pub(crate) fn retry_sync(&mut self) {
        for sync in &mut self.sync {
            sync.given_up = false;
        }
    }

    /// Starts the next step of each group's resync.
    pub(crate) fn sync_on(&mut self) -> Result<(), Violation> {
        for group in 0..self.sync.len() {
            if !self.volume.is_trusted(group) {
                self.untrusted_at[group] = self.machine.clock;
            }
            if self.is_synced(group) || self.sync[group].running || self.is_starting() {
                continue;
            }
            self.sync_step(group)?;
        }
        Ok(())
    }

    fn sync_step(&mut self, group: usize) -> Result<(), Violation> {
        let from = self.sync[group].next;
        if from > 0 && self.volume.next_unsynced(group, from).is_none() {
            // Behind the last region: once more from the start, for what came meanwhile.
            self.sync[group].next = 0;
        }
        if self.sync[group].next == 0 {
            self.sync[group].suspicion = self.volume.suspicion(group);
            self.sync[group].passes += 1;
            if self.sync[group].passes > 50 {
                return Err(Violation::new("O10", "a resync begins again for ever"));
            }
        }
        let from = self.sync[group].next;
        let size = self.volume.geometry(group).array_bytes();
        let Some((start, end)) = self.volume.next_unsynced(group, from) else {
            let what = "a group is not to be believed, and nothing needs a resync";
            return Err(Violation::new("O10", what));
        };
        if start != from || from == 0 {
            self.sync[group].run_start = start;
        }
        let unit = self.volume.resync_unit(group);
        let end = end.min(start + STEP_UNITS * unit).min(size);
        let queue = self.queues.len() - 1;
        let request = Request {
            tag: group as u32,
            kind: RequestKind::Resync { group: group as u32 },
            offset: start,
            len: end - start,
            fua: false,
        };
        self.queues[queue]
            .submit(request)
            .map_err(|error| Violation::new("engine", format!("resync: {error}")))?;
        self.sync[group].running = true;
        let errand = Errand::Resync { group, end };
        let began = self.machine.tick();
        let flight = Flight { errand, first: 0, count: 0, began, value: 0 };
        self.flights.insert((queue, group as u32), flight);
        Ok(())
    }

    /// Takes the end of a step.
    pub(crate) fn sync_done(
        &mut self,
        group: usize,
        end: u64,
        began: u64,
        failed: bool,
    ) -> Result<(), Violation> {
        self.sync[group].running = false;
        if failed {
            if !self.may_fail_resync(group, began) {
                return Err(Violation::new("O10", format!("resync of group {group} fails")));
            }
            self.sync[group].given_up = true;
            return Ok(());
        }
        let suspicion = self.sync[group].suspicion;
        let by_position = self.volume.synced(group) < self.volume.geometry(group).array_bytes();
        let noted = if by_position {
            self.volume.note_synced(group, end, suspicion)
        } else {
            let start = self.sync[group].run_start;
            self.volume.note_region_synced(group, start, end, suspicion)
        };
        self.sync[group].next = if noted { end } else { 0 };
        if self.volume.is_trusted(group) {
            self.sync[group].next = 0;
            self.sync[group].passes = 0;
            self.machine.counts.resyncs += 1;
        }
        Ok(())
    }
}
