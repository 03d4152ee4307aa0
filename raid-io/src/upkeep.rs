//! What has to be done now and then while an array runs: taking back bits of the write-intent
//! bitmap, looking whether members have had their time to answer, and whether one errs too often.
//!
//! One thread, which sleeps between two rounds: for the bitmap's own period (`daemon_sleep`, 5
//! seconds by default), and for a quarter of
//! [`OpenOptions::io_timeout`](crate::OpenOptions::io_timeout).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::bad_blocks::BadRanges;
use crate::member::Member;
use crate::shared::Shared;

/// After this, what could not be read counts half.
const HOUR: Duration = Duration::from_secs(3600);

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
            let (shared, bell) = (Arc::clone(shared), Arc::clone(&bell));
            let rounds = Rounds { shared, bell, corrected: Vec::new() };
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
    /// What could not be read of each member.
    corrected: Vec<Corrected>,
}

/// Places of a member that could not be read, older ones counting less.
struct Corrected {
    /// All of them, when it was last looked.
    total: u64,
    recent: u64,
    /// When `recent` was halved the last time.
    since: Instant,
}

impl Corrected {
    fn new(now: Instant) -> Self {
        Self { total: 0, recent: 0, since: now }
    }

    /// Takes over the count of all; returns what counts of it.
    fn count(&mut self, total: u64, now: Instant) -> u64 {
        while now.duration_since(self.since) >= HOUR {
            self.since += HOUR;
            self.recent /= 2;
        }
        self.recent += total.saturating_sub(self.total);
        self.total = total;
        self.recent
    }
}

impl Rounds {
    fn make(mut self, age: Option<Duration>, tick: Option<Duration>) {
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
                self.judge_corrected(now);
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

    /// Takes members out that could not be read too often.
    fn judge_corrected(&mut self, now: Instant) {
        let max = u64::from(self.shared.options.corrected_max);
        if max == 0 || self.shared.limits.read_only {
            return;
        }
        let counters = self.shared.volume.counters();
        let members = self.shared.members();
        for (index, member) in counters.members.iter().enumerate() {
            if self.corrected.len() <= index {
                self.corrected.push(Corrected::new(now));
            }
            let device = members.get(index);
            // What its bad-block log lists was not asked of it.
            let refused = device.and_then(Member::bad_ranges).map_or(0, BadRanges::refused);
            let total = member.read_errors.saturating_sub(refused);
            let recent = self.corrected[index].count(total, now);
            if recent > max && self.shared.volume.fail_member(index).is_ok() {
                let name = device.map(|one| one.name().display().to_string());
                tracing::error!(
                    "{}: {recent} places could not be read within the hour, {max} are allowed: it \
                     leaves the array",
                    name.unwrap_or_default()
                );
                // Told once.
                self.corrected[index].recent = 0;
                self.shared.update_now();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_read_counts_half_after_an_hour() {
        let begin = Instant::now();
        let mut corrected = Corrected::new(begin);
        assert_eq!(corrected.count(12, begin), 12);
        assert_eq!(corrected.count(16, begin + HOUR / 2), 16);
        assert_eq!(corrected.count(16, begin + HOUR), 8);
        assert_eq!(corrected.count(17, begin + 3 * HOUR), 3);
        assert_eq!(corrected.count(17, begin + 20 * HOUR), 0);
    }
}
