//! A client written from the protocol text, over anything that carries bytes. It shares no encoder
//! and no constant with the server: what both got wrong would go unseen.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "parts of several tests")]

pub mod gated;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use raid_io::{Array, MemoryOptions};
use raid_nbd::connection::Limits;
use raid_nbd::export::Export;
use raid_nbd::fuzz::Loopback;
use raid_nbd::{Listen, Server, ServerOptions};

/// Longer than anything takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Carries bytes between a client and a server.
pub trait Wire {
    fn send(&mut self, bytes: &[u8]);
    fn receive(&mut self, len: usize) -> Vec<u8>;
    /// The server has closed, with nothing more said.
    fn expect_closed(&mut self);
    /// The client goes away without a word.
    fn hang_up(self);
}

/// Makes servers and connects to them.
pub trait World: Sized {
    type Wire: Wire;
    fn new(config: Config) -> Self;
    fn connect(&self) -> Client<Self::Wire>;
    /// The array's bytes at `offset`, read behind the server's back; `None` where there is no way
    /// to.
    fn peek(wire: &Self::Wire, offset: usize, len: usize) -> Option<Vec<u8>>;
}

#[derive(Clone, Copy, Default)]
pub struct Config {
    pub read_only: bool,
}

/// The state machine alone.
pub struct Pure(Arc<Export>);

pub struct PureWire {
    pub loopback: Loopback,
    received: Vec<u8>,
}

impl World for Pure {
    type Wire = PureWire;

    fn new(config: Config) -> Self {
        let mut export = Export::new("disk", 8 << 20);
        export.description = Some("a disk".into());
        export.read_only = config.read_only;
        Self(Arc::new(export))
    }

    fn connect(&self) -> Client<PureWire> {
        let loopback = Loopback::new(Arc::clone(&self.0), Limits::default());
        Client::new(PureWire { loopback, received: Vec::new() })
    }

    fn peek(wire: &PureWire, offset: usize, len: usize) -> Option<Vec<u8>> {
        Some(wire.loopback.store[offset..offset + len].to_vec())
    }
}

impl Wire for PureWire {
    fn send(&mut self, bytes: &[u8]) {
        // In odd pieces, so that every message is cut somewhere.
        self.loopback.feed(bytes, 1009);
    }

    fn receive(&mut self, len: usize) -> Vec<u8> {
        self.received.extend(self.loopback.take_sent());
        assert!(self.received.len() >= len, "{} of {len} bytes came", self.received.len());
        self.received.drain(..len).collect()
    }

    fn expect_closed(&mut self) {
        assert!(self.loopback.connection.finished().is_some(), "the connection is open");
        self.received.extend(self.loopback.take_sent());
        assert_eq!(self.received, b"", "more was said");
    }

    fn hang_up(mut self) {
        self.loopback.end_of_stream();
        self.loopback.check_finished();
    }
}

/// A server on a unix socket over an array in memory.
pub struct Socket {
    pub server: Server,
    pub path: PathBuf,
    pub directory: tempfile::TempDir,
}

impl World for Socket {
    type Wire = UnixStream;

    fn new(config: Config) -> Self {
        let mut memory = MemoryOptions::default();
        memory.member_bytes = 5 << 20;
        let array = Array::in_memory(memory).unwrap();
        serve(array, |options| options.read_only = config.read_only)
    }

    fn connect(&self) -> Client<UnixStream> {
        connect(&self.path)
    }

    fn peek(_: &UnixStream, _: usize, _: usize) -> Option<Vec<u8>> {
        None
    }
}

/// Serve `array` as the export "disk" on a socket in a fresh directory.
pub fn serve<B: raid_nbd::backend::Backend>(
    array: B,
    change: impl FnOnce(&mut ServerOptions),
) -> Socket {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    let mut options = ServerOptions {
        listeners: vec![Listen::Unix(path.clone())],
        export_name: "disk".into(),
        description: Some("a disk".into()),
        ..ServerOptions::default()
    };
    change(&mut options);
    let server = Server::start(array, options).unwrap();
    Socket { server, path, directory }
}

pub fn connect(path: &Path) -> Client<UnixStream> {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    Client::new(stream)
}

impl Wire for UnixStream {
    fn send(&mut self, bytes: &[u8]) {
        // The server may have closed on purpose; then reading tells.
        let _ = self.write_all(bytes);
    }

    fn receive(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read_exact(&mut bytes).expect("the server answers");
        bytes
    }

    fn expect_closed(&mut self) {
        match self.read(&mut [0; 64]) {
            Ok(0) => {}
            Ok(len) => panic!("{len} more bytes were said"),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("the connection is open: {error}"),
        }
    }

    fn hang_up(self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// One option reply.
#[derive(Debug, PartialEq, Eq)]
pub struct OptionReply {
    pub option: u32,
    pub kind: u32,
    pub data: Vec<u8>,
}

/// One chunk of a structured reply.
#[derive(Debug, PartialEq, Eq)]
pub struct Chunk {
    pub flags: u16,
    pub kind: u16,
    pub cookie: u64,
    pub body: Vec<u8>,
}

impl Chunk {
    /// The error of an error chunk.
    pub fn error(&self) -> u32 {
        assert!(self.kind == 0x8001 || self.kind == 0x8002, "chunk type {:#x}", self.kind);
        u32::from_be_bytes(self.body[..4].try_into().unwrap())
    }
}

/// What GO said of the export.
#[derive(Debug, Default)]
pub struct Described {
    pub size: u64,
    pub flags: u16,
    pub infos: Vec<(u16, Vec<u8>)>,
}

pub const ACK: u32 = 1;
pub const UNSUP: u32 = 0x8000_0001;
pub const INVALID: u32 = 0x8000_0003;
pub const UNKNOWN: u32 = 0x8000_0006;
pub const TOO_BIG: u32 = 0x8000_0009;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const ZEROES: u16 = 6;
pub const STATUS: u16 = 7;

pub const EPERM: u32 = 1;
pub const EIO: u32 = 5;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;
pub const ENOTSUP: u32 = 95;
pub const ESHUTDOWN: u32 = 108;

/// Talks NBD.
pub struct Client<W> {
    pub wire: W,
    pub size: u64,
    pub flags: u16,
    /// Its server, where it is the only client.
    pub server: Option<Box<dyn std::any::Any + Send>>,
}

impl<W: Wire> Client<W> {
    fn new(wire: W) -> Self {
        Self { wire, size: 0, flags: 0, server: None }
    }

    /// The greeting, and these client flags in answer.
    pub fn greet(&mut self, client_flags: u32) {
        assert_eq!(self.wire.receive(18), b"NBDMAGICIHAVEOPT\0\x03");
        self.wire.send(&client_flags.to_be_bytes());
    }

    pub fn option(&mut self, code: u32, data: &[u8]) {
        let mut bytes = b"IHAVEOPT".to_vec();
        bytes.extend_from_slice(&code.to_be_bytes());
        bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend_from_slice(data);
        self.wire.send(&bytes);
    }

    pub fn option_reply(&mut self) -> OptionReply {
        let head = self.wire.receive(20);
        assert_eq!(head[..8], [0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9]);
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let data = self.wire.receive(word(16) as usize);
        OptionReply { option: word(8), kind: word(12), data }
    }

    /// Send an option that is answered with one reply; the reply's kind.
    pub fn ask(&mut self, code: u32, data: &[u8]) -> u32 {
        self.option(code, data);
        let reply = self.option_reply();
        assert_eq!(reply.option, code);
        reply.kind
    }

    /// Replies up to the last one of an option, which is an ACK or an error.
    pub fn replies(&mut self, code: u32) -> Vec<OptionReply> {
        let mut replies = Vec::new();
        loop {
            let reply = self.option_reply();
            assert_eq!(reply.option, code);
            let last = reply.kind == ACK || reply.kind >= 1 << 31;
            replies.push(reply);
            if last {
                return replies;
            }
        }
    }

    /// INFO (6) or GO (7), which must succeed.
    pub fn describe(&mut self, code: u32, name: &str, infos: &[u16]) -> Described {
        self.option(code, &info_data(name, infos));
        let mut described = Described::default();
        let replies = self.replies(code);
        let (last, items) = replies.split_last().unwrap();
        assert_eq!(last.kind, ACK, "{last:?}");
        let mut export_count = 0;
        for reply in items {
            assert_eq!(reply.kind, 3);
            let kind = u16::from_be_bytes([reply.data[0], reply.data[1]]);
            if kind == 0 {
                assert_eq!(reply.data.len(), 12);
                described.size = u64::from_be_bytes(reply.data[2..10].try_into().unwrap());
                described.flags = u16::from_be_bytes(reply.data[10..].try_into().unwrap());
                export_count += 1;
            }
            described.infos.push((kind, reply.data[2..].to_vec()));
        }
        assert_eq!(export_count, 1, "INFO_EXPORT is sent once");
        self.size = described.size;
        self.flags = described.flags;
        described
    }

    /// An ordinary handshake up to transmission.
    pub fn begin(mut self, structured: bool, allocation: bool) -> Self {
        self.greet(3);
        if structured {
            assert_eq!(self.ask(8, b""), ACK);
        }
        if allocation {
            self.option(10, &meta_data("disk", &["base:allocation"]));
            assert_eq!(self.replies(10).len(), 2);
        }
        self.describe(7, "disk", &[]);
        self
    }

    /// A request. Its cookie is made of `tag`, and comes back.
    pub fn request(&mut self, command: u16, flags: u16, tag: u8, offset: u64, len: u32) {
        let bytes = request(command, flags, tag, offset, len);
        self.wire.send(&bytes);
    }

    pub fn write(&mut self, flags: u16, tag: u8, offset: u64, data: &[u8]) {
        let mut bytes = request(WRITE, flags, tag, offset, data.len() as u32);
        bytes.extend_from_slice(data);
        self.wire.send(&bytes);
    }

    /// A simple reply without data; its error.
    pub fn simple(&mut self, tag: u8) -> u32 {
        let bytes = self.wire.receive(16);
        assert_eq!(bytes[..4], [0x67, 0x44, 0x66, 0x98], "not a simple reply: {bytes:02x?}");
        assert_eq!(bytes[8..], cookie(tag).to_be_bytes());
        u32::from_be_bytes(bytes[4..8].try_into().unwrap())
    }

    pub fn chunk(&mut self) -> Chunk {
        let head = self.wire.receive(20);
        assert_eq!(head[..4], [0x66, 0x8e, 0x33, 0xef], "not a chunk: {head:02x?}");
        let half = |at: usize| u16::from_be_bytes(head[at..at + 2].try_into().unwrap());
        let cookie = u64::from_be_bytes(head[8..16].try_into().unwrap());
        let len = u32::from_be_bytes(head[16..].try_into().unwrap());
        let body = self.wire.receive(len as usize);
        Chunk { flags: half(4), kind: half(6), cookie, body }
    }

    /// The error chunk of a request, under structured replies.
    pub fn chunk_error(&mut self, tag: u8) -> u32 {
        let chunk = self.chunk();
        assert_eq!(chunk.cookie, cookie(tag));
        assert_eq!(chunk.flags, 1);
        chunk.error()
    }

    /// Read, with simple replies.
    pub fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        self.request(READ, 0, 0xee, offset, len);
        assert_eq!(self.simple(0xee), 0);
        self.wire.receive(len as usize)
    }

    /// The connection still works: a write and a read go through. Simple replies.
    pub fn check_alive(&mut self) {
        if self.flags & 2 == 0 {
            self.write(0, 0xed, 4096, b"alive");
            assert_eq!(self.simple(0xed), 0);
            assert_eq!(self.read(4096, 5), b"alive");
        } else {
            self.read(4096, 5);
        }
    }

    /// The extents of a BLOCK_STATUS: length and state.
    pub fn status(&mut self, flags: u16, offset: u64, len: u32) -> Vec<(u32, u32)> {
        self.request(STATUS, flags, 0xec, offset, len);
        let chunk = self.chunk();
        assert_eq!((chunk.kind, chunk.flags, chunk.cookie), (5, 1, cookie(0xec)));
        let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        let extents = &chunk.body[4..];
        extents.chunks(8).map(|pair| (word(&pair[..4]), word(&pair[4..]))).collect()
    }
}

pub fn cookie(tag: u8) -> u64 {
    u64::from_be_bytes([0xc0, 0xff, 0xee, tag, !tag, 0, 0x80, tag])
}

pub fn request(command: u16, flags: u16, tag: u8, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = vec![0x25, 0x60, 0x95, 0x13];
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&cookie(tag).to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes
}

pub fn info_data(name: &str, infos: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(infos.len() as u16).to_be_bytes());
    for info in infos {
        data.extend_from_slice(&info.to_be_bytes());
    }
    data
}

pub fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend_from_slice(&(query.len() as u32).to_be_bytes());
        data.extend_from_slice(query.as_bytes());
    }
    data
}
