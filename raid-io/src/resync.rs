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

/// Walks over one group, until it is trusted or the array stops.
fn resync(
    shared: &Shared,
    control: &Control,
    queue: &mut Queue,
    group: usize,
) -> Result<(), Error> {
    let volume = &shared.volume;
    let size = volume.geometry(group).array_bytes();
    let unit = volume.resync_unit(group);
    let step = (STEP_BYTES / unit).max(1) * unit;
    'again: loop {
        let suspicion = volume.suspicion(group);
        let start = volume.synced(group).min(size) / unit * unit;
        tracing::info!("group {group}: resync from byte {start} of {size}");
        // By start, the end of what has been done behind a gap.
        let mut ended: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut next, mut below) = (start, start);
        while below < size {
            if control.cancelled.load(Ordering::Acquire) {
                return Err(Error::Stopped);
            }
            let depth = if shared.others_in_flight(queue) { DEPTH_BUSY } else { DEPTH_IDLE };
            while next < size && queue.in_flight() < depth {
                let len = step.min(size - next);
                queue.submit_resync(group, next, len)?;
                next += len;
            }
            let Some(completion) = queue.poll() else {
                queue.wait(Some(Duration::from_millis(500)))?;
                continue;
            };
            completion.result?;
            ended.insert(completion.user_data, (completion.user_data + step).min(size));
            while let Some(end) = ended.remove(&below) {
                below = end;
            }
            if !volume.note_synced(group, below, suspicion) {
                tracing::info!("group {group}: a write failed meanwhile, the resync begins again");
                continue 'again;
            }
        }
        tracing::info!("group {group}: resync done");
        return Ok(());
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
