//! Making redundancy right again behind an array's back: after an unclean stop, or over old data.
//!
//! A thread with a queue of its own walks over each group that is not trusted, a few units at a
//! time, fewer while the array is busy. What lies below the walk is trusted at once. An orderly
//! stop records how far it came; a crash begins it anew.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use raid_core::geometry::Geometry;
use raid_core::layout::Level;

use crate::shared::Shared;
use crate::{Error, Queue};

/// Group bytes of one request: enough for long member I/O, and soon over.
const STEP_BYTES: u64 = 4 << 20;
/// Requests under way while nobody else wants anything, and while somebody does.
const DEPTH_IDLE: usize = 4;
const DEPTH_BUSY: usize = 1;

/// The thread behind an array, if it has one.
pub(crate) struct Background {
    control: Arc<Control>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Control {
    cancelled: AtomicBool,
}

impl Background {
    /// Starts a resync if the array needs one and may have one.
    pub(crate) fn start(shared: &Arc<Shared>) -> Self {
        let control = Arc::new(Control::default());
        let groups: Vec<usize> =
            (0..shared.volume.group_count()).filter(|group| needs_resync(shared, *group)).collect();
        let wanted = shared.options.resync && !shared.limits.read_only && !groups.is_empty();
        let thread = wanted.then(|| {
            let (shared, control) = (Arc::clone(shared), Arc::clone(&control));
            let thread = thread::Builder::new().name("uraid-resync".into());
            thread.spawn(move || run(&shared, &control, &groups))
        });
        let thread = thread.and_then(|thread| {
            thread.map_err(|error| tracing::warn!("cannot start a resync: {error}")).ok()
        });
        Self { control, thread: Mutex::new(thread) }
    }

    /// Ends the thread; what it has done so far is kept.
    pub(crate) fn finish(&self) {
        self.control.cancelled.store(true, Ordering::Release);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.finish();
    }
}

fn needs_resync(shared: &Shared, group: usize) -> bool {
    shared.volume.geometry(group).level().is_redundant() && !shared.volume.is_trusted(group)
}

fn run(shared: &Arc<Shared>, control: &Control, groups: &[usize]) {
    let done = Queue::new(Arc::clone(shared), true).and_then(|mut queue| {
        groups.iter().try_for_each(|group| {
            shared.resyncing(Some(*group));
            resync(shared, control, &mut queue, *group)
        })
    });
    shared.resyncing(None);
    match done {
        Ok(()) | Err(Error::Stopped) => {}
        Err(error) => tracing::warn!("resync given up: {error}"),
    }
}

/// Makes one group right, run after run, until it is trusted or the array stops.
fn resync(
    shared: &Shared,
    control: &Control,
    queue: &mut Queue,
    group: usize,
) -> Result<(), Error> {
    let volume = &shared.volume;
    let suspicions = std::iter::repeat_with(|| volume.suspicion(group));
    let mut suspicion = volume.suspicion(group);
    let mut from = 0;
    for now in suspicions {
        if now != suspicion {
            // A write failed: what was behind may be due again.
            (suspicion, from) = (now, 0);
        }
        match volume.next_unsynced(group, from) {
            Some(run) => {
                let walk = Walk { shared, control, group, run, suspicion };
                if walk.go(queue)? {
                    from = run.1;
                } else {
                    tracing::info!(
                        "group {group}: a write failed meanwhile, it is gone over again"
                    );
                }
            }
            None if from == 0 => break,
            None => from = 0,
        }
    }
    tracing::info!("group {group}: resync done");
    Ok(())
}

/// A run of a group's addresses that is gone over.
struct Walk<'a> {
    shared: &'a Shared,
    control: &'a Control,
    group: usize,
    /// First address, and where it ends.
    run: (u64, u64),
    /// The suspicion that is settled by it.
    suspicion: u64,
}

impl Walk<'_> {
    /// Goes over the run, a few steps at a time. False if a write failed meanwhile.
    fn go(&self, queue: &mut Queue) -> Result<bool, Error> {
        let (start, end) = self.run;
        let unit = self.shared.volume.resync_unit(self.group);
        let step = (STEP_BYTES / unit).max(1) * unit;
        tracing::info!("group {}: resync from byte {start} to {end}", self.group);
        // By start, the end of what has been done behind a gap.
        let mut ended: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut next, mut below) = (start, start);
        while below < end {
            if self.control.cancelled.load(Ordering::Acquire) {
                return Err(Error::Stopped);
            }
            let depth = if self.shared.others_in_flight(queue) { DEPTH_BUSY } else { DEPTH_IDLE };
            while next < end && queue.in_flight() < depth {
                let len = step.min(end - next);
                queue.submit_resync(self.group, next, len)?;
                next += len;
            }
            let Some(completion) = queue.poll() else {
                queue.wait(Some(Duration::from_millis(500)))?;
                continue;
            };
            completion.result?;
            let len = step.min(end - completion.user_data);
            self.shared.count_resynced(len);
            ended.insert(completion.user_data, completion.user_data + len);
            let before = below;
            while let Some(end) = ended.remove(&below) {
                below = end;
            }
            if below > before && !self.note(before, below) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Notes that the run is done from its start to `below`, where it was `before` the last time.
    fn note(&self, before: u64, below: u64) -> bool {
        let Self { shared, group, run, suspicion, .. } = self;
        let volume = &shared.volume;
        let Some(region) = shared.region_bytes(*group) else {
            return volume.note_synced(*group, below, *suspicion);
        };
        // Regions that end in this step began at most one region before it.
        let unit = volume.resync_unit(*group);
        let first = before.saturating_sub(region) / unit * unit;
        let is_noted = volume.note_region_synced(*group, first.max(run.0), below, *suspicion);
        if volume.synced(*group) < volume.geometry(*group).array_bytes() {
            return volume.note_synced(*group, below, *suspicion);
        }
        is_noted
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
