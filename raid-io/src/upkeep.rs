//! What has to be done now and then while an array runs: taking back bits of the write-intent
//! bitmap, and looking whether members have had their time to answer.
//!
//! One thread, which sleeps between two rounds: for the bitmap's own period (`daemon_sleep`, 5
//! seconds by default), and for a quarter of
//! [`OpenOptions::io_timeout`](crate::OpenOptions::io_timeout).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

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
        let age = period(shared).filter(|_| !shared.limits.read_only);
        let may_hang = shared.members().iter().any(|member| !member.device().is_instant());
        let tick = shared.clock.tick().filter(|_| may_hang);
        let thread = (age.is_some() || tick.is_some()).then(|| {
            let rounds = Rounds { shared: Arc::clone(shared), bell: Arc::clone(&bell) };
            thread::Builder::new().name("uraid-upkeep".into()).spawn(move || rounds.make(age, tick))
        });
        let thread = thread.and_then(|thread| {
            // Bits stay set, which costs a longer resync, and members that hang are waited for.
            let warn = |error| tracing::warn!("no upkeep: {error}");
            thread.map_err(warn).ok()
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

/// The life of the thread.
struct Rounds {
    shared: Arc<Shared>,
    bell: Arc<Bell>,
}

impl Rounds {
    fn make(&self, age: Option<Duration>, tick: Option<Duration>) {
        let after = |period: Option<Duration>| period.map(|period| Instant::now() + period);
        let (mut next_age, mut next_tick) = (after(age), after(tick));
        loop {
            let Some(next) = next_age.into_iter().chain(next_tick).min() else { return };
            if self.bell.wait(next.saturating_duration_since(Instant::now())) {
                return;
            }
            let now = Instant::now();
            if next_tick.is_some_and(|next| next <= now) {
                next_tick = after(tick);
                self.watch();
            }
            if next_age.is_some_and(|next| next <= now) {
                next_age = after(age);
                self.age_bitmaps();
            }
        }
    }

    /// Lets time pass for the queues that have something under way.
    fn watch(&self) {
        self.shared.clock.refresh();
        for desk in self.shared.desks() {
            if desk.in_flight.load(Ordering::Relaxed) > 0 {
                desk.signal();
            }
        }
    }

    fn age_bitmaps(&self) {
        let shared = &self.shared;
        for group in 0..shared.volume.group_count() {
            let is_any_set = shared.volume.intent_counts(group).is_some_and(|(set, _)| set > 0);
            if is_any_set && shared.volume.age_intent(group) {
                shared.update_now();
            }
        }
    }
}
