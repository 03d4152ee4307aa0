//! One client's session as a pure state machine: no sockets, no clock, no engine.
//!
//! ```text
//!          poll_receive, handle_received         poll_action
//!   socket ------------------------------> Connection ------------------------> engine
//!          <------------------------------            <------------------------
//!          slices_to_send, handle_sent           handle_buffer, handle_completion, handle_status
//! ```
//!
//! The shell that drives it owns the socket and the engine's queue. Time is an argument, counted
//! from an instant of the shell's choosing.
//!
//! **Payloads are not copied.** `B` is the engine's buffer. A WRITE is received into the buffer
//! that is then submitted, the data of a READ is sent from the buffer that the engine filled. Only
//! bytes that arrived together with their request's head are moved, and
//! [`Connection::poll_receive`] asks for one head at a time after a WRITE, so that there are none
//! of them in a stream of writes.
//!
//! Invariants:
//! - The engine sees nothing of a connection before a successful GO or EXPORT_NAME.
//! - A WRITE is submitted when all of its payload has arrived, or never.
//! - A request that was submitted gets one reply, unless the connection was closed.
//! - Requests in flight and replies not yet sent are at most [`Limits::request_count_max`]
//!   together, and their payloads at most [`Limits::request_bytes_max`]; beyond it nothing more is
//!   received.
//! - No input makes it panic. The shell's own mistakes (two answers to one request) do.
//!
//! The conformance list of the protocol is run against it by `tests/conformance.rs`, random input
//! by [`crate::fuzz`].

mod ended;
mod handshake;
mod input;
mod judge;
mod output;
mod request;
mod table;

use std::collections::VecDeque;
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

pub use self::ended::Ended;
use self::handshake::Session;
use self::input::Input;
use self::judge::{Negotiated, Refusal};
use self::output::{Output, Reply};
use self::request::Accepted;
use self::table::Table;
use crate::export::Export;
use crate::proto::option::{OptionHead, greeting};
use crate::proto::transmission::{Errno, REQUEST_BYTES};

/// Received at once during the handshake: all that an honest client sends before it waits.
const HANDSHAKE_READ_BYTES: usize = 4096;
/// Received at once between requests without payload: 64 heads. Were the client to go over to
/// writing, at most this much of its payload would be moved, once.
const HEADS_READ_BYTES: usize = 64 * REQUEST_BYTES;
/// Received at once of a payload that is thrown away.
const SKIP_READ_BYTES: usize = 16 << 10;

/// What one client may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests in flight and replies not sent yet, together.
    pub request_count_max: u8,
    /// Bytes of payload of them. One request of the largest size always passes.
    pub request_bytes_max: usize,
    /// From the first byte to a successful GO.
    pub handshake_timeout: Duration,
    /// Without any progress while a reply waits to be sent or a request has arrived in part.
    pub stall_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request_count_max: 128,
            request_bytes_max: 64 << 20,
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
        }
    }
}

/// The place of a request in flight; unique within its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u8);

impl Slot {
    /// As a number below [`Limits::request_count_max`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The slot with this number.
    pub fn from_index(index: u8) -> Self {
        Self(index)
    }
}

/// Work for the engine.
#[derive(Debug, PartialEq, Eq)]
pub enum Operation<B> {
    /// Fill the buffer, all of it.
    Read {
        /// First byte of the array.
        offset: u64,
        /// As long as the request.
        buffer: B,
    },
    /// Write the buffer.
    Write {
        /// First byte of the array.
        offset: u64,
        /// As long as the request.
        buffer: B,
        /// Stable before the answer.
        fua: bool,
    },
    /// Make everything stable that was answered before.
    Flush,
    /// The range's content is of no use any more.
    Discard {
        /// First byte of the array.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Make the range read as zeroes.
    WriteZeroes {
        /// First byte of the array.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Holes are welcome.
        unmap: bool,
        /// Stable before the answer.
        fua: bool,
    },
}

/// What the shell has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Action<B> {
    /// Answer with [`Connection::handle_buffer`], now or when there is memory.
    Buffer {
        /// Exactly this long.
        len: usize,
    },
    /// Answer with [`Connection::handle_completion`].
    Submit {
        /// Names the request.
        slot: Slot,
        /// What to do.
        operation: Operation<B>,
    },
    /// Tell where data is; answer with [`Connection::handle_status`].
    Status {
        /// Names the request.
        slot: Slot,
        /// First byte of the array.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What the client is told.
    pub error: Errno,
    /// The first byte of the array that could not be had, where known.
    pub offset: Option<u64>,
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        Self { error, offset: None }
    }
}

/// A run of the array that is of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// Nothing is stored here, and it reads as zeroes.
    pub hole: bool,
}

/// Where to put the next bytes of the socket: first `payload`, then `head`. Both empty: receive
/// nothing now.
#[derive(Debug)]
pub struct Receive<'a> {
    /// The rest of a WRITE's payload, in the engine's buffer.
    pub payload: &'a mut [u8],
    /// Room for what comes after it.
    pub head: &'a mut [u8],
}

impl Receive<'_> {
    /// Whether nothing is to be received now.
    pub fn is_empty(&self) -> bool {
        self.payload.is_empty() && self.head.is_empty()
    }
}

/// What the bytes to come are.
#[derive(Debug)]
enum Stage<B> {
    ClientFlags,
    OptionHead,
    OptionData(OptionHead),
    /// Data of an option that is too long.
    OptionSkip(OptionHead, usize),
    Request,
    /// A request waits until there is room for it.
    Admit(Accepted),
    /// A request waits for the shell's buffer.
    Buffer(Accepted),
    Payload(Payload<B>),
    /// The payload of a refused WRITE.
    Skip {
        left: usize,
        cookie: u64,
        refusal: Refusal,
    },
    /// Nothing: replies go out, then the connection ends.
    Draining(Ended),
    /// Nothing, and nothing goes out either.
    Closed(Ended),
}

#[derive(Debug)]
struct Payload<B> {
    accepted: Accepted,
    buffer: B,
    filled: usize,
}

/// One client's session.
#[derive(Debug)]
pub struct Connection<B> {
    export: Arc<Export>,
    limits: Limits,
    stage: Stage<B>,
    session: Session,
    negotiated: Negotiated,
    input: Input,
    output: Output<B>,
    actions: VecDeque<Action<B>>,
    table: Table,
    /// Payload bytes of requests in flight and of read data not sent yet.
    request_bytes: usize,
    /// The last request was a WRITE: the next one is likely to be one too.
    expect_payload: bool,
    shutting_down: bool,
    handshake_deadline: Duration,
    /// When bytes or answers last moved.
    moved_at: Duration,
}

impl<B: DerefMut<Target = [u8]>> Connection<B> {
    /// A client has connected.
    pub fn new(export: Arc<Export>, limits: Limits, now: Duration) -> Self {
        let mut output = Output::new();
        output.push(Reply::new(&[&greeting()]));
        Self {
            export,
            limits,
            stage: Stage::ClientFlags,
            session: Session::default(),
            negotiated: Negotiated::default(),
            input: Input::default(),
            output,
            actions: VecDeque::new(),
            table: Table::new(limits.request_count_max),
            request_bytes: 0,
            expect_payload: false,
            shutting_down: false,
            handshake_deadline: now.saturating_add(limits.handshake_timeout),
            moved_at: now,
        }
    }

    /// Whether the handshake is over and requests may come.
    pub fn has_begun(&self) -> bool {
        !matches!(
            self.stage,
            Stage::ClientFlags
                | Stage::OptionHead
                | Stage::OptionData(_)
                | Stage::OptionSkip(..)
                | Stage::Draining(Ended::Abort)
                | Stage::Closed(_)
        )
    }

    /// Requests that the engine has not answered yet.
    pub fn in_flight(&self) -> usize {
        self.table.len()
    }

    /// Payload bytes of requests in flight and of replies not sent yet.
    pub fn request_bytes(&self) -> usize {
        self.request_bytes
    }

    /// Set when the socket can be closed. Operations may still be in flight then; their answers are
    /// to be handed in as ever, and lead to nothing.
    pub fn finished(&self) -> Option<&Ended> {
        match &self.stage {
            Stage::Closed(ended) => Some(ended),
            Stage::Draining(ended) if self.table.len() == 0 && self.output.is_empty() => {
                Some(ended)
            }
            _ => None,
        }
    }

    /// Whether nothing is under way: no request in flight or in part, no reply unsent.
    pub fn is_quiet(&self) -> bool {
        let between = matches!(self.stage, Stage::Request) && self.input.is_empty();
        between && self.table.len() == 0 && self.output.is_empty()
    }

    /// Where to put what the socket has.
    pub fn poll_receive(&mut self) -> Receive<'_> {
        let paused = !self.has_room();
        let Self { stage, input, output, .. } = self;
        let have = input.len();
        let mut payload = &mut [][..];
        let want = match stage {
            // One option at a time: replies of the one before are bounded by its data.
            Stage::ClientFlags | Stage::OptionHead if output.is_empty() => HANDSHAKE_READ_BYTES,
            Stage::OptionData(head) => (head.len as usize).saturating_sub(have),
            Stage::OptionSkip(_, left) | Stage::Skip { left, .. } => (*left).min(SKIP_READ_BYTES),
            Stage::Request if !paused && self.expect_payload => REQUEST_BYTES.saturating_sub(have),
            Stage::Request if !paused => HEADS_READ_BYTES.saturating_sub(have),
            Stage::Payload(rest) => {
                payload = &mut rest.buffer[rest.filled..];
                REQUEST_BYTES
            }
            _ => 0,
        };
        let head = if want == 0 { &mut [][..] } else { input.space(want) };
        Receive { payload, head }
    }

    /// The socket gave `len` bytes, put where [`Self::poll_receive`] said.
    ///
    /// # Panics
    /// When that is more than there was room for.
    pub fn handle_received(&mut self, len: usize, now: Duration) {
        self.moved_at = now;
        let mut rest = len;
        if let Stage::Payload(payload) = &mut self.stage {
            let direct = rest.min(payload.buffer.len() - payload.filled);
            payload.filled += direct;
            rest -= direct;
        }
        self.input.commit(rest);
        self.advance();
    }

    /// The client will send nothing more. Between two requests that is a goodbye, and replies still
    /// go out; in the middle of one it is the end.
    pub fn handle_end_of_stream(&mut self) {
        match self.stage {
            Stage::Request if self.input.is_empty() => self.stage = Stage::Draining(Ended::Hangup),
            Stage::Draining(_) | Stage::Closed(_) => {}
            Stage::ClientFlags | Stage::OptionHead => self.close(Ended::Hangup),
            _ => self.close(Ended::Torn),
        }
    }

    /// The bytes to send, in order.
    pub fn slices_to_send(&self) -> impl Iterator<Item = &[u8]> {
        let closed = matches!(self.stage, Stage::Closed(_));
        self.output.slices().take_while(move |_| !closed)
    }

    /// The socket took the first `len` bytes of [`Self::slices_to_send`].
    ///
    /// # Panics
    /// When that is more than there were.
    pub fn handle_sent(&mut self, len: usize, now: Duration) {
        self.moved_at = now;
        self.request_bytes -= self.output.consume(len);
        self.advance();
    }

    /// What to do next, if anything.
    pub fn poll_action(&mut self) -> Option<Action<B>> {
        self.actions.pop_front()
    }

    /// The client cannot be served any more: its socket failed, or the shell has had enough of it.
    pub fn handle_failure(&mut self, ended: Ended) {
        self.close(ended);
    }

    /// Refuse what comes from now on; what came before is finished. A handshake ends at once.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
        if !self.has_begun() && !matches!(self.stage, Stage::Draining(_)) {
            self.close(Ended::Shutdown);
        }
    }

    /// When [`Self::handle_timeout`] wants to be called, if nothing moves until then.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let stalled = self.moved_at.saturating_add(self.limits.stall_timeout);
        match self.stage {
            Stage::ClientFlags
            | Stage::OptionHead
            | Stage::OptionData(_)
            | Stage::OptionSkip(..) => Some(self.handshake_deadline),
            Stage::Closed(_) => None,
            _ if !self.output.is_empty() => Some(stalled),
            Stage::Payload(_) | Stage::Skip { .. } => Some(stalled),
            Stage::Request if !self.input.is_empty() && self.has_room() => Some(stalled),
            _ => None,
        }
    }

    /// Time has passed. Closes the connection when it has kept the server waiting too long.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.poll_timeout().is_some_and(|due| due <= now) {
            let ended = if self.has_begun() { Ended::Stalled } else { Ended::HandshakeTimeout };
            self.close(ended);
        }
    }

    /// Go on with what has arrived, as far as it goes.
    fn advance(&mut self) {
        while self.step() {}
    }

    /// One step; false when something has to happen first.
    fn step(&mut self) -> bool {
        match &self.stage {
            Stage::ClientFlags => self.step_client_flags(),
            Stage::OptionHead => self.step_option_head(),
            Stage::OptionData(head) => self.step_option_data(*head),
            Stage::OptionSkip(head, left) => self.step_option_skip(*head, *left),
            Stage::Request => self.step_request(),
            Stage::Admit(accepted) => self.step_admit(*accepted),
            Stage::Payload(_) => self.step_payload(),
            Stage::Skip { .. } => self.step_skip(),
            Stage::Buffer(_) | Stage::Draining(_) | Stage::Closed(_) => false,
        }
    }

    /// End at once. What the engine has not been given yet it will not get.
    fn close(&mut self, ended: Ended) {
        if matches!(self.stage, Stage::Closed(_)) {
            return;
        }
        self.stage = Stage::Closed(ended);
        for action in self.actions.drain(..) {
            if let Action::Submit { slot, .. } | Action::Status { slot, .. } = action {
                self.table.remove(slot);
            }
        }
    }

    /// Whether one more request may be looked at.
    fn has_room(&self) -> bool {
        self.table.len() + self.output.len() < usize::from(self.limits.request_count_max)
    }
}
