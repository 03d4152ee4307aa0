//! The thread behind an array: it makes redundancy right again, fills members that joined, lets
//! spares step in, carries out checks, and marks an idle array clean.
//!
//! It sleeps until somebody rings: a superblock update (a member may have left, or the first write
//! may have come), or a call of [`Array`](crate::Array). While the array is marked dirty it looks
//! up every [`OpenOptions::idle_after`](crate::OpenOptions::idle_after) whether nothing has been
//! written since the last time.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use raid_core::request::Repair;

use crate::shared::Shared;
use crate::walk::{Goal, Walk};
use crate::{Error, Queue};

/// Wakes the thread.
#[derive(Default)]
pub(crate) struct Bell {
    state: Mutex<State>,
    rung: Condvar,
}

#[derive(Default)]
struct State {
    finished: bool,
    rung: bool,
    /// The thread is there, and does not sleep.
    awake: bool,
    /// There is a thread.
    attended: bool,
    /// A check that somebody asked for, and whether it was called off.
    scrub: Option<Repair>,
    called_off: bool,
}

impl Bell {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that there may be something to do.
    pub(crate) fn ring(&self) {
        self.state().rung = true;
        self.rung.notify_all();
    }

    /// Asks for a check of the whole array.
    pub(crate) fn ask_scrub(&self, repair: Repair) {
        let mut state = self.state();
        (state.scrub, state.called_off) = (Some(repair), false);
        drop(state);
        self.ring();
    }

    /// Calls a check off, under way or not.
    pub(crate) fn call_off_scrub(&self) {
        let mut state = self.state();
        (state.scrub, state.called_off) = (None, true);
    }

    pub(crate) fn is_called_off(&self) -> bool {
        self.state().called_off
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.state().finished
    }

    /// Says that the thread works, or will as soon as it wakes up: what is to be done and does not
    /// go on yet is about to.
    pub(crate) fn is_heard(&self) -> bool {
        let state = self.state();
        state.attended && !state.finished && (state.rung || state.awake)
    }

    /// Sleeps until rung, or for a time; false when the thread is to end.
    fn wait(&self, time: Option<Duration>) -> bool {
        let mut state = self.state();
        state.awake = false;
        let quiet = |state: &mut State| !state.finished && !state.rung;
        let mut state = match time {
            Some(time) => {
                let woken = self.rung.wait_timeout_while(state, time, quiet);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
            None => self.rung.wait_while(state, quiet).unwrap_or_else(PoisonError::into_inner),
        };
        (state.rung, state.awake) = (false, true);
        !state.finished
    }
}

/// The thread, if the array has one: hangs up when it has done its work.
///
/// It is not joined: a thread that has had io_uring requests at a device which hangs does not get
/// to its end in the kernel before they are answered.
pub(crate) struct Background {
    bell: Arc<Bell>,
    thread: Mutex<Option<mpsc::Receiver<()>>>,
}

impl Background {
    /// Starts the thread, unless it may not write or there is nothing redundant.
    pub(crate) fn start(shared: &Arc<Shared>) -> Self {
        let bell = Arc::clone(&shared.bell);
        let mut groups = 0..shared.volume.group_count();
        let redundant = groups.all(|group| shared.volume.geometry(group).level().is_redundant());
        let wanted = shared.options.resync && !shared.limits.read_only && redundant;
        // Before it runs: who asks what goes on must not find that nothing does.
        (bell.state().attended, bell.state().awake) = (wanted, wanted);
        let thread = wanted.then(|| {
            let shared = Arc::clone(shared);
            let (working, done) = mpsc::channel();
            let thread = thread::Builder::new().name("uraid-background".into());
            let body = move || {
                Worker::new(&shared).run();
                drop((shared, working));
            };
            thread.spawn(body).map(|_| done)
        });
        let thread = thread.and_then(|thread| {
            thread.map_err(|error| tracing::warn!("nothing is done behind: {error}")).ok()
        });
        bell.state().attended = thread.is_some();
        Self { bell, thread: Mutex::new(thread) }
    }

    /// Ends the thread; what it has done so far is kept.
    pub(crate) fn finish(&self) {
        self.bell.state().finished = true;
        self.bell.rung.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // Nothing is ever sent.
            let _ = thread.recv();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.finish();
    }
}

/// What has been tried of a group, and under which circumstances: it is not tried again before they
/// have changed.
type Tried = HashMap<(usize, &'static str), (u64, u64)>;

struct Worker<'a> {
    shared: &'a Arc<Shared>,
    tried: Tried,
    /// Writes to members when it last looked.
    writes: u64,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Arc<Shared>) -> Self {
        Self { shared, tried: Tried::new(), writes: u64::MAX }
    }

    fn run(mut self) {
        loop {
            for group in 0..self.shared.volume.group_count() {
                while let Some(goal) = self.next_goal(group) {
                    self.pursue(group, goal);
                    if self.shared.bell.is_finished() {
                        return;
                    }
                }
            }
            self.scrub();
            let idle_after = self.shared.options.idle_after;
            let mut groups = 0..self.shared.volume.group_count();
            let is_dirty = groups.any(|group| self.shared.volume.is_dirty(group));
            let may_tire = is_dirty && !idle_after.is_zero();
            if !self.shared.bell.wait(may_tire.then_some(idle_after)) {
                return;
            }
            if may_tire {
                self.mark_idle();
            }
        }
    }

    /// What a group needs most, if it has not just been tried in vain.
    fn next_goal(&mut self, group: usize) -> Option<Goal> {
        let volume = &self.shared.volume;
        let goal = if !volume.is_trusted(group) {
            Goal::Resync
        } else if !volume.recovering(group).is_empty()
            || !volume.replacing(group).is_empty()
            || self.shared.let_spare_in(group)
        {
            Goal::Recover
        } else {
            return None;
        };
        let now = (volume.suspicion(group), volume.membership(group));
        let tried = self.tried.insert((group, goal.name()), now);
        (tried != Some(now)).then_some(goal)
    }

    fn pursue(&mut self, group: usize, goal: Goal) {
        let walk = Walk { shared: self.shared, group, goal };
        let done = Queue::new(Arc::clone(self.shared), true).and_then(|mut queue| {
            self.shared.begin_activity(group, goal);
            walk.go_all(&mut queue)
        });
        self.shared.end_activity();
        match done {
            Ok(()) => {
                self.tried.remove(&(group, goal.name()));
            }
            Err(Error::Stopped) => {}
            Err(error) => tracing::error!("group {group}: {} given up: {error}", goal.name()),
        }
    }

    /// Carries out a check that was asked for.
    fn scrub(&mut self) {
        let wanted = self.shared.bell.state().scrub.take();
        let Some(repair) = wanted else { return };
        for group in 0..self.shared.volume.group_count() {
            self.shared.volume.forget_findings(group);
        }
        for group in 0..self.shared.volume.group_count() {
            if !self.shared.bell.is_called_off() && !self.shared.bell.is_finished() {
                self.pursue(group, Goal::Check(repair));
            }
        }
        self.shared.count_scrub();
    }

    /// Marks the groups clean that nothing was written to since the last look.
    fn mark_idle(&mut self) {
        let writes = self.shared.volume.counters().member_writes;
        if std::mem::replace(&mut self.writes, writes) != writes {
            return;
        }
        let groups = 0..self.shared.volume.group_count();
        if groups.filter(|group| self.shared.volume.mark_idle(*group)).count() > 0 {
            self.shared.update_now();
        }
    }
}
