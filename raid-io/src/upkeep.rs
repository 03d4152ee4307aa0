//! What has to be done now and then while an array runs: taking back bits of the write-intent
//! bitmap.
//!
//! One thread, only for arrays that keep a bitmap and may write. It sleeps for the bitmap's own
//! period (`daemon_sleep`, 5 seconds by default) between two rounds.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::shared::Shared;

/// The thread, if the array has one.
pub(crate) struct Upkeep {
    bell: Arc<Bell>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Bell {
    finished: Mutex<bool>,
    rung: Condvar,
}

impl Upkeep {
    /// Starts the thread if there is anything to keep.
    pub(crate) fn start(shared: &Arc<Shared>) -> Self {
        let bell = Arc::new(Bell::default());
        let period = period(shared).filter(|_| !shared.limits.read_only);
        let thread = period.and_then(|period| {
            let (shared, bell) = (Arc::clone(shared), Arc::clone(&bell));
            let thread = thread::Builder::new().name("uraid-upkeep".into());
            let thread = thread.spawn(move || {
                while !bell.wait(period) {
                    round(&shared);
                }
            });
            // Without it bits stay set, which costs a longer resync and nothing else.
            thread.map_err(|error| tracing::warn!("bitmap bits will stay set: {error}")).ok()
        });
        Self { bell, thread: Mutex::new(thread) }
    }

    /// Ends the thread.
    pub(crate) fn finish(&self) {
        *self.bell.finished.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.rung.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Bell {
    /// Sleeps for a period; true when the thread shall end.
    fn wait(&self, period: Duration) -> bool {
        let finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = self.rung.wait_timeout_while(finished, period, |finished| !*finished);
        *woken.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The shortest period of the array's bitmaps; `None` without any.
fn period(shared: &Shared) -> Option<Duration> {
    let metadata = shared.metadata.as_ref()?;
    let seconds = |group| metadata.with_bitmap(group, |b| b.head().daemon_sleep_seconds);
    let seconds = (0..shared.volume.group_count()).filter_map(seconds).min()?;
    Some(Duration::from_secs(u64::from(seconds)))
}

fn round(shared: &Shared) {
    for group in 0..shared.volume.group_count() {
        let is_any_set = shared.volume.intent_counts(group).is_some_and(|(set, _)| set > 0);
        if is_any_set && shared.volume.age_intent(group) {
            shared.update_now();
        }
    }
}
