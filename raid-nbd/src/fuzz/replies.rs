//! A client's view of replies, written from the protocol text and not with the server's own
//! encoder.

use std::collections::HashMap;

use crate::proto::transmission::Request;

/// One reply, put together from its chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The request's cookie.
    pub cookie: u64,
    /// The error; zero is success.
    pub error: u32,
    /// Data of a READ.
    pub data: Vec<u8>,
    /// Length and state flags of each extent of a BLOCK_STATUS.
    pub extents: Vec<(u32, u32)>,
    /// The offset of an ERROR_OFFSET chunk.
    pub error_offset: Option<u64>,
    /// Chunks it came in; zero for a simple reply.
    pub chunk_count: usize,
}

/// Parses what a server sends and checks it against the requests.
#[derive(Debug)]
pub struct ReplyReader {
    structured: bool,
    waiting: HashMap<u64, Request>,
    bytes: Vec<u8>,
    partial: HashMap<u64, Reply>,
}

impl ReplyReader {
    /// For a connection with or without structured replies.
    pub fn new(structured: bool) -> Self {
        Self { structured, waiting: HashMap::new(), bytes: Vec::new(), partial: HashMap::new() }
    }

    /// A request goes out.
    pub fn expect(&mut self, request: &Request) {
        self.waiting.insert(request.cookie, *request);
    }

    /// Requests without a reply so far.
    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Bytes came in. Returns the replies that are complete.
    ///
    /// # Panics
    /// When the server broke the protocol.
    pub fn read(&mut self, bytes: &[u8]) -> Vec<Reply> {
        self.bytes.extend_from_slice(bytes);
        let mut replies = Vec::new();
        while let Some((used, reply)) = self.parse() {
            self.bytes.drain(..used);
            replies.extend(reply);
        }
        for reply in &replies {
            let request = self.waiting.remove(&reply.cookie).expect("a reply nobody waits for");
            check(&request, reply, self.structured);
        }
        replies
    }

    /// Whether all bytes were understood.
    pub fn is_aligned(&self) -> bool {
        self.bytes.is_empty()
    }

    fn parse(&mut self) -> Option<(usize, Option<Reply>)> {
        match self.bytes.get(..4)? {
            b"\x67\x44\x66\x98" => self.parse_simple(),
            b"\x66\x8e\x33\xef" => self.parse_chunk(),
            other => panic!("a reply begins with {other:02x?}"),
        }
    }

    fn parse_simple(&mut self) -> Option<(usize, Option<Reply>)> {
        let error = number(self.bytes.get(4..8)?) as u32;
        let cookie = number(self.bytes.get(8..16)?);
        let request = self.waiting.get(&cookie).expect("a simple reply nobody waits for");
        let read = request.command == 0;
        assert!(!(self.structured && read), "a simple reply to READ");
        let len = if read && error == 0 { request.length as usize } else { 0 };
        let data = self.bytes.get(16..16 + len)?.to_vec();
        let extents = Vec::new();
        let reply = Reply { cookie, error, data, extents, error_offset: None, chunk_count: 0 };
        Some((16 + len, Some(reply)))
    }

    fn parse_chunk(&mut self) -> Option<(usize, Option<Reply>)> {
        assert!(self.structured, "a chunk that was not negotiated");
        let flags = number(self.bytes.get(4..6)?);
        let kind = number(self.bytes.get(6..8)?);
        let cookie = number(self.bytes.get(8..16)?);
        let len = number(self.bytes.get(16..20)?) as usize;
        let body = self.bytes.get(20..20 + len)?;
        let request = self.waiting.get(&cookie).expect("a chunk nobody waits for");
        let reply = self.partial.entry(cookie).or_insert_with(|| Reply {
            cookie,
            error: 0,
            data: Vec::new(),
            extents: Vec::new(),
            error_offset: None,
            chunk_count: 0,
        });
        reply.chunk_count += 1;
        read_chunk(reply, request, kind, body);
        assert_eq!(flags & !1, 0, "unknown chunk flags");
        let done = if flags & 1 != 0 { self.partial.remove(&cookie) } else { None };
        Some((20 + len, done))
    }
}

fn read_chunk(reply: &mut Reply, request: &Request, kind: u64, body: &[u8]) {
    match kind {
        0 => assert!(body.is_empty(), "a NONE chunk with content"),
        1 => {
            assert_eq!(request.command, 0, "data for another command than READ");
            assert!(body.len() >= 9, "an empty OFFSET_DATA");
            let at = request.offset + reply.data.len() as u64;
            assert_eq!(number(&body[..8]), at, "data out of place");
            reply.data.extend_from_slice(&body[8..]);
        }
        5 => {
            assert_eq!(request.command, 7, "extents for another command than BLOCK_STATUS");
            assert!(body.len() >= 12 && body.len() % 8 == 4, "BLOCK_STATUS of {}", body.len());
            for pair in body[4..].chunks(8) {
                reply.extents.push((number(&pair[..4]) as u32, number(&pair[4..]) as u32));
            }
        }
        0x8001 | 0x8002 => {
            reply.error = number(&body[..4]) as u32;
            assert_ne!(reply.error, 0, "an error chunk without an error");
            let message = number(&body[4..6]) as usize;
            let tail = &body[6 + message..];
            assert!(std::str::from_utf8(&body[6..6 + message]).is_ok());
            if kind == 0x8002 {
                let offset = number(tail);
                let end = request.offset + u64::from(request.length);
                assert!((request.offset..end).contains(&offset), "an error out of the range");
                reply.error_offset = Some(offset);
            } else {
                assert!(tail.is_empty());
            }
        }
        other => panic!("chunk type {other}"),
    }
}

fn check(request: &Request, reply: &Reply, structured: bool) {
    assert_ne!(request.command, 2, "a reply to DISC");
    let legal = [0, 1, 5, 12, 22, 28, 75, 95, 108];
    assert!(legal.contains(&reply.error), "error {}", reply.error);
    if reply.error == 95 {
        assert!(request.command == 6 && request.flags & 16 != 0, "ENOTSUP without FAST_ZERO");
    }
    if reply.error != 0 {
        return;
    }
    if request.command == 0 {
        assert_eq!(reply.data.len(), request.length as usize, "data is missing");
        assert_eq!(reply.chunk_count > 0, structured);
        if request.flags & 4 != 0 {
            assert_eq!(reply.chunk_count, 1, "DF was ignored");
        }
    }
    if request.command == 7 {
        check_extents(request, reply);
    }
}

fn check_extents(request: &Request, reply: &Reply) {
    assert!(!reply.extents.is_empty() && reply.extents.len() <= 1 << 20);
    assert!(reply.extents.iter().all(|(len, _)| *len > 0), "an empty extent");
    let total: u64 = reply.extents.iter().map(|(len, _)| u64::from(*len)).sum();
    let last = reply.extents.last().map_or(0, |(len, _)| u64::from(*len));
    assert!(total - last < u64::from(request.length), "extents beyond the range");
    if request.flags & 8 != 0 {
        assert_eq!(reply.extents.len(), 1, "REQ_ONE was ignored");
        assert!(total <= u64::from(request.length));
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
