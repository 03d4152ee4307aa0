//! How threads of a server are woken and stopped, and what time it is.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, eventfd};

/// Time since the server started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn now(self) -> Duration {
        self.0.elapsed()
    }
}

/// Wakes one thread, and tells it once when to stop.
#[derive(Debug)]
pub(super) struct Signal {
    eventfd: OwnedFd,
    stop_at: OnceLock<Duration>,
}

impl Signal {
    pub(super) fn new() -> io::Result<Self> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { eventfd, stop_at: OnceLock::new() })
    }

    pub(super) fn eventfd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    pub(super) fn wake(&self) {
        // It fails only when the counter is full, and then the thread is awake.
        let _ = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
    }

    /// The thread has seen it.
    pub(super) fn clear(&self) {
        let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
    }

    /// Stop, at the latest at `deadline`.
    pub(super) fn stop(&self, deadline: Duration) {
        let _ = self.stop_at.set(deadline);
        self.wake();
    }

    /// The deadline, once the thread has to stop.
    pub(super) fn stop_at(&self) -> Option<Duration> {
        self.stop_at.get().copied()
    }
}

/// For system calls; a time that does not fit becomes a day.
pub(super) fn timespec(time: Duration) -> Timespec {
    Timespec::try_from(time).unwrap_or(Timespec { tv_sec: 86_400, tv_nsec: 0 })
}
