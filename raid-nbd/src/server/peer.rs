//! One client: its socket and its session.

use std::io::{IoSlice, IoSliceMut};
use std::ops::DerefMut;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

use crate::connection::{Connection, Ended};

/// Slices handed to the kernel in one call: enough for a batch of small replies, and an array of
/// them fits two pages of stack.
const SLICE_COUNT_MAX: usize = 128;

/// Counts something for as long as it exists.
#[derive(Debug)]
pub(super) struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub(super) fn new(counter: &Arc<AtomicUsize>) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(counter))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A client.
///
/// Sockets are watched edge-triggered: `readable` and `writable` remember the last edge until the
/// kernel says that there is no more, so that a client that is being held back costs nothing.
#[derive(Debug)]
pub(super) struct Peer<B> {
    pub(super) socket: OwnedFd,
    /// Its session.
    pub(super) connection: Connection<B>,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// The client has closed its end: a short read is then not the last.
    pub(super) hangup: bool,
    /// One of the server's connections, and one of its worker's.
    _counted: Counted,
    assigned: Option<Counted>,
}

impl<B: DerefMut<Target = [u8]>> Peer<B> {
    pub(super) fn new(socket: OwnedFd, connection: Connection<B>, counted: Counted) -> Self {
        Self {
            socket,
            connection,
            readable: true,
            writable: true,
            hangup: false,
            _counted: counted,
            assigned: None,
        }
    }

    /// It belongs to a worker from now on.
    pub(super) fn assign(&mut self, counter: &Arc<AtomicUsize>) {
        self.assigned = Some(Counted::new(counter));
    }

    /// Receive once. True when something came of it.
    pub(super) fn receive(&mut self, now: Duration) -> bool {
        if !self.readable {
            return false;
        }
        let receive = self.connection.poll_receive();
        if receive.is_empty() {
            return false;
        }
        let wanted = receive.payload.len() + receive.head.len();
        let mut slices = [IoSliceMut::new(receive.payload), IoSliceMut::new(receive.head)];
        match rustix::io::readv(&self.socket, &mut slices) {
            Ok(0) => {
                self.readable = false;
                self.connection.handle_end_of_stream();
            }
            Ok(len) => {
                // A stream socket that gives less than asked for has no more; see epoll(7).
                self.readable = len == wanted || self.hangup;
                self.connection.handle_received(len, now);
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                self.readable = false;
                return false;
            }
            Err(errno) => self.connection.handle_failure(Ended::Socket(errno.raw_os_error())),
        }
        true
    }

    /// Send once. True when something came of it.
    pub(super) fn send(&mut self, now: Duration) -> bool {
        if !self.writable {
            return false;
        }
        let mut slices = [IoSlice::new(&[]); SLICE_COUNT_MAX];
        let mut count = 0;
        let mut wanted = 0;
        for (target, slice) in slices.iter_mut().zip(self.connection.slices_to_send()) {
            *target = IoSlice::new(slice);
            wanted += slice.len();
            count += 1;
        }
        if count == 0 {
            return false;
        }
        let mut control = SendAncillaryBuffer::default();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = rustix::net::sendmsg(self.socket.as_fd(), &slices[..count], &mut control, flags);
        match sent {
            Ok(len) => {
                self.writable = len == wanted;
                self.connection.handle_sent(len, now);
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                self.writable = false;
                return false;
            }
            Err(errno) => self.connection.handle_failure(Ended::Socket(errno.raw_os_error())),
        }
        true
    }

    /// Whether it can go on without waiting for its socket.
    pub(super) fn can_go_on(&mut self) -> bool {
        (self.writable && self.connection.slices_to_send().next().is_some())
            || (self.readable && !self.connection.poll_receive().is_empty())
    }
}
