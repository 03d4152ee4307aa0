//! `--hook PROGRAM`: a program of the user's, called as mdadm calls its `--program`.
//!
//! `PROGRAM EVENT ARRAY [MEMBER]`: no shell, nothing on standard input, output to the log. At most
//! [`RUNNING_MAX`] run at once, started in the order of events; one that runs longer than
//! [`RUN_TIME_MAX`] is killed. A hook that fails is logged and changes nothing.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tracing::warn;

use super::{Bus, Event, Next};
use crate::failure::Failure;

/// Hooks that run at the same time.
const RUNNING_MAX: usize = 4;
/// How long one may take.
const RUN_TIME_MAX: Duration = Duration::from_secs(60);
/// Between two looks at running hooks.
const LOOK: Duration = Duration::from_millis(20);

/// The thread that starts hooks; it ends with the bus.
pub(crate) struct Hook(JoinHandle<()>);

impl Hook {
    /// Calls `program` for every event from now on.
    ///
    /// # Errors
    /// Fails if there is no such file, or no thread can be made.
    pub(crate) fn start(program: &Path, bus: &Bus) -> Result<Self, Failure> {
        let unusable =
            |why: String| Failure::new(format!("{}: cannot be the hook: {why}", program.display()));
        // Found out now, not when a member fails at night. Absolute, for it is no search.
        let program = std::path::absolute(program).map_err(|error| unusable(error.to_string()))?;
        let metadata = program.metadata().map_err(|error| unusable(error.to_string()))?;
        if !metadata.is_file() {
            return Err(unusable("it is no file".to_owned()));
        }
        let events = bus.subscribe();
        let run = move || {
            let mut running = Running { program, children: Vec::new() };
            loop {
                let patience =
                    if running.children.is_empty() { Duration::from_secs(3600) } else { LOOK };
                match events.next(patience) {
                    Next::Event(event) => running.start(&event),
                    Next::Dropped(count) => warn!("hook: {count} events were too many at once"),
                    Next::Quiet => {}
                    Next::Closed => return running.wait_for_all(),
                }
                running.reap();
            }
        };
        Ok(Self(thread::Builder::new().name("hook".into()).spawn(run)?))
    }

    /// Waits until the hooks of a closed bus have ended, for `patience` at most.
    pub(crate) fn finish(self, patience: Duration) {
        join(self.0, patience);
    }
}

/// Waits for a thread that may be stuck in somebody else's file or program.
pub(super) fn join(thread: JoinHandle<()>, patience: Duration) {
    let deadline = Instant::now() + patience;
    while !thread.is_finished() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
}

struct Running {
    program: PathBuf,
    children: Vec<(Child, Instant, String)>,
}

impl Running {
    fn start(&mut self, event: &Event) {
        while self.children.len() >= RUNNING_MAX {
            thread::sleep(LOOK);
            self.reap();
        }
        let what = format!("hook {} {}", self.program.display(), event.event);
        match self.spawn(event) {
            Ok(child) => self.children.push((child, Instant::now(), what)),
            Err(error) => warn!("{what}: cannot be started: {error}"),
        }
    }

    fn spawn(&self, event: &Event) -> io::Result<Child> {
        // Standard output is the server's own; what a hook says belongs to the log.
        let log = io::stderr().as_fd().try_clone_to_owned()?;
        let mut command = Command::new(&self.program);
        command.arg(event.event.to_string()).arg(&event.array).args(&event.member);
        command.stdin(Stdio::null()).stdout(log).spawn()
    }

    fn reap(&mut self) {
        self.children.retain_mut(|(child, started, what)| match child.try_wait() {
            Ok(None) if started.elapsed() < RUN_TIME_MAX => true,
            Ok(None) => {
                warn!("{what}: still running after {RUN_TIME_MAX:?}, killed");
                let _ = child.kill();
                let _ = child.wait();
                false
            }
            Ok(Some(status)) => {
                if !status.success() {
                    warn!("{what}: {status}");
                }
                false
            }
            Err(error) => {
                warn!("{what}: {error}");
                false
            }
        });
    }

    fn wait_for_all(&mut self) {
        while !self.children.is_empty() {
            thread::sleep(LOOK);
            self.reap();
        }
    }
}
