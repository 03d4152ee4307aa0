//! One boot: virtual time, queues on one volume, members that answer in any order.
//!
//! ```text
//!   drive: queues -> member operations, metadata, completions     (takes no time)
//!   step:  the earliest of: an answer, a request that is due, a fault, the bitmap ages, the crash
//! ```
//!
//! Nothing here depends on anything but the script and the boot's seed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use raid_core::memory::Segment;
use raid_core::parity::Kernel;
use raid_core::plan::IoKind;
use raid_core::queue::{Queue, QueueConfig};
use raid_core::slots::SlotSet;
use raid_core::volume::{MetadataUpdate, Volume};

use crate::assembly::{GroupStart, volume};
use crate::machine::Machine;
use crate::memory::SimMemory;
use crate::metadata::{GroupMetadata, Job, Purpose};
use crate::options::{Boot, End, Fault, FaultKind, Op};
use crate::random::Random;
use crate::report::Violation;
use crate::sync::Sync;

/// The tag of the check's own requests, above all depths.
pub(crate) const CHECK_TAG: u32 = 31;
/// Requests that a queue can hold.
const TAG_COUNT: u32 = 32;
/// Virtual time between two periods of the bitmap: often enough that a boot sees some.
const AGE_NANOSECONDS: u64 = 150_000;
/// Events of one boot. Far more than any needs: whoever gets there does not end.
const EVENT_COUNT_MAX: u64 = 2_000_000;

/// Where an operation's bytes come from or go to, and who hears of its end.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Queue {
        queue: usize,
        token: u32,
        segments: Vec<Segment>,
    },
    /// A step of an update: index of the job, and the slot.
    Metadata {
        job: usize,
        slot: usize,
        bytes: Vec<u8>,
    },
}

/// An operation that a member has been given.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) source: Source,
    pub(crate) member: usize,
    pub(crate) kind: IoKind,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) fua: bool,
    pub(crate) sent: u64,
}

/// What a request in flight is for.
#[derive(Clone, Debug)]
pub(crate) enum Errand {
    Client(Op),
    /// A read of the whole-array check; the values go there.
    Check,
    Flush,
    Resync {
        group: usize,
        end: u64,
    },
}

/// A request in flight.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) errand: Errand,
    pub(crate) first: u64,
    pub(crate) count: u64,
    pub(crate) began: u64,
    pub(crate) value: u64,
}

/// What a read of the whole-array check came to: values, or that it failed.
pub(crate) type Found = BTreeMap<u64, Option<u64>>;

/// See the module's text.
pub(crate) struct World<'m> {
    pub(crate) machine: &'m mut Machine,
    pub(crate) volume: Arc<Volume>,
    /// Those of clients, then the one for resync.
    pub(crate) queues: Vec<Queue>,
    pub(crate) memories: Vec<SimMemory>,
    pub(crate) pending: BTreeMap<(u64, u64), Pending>,
    pub(crate) flights: BTreeMap<(usize, u32), Flight>,
    pub(crate) jobs: Vec<Option<Job>>,
    pub(crate) metadata: Vec<GroupMetadata>,
    pub(crate) sync: Vec<Sync>,
    pub(crate) random: Random,
    /// Waiting requests of each client queue.
    pub(crate) script: Vec<VecDeque<Op>>,
    pub(crate) faults: VecDeque<Fault>,
    /// For each member, what happens to its next operation.
    pub(crate) due_faults: Vec<Vec<FaultKind>>,
    /// For each group, slots that something happened to in this boot.
    pub(crate) hurt: Vec<SlotSet>,
    /// Member and sector of what was unreadable at some time of this boot.
    pub(crate) ever_bad: BTreeSet<(usize, u64)>,
    /// For each group, the last moment at which its redundancy was not to be believed.
    pub(crate) untrusted_at: Vec<u64>,
    /// For each group and slot, when it was first seen out of sync.
    pub(crate) left_at: Vec<Vec<u64>>,
    /// The last moment at which a member had no room.
    pub(crate) no_space_at: u64,
    /// Slots in sync at the start, by group: the others must not be touched.
    pub(crate) offered: Vec<SlotSet>,
    /// For each group, whether the engine has sent a write in this boot.
    pub(crate) written: Vec<bool>,
    pub(crate) found: Found,
    pub(crate) flush_result: Option<bool>,
    pub(crate) now: u64,
    /// Requests and faults count their time from here.
    pub(crate) base: u64,
    pub(crate) next_age: u64,
    pub(crate) next_id: u64,
    pub(crate) forced: bool,
    pub(crate) stopped_cleanly: bool,
}

impl<'m> World<'m> {
    pub(crate) fn new(
        machine: &'m mut Machine,
        boot: &Boot,
        starts: Vec<GroupStart>,
    ) -> Result<Self, Violation> {
        let volume = Arc::new(volume(machine, &starts)?);
        let kernels: Vec<Kernel> = Kernel::available().collect();
        let kernel = kernels[(machine.options.kernel % kernels.len() as u64) as usize];
        let config = QueueConfig {
            request_count_max: TAG_COUNT,
            scratch_bytes: volume.scratch_bytes_min(),
            kernel,
        };
        let clients = machine.options.queues;
        let queues: Vec<Queue> = (0..=clients)
            .map(|_| Queue::new(Arc::clone(&volume), config).expect("there is room for queues"))
            .collect();
        let mut script = vec![VecDeque::new(); clients];
        boot.ops.iter().for_each(|op| script[op.queue % clients].push_back(*op));
        let members = machine.members.len();
        let groups = starts.len();
        let mut world = Self {
            memories: (0..=clients).map(|_| SimMemory::default()).collect(),
            queues,
            pending: BTreeMap::new(),
            flights: BTreeMap::new(),
            jobs: Vec::new(),
            sync: vec![Sync::default(); groups],
            random: Random::new(boot.seed),
            script,
            faults: boot.faults.iter().copied().collect(),
            due_faults: vec![Vec::new(); members],
            hurt: vec![SlotSet::new(); groups],
            ever_bad: BTreeSet::new(),
            untrusted_at: vec![0; groups],
            left_at: vec![vec![u64::MAX; machine.options.shape.slots]; groups],
            no_space_at: 0,
            offered: starts.iter().map(|start| start.config.in_sync).collect(),
            written: vec![false; groups],
            found: Found::new(),
            flush_result: None,
            now: 0,
            base: 0,
            next_age: AGE_NANOSECONDS,
            next_id: 0,
            forced: starts.iter().any(|start| start.forced),
            stopped_cleanly: false,
            metadata: starts.iter().map(|start| start.metadata.clone()).collect(),
            volume,
            machine,
        };
        for (index, member) in world.machine.members.iter().enumerate() {
            world.ever_bad.extend(member.bad_sectors().map(|sector| (index, sector)));
        }
        for (group, start) in starts.iter().enumerate() {
            let update = MetadataUpdate {
                group,
                epoch: 0,
                superblocks: false,
                intent: None,
                dirty: false,
                in_sync: start.config.in_sync,
                recovering: SlotSet::new(),
                replacing: SlotSet::new(),
            };
            let job = world.metadata[group].begin_start(update);
            if let Some(job) = job {
                world.start_job(job);
            }
        }
        Ok(world)
    }

    /// Plays requests and faults up to the end that the script has for this boot; leaves the crash
    /// itself to the caller.
    pub(crate) fn play(&mut self, end: End) -> Result<(), Violation> {
        self.base = self.now;
        let until = match end {
            End::Kill { at } | End::PowerCut { at, .. } => Some(self.base + at),
            End::Rest | End::Stop => None,
        };
        self.run(true, until, |world| {
            let resting = world.is_resting();
            let recovered = end != End::Rest || world.is_recovered();
            until.is_none() && resting && recovered && world.script.iter().all(VecDeque::is_empty)
        })
    }

    /// True if no request, operation or update is under way, resync left aside.
    pub(crate) fn is_resting(&self) -> bool {
        let busy = |flight: &Flight| !matches!(flight.errand, Errand::Resync { .. });
        !self.flights.values().any(busy) && self.jobs.iter().all(Option::is_none)
    }

    /// True if every group has been resynced, or cannot be.
    pub(crate) fn is_recovered(&self) -> bool {
        (0..self.sync.len()).all(|group| self.is_synced(group))
            && !self.flights.values().any(|f| matches!(f.errand, Errand::Resync { .. }))
    }

    /// Lets things happen until `done`, or until a moment in virtual time.
    pub(crate) fn run(
        &mut self,
        feed: bool,
        until: Option<u64>,
        done: impl Fn(&Self) -> bool,
    ) -> Result<(), Violation> {
        for _ in 0..EVENT_COUNT_MAX {
            self.drive()?;
            if feed {
                self.feed()?;
            }
            self.sync_on()?;
            self.drive()?;
            if self.flights.is_empty() {
                self.machine.oracle.tidy();
            }
            if done(self) {
                return Ok(());
            }
            let next = self.next_event(feed, until);
            if next.is_none() && !self.is_recovered() {
                // Steps of a resync that has nothing to do take no time.
                continue;
            }
            let Some(next) = next else {
                let what = format!("nothing happens any more: {:?}", self.flights);
                return Err(Violation::new("O10", what));
            };
            self.now = self.now.max(next);
            if until.is_some_and(|until| self.now >= until) {
                return Ok(());
            }
            self.step(feed)?;
        }
        Err(Violation::new("O10", format!("{EVENT_COUNT_MAX} events and no end")))
    }

    fn next_event(&self, feed: bool, until: Option<u64>) -> Option<u64> {
        let pending = self.pending.keys().next().map(|&(due, _)| due);
        let feeds = feed && !self.is_starting();
        let op = self.script.iter().enumerate().filter(|_| feeds).filter_map(|(queue, ops)| {
            let op = ops.front().filter(|_| self.has_room(queue))?;
            Some(self.base + op.at)
        });
        let fault = self.faults.front().filter(|_| feed).map(|fault| self.base + fault.at);
        op.chain(pending).chain(fault).chain(until).min()
    }

    /// True while members are told the bitmap that the array starts with.
    pub(crate) fn is_starting(&self) -> bool {
        self.jobs.iter().flatten().any(|job| job.purpose == Purpose::Start)
    }

    fn has_room(&self, queue: usize) -> bool {
        let own = self.flights.range((queue, 0)..=(queue, u32::MAX)).count();
        own < self.machine.options.depth
    }

    /// One event.
    fn step(&mut self, feed: bool) -> Result<(), Violation> {
        if self.machine.options.granule.is_some() && self.now >= self.next_age {
            self.next_age = self.now + AGE_NANOSECONDS;
            for group in 0..self.volume.group_count() {
                self.volume.age_intent(group);
            }
        }
        if let Some(fault) = self.faults.front().copied().filter(|_| feed)
            && self.base + fault.at <= self.now
        {
            self.faults.pop_front();
            self.strike(fault);
            return Ok(());
        }
        let first = self.pending.first_key_value().map(|(&key, _)| key);
        if let Some(key) = first.filter(|&(due, _)| due <= self.now)
            && let Some(pending) = self.pending.remove(&key)
        {
            return self.answer(pending);
        }
        Ok(())
    }

    /// Something happens to a member.
    fn strike(&mut self, fault: Fault) {
        let index = fault.member;
        let (group, slot) = self.place_of(index);
        self.machine.note(0xfa ^ (index as u64) << 8);
        self.log(|| format!("{fault:?}"));
        match fault.kind {
            FaultKind::Latent { sector, count } => {
                let first = crate::options::DATA_OFFSET / 512 + sector;
                self.machine.members[index].spoil(first, count);
                let bad = (first..first + count).map(|sector| (index, sector));
                self.ever_bad.extend(bad.clone());
                self.machine.was_bad.extend(bad);
                self.machine.oracle.forget_reads();
            }
            FaultKind::Vanish => {
                self.machine.members[index].gone = true;
                self.hurt[group].insert(slot);
                self.machine.oracle.forget_reads();
            }
            FaultKind::Return => self.machine.members[index].gone = false,
            FaultKind::Slow => self.machine.members[index].slowness = 1000,
            FaultKind::NoSpace | FaultKind::Timeout | FaultKind::WriteError => {
                self.due_faults[index].push(fault.kind);
            }
        }
    }

    /// Writes a line into the story's log, if one is kept.
    pub(crate) fn log(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.machine.log {
            log.push(format!("  {:>8} #{} {}", self.now, self.machine.clock, line()));
        }
    }

    /// Group and slot of a member.
    pub(crate) fn place_of(&self, member: usize) -> (usize, usize) {
        let slots = self.machine.options.shape.slots;
        (member / slots, member % slots)
    }

    /// Gives an operation to a member: it answers after a while.
    pub(crate) fn send(&mut self, pending: Pending) {
        let base = match pending.kind {
            IoKind::Read => 20_000,
            IoKind::Flush => 60_000,
            IoKind::Write | IoKind::WriteZeroes { .. } => 30_000,
        };
        let latency = base / 2 + self.random.below(base * 2);
        let due = self.now + latency * self.machine.members[pending.member].slowness;
        self.next_id += 1;
        self.pending.insert((due, self.next_id), pending);
    }

    pub(crate) fn start_job(&mut self, job: Job) {
        let index = self.jobs.len();
        let slots: Vec<usize> = job.steps.iter().map(|&(slot, _)| slot).collect();
        self.jobs.push(Some(job));
        for slot in slots {
            self.job_on(index, slot);
        }
    }

    /// Stops in order: drain is done; flush, mark clean.
    pub(crate) fn stop(&mut self) -> Result<(), Violation> {
        self.script.iter_mut().for_each(VecDeque::clear);
        self.run(false, None, |world| world.flights.is_empty() && world.is_resting())?;
        if !self.flush_all()? {
            return Ok(());
        }
        for group in 0..self.volume.group_count() {
            let Some(update) = self.volume.clean_update(group) else { continue };
            let geometry = &self.machine.geometry;
            let sync_bytes = raid_core::md::regions::sync_bytes(geometry);
            let position = crate::metadata::position_of(geometry, self.volume.synced(group));
            let resynced = (!self.volume.is_trusted(group))
                .then_some(if self.machine.options.granule.is_some() { 0 } else { position });
            let job = self.metadata[group].begin(update, Purpose::Stop, resynced, sync_bytes)?;
            self.start_job(job);
        }
        self.run(false, None, |world| world.is_resting())?;
        self.stopped_cleanly = true;
        Ok(())
    }
}
