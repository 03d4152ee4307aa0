//! The thread that accepts clients and leads them through the handshake.
//!
//! It has no queue, so that whatever a client does before its GO cannot reach the engine. A client
//! that is through goes to the worker with the fewest connections.
//!
//! Clients in the handshake are few: one more than the limit throws out the oldest, because an
//! honest handshake takes milliseconds and only those who dawdle grow old.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use tracing::{debug, warn};

use super::listener::Listener;
use super::peer::{Counted, Peer};
use super::signal::{Clock, Signal, timespec};
use super::worker::Assign;
use crate::backend::Backend;
use crate::connection::{Connection, Ended, Limits};
use crate::export::Export;

/// Clients accepted in one turn, so that a flood of them does not keep handshakes waiting.
const ACCEPT_COUNT_MAX: usize = 16;
/// Receives for one client in one turn.
const RECEIVE_COUNT_MAX: usize = 8;
/// How long accepting rests after the system ran out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts clients. Lives on its own thread.
pub(super) struct Gate<B: Backend> {
    pub(super) listeners: Vec<Listener>,
    pub(super) workers: Vec<Assign<B>>,
    pub(super) export: Arc<Export>,
    pub(super) limits: Limits,
    pub(super) connection_count_max: usize,
    pub(super) half_open_count_max: usize,
    pub(super) connection_count: Arc<AtomicUsize>,
    pub(super) signal: Arc<Signal>,
    pub(super) clock: Clock,
    /// Clients in the handshake, the oldest first.
    pub(super) half_open: VecDeque<Peer<B::Buffer>>,
    /// Accepting rests until then.
    pub(super) paused_until: Option<Duration>,
}

impl<B: Backend> Gate<B> {
    /// Accept clients until told to stop. Then the listeners close, and their socket files go.
    pub(super) fn run(mut self) {
        while self.signal.stop_at().is_none() {
            self.wait();
            let now = self.clock.now();
            if self.paused_until.is_some_and(|until| until <= now) {
                self.paused_until = None;
            }
            self.serve_half_open(now);
            self.accept(now);
        }
    }

    /// Sleep until something can be done.
    fn wait(&mut self) {
        let now = self.clock.now();
        let due = self.half_open.iter().filter_map(|peer| peer.connection.poll_timeout());
        let due = due.chain(self.paused_until).min();
        let timeout = due.map(|due| timespec(due.saturating_sub(now)));
        let interests: Vec<PollFlags> = self.half_open.iter_mut().map(interest).collect();
        let wake = PollFd::from_borrowed_fd(self.signal.eventfd(), PollFlags::IN);
        let mut fds = vec![wake];
        if self.paused_until.is_none() {
            fds.extend(self.listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
        }
        let first_peer = fds.len();
        for (peer, interest) in self.half_open.iter().zip(interests) {
            fds.push(PollFd::new(&peer.socket, interest));
        }
        // Whatever went wrong with waiting, the sockets tell when they are tried.
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
        let events: Vec<PollFlags> = fds[first_peer..].iter().map(PollFd::revents).collect();
        for (peer, events) in self.half_open.iter_mut().zip(events) {
            let gone = PollFlags::HUP | PollFlags::ERR;
            peer.readable |= events.intersects(PollFlags::IN | gone);
            peer.writable |= events.intersects(PollFlags::OUT | gone);
        }
    }

    fn accept(&mut self, now: Duration) {
        if self.paused_until.is_some() {
            return;
        }
        for index in 0..self.listeners.len() {
            for _ in 0..ACCEPT_COUNT_MAX {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                match rustix::net::accept_with(&self.listeners[index], flags) {
                    Ok(socket) => {
                        let tcp = self.listeners[index].is_tcp();
                        self.admit(socket, tcp, now);
                    }
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR | Errno::CONNABORTED) => {}
                    Err(errno) => {
                        warn!("cannot accept a client: {errno}");
                        self.paused_until = Some(now + ACCEPT_PAUSE);
                        return;
                    }
                }
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd, tcp: bool, now: Duration) {
        if self.connection_count.load(Ordering::Relaxed) >= self.connection_count_max {
            // The handshake crowd gives way first; a client that is served is never thrown out.
            let Some(oldest) = self.half_open.pop_front() else {
                warn!("refused a client: {} are connected", self.connection_count_max);
                return;
            };
            debug!("client gone: {}", Ended::Crowded);
            drop(oldest);
        }
        if tcp {
            // Failing either costs speed, or the notice of a dead client; the connection works.
            let _ = rustix::net::sockopt::set_tcp_nodelay(socket.as_fd(), true);
            let _ = rustix::net::sockopt::set_socket_keepalive(socket.as_fd(), true);
        }
        let connection = Connection::new(Arc::clone(&self.export), self.limits, now);
        let counted = Counted::new(&self.connection_count);
        let mut peer = Peer::new(socket, connection, counted);
        serve(&mut peer, now);
        self.place(peer);
        if self.half_open.len() > self.half_open_count_max {
            debug!("client gone: {}", Ended::Crowded);
            self.half_open.pop_front();
        }
    }

    /// Go on with each handshake. Those who are through leave at once, so that no
    /// newcomer throws one of them out.
    fn serve_half_open(&mut self, now: Duration) {
        for _ in 0..self.half_open.len() {
            let Some(mut peer) = self.half_open.pop_front() else { break };
            serve(&mut peer, now);
            peer.connection.handle_timeout(now);
            self.place(peer);
        }
    }

    /// To a worker, back into the queue, or away.
    fn place(&mut self, peer: Peer<B::Buffer>) {
        if let Some(ended) = peer.connection.finished() {
            debug!("client gone: {ended}");
        } else if peer.connection.has_begun() {
            self.hand_over(peer);
        } else {
            self.half_open.push_back(peer);
        }
    }

    fn hand_over(&self, peer: Peer<B::Buffer>) {
        if let Some(worker) = self.workers.iter().min_by_key(|worker| worker.peer_count()) {
            worker.assign(peer);
        }
    }
}

/// What a client in the handshake waits for.
fn interest<M: std::ops::DerefMut<Target = [u8]>>(peer: &mut Peer<M>) -> PollFlags {
    let mut interest = PollFlags::empty();
    if peer.connection.slices_to_send().next().is_some() {
        interest |= PollFlags::OUT;
    }
    if !peer.connection.poll_receive().is_empty() {
        interest |= PollFlags::IN;
    }
    interest
}

fn serve<M: std::ops::DerefMut<Target = [u8]>>(peer: &mut Peer<M>, now: Duration) {
    for _ in 0..RECEIVE_COUNT_MAX {
        let sent = peer.send(now);
        let received = !peer.connection.has_begun() && peer.receive(now);
        if !sent && !received {
            break;
        }
    }
}
