//! The check of a whole array at rest: every sector through the engine, then the members' raw bytes
//! by independent code, then every sector again for every set of further members that may be lost.

use std::sync::Arc;

use raid_core::parity::Kernel;
use raid_core::plan::{IoKind, Trust};
use raid_core::queue::{Queue, QueueConfig};
use raid_core::request::{Request, RequestKind};
use raid_core::slots::SlotSet;
use raid_core::volume::{GroupConfig, OuterConfig, Volume, VolumeConfig};

use crate::checks::{check_parity, check_sector};
use crate::machine::Machine;
use crate::memory::SimMemory;
use crate::options::{DATA_OFFSET, OUTER_OFFSET, OpKind};
use crate::report::Violation;
use crate::workload::{SECTOR, describe, value_of};
use crate::world::{Errand, Flight, World};

/// Sectors of one read of the check.
const READ_SECTORS: u64 = 96;

impl World<'_> {
    /// Flushes through a client's queue; false if that failed, rightly.
    pub(crate) fn flush_all(&mut self) -> Result<bool, Violation> {
        let began = self.machine.tick();
        self.flush_result = None;
        let flight = Flight { errand: Errand::Flush, first: 0, count: 0, began, value: 0 };
        self.launch(0, crate::world::CHECK_TAG, RequestKind::Flush, flight)?;
        self.run(false, None, |world| world.flush_result.is_some())?;
        Ok(self.flush_result == Some(true))
    }

    /// Reads sectors in one request; their values come to `found`.
    fn read_some(&mut self, first: u64, count: u64) -> Result<(), Violation> {
        let began = self.machine.tick();
        let tag = crate::world::CHECK_TAG;
        self.memories[0].prepare(tag, count as usize * SECTOR);
        let flight = Flight { errand: Errand::Check, first, count, began, value: 0 };
        self.launch(0, tag, RequestKind::Read, flight)?;
        self.run(false, None, |world| !world.flights.contains_key(&(0, tag)))?;
        for sector in first..first + count {
            if let Some(Some(value)) = self.found.get(&sector).copied() {
                self.judge(sector, value, began)?;
            }
        }
        Ok(())
    }

    /// Reads and judges every sector. What fails in a long read is read again alone: only what is
    /// really unavailable may fail then.
    pub(crate) fn read_all(&mut self) -> Result<(), Violation> {
        self.found.clear();
        let size = self.machine.oracle.sector_count();
        let mut first = 0;
        while first < size {
            let count = READ_SECTORS.min(size - first);
            self.read_some(first, count)?;
            first += count;
        }
        let failed: Vec<u64> =
            self.found.iter().filter(|(_, value)| value.is_none()).map(|(&at, _)| at).collect();
        failed.into_iter().try_for_each(|sector| self.read_some(sector, 1))
    }

    /// True if a wrong value here is the write hole's: its row was being written when a degraded
    /// group went down (or a write to it failed), and its own member is missing or cannot be
    /// read there.
    pub(crate) fn is_hole(&self, sector: u64) -> bool {
        let (group, places) = self.machine.places(sector);
        let missing = places.iter().all(|&(slot, offset)| {
            !self.volume.in_sync(group).contains(slot)
                || self.has_bad(&self.machine.was_bad, group, slot, offset)
        });
        missing && self.machine.tainted.contains(&self.machine.row(sector))
    }

    /// A member write failed, and more is lost than the group bears, or members have no room: the
    /// writes under way will fail and leave their rows as they are, some parts new and some old.
    pub(crate) fn taint_beyond(&mut self, group: usize, no_space: bool) {
        if !no_space && self.machine.geometry.tolerates(&self.lost(group)) {
            return;
        }
        let modifies = |flight: &&Flight| match &flight.errand {
            Errand::Client(op) => !matches!(op.kind, OpKind::Flush | OpKind::Read),
            _ => false,
        };
        let writes: Vec<Flight> = self.flights.values().filter(modifies).cloned().collect();
        for flight in writes {
            self.taint_failed(&flight);
        }
    }

    /// A write to a degraded parity group failed: its rows may be inconsistent.
    pub(crate) fn taint_failed(&mut self, flight: &Flight) {
        if self.machine.geometry.parity_count() == 0 {
            return;
        }
        for sector in flight.first..flight.first + flight.count {
            let (group, row) = self.machine.row(sector);
            if self.volume.in_sync(group).len() < self.machine.options.shape.slots {
                self.machine.tainted.insert((group, row));
            }
        }
    }

    /// Everything is at rest: checks all there is to check.
    pub(crate) fn verify(&mut self) -> Result<(), Violation> {
        self.run(false, None, |world| world.is_resting() && world.is_recovered())?;
        if !self.flush_all()? {
            return Ok(());
        }
        self.read_all()?;
        self.machine.counts.checks += 1;
        let groups = 0..self.volume.group_count();
        let whole = groups.clone().all(|group| {
            self.volume.is_trusted(group)
                && !self.volume.is_suspect(group)
                && !self.is_given_up(group)
        });
        let found = std::mem::take(&mut self.found);
        if !whole {
            return Ok(());
        }
        let clock = self.machine.tick();
        for (&sector, value) in &found {
            if let Some(value) = value.filter(|_| !self.is_hole(sector)) {
                self.machine.oracle.fix(sector, value, clock);
            }
        }
        for group in groups {
            let in_sync = self.volume.in_sync(group);
            if in_sync == self.machine.geometry.slots() {
                self.machine.tainted.retain(|&(other, _)| other != group);
                self.machine.raw[group] = false;
            }
            self.check_raw(group, in_sync)?;
        }
        for group in 0..self.volume.group_count() {
            self.lose_each_set(group)?;
        }
        Ok(())
    }

    /// Raw bytes: what is durable has the values that were read, parity and copies agree.
    fn check_raw(&mut self, group: usize, in_sync: SlotSet) -> Result<(), Violation> {
        let machine = &*self.machine;
        let shape = &machine.options.shape;
        let images: Vec<Option<&[u8]>> = (0..machine.members.len())
            .map(|index| {
                let (own, slot) = self.place_of(index);
                let known = own == group && in_sync.contains(slot);
                known.then(|| machine.members[index].durable())
            })
            .collect();
        for sector in 0..machine.oracle.sector_count() {
            let Some(value) = machine.oracle.value(sector).filter(|_| !self.is_hole(sector)) else {
                continue;
            };
            check_sector(shape, &images, sector, value)
                .map_err(|message| Violation::new("O5", message))?;
        }
        let block = u64::from(machine.options.block);
        let exempt = |offset: u64| machine.tainted.contains(&(group, offset / block));
        let own = &images[group * shape.slots..(group + 1) * shape.slots];
        check_parity(shape, own, &exempt)
            .map_err(|message| Violation::new("O5", format!("group {group}: {message}")))
    }

    /// For every set of slots that may still be lost: everything reads as before.
    fn lose_each_set(&mut self, group: usize) -> Result<(), Violation> {
        let slots = self.machine.options.shape.slots;
        let missing = self.machine.geometry.slots().difference(self.volume.in_sync(group));
        for mask in 0..1_u32 << slots {
            let lost: SlotSet = (0..slots).filter(|slot| mask >> slot & 1 != 0).collect();
            if !missing.is_subset(&lost) || !self.machine.geometry.tolerates(&lost) {
                continue;
            }
            self.machine.counts.loss_sets += 1;
            let mut in_sync: Vec<SlotSet> =
                (0..self.volume.group_count()).map(|other| self.volume.in_sync(other)).collect();
            in_sync[group] = self.machine.geometry.slots().difference(lost);
            let bytes = Reader::new(self.machine, &in_sync)?.read(self.machine)?;
            for (sector, chunk) in (0..).zip(bytes.chunks_exact(SECTOR)) {
                let Some(expected) = self.machine.oracle.value(sector) else { continue };
                let value = value_of(chunk, sector);
                if value != expected && !self.machine.tainted.contains(&self.machine.row(sector)) {
                    let without: Vec<usize> = lost.iter().collect();
                    let what = format!(
                        "group {group} without {without:?}: sector {sector} reads {}, not {}",
                        describe(value),
                        describe(expected)
                    );
                    return Err(Violation::new("O1/O4", what));
                }
            }
            self.machine.counts.sectors += bytes.len() as u64 / SECTOR as u64;
        }
        Ok(())
    }
}

/// Reads an array read-only from stable media, with some slots taken away.
struct Reader {
    queue: Queue,
    memory: SimMemory,
}

impl Reader {
    fn new(machine: &Machine, in_sync: &[SlotSet]) -> Result<Self, Violation> {
        let groups: Vec<GroupConfig> = in_sync
            .iter()
            .map(|&in_sync| GroupConfig {
                geometry: machine.geometry.clone(),
                data_offsets: vec![DATA_OFFSET; machine.options.shape.slots],
                in_sync,
                trust: Trust::InSync,
                dirty: false,
                intent: None,
                recovering: Vec::new(),
                doubtful: false,
            })
            .collect();
        let outer = machine.outer.as_ref().map(|geometry| OuterConfig {
            geometry: geometry.clone(),
            data_offsets: vec![OUTER_OFFSET; in_sync.len()],
        });
        let block_bytes = machine.options.block;
        let config = VolumeConfig { groups, outer, block_bytes, read_only: true };
        let wrong = |error: String| Violation::new("engine", error);
        let volume = Arc::new(Volume::new(config).map_err(|error| wrong(error.to_string()))?);
        let kernels: Vec<Kernel> = Kernel::available().collect();
        let config = QueueConfig {
            request_count_max: 1,
            scratch_bytes: volume.scratch_bytes_min(),
            kernel: kernels[((machine.options.kernel >> 8) % kernels.len() as u64) as usize],
        };
        let queue = Queue::new(volume, config).map_err(|error| wrong(error.to_string()))?;
        Ok(Self { queue, memory: SimMemory::default() })
    }

    /// The whole array's bytes.
    fn read(mut self, machine: &Machine) -> Result<Vec<u8>, Violation> {
        let len = machine.oracle.sector_count() * SECTOR as u64;
        self.memory.prepare(0, len as usize);
        let request = Request { tag: 0, kind: RequestKind::Read, offset: 0, len, fua: false };
        let wrong = |error: String| Violation::new("O1", error);
        self.queue.submit(request).map_err(|error| wrong(error.to_string()))?;
        loop {
            while let Some(io) = self.queue.poll_io() {
                if io.kind != IoKind::Read {
                    return Err(Violation::new("O9", "a read-only array is written"));
                }
                let (token, segments) = (io.token, io.segments.to_vec());
                let mut at = io.offset as usize;
                let image = machine.members[io.member].durable();
                for segment in segments {
                    let end = at + segment.len as usize;
                    self.memory.put(&segment, &image[at..end]);
                    at = end;
                }
                self.queue.handle_io(token, Ok(()));
            }
            self.queue.run_computes(&mut self.memory);
            if let Some(completion) = self.queue.poll_completion() {
                completion.result.map_err(|error| wrong(error.to_string()))?;
                return Ok(self.memory.buffer(0).to_vec());
            }
        }
    }
}
