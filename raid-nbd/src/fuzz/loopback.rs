//! A connection, a model of an array and the client's end of the wire, without a socket.

use std::sync::Arc;
use std::time::Duration;

use crate::connection::{Action, Connection, Extent, Failure, Limits, Operation, Slot};
use crate::export::Export;
use crate::proto::transmission::Errno;

const NOW: Duration = Duration::ZERO;

/// Drives a [`Connection`] as the server does, over memory.
#[derive(Debug)]
pub struct Loopback {
    /// The state machine.
    pub connection: Connection<Vec<u8>>,
    /// The array's bytes.
    pub store: Vec<u8>,
    /// Keep operations in flight until [`Self::release`].
    pub hold: bool,
    /// Operations done since the start.
    pub operation_count: usize,
    held: Vec<Action<Vec<u8>>>,
    sent: Vec<u8>,
}

impl Loopback {
    /// A client that has just connected.
    pub fn new(export: Arc<Export>, limits: Limits) -> Self {
        let store = vec![0; usize::try_from(export.size_bytes).expect("a small export")];
        let connection = Connection::new(export, limits, NOW);
        let mut client = Self {
            connection,
            store,
            hold: false,
            operation_count: 0,
            held: Vec::new(),
            sent: Vec::new(),
        };
        client.turn();
        client
    }

    /// Send `bytes` in pieces of at most `step`. Returns how many the server took.
    pub fn feed(&mut self, bytes: &[u8], step: usize) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() {
            let receive = self.connection.poll_receive();
            if receive.is_empty() {
                if self.held.is_empty() || !self.hold || self.connection.finished().is_some() {
                    break;
                }
                // The server waits for its engine: let it have an answer, as a real one would.
                self.release(0, false);
                continue;
            }
            let direct = receive.payload.len().min(step).min(rest.len());
            let behind = receive.head.len().min(step - direct).min(rest.len() - direct);
            receive.payload[..direct].copy_from_slice(&rest[..direct]);
            receive.head[..behind].copy_from_slice(&rest[direct..direct + behind]);
            rest = &rest[direct + behind..];
            self.connection.handle_received(direct + behind, NOW);
            self.turn();
        }
        bytes.len() - rest.len()
    }

    /// The handshake of an ordinary client.
    pub fn negotiate(&mut self, structured: bool, allocation: bool) {
        let mut bytes = vec![0, 0, 0, 3];
        if structured {
            bytes.extend_from_slice(b"IHAVEOPT\0\0\0\x08\0\0\0\0");
        }
        if allocation {
            bytes.extend_from_slice(b"IHAVEOPT\0\0\0\x0a\0\0\0\x1b\0\0\0\0\0\0\0\x01");
            bytes.extend_from_slice(b"\0\0\0\x0fbase:allocation");
        }
        bytes.extend_from_slice(b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0");
        self.feed(&bytes, usize::MAX);
        assert!(self.has_begun(), "the handshake failed");
        self.sent.clear();
    }

    /// What the server has sent since the last call.
    pub fn take_sent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.sent)
    }

    /// Whether requests may be sent.
    pub fn has_begun(&self) -> bool {
        self.connection.has_begun()
    }

    /// Whether the server goes on listening.
    pub fn is_open(&self) -> bool {
        self.connection.finished().is_none()
    }

    /// Let one operation in flight end, well or with EIO.
    pub fn release(&mut self, index: usize, fail: bool) {
        if !self.held.is_empty() {
            let action = self.held.remove(index % self.held.len());
            self.execute(action, fail);
            self.turn();
        }
    }

    /// The client closes its end.
    pub fn end_of_stream(&mut self) {
        while !self.connection.poll_receive().is_empty() || !self.held.is_empty() {
            if self.held.is_empty() {
                self.connection.handle_end_of_stream();
                break;
            }
            self.release(0, false);
        }
        self.turn();
    }

    /// # Panics
    /// When the engine was asked for something before the handshake was over.
    pub fn check_untouched(&self) {
        assert!(self.has_begun() || self.operation_count == 0, "the engine was touched too early");
    }

    /// # Panics
    /// When the connection hangs although its client is gone.
    pub fn check_finished(&self) {
        assert!(
            self.connection.finished().is_some(),
            "the connection hangs: {:?}",
            self.connection
        );
        assert_eq!(self.connection.in_flight(), 0, "a request was lost");
    }

    /// Act on everything that the connection wants.
    pub fn turn(&mut self) {
        loop {
            let len: usize = self.connection.slices_to_send().map(<[u8]>::len).sum();
            if len > 0 {
                self.sent.extend(self.connection.slices_to_send().flatten());
                self.connection.handle_sent(len, NOW);
            }
            let Some(action) = self.connection.poll_action() else {
                if len == 0 {
                    return;
                }
                continue;
            };
            match action {
                Action::Buffer { len } => self.connection.handle_buffer(vec![0xa5; len], NOW),
                action if self.hold => self.held.push(action),
                action => self.execute(action, false),
            }
        }
    }

    fn execute(&mut self, action: Action<Vec<u8>>, fail: bool) {
        self.operation_count += 1;
        match action {
            Action::Buffer { .. } => {}
            Action::Status { slot, offset, len } => self.status(slot, offset, len, fail),
            Action::Submit { slot, operation } => {
                let offset = match &operation {
                    Operation::Read { offset, .. } => Some(*offset),
                    _ => None,
                };
                let failure = Failure { error: Errno::Io, offset };
                let result = if fail { Err(failure) } else { Ok(()) };
                let buffer = self.run(operation);
                self.connection.handle_completion(slot, result, buffer, NOW);
            }
        }
    }

    fn run(&mut self, operation: Operation<Vec<u8>>) -> Option<Vec<u8>> {
        let place = |offset: u64, len: usize| {
            let start = usize::try_from(offset).expect("an offset inside the export");
            start..start + len
        };
        match operation {
            Operation::Read { offset, mut buffer } => {
                let place = place(offset, buffer.len());
                buffer.copy_from_slice(&self.store[place]);
                return Some(buffer);
            }
            Operation::Write { offset, buffer, .. } => {
                self.store[place(offset, buffer.len())].copy_from_slice(&buffer);
            }
            Operation::WriteZeroes { offset, len, .. } | Operation::Discard { offset, len } => {
                let len = usize::try_from(len).expect("a length inside the export");
                self.store[place(offset, len)].fill(0);
            }
            Operation::Flush => {}
        }
        None
    }

    /// Pages of the model that hold nothing but zeroes are holes.
    fn status(&mut self, slot: Slot, offset: u64, len: u64, fail: bool) {
        let start = usize::try_from(offset).expect("an offset inside the export");
        let end = start + usize::try_from(len).expect("a length inside the export");
        let mut extents = Vec::new();
        let mut at = start;
        while at < end {
            let next = ((at / 4096 + 1) * 4096).min(self.store.len());
            let hole = self.store[at..next].iter().all(|byte| *byte == 0);
            extents.push(Extent { len: (next - at) as u64, hole });
            at = next;
        }
        let result = if fail { Err(Errno::Io.into()) } else { Ok(&extents[..]) };
        self.connection.handle_status(slot, result, NOW);
    }
}
