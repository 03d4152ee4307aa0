//! What all clones and queues of an open array share.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};

use raid_core::QUEUE_COUNT_MAX;

use raid_core::volume::{MetadataUpdate, Volume};

use crate::background::Bell;
use crate::bitmap::Bitmap;
use crate::deadline::{Call, Clock, call_all};
use crate::member::Member;
use crate::metadata::Metadata;
use crate::walk::{Goal, position_of};
use crate::{Error, Limits, OpenOptions, Queue};

/// How long [`stop`](crate::Array::stop) waits for queues that make no progress.
const DRAIN: Duration = Duration::from_secs(30);

/// An open array.
pub(crate) struct Shared {
    pub(crate) options: OpenOptions,
    pub(crate) limits: Limits,
    pub(crate) volume: Arc<Volume>,
    /// Member I/O goes through rings.
    pub(crate) uring: bool,
    /// By the engine's member index; emptied when the array stops.
    members: RwLock<Arc<[Member]>>,
    /// Superblocks; `None` for arrays in memory, which have none.
    pub(crate) metadata: Option<Metadata>,
    /// Says when members have had their time to answer.
    pub(crate) clock: Clock,
    desks: RwLock<[Option<Arc<Desk>>; QUEUE_COUNT_MAX]>,
    stopping: AtomicBool,
    /// Counters of queues that are gone.
    retired: Mutex<Requests>,
    /// Grows with every change of `members`.
    table_version: AtomicUsize,
    /// Wakes the thread behind the array.
    pub(crate) bell: Arc<Bell>,
    /// What that thread is about, if anything.
    activity: Mutex<Option<Activity>>,
    /// Checks that have ended.
    scrubs: AtomicU64,
    /// Bytes of each member in a second: see [`OpenOptions`].
    speed_min: AtomicU64,
    speed_max: AtomicU64,
    /// Group bytes that resyncs have gone over.
    resynced_bytes: AtomicU64,
    /// Lost places that the engine could not tell of, when it was last looked.
    pub(crate) losses_dropped: AtomicU64,
}

/// What the thread behind an array is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Activity {
    pub(crate) group: usize,
    pub(crate) goal: Goal,
    /// Group byte that it has come to.
    pub(crate) position: u64,
    /// Group bytes that it has gone over.
    pub(crate) passed: u64,
    pub(crate) began: Instant,
}

/// Where one queue can be reached by the others.
pub(crate) struct Desk {
    /// Wakes the queue's thread.
    pub(crate) eventfd: OwnedFd,
    /// Another queue has left something in the engine's mailbox.
    pub(crate) woken: AtomicBool,
    /// Superblock updates of this queue that have ended since it last looked.
    pub(crate) updated: AtomicUsize,
    /// The version of the table of members that the queue has.
    pub(crate) table_version: AtomicUsize,
    /// Requests taken and not completed. Written by the queue alone.
    pub(crate) in_flight: AtomicU32,
    /// What has been completed. Written by the queue alone.
    pub(crate) completed: RequestCounters,
}

/// Requests completed, as the owner counts them.
#[derive(Default)]
pub(crate) struct RequestCounters {
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
}

/// Requests completed, as others see them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requests {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) flushes: u64,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
}

impl RequestCounters {
    /// Adds without a locked instruction: the queue is the only writer.
    pub(crate) fn add(cell: &AtomicU64, amount: u64) {
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    fn add_to(&self, sum: &mut Requests) {
        sum.reads += self.reads.load(Ordering::Relaxed);
        sum.writes += self.writes.load(Ordering::Relaxed);
        sum.flushes += self.flushes.load(Ordering::Relaxed);
        sum.read_bytes += self.read_bytes.load(Ordering::Relaxed);
        sum.written_bytes += self.written_bytes.load(Ordering::Relaxed);
    }
}

impl Desk {
    pub(crate) fn new(eventfd: OwnedFd) -> Self {
        Self {
            eventfd,
            woken: AtomicBool::new(false),
            updated: AtomicUsize::new(0),
            table_version: AtomicUsize::new(0),
            in_flight: AtomicU32::new(0),
            completed: RequestCounters::default(),
        }
    }

    /// Makes the queue's eventfd readable.
    pub(crate) fn signal(&self) {
        // Fails only when the counter is at its end, and then it is readable.
        let _ = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
    }
}

impl Shared {
    pub(crate) fn new(
        options: OpenOptions,
        limits: Limits,
        volume: Volume,
        uring: bool,
        members: Vec<Member>,
        metadata: Option<Metadata>,
    ) -> Self {
        let speed_min = AtomicU64::new(options.speed_min);
        let speed_max = AtomicU64::new(options.speed_max.unwrap_or(u64::MAX));
        let clock = Clock::new(options.io_timeout);
        Self {
            options,
            limits,
            clock,
            volume: Arc::new(volume),
            uring,
            members: RwLock::new(members.into()),
            metadata,
            desks: RwLock::new([const { None }; QUEUE_COUNT_MAX]),
            stopping: AtomicBool::new(false),
            retired: Mutex::default(),
            table_version: AtomicUsize::new(0),
            bell: Arc::default(),
            activity: Mutex::default(),
            scrubs: AtomicU64::new(0),
            speed_min,
            speed_max,
            resynced_bytes: AtomicU64::new(0),
            losses_dropped: AtomicU64::new(0),
        }
    }

    pub(crate) fn members(&self) -> Arc<[Member]> {
        Arc::clone(&self.members.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks the table of members for a change.
    pub(crate) fn table(&self) -> RwLockWriteGuard<'_, Arc<[Member]>> {
        self.members.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the changes of the table.
    pub(crate) fn table_version(&self) -> usize {
        self.table_version.load(Ordering::Acquire)
    }

    /// Has every queue take the changed table over.
    pub(crate) fn table_changed(&self) {
        self.table_version.fetch_add(1, Ordering::AcqRel);
        self.desks().iter().for_each(|desk| desk.signal());
    }

    /// Waits a moment for queues to take the table over: one that nobody polls keeps what it has.
    pub(crate) fn settle_table(&self) {
        let version = self.table_version();
        let is_behind = |desk: &Arc<Desk>| desk.table_version.load(Ordering::Acquire) < version;
        let start = Instant::now();
        while self.desks().iter().any(is_behind) && start.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Makes queue `id` known to the others.
    pub(crate) fn enter(&self, id: usize, desk: Arc<Desk>) {
        self.desks.write().unwrap_or_else(PoisonError::into_inner)[id] = Some(desk);
    }

    /// Forgets queue `id`, and keeps its counters.
    pub(crate) fn leave(&self, id: usize) {
        let desk = self.desks.write().unwrap_or_else(PoisonError::into_inner)[id].take();
        if let Some(desk) = desk {
            desk.completed.add_to(&mut self.retired());
        }
    }

    /// Returns where all queues can be reached.
    pub(crate) fn desks(&self) -> Vec<Arc<Desk>> {
        let desks = self.desks.read().unwrap_or_else(PoisonError::into_inner);
        desks.iter().flatten().cloned().collect()
    }

    /// Tells queue `id` to look into its mailbox.
    pub(crate) fn wake(&self, id: usize) {
        let desks = self.desks.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(desk) = desks.get(id).and_then(Option::as_ref) {
            desk.woken.store(true, Ordering::Release);
            desk.signal();
        }
    }

    /// Says whether queues other than `own` have requests in flight.
    pub(crate) fn others_in_flight(&self, own: &Queue) -> bool {
        let desks = self.desks.read().unwrap_or_else(PoisonError::into_inner);
        desks
            .iter()
            .flatten()
            .any(|desk| !own.is_at(desk) && desk.in_flight.load(Ordering::Relaxed) > 0)
    }

    fn activity_lock(&self) -> MutexGuard<'_, Option<Activity>> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what the thread behind the array begins.
    pub(crate) fn begin_activity(&self, group: usize, goal: Goal) {
        let began = Instant::now();
        let activity = Activity { group, goal, position: 0, passed: 0, began };
        *self.activity_lock() = Some(activity);
    }

    /// Notes how far it has come, in group bytes, and how much that was.
    pub(crate) fn advance_activity(&self, position: u64, passed: u64) {
        if let Some(activity) = self.activity_lock().as_mut() {
            activity.position = position;
            activity.passed += passed;
            if activity.goal == Goal::Resync {
                self.resynced_bytes.fetch_add(passed, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn end_activity(&self) {
        *self.activity_lock() = None;
    }

    /// Returns what is done in a group now.
    pub(crate) fn activity(&self, group: usize) -> Option<Activity> {
        self.activity_lock().filter(|activity| activity.group == group)
    }

    /// Counts a check that has ended.
    pub(crate) fn count_scrub(&self) {
        self.scrubs.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns how many checks have ended.
    pub(crate) fn scrubs(&self) -> u64 {
        self.scrubs.load(Ordering::Acquire)
    }

    /// Sets the limits of what is done behind the array.
    pub(crate) fn set_speed(&self, min: Option<u64>, max: Option<u64>) {
        min.iter().for_each(|min| self.speed_min.store(*min, Ordering::Relaxed));
        max.iter().for_each(|max| self.speed_max.store(*max, Ordering::Relaxed));
    }

    /// `passed` are bytes of each member, since `began`.
    fn is_above(limit: u64, passed: u64, began: Instant) -> bool {
        u128::from(passed) * 1000 > u128::from(limit) * began.elapsed().as_millis()
    }

    /// Says whether a walk has the speed that it is to have whatever others want.
    pub(crate) fn is_fast_enough(&self, passed: u64, began: Instant) -> bool {
        Self::is_above(self.speed_min.load(Ordering::Relaxed), passed, began)
    }

    /// Says whether a walk is ahead of the speed that it may have.
    pub(crate) fn is_too_fast(&self, passed: u64, began: Instant) -> bool {
        Self::is_above(self.speed_max.load(Ordering::Relaxed), passed, began)
    }

    /// Returns the group bytes that resyncs have gone over since the array was opened.
    pub(crate) fn resynced_total(&self) -> u64 {
        self.resynced_bytes.load(Ordering::Relaxed)
    }

    /// Returns the group bytes of one bit of the engine's bitmap; `None` without a bitmap.
    pub(crate) fn region_bytes(&self, group: usize) -> Option<u64> {
        let metadata = self.metadata.as_ref()?;
        let granule = metadata.with_bitmap(group, Bitmap::granule_bytes)?;
        let geometry = self.volume.geometry(group);
        let width = if geometry.parity_count() > 0 { geometry.data_slots() as u64 } else { 1 };
        Some(granule * width)
    }

    /// Returns how far a group's redundancy is right, as md counts; `None` for everywhere.
    pub(crate) fn resynced_bytes(&self, group: usize) -> Option<u64> {
        let volume = &self.volume;
        // By position or by the bitmap: below the first region that is due, nothing is.
        let below = || volume.next_unsynced(group, 0).map_or(0, |(first, _)| first);
        (!volume.is_trusted(group)).then(|| position_of(volume.geometry(group), below()))
    }

    /// Returns what all queues have completed.
    pub(crate) fn requests(&self) -> Requests {
        let mut sum = *self.retired();
        let desks = self.desks.read().unwrap_or_else(PoisonError::into_inner);
        desks.iter().flatten().for_each(|desk| desk.completed.add_to(&mut sum));
        sum
    }

    fn retired(&self) -> MutexGuard<'_, Requests> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops: no new requests, wait for the old ones, flush, mark clean, let the members go.
    pub(crate) fn stop(&self) -> Result<(), Error> {
        if self.stopping.swap(true, Ordering::SeqCst) {
            return Err(Error::Stopped);
        }
        let drained = self.drain();
        let closed = drained.and_then(|()| self.close());
        *self.members.write().unwrap_or_else(PoisonError::into_inner) = Arc::new([]);
        closed
    }

    /// Waits until no queue has a request in flight; their threads must go on polling them.
    fn drain(&self) -> Result<(), Error> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(50);
        loop {
            let desks = self.desks.read().unwrap_or_else(PoisonError::into_inner);
            let busy: u32 =
                desks.iter().flatten().map(|d| d.in_flight.load(Ordering::SeqCst)).sum();
            if busy == 0 {
                return Ok(());
            }
            desks.iter().flatten().for_each(|desk| desk.signal());
            drop(desks);
            if start.elapsed() > DRAIN.max(3 * self.options.io_timeout) {
                return Err(Error::Busy(busy));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Flushes a group's members that are in sync; who does not take it leaves, if that can be
    /// borne.
    fn flush_group(&self, group: usize, members: &[Member]) -> Result<(), Error> {
        let slots = self.volume.in_sync(group);
        let indexes: Vec<usize> =
            slots.iter().map(|slot| self.volume.member_index(group, slot)).collect();
        let call = |index: &usize| -> (Member, Call) {
            (members[*index].clone(), Box::new(Member::flush))
        };
        let results = call_all(indexes.iter().map(call).collect(), self.clock.patience());
        for (index, result) in indexes.into_iter().zip(results) {
            let Err(error) = result else { continue };
            tracing::error!("{error}");
            if self.metadata.is_none() || self.volume.fail_member(index).is_err() {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Flushes the members and marks the array clean.
    fn close(&self) -> Result<(), Error> {
        if self.limits.read_only {
            return Ok(());
        }
        let members = self.members();
        let mut is_clean = true;
        for group in 0..self.volume.group_count() {
            self.flush_group(group, &members)?;
            let Some(metadata) = &self.metadata else { continue };
            let turn = metadata.turn(group);
            metadata.store_bad_blocks(group, &self.volume, &members, self.clock.patience())?;
            drop(turn);
            // Nothing is under way: what is in sync needs no bit. Twice, as a period is the least.
            let aged = (0..2).all(|_| self.volume.age_intent(group));
            if aged && !self.volume.is_dirty(group) {
                self.update_now();
            }
            let resynced_bytes = self.resynced_bytes(group);
            // Clean already, but a resync has got on.
            let progress = MetadataUpdate {
                group,
                epoch: 0,
                superblocks: true,
                intent: None,
                dirty: false,
                in_sync: self.volume.in_sync(group),
                recovering: self.volume.recovering(group),
                replacing: self.volume.replacing(group),
            };
            let may_be_clean = !self.volume.is_suspect(group) && !self.volume.is_stopped(group);
            let got_on = !self.volume.is_dirty(group)
                && metadata.group(group).resynced_bytes != resynced_bytes
                || !self.volume.recovering(group).is_empty()
                || !self.volume.replacing(group).is_empty();
            let resumed = may_be_clean && resynced_bytes.is_none() && metadata.resume_log(group);
            let progress = (may_be_clean && (got_on || resumed)).then_some(progress);
            let update = self.volume.clean_update(group).or(progress);
            let Some(update) = update else {
                is_clean &= !self.volume.is_dirty(group);
                continue;
            };
            let patience = self.clock.patience();
            let failed =
                metadata.write(&update, resynced_bytes, &self.volume, &members, patience)?;
            if !failed.is_empty() {
                return Err(Error::Io { offset: 0 });
            }
            self.volume.marked_clean(group);
        }
        if is_clean { Ok(()) } else { Err(Error::NotClean) }
    }
}
