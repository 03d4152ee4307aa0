//! Replies that wait to be sent.

use std::collections::VecDeque;
use std::ops::Deref;

/// Longest reply head: a chunk head and the offset of its data.
const HEAD_BYTES_MAX: usize = 32;

/// What follows a reply's head.
#[derive(Debug)]
enum Body<B> {
    None,
    Bytes(Vec<u8>),
    /// Read data, sent from where the engine put it.
    Buffer(B),
}

/// One reply or chunk.
#[derive(Debug)]
pub(crate) struct Reply<B> {
    head: [u8; HEAD_BYTES_MAX],
    head_len: usize,
    body: Body<B>,
}

impl<B: Deref<Target = [u8]>> Reply<B> {
    /// A reply of the parts in `heads`, at most 32 bytes together.
    pub(crate) fn new(heads: &[&[u8]]) -> Self {
        let mut head = [0; HEAD_BYTES_MAX];
        let mut head_len = 0;
        for part in heads {
            head[head_len..head_len + part.len()].copy_from_slice(part);
            head_len += part.len();
        }
        Self { head, head_len, body: Body::None }
    }

    pub(crate) fn with_bytes(mut self, bytes: Vec<u8>) -> Self {
        self.body = Body::Bytes(bytes);
        self
    }

    pub(crate) fn with_buffer(mut self, buffer: B) -> Self {
        self.body = Body::Buffer(buffer);
        self
    }

    fn body(&self) -> &[u8] {
        match &self.body {
            Body::None => &[],
            Body::Bytes(bytes) => bytes,
            Body::Buffer(buffer) => buffer,
        }
    }

    fn len(&self) -> usize {
        self.head_len + self.body().len()
    }

    /// Bytes of read data that the reply keeps in memory.
    fn buffer_bytes(&self) -> usize {
        if let Body::Buffer(buffer) = &self.body { buffer.len() } else { 0 }
    }
}

/// Replies in the order in which they go out.
#[derive(Debug)]
pub(crate) struct Output<B> {
    queue: VecDeque<Reply<B>>,
    /// Bytes of the first reply that are gone already.
    sent: usize,
}

impl<B: Deref<Target = [u8]>> Output<B> {
    pub(crate) fn new() -> Self {
        Self { queue: VecDeque::new(), sent: 0 }
    }

    pub(crate) fn push(&mut self, reply: Reply<B>) {
        self.queue.push_back(reply);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Replies waiting.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// The bytes to send, in order, none of them empty.
    pub(crate) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let mut skip = self.sent;
        self.queue
            .iter()
            .flat_map(|reply| [&reply.head[..reply.head_len], reply.body()])
            .map(move |part| {
                let skipped = skip.min(part.len());
                skip -= skipped;
                &part[skipped..]
            })
            .filter(|part| !part.is_empty())
    }

    /// The first `len` bytes are sent. Returns how much read data that released.
    pub(crate) fn consume(&mut self, len: usize) -> usize {
        self.sent += len;
        let mut released = 0;
        while let Some(front) = self.queue.front() {
            if front.len() > self.sent {
                break;
            }
            self.sent -= front.len();
            released += front.buffer_bytes();
            self.queue.pop_front();
        }
        assert!(!self.queue.is_empty() || self.sent == 0, "sent more than there was");
        released
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the kernel takes at a time, the bytes go out once, in order.
    #[test]
    fn any_split_sends_the_same_bytes() {
        for step in 1..20 {
            let mut output = Output::new();
            output.push(Reply::new(&[b"ab", b"c"]).with_buffer(b"defg".to_vec()));
            output.push(Reply::new(&[b"h"]));
            output.push(Reply::new(&[]).with_bytes(b"ijk".to_vec()));
            let mut sent = Vec::new();
            let mut released = 0;
            while !output.is_empty() {
                let bytes: Vec<u8> = output.slices().flatten().copied().take(step).collect();
                released += output.consume(bytes.len());
                sent.extend_from_slice(&bytes);
            }
            assert_eq!(sent, b"abcdefghijk", "step {step}");
            assert_eq!(released, 4);
        }
    }
}
