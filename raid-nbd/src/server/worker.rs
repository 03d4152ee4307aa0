//! A thread that serves clients: one queue of the engine, one epoll, some connections.
//!
//! ```text
//! turn:  receive from all who sent  ->  engine  ->  send to all who get something
//! ```
//!
//! Work is done in turns, so that the requests of all clients go to the engine together and the
//! replies of a client go out in one call. Between turns the thread sleeps in epoll on its sockets,
//! the engine's eventfd and its own; when nothing happens it costs nothing.
//!
//! Invariants:
//! - `memory` is the sum of the payloads that clients were given memory for.
//! - An entry keeps its key until the engine has answered all its requests, even when its client is
//!   gone.
//! - A key is in `touched` at most once.
//! - The thread never sleeps on an engine that has not been polled since it was given something.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use tracing::debug;

use super::peer::Peer;
use super::signal::{Clock, Signal, timespec};
use crate::backend::{Backend, Queue, Refused};
use crate::connection::{Action, Ended, Extent, Failure, Operation, Slot};

/// Receives from one client in one turn, so that a fast one leaves room for the others.
const RECEIVE_COUNT_MAX: usize = 16;
/// Sends to one client in one turn.
const SEND_COUNT_MAX: usize = 16;
/// A worker that is too busy to sleep looks this often for clients whose time is up.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Events taken from epoll at once.
const EVENT_COUNT_MAX: usize = 64;
/// epoll's name for the thread's own eventfd.
const TOKEN_SIGNAL: u64 = u64::MAX;
/// epoll's name for the engine's eventfd.
const TOKEN_ENGINE: u64 = u64::MAX - 1;
/// Bits of `user_data` below the key: a slot.
const SLOT_BITS: u32 = 8;

/// Where a worker gets its clients from.
pub(super) struct Assign<B: Backend> {
    pub(super) inbox: Arc<Inbox<B>>,
    pub(super) signal: Arc<Signal>,
    pub(super) count: Arc<AtomicUsize>,
}

/// Clients that the worker has not looked at yet.
pub(super) type Inbox<B> = Mutex<Vec<Peer<<B as Backend>::Buffer>>>;

impl<B: Backend> Assign<B> {
    pub(super) fn peer_count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn assign(&self, mut peer: Peer<B::Buffer>) {
        peer.assign(&self.count);
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).push(peer);
        self.signal.wake();
    }
}

/// One client, or what its requests in flight still need of it.
struct Entry<M> {
    peer: Peer<M>,
    /// The client is gone; nothing is received or sent any more.
    gone: bool,
    touched: bool,
    /// Its part of the worker's `memory`.
    memory: usize,
    /// It waits for a buffer of this length.
    awaiting: Option<usize>,
}

/// Serves clients. Lives on its own thread.
pub(super) struct Worker<B: Backend> {
    backend: B,
    queue: B::Queue,
    epoll: OwnedFd,
    inbox: Arc<Inbox<B>>,
    signal: Arc<Signal>,
    clock: Clock,
    entries: Vec<Option<Entry<B::Buffer>>>,
    free: Vec<usize>,
    touched: Vec<usize>,
    /// Operations that the engine was too full to take, in order.
    backlog: VecDeque<(u64, Operation<B::Buffer>)>,
    /// Clients that wait for memory, in order.
    starved: VecDeque<usize>,
    memory: usize,
    memory_max: usize,
    /// The engine was given something since it was last polled, and does nothing of itself.
    unpolled: bool,
    extents: Vec<Extent>,
    /// The next time that some client's time is up, as of the last sleep.
    due: Option<Duration>,
    /// When the clients' time was looked at last.
    checked_at: Duration,
    stop_at: Option<Duration>,
}

impl<B: Backend> Worker<B> {
    pub(super) fn new(
        backend: B,
        queue: B::Queue,
        assign: &Assign<B>,
        clock: Clock,
        memory_max: usize,
    ) -> rustix::io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let (inbox, signal) = (Arc::clone(&assign.inbox), Arc::clone(&assign.signal));
        epoll::add(&epoll, signal.eventfd(), EventData::new_u64(TOKEN_SIGNAL), EventFlags::IN)?;
        epoll::add(&epoll, queue.eventfd(), EventData::new_u64(TOKEN_ENGINE), EventFlags::IN)?;
        Ok(Self {
            backend,
            queue,
            epoll,
            inbox,
            signal,
            clock,
            entries: Vec::new(),
            free: Vec::new(),
            touched: Vec::new(),
            backlog: VecDeque::new(),
            starved: VecDeque::new(),
            memory: 0,
            memory_max,
            unpolled: false,
            extents: Vec::new(),
            due: None,
            checked_at: Duration::ZERO,
            stop_at: None,
        })
    }

    /// Serve until told to stop. Returns how many clients were cut off then.
    pub(super) fn run(mut self) -> usize {
        loop {
            self.wait();
            let now = self.clock.now();
            self.turn(now);
            let open = self.entries.len() - self.free.len();
            if self.stop_at.is_some_and(|stop_at| open == 0 || stop_at <= now) {
                return open;
            }
        }
    }

    /// Sleep until there is something to do, and note for whom.
    fn wait(&mut self) {
        let now = self.clock.now();
        let timeout = if self.touched.is_empty() && !self.unpolled {
            let live = self.entries.iter().flatten().filter(|entry| !entry.gone);
            self.due = live.filter_map(|entry| entry.peer.connection.poll_timeout()).min();
            let next = self.due.into_iter().chain(self.stop_at).min();
            next.map(|next| next.saturating_sub(now))
        } else {
            Some(Duration::ZERO)
        };
        let mut events = [const { std::mem::MaybeUninit::<Event>::uninit() }; EVENT_COUNT_MAX];
        let timeout = timeout.map(timespec);
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, timeout.as_ref()) else {
            // Interrupted; whatever it was about is still there.
            return;
        };
        for event in events {
            match event.data.u64() {
                TOKEN_SIGNAL => self.handle_signal(),
                // The engine is polled in every turn, and its queue resets the eventfd.
                TOKEN_ENGINE => {}
                key => self.handle_event(key as usize, event.flags),
            }
        }
    }

    fn handle_event(&mut self, key: usize, flags: EventFlags) {
        let Some(Some(entry)) = self.entries.get_mut(key) else { return };
        let gone = flags.intersects(EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR);
        entry.peer.hangup |= gone;
        entry.peer.readable |= gone || flags.contains(EventFlags::IN);
        entry.peer.writable |= gone || flags.contains(EventFlags::OUT);
        self.touch(key);
    }

    /// New clients, or the end.
    fn handle_signal(&mut self) {
        self.signal.clear();
        let peers = std::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        for peer in peers {
            self.adopt(peer);
        }
        if self.stop_at.is_some() {
            return;
        }
        self.stop_at = self.signal.stop_at();
        if self.stop_at.is_some() {
            for key in 0..self.entries.len() {
                if let Some(Some(entry)) = self.entries.get_mut(key) {
                    entry.peer.connection.shut_down();
                    // What has come until now is answered.
                    entry.peer.readable = true;
                    self.touch(key);
                }
            }
        }
    }

    fn adopt(&mut self, peer: Peer<B::Buffer>) {
        let key = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let data = EventData::new_u64(key as u64);
        if let Err(errno) = epoll::add(&self.epoll, peer.socket.as_fd(), data, flags) {
            debug!("client gone: cannot watch its socket: {errno}");
            self.free.push(key);
            return;
        }
        let entry = Entry { peer, gone: false, touched: false, memory: 0, awaiting: None };
        self.entries[key] = Some(entry);
        self.touch(key);
    }

    fn touch(&mut self, key: usize) {
        if let Some(Some(entry)) = self.entries.get_mut(key)
            && !entry.touched
        {
            entry.touched = true;
            self.touched.push(key);
        }
    }

    /// Do all that can be done now.
    fn turn(&mut self, now: Duration) {
        if self.due.is_some_and(|due| due <= now) || self.checked_at + CHECK_INTERVAL <= now {
            self.check_timeouts(now);
        }
        for index in 0..self.touched.len() {
            self.receive(self.touched[index], now);
        }
        self.drive_engine(now);
        let touched = std::mem::take(&mut self.touched);
        for key in touched {
            self.send(key, now);
        }
        self.feed_starved(now);
    }

    fn check_timeouts(&mut self, now: Duration) {
        self.checked_at = now;
        for key in 0..self.entries.len() {
            if let Some(Some(entry)) = self.entries.get_mut(key)
                && entry.peer.connection.poll_timeout().is_some_and(|due| due <= now)
            {
                entry.peer.connection.handle_timeout(now);
                self.touch(key);
            }
        }
    }

    fn receive(&mut self, key: usize, now: Duration) {
        for _ in 0..RECEIVE_COUNT_MAX {
            let Some(Some(entry)) = self.entries.get_mut(key) else { return };
            if entry.gone {
                return;
            }
            let progress = entry.peer.receive(now);
            self.act(key, now);
            if !progress {
                return;
            }
        }
    }

    /// Send, let go of clients that are done, and note who can go on at once.
    fn send(&mut self, key: usize, now: Duration) {
        let stopping = self.stop_at.is_some();
        let Some(Some(entry)) = self.entries.get_mut(key) else { return };
        entry.touched = false;
        if !entry.gone {
            for _ in 0..SEND_COUNT_MAX {
                if !entry.peer.send(now) {
                    break;
                }
            }
            if stopping && entry.peer.connection.is_quiet() && !entry.peer.readable {
                entry.peer.connection.handle_failure(Ended::Shutdown);
            }
            if let Some(ended) = entry.peer.connection.finished() {
                debug!("client gone: {ended}");
                entry.gone = true;
                entry.awaiting = None;
                let _ = epoll::delete(&self.epoll, entry.peer.socket.as_fd());
                let _ =
                    rustix::net::shutdown(entry.peer.socket.as_fd(), rustix::net::Shutdown::Both);
            }
        }
        if entry.gone {
            if entry.peer.connection.in_flight() == 0 {
                self.memory -= entry.memory;
                self.entries[key] = None;
                self.free.push(key);
            }
            return;
        }
        // Room that was made by sending lets further requests in.
        self.act(key, now);
        if let Some(Some(entry)) = self.entries.get_mut(key)
            && entry.peer.can_go_on()
        {
            self.touch(key);
        }
    }

    /// Do what a client's requests ask for.
    fn act(&mut self, key: usize, now: Duration) {
        loop {
            let Some(Some(entry)) = self.entries.get_mut(key) else { return };
            let Some(action) = entry.peer.connection.poll_action() else { break };
            match action {
                Action::Buffer { len } => {
                    entry.awaiting = Some(len);
                    if self.starved.is_empty() && self.may_take(len) {
                        self.give_buffer(key, len, now);
                    } else {
                        self.starved.push_back(key);
                    }
                }
                Action::Submit { slot, operation } => self.submit(key, slot, operation, now),
                Action::Status { slot, offset, len } => {
                    self.extents.clear();
                    let result = self.backend.allocation(offset, len, &mut self.extents);
                    let extents = result.map(|()| &self.extents[..]);
                    entry.peer.connection.handle_status(slot, extents, now);
                    self.touch(key);
                }
            }
        }
        self.settle(key);
    }

    fn submit(&mut self, key: usize, slot: Slot, operation: Operation<B::Buffer>, now: Duration) {
        let user_data = (key as u64) << SLOT_BITS | slot.index() as u64;
        if !self.backlog.is_empty() {
            self.backlog.push_back((user_data, operation));
            return;
        }
        match self.queue.submit(operation, user_data) {
            Ok(()) => self.unpolled = true,
            Err(Refused::Full(operation)) => self.backlog.push_back((user_data, operation)),
            Err(Refused::Failed(failure)) => self.complete(user_data, Err(failure), None, now),
        }
    }

    /// Give the engine what it was too full for, and take its answers, until there is neither.
    fn drive_engine(&mut self, now: Duration) {
        loop {
            self.submit_backlog(now);
            self.unpolled = false;
            let mut completed = false;
            while let Some(completion) = self.queue.poll() {
                completed = true;
                let user_data = completion.user_data;
                self.complete(user_data, completion.result, completion.buffer, now);
                self.act((user_data >> SLOT_BITS) as usize, now);
            }
            let backlog_may_move = completed && !self.backlog.is_empty();
            if !self.unpolled && !backlog_may_move {
                return;
            }
        }
    }

    fn submit_backlog(&mut self, now: Duration) {
        while let Some((user_data, operation)) = self.backlog.pop_front() {
            match self.queue.submit(operation, user_data) {
                Ok(()) => {}
                Err(Refused::Full(operation)) => {
                    self.backlog.push_front((user_data, operation));
                    return;
                }
                Err(Refused::Failed(failure)) => self.complete(user_data, Err(failure), None, now),
            }
        }
    }

    fn complete(
        &mut self,
        user_data: u64,
        result: Result<(), Failure>,
        buffer: Option<B::Buffer>,
        now: Duration,
    ) {
        let key = (user_data >> SLOT_BITS) as usize;
        let slot = Slot::from_index(user_data as u8);
        if let Some(Some(entry)) = self.entries.get_mut(key) {
            entry.peer.connection.handle_completion(slot, result, buffer, now);
            self.touch(key);
        }
    }

    /// Whether `len` more bytes may be taken. One request alone always may.
    fn may_take(&self, len: usize) -> bool {
        self.memory == 0 || self.memory + len <= self.memory_max
    }

    fn give_buffer(&mut self, key: usize, len: usize, now: Duration) {
        let buffer = self.queue.buffer(len);
        if let Some(Some(entry)) = self.entries.get_mut(key) {
            entry.awaiting = None;
            entry.peer.connection.handle_buffer(buffer, now);
            self.settle(key);
        }
    }

    /// Bring `memory` up to date with what a client has.
    fn settle(&mut self, key: usize) {
        if let Some(Some(entry)) = self.entries.get_mut(key) {
            let memory = entry.peer.connection.request_bytes() - entry.awaiting.unwrap_or(0);
            self.memory = self.memory - entry.memory + memory;
            entry.memory = memory;
        }
    }

    /// Memory may have come back: give it to those who wait, first come first served.
    fn feed_starved(&mut self, now: Duration) {
        while let Some(&key) = self.starved.front() {
            let awaiting = self.entries.get(key).and_then(|entry| entry.as_ref()?.awaiting);
            if let Some(len) = awaiting {
                if !self.may_take(len) {
                    return;
                }
                self.starved.pop_front();
                self.give_buffer(key, len, now);
                self.act(key, now);
                self.touch(key);
            } else {
                self.starved.pop_front();
            }
        }
    }
}
