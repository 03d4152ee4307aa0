//! How long a member may take to answer, and calls that must not wait longer.
//!
//! Time is counted in ticks, four to a deadline: operations carry the tick that they began at, so
//! that no clock is read for them. An operation is late when four whole ticks lie behind it, which
//! is after one deadline at least and one and a quarter at most. A process, or a machine, that was
//! stopped for an hour has aged by one tick: members that were stopped with it get their time.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::Error;
use crate::member::Member;

/// Ticks of one deadline.
const TICKS: u32 = 4;
/// What is waited for at most where operations have no deadline.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The time that passes, in ticks.
pub(crate) struct Clock {
    /// `None`: operations have no deadline.
    deadline: Option<Duration>,
    now: AtomicU32,
    /// When the present tick began.
    since: Mutex<Instant>,
}

impl Clock {
    /// Returns a clock for operations that may take `deadline`, or any time if that is zero.
    pub(crate) fn new(deadline: Duration) -> Self {
        let deadline = (!deadline.is_zero()).then_some(deadline);
        Self { deadline, now: AtomicU32::new(0), since: Mutex::new(Instant::now()) }
    }

    /// Returns the length of a tick; `None` if operations have no deadline.
    pub(crate) fn tick(&self) -> Option<Duration> {
        self.deadline.map(|deadline| (deadline / TICKS).max(Duration::from_millis(1)))
    }

    /// Returns what a call to a member may take.
    pub(crate) fn patience(&self) -> Duration {
        self.deadline.unwrap_or(FOREVER)
    }

    /// Looks at the system's clock.
    pub(crate) fn refresh(&self) {
        self.refresh_at(Instant::now());
    }

    fn refresh_at(&self, time: Instant) {
        let Some(tick) = self.tick() else { return };
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        if time.saturating_duration_since(*since) >= tick {
            *since = time;
            self.now.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the tick that it was when the clock was last looked at.
    pub(crate) fn now(&self) -> u32 {
        self.now.load(Ordering::Relaxed)
    }

    /// Says that what began at tick `then` has had its time, at tick `now`.
    pub(crate) fn is_late(then: u32, now: u32) -> bool {
        now.saturating_sub(then) > TICKS
    }
}

/// What is to be done to a member.
pub(crate) type Call = Box<dyn FnOnce(&Member) -> Result<(), Error> + Send>;

/// Makes calls that may block, each for another member, side by side. Returns the results in order;
/// a member that has not answered within `patience` and a quarter has failed. Its call goes on,
/// keeps the member open and locked, and nobody hears of its end.
pub(crate) fn call_all(calls: Vec<(Member, Call)>, patience: Duration) -> Vec<Result<(), Error>> {
    let (sender, receiver) = mpsc::channel();
    let members: Vec<Member> = calls.iter().map(|(member, _)| member.clone()).collect();
    let mut results: Vec<Option<Result<(), Error>>> = calls.iter().map(|_| None).collect();
    let mut waiting = 0;
    for (index, (member, call)) in calls.into_iter().enumerate() {
        if member.device().is_instant() {
            results[index] = Some(call(&member));
            continue;
        }
        let sender = sender.clone();
        // Shared, so that it is still here if no thread can be had.
        let call = Arc::new(Mutex::new(Some(call)));
        let theirs = (Arc::clone(&call), member.clone());
        let work = move || {
            let (call, member) = theirs;
            let call = call.lock().unwrap_or_else(PoisonError::into_inner).take();
            let result = call.map_or(Ok(()), |call| call(&member));
            drop(member);
            // Nobody listens any more if it took too long.
            let _ = sender.send((index, result));
        };
        match thread::Builder::new().name("uraid-call".into()).spawn(work) {
            Ok(_) => waiting += 1,
            Err(error) => {
                // The member is not to blame: better one after the other than without it.
                tracing::warn!("cannot start a thread for a call to a member: {error}");
                let call = call.lock().unwrap_or_else(PoisonError::into_inner).take();
                results[index] = call.map(|call| call(&member));
            }
        }
    }
    // A call that panicked answers by that.
    drop(sender);
    let slice = patience / TICKS;
    let mut left = patience + slice;
    while waiting > 0 && !left.is_zero() {
        let begun = Instant::now();
        match receiver.recv_timeout(slice.min(left)) {
            Ok((index, result)) => {
                results[index] = Some(result);
                waiting -= 1;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        // Time in which this process was stopped is nobody's fault.
        left = left.saturating_sub(begun.elapsed().min(slice));
    }
    let late = |member: &Member| member.error("wait for", std::io::ErrorKind::TimedOut.into());
    let results = results.into_iter().zip(&members);
    results.map(|(result, member)| result.unwrap_or_else(|| Err(late(member)))).collect()
}

/// Makes one call that may block.
///
/// # Errors
/// Returns the call's error, or that the member did not answer within `patience`.
pub(crate) fn call(member: &Member, patience: Duration, call: Call) -> Result<(), Error> {
    call_all(vec![(member.clone(), call)], patience).pop().unwrap_or(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_is_after_four_whole_ticks() {
        let clock = Clock::new(Duration::from_secs(8));
        assert_eq!(clock.tick(), Some(Duration::from_secs(2)));
        assert!(!Clock::is_late(3, 7));
        assert!(Clock::is_late(3, 8));
        // A queue may have a newer tick than the one that looks.
        assert!(!Clock::is_late(8, 3));
    }

    #[test]
    fn a_process_that_was_stopped_has_aged_by_one_tick() {
        let clock = Clock::new(Duration::from_secs(4));
        let begin = *clock.since.lock().unwrap();
        let at = |seconds: f64| clock.refresh_at(begin + Duration::from_secs_f64(seconds));
        at(0.9);
        assert_eq!(clock.now(), 0);
        at(1.0);
        at(1.5);
        assert_eq!(clock.now(), 1);
        at(2.1);
        at(3600.0);
        at(3600.5);
        assert_eq!(clock.now(), 3);
        at(3601.0);
        assert_eq!(clock.now(), 4);
    }

    #[test]
    fn without_a_deadline_nothing_is_ever_late() {
        let clock = Clock::new(Duration::ZERO);
        clock.refresh();
        assert_eq!((clock.tick(), clock.now()), (None, 0));
    }
}
