//! Requests: from a head to the engine, from the engine to a reply.

use std::ops::DerefMut;
use std::time::Duration;

use super::handshake::ALLOCATION_ID;
use super::judge::{Command, Refusal, Verdict, judge};
use super::output::Reply;
use super::table::{Pending, PendingKind};
use super::{Action, Connection, Ended, Extent, Failure, Operation, Payload, Slot, Stage};
use crate::proto::transmission::{
    CommandCode, Errno, REQUEST_BYTES, Request, chunk, chunk_head, simple_reply,
};
use crate::proto::{EXTENT_COUNT_MAX, MESSAGE_BYTES_MAX};

/// Most extents in one reply, well below the protocol's own limit: a client asks again for the
/// rest, and 128 such replies take 16 MiB at most.
const REPLY_EXTENT_COUNT_MAX: usize = 1 << 14;
const _: () = assert!(REPLY_EXTENT_COUNT_MAX <= EXTENT_COUNT_MAX);

/// `base:allocation`: nothing is stored, and it reads as zeroes.
const STATE_HOLE_ZERO: u32 = 0b11;

/// A request that is in order but not submitted yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accepted {
    request: Request,
    command: Command,
}

impl Accepted {
    /// Bytes of payload, in whichever direction.
    fn payload_bytes(&self) -> usize {
        match self.command {
            Command::Read | Command::Write { .. } => self.request.length as usize,
            _ => 0,
        }
    }

    fn pending(&self) -> Pending {
        let kind = match self.command {
            Command::Read => PendingKind::Read,
            Command::Write { .. } => PendingKind::Write,
            Command::Flush | Command::WriteZeroes { .. } => PendingKind::Plain,
            Command::Trim { fua } => PendingKind::Trim { fua },
            Command::Status { one } => PendingKind::Status { one },
        };
        let Request { cookie, offset, length, .. } = self.request;
        Pending { cookie, offset, length, kind }
    }
}

impl<B: DerefMut<Target = [u8]>> Connection<B> {
    pub(super) fn step_request(&mut self) -> bool {
        if !self.has_room() {
            return false;
        }
        let Some(bytes) = self.input.first::<REQUEST_BYTES>() else { return false };
        let Some(request) = Request::parse(bytes) else {
            self.close(Ended::RequestMagic);
            return false;
        };
        self.input.consume(REQUEST_BYTES);
        self.expect_payload = CommandCode::from(request.command) == CommandCode::Write;
        let verdict = match judge(&request, &self.export, self.negotiated) {
            Verdict::Run(_) | Verdict::Done if self.shutting_down => {
                Verdict::Refuse(Refusal::new(Errno::Shutdown, "the server is stopping"))
            }
            verdict => verdict,
        };
        self.apply(request, verdict);
        true
    }

    fn apply(&mut self, request: Request, verdict: Verdict) {
        let cookie = request.cookie;
        match verdict {
            Verdict::Run(command) => self.stage = Stage::Admit(Accepted { request, command }),
            Verdict::Done => self.push_success(cookie, CommandCode::from(request.command)),
            Verdict::Refuse(refusal) if self.expect_payload => {
                self.stage = Stage::Skip { left: request.length as usize, cookie, refusal };
            }
            Verdict::Refuse(refusal) => self.push_error(cookie, &refusal, None),
            Verdict::Disconnect => self.stage = Stage::Draining(Ended::Disconnect),
            Verdict::Close(ended) => self.close(ended),
        }
    }

    pub(super) fn step_skip(&mut self) -> bool {
        let Stage::Skip { left, .. } = &mut self.stage else { return false };
        let skipped = (*left).min(self.input.len());
        *left -= skipped;
        self.input.consume(skipped);
        if *left > 0 {
            return false;
        }
        if let Stage::Skip { cookie, refusal, .. } =
            std::mem::replace(&mut self.stage, Stage::Request)
        {
            self.push_error(cookie, &refusal, None);
        }
        true
    }

    /// Let a request in when there is memory for it. One alone is always let in.
    pub(super) fn step_admit(&mut self, accepted: Accepted) -> bool {
        let bytes = accepted.payload_bytes();
        let total = self.request_bytes + bytes;
        if self.request_bytes > 0 && total > self.limits.request_bytes_max {
            return false;
        }
        if bytes == 0 {
            self.submit_plain(accepted);
            self.stage = Stage::Request;
            return true;
        }
        self.request_bytes = total;
        self.actions.push_back(Action::Buffer { len: bytes });
        self.stage = Stage::Buffer(accepted);
        false
    }

    /// The buffer that [`Action::Buffer`] asked for.
    ///
    /// # Panics
    /// When it has another length.
    pub fn handle_buffer(&mut self, buffer: B, now: Duration) {
        self.moved_at = now;
        let Stage::Buffer(accepted) = self.stage else {
            // Closed in the meantime.
            return;
        };
        assert_eq!(buffer.len(), accepted.payload_bytes(), "buffer of another length");
        if accepted.command == Command::Read {
            let offset = accepted.request.offset;
            self.submit(accepted, |slot| {
                let operation = Operation::Read { offset, buffer };
                Action::Submit { slot, operation }
            });
            self.stage = Stage::Request;
        } else {
            self.stage = Stage::Payload(Payload { accepted, buffer, filled: 0 });
        }
        self.advance();
    }

    pub(super) fn step_payload(&mut self) -> bool {
        let Stage::Payload(payload) = &mut self.stage else { return false };
        let target = &mut payload.buffer[payload.filled..];
        let moved = target.len().min(self.input.len());
        if moved > 0 && moved <= target.len() {
            target[..moved].copy_from_slice(&self.input.filled()[..moved]);
            self.input.consume(moved);
            payload.filled += moved;
        }
        if payload.filled < payload.buffer.len() {
            return false;
        }
        if let Stage::Payload(Payload { accepted, buffer, .. }) =
            std::mem::replace(&mut self.stage, Stage::Request)
        {
            let offset = accepted.request.offset;
            let fua = accepted.command == Command::Write { fua: true };
            self.submit(accepted, |slot| {
                let operation = Operation::Write { offset, buffer, fua };
                Action::Submit { slot, operation }
            });
        }
        true
    }

    fn submit_plain(&mut self, accepted: Accepted) {
        let Request { offset, length, .. } = accepted.request;
        let len = u64::from(length);
        let operation = match accepted.command {
            Command::Trim { .. } => Operation::Discard { offset, len },
            Command::WriteZeroes { unmap, fua } => {
                Operation::WriteZeroes { offset, len, unmap, fua }
            }
            Command::Status { .. } => {
                return self.submit(accepted, |slot| Action::Status { slot, offset, len });
            }
            Command::Flush | Command::Read | Command::Write { .. } => Operation::Flush,
        };
        self.submit(accepted, |slot| Action::Submit { slot, operation });
    }

    fn submit(&mut self, accepted: Accepted, action: impl FnOnce(Slot) -> Action<B>) {
        let slot = self.table.insert(accepted.pending());
        // `has_room` was true before the request was looked at, and since then a request can only
        // have moved from the table to the output.
        debug_assert!(slot.is_some(), "no slot for an admitted request");
        if let Some(slot) = slot {
            self.actions.push_back(action(slot));
        }
    }

    /// The engine has done what [`Action::Submit`] asked for. A READ's buffer comes back with it.
    ///
    /// # Panics
    /// When the slot has no request in flight.
    pub fn handle_completion(
        &mut self,
        slot: Slot,
        result: Result<(), Failure>,
        buffer: Option<B>,
        now: Duration,
    ) {
        self.moved_at = now;
        let pending = self.table.remove(slot);
        if matches!(self.stage, Stage::Closed(_)) {
            return;
        }
        match pending.kind {
            PendingKind::Read => self.finish_read(pending, result, buffer),
            PendingKind::Write => {
                self.request_bytes -= pending.length as usize;
                self.finish(pending, result);
            }
            PendingKind::Trim { fua } => self.finish_trim(pending, result, fua),
            PendingKind::Plain => self.finish(pending, result),
            PendingKind::Status { .. } => {
                let result = result.and(Err(Failure::from(Errno::Io)));
                self.finish(pending, result);
            }
        }
        self.advance();
    }

    fn finish(&mut self, pending: Pending, result: Result<(), Failure>) {
        match result {
            Ok(()) => self.push_success(pending.cookie, CommandCode::Flush),
            Err(failure) => self.push_failure(pending, failure),
        }
    }

    fn finish_read(&mut self, pending: Pending, result: Result<(), Failure>, buffer: Option<B>) {
        let len = pending.length as usize;
        let failure = match (result, buffer) {
            (Ok(()), Some(buffer)) if buffer.len() == len => {
                return self.push_data(pending, buffer);
            }
            (Err(failure), _) => failure,
            // An engine that loses the buffer has not read anything that could be sent.
            (Ok(()), _) => Errno::Io.into(),
        };
        self.request_bytes -= len;
        self.push_failure(pending, failure);
    }

    fn finish_trim(&mut self, pending: Pending, result: Result<(), Failure>, fua: bool) {
        let result = match result {
            Err(Failure { error: Errno::NotSupported, .. }) => Ok(()),
            other => other,
        };
        if !fua || result.is_err() {
            return self.finish(pending, result);
        }
        // The engine's discard knows no FUA: a flush makes it stable.
        let flush = Pending { kind: PendingKind::Plain, ..pending };
        if let Some(slot) = self.table.insert(flush) {
            self.actions.push_back(Action::Submit { slot, operation: Operation::Flush });
        }
    }

    /// The answer to [`Action::Status`]: extents from the start of the range on, which may end
    /// early or reach beyond it.
    ///
    /// # Panics
    /// When the slot has no request in flight.
    pub fn handle_status(&mut self, slot: Slot, result: Result<&[Extent], Failure>, now: Duration) {
        self.moved_at = now;
        let pending = self.table.remove(slot);
        if matches!(self.stage, Stage::Closed(_)) {
            return;
        }
        let one = pending.kind == PendingKind::Status { one: true };
        let outcome = result.map(|extents| encode_extents(extents, pending.length, one));
        match outcome {
            Ok(Some(body)) => {
                let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
                let head = chunk_head(pending.cookie, chunk::DONE, chunk::BLOCK_STATUS, len);
                self.output.push(Reply::new(&[&head]).with_bytes(body));
            }
            Ok(None) => self.push_failure(pending, Errno::Io.into()),
            Err(failure) => self.push_failure(pending, failure),
        }
        self.advance();
    }

    fn push_data(&mut self, pending: Pending, buffer: B) {
        let Pending { cookie, offset, length, .. } = pending;
        let reply = if self.negotiated.structured {
            let head = chunk_head(cookie, chunk::DONE, chunk::OFFSET_DATA, length + 8);
            Reply::new(&[&head, &offset.to_be_bytes()])
        } else {
            Reply::new(&[&simple_reply(cookie, None)])
        };
        self.output.push(reply.with_buffer(buffer));
    }

    fn push_success(&mut self, cookie: u64, code: CommandCode) {
        let reply = if self.negotiated.structured && code == CommandCode::Read {
            Reply::new(&[&chunk_head(cookie, chunk::DONE, chunk::NONE, 0)])
        } else {
            Reply::new(&[&simple_reply(cookie, None)])
        };
        self.output.push(reply);
    }

    fn push_failure(&mut self, pending: Pending, failure: Failure) {
        // FAST_ZERO alone may be answered with ENOTSUP, and that is refused before it gets here.
        let error = match failure.error {
            Errno::NotSupported => Errno::Invalid,
            error => error,
        };
        let range = pending.offset..pending.offset.saturating_add(u64::from(pending.length));
        let offset = failure.offset.filter(|offset| range.contains(offset));
        let refusal = match offset {
            Some(offset) => Refusal::new(error, format!("failed at offset {offset}")),
            None => Refusal::new(error, ""),
        };
        self.push_error(pending.cookie, &refusal, offset);
    }

    /// An error: a chunk with a message where the client understands chunks.
    fn push_error(&mut self, cookie: u64, refusal: &Refusal, offset: Option<u64>) {
        if !self.negotiated.structured {
            let reply = Reply::new(&[&simple_reply(cookie, Some(refusal.error))]);
            return self.output.push(reply);
        }
        let message = refusal.message.as_bytes();
        let message = &message[..message.len().min(MESSAGE_BYTES_MAX)];
        let mut body = Vec::with_capacity(14 + message.len());
        body.extend_from_slice(&refusal.error.number().to_be_bytes());
        body.extend_from_slice(&u16::try_from(message.len()).unwrap_or(0).to_be_bytes());
        body.extend_from_slice(message);
        let kind = match offset {
            Some(offset) => {
                body.extend_from_slice(&offset.to_be_bytes());
                chunk::ERROR_OFFSET
            }
            None => chunk::ERROR,
        };
        let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let head = chunk_head(cookie, chunk::DONE, kind, len);
        self.output.push(Reply::new(&[&head]).with_bytes(body));
    }
}

/// The payload of a BLOCK_STATUS chunk: neighbours of one kind joined, cut to the range asked for.
/// `None` when nothing is left, which the protocol does not allow.
fn encode_extents(extents: &[Extent], length: u32, one: bool) -> Option<Vec<u8>> {
    let count_max = if one { 1 } else { REPLY_EXTENT_COUNT_MAX };
    let mut body = ALLOCATION_ID.to_be_bytes().to_vec();
    let mut left = length;
    let mut extents = extents.iter().filter(|extent| extent.len > 0).peekable();
    for _ in 0..count_max {
        let Some(first) = extents.next() else { break };
        let mut len = first.len;
        while let Some(next) = extents.next_if(|next| next.hole == first.hole) {
            len = len.saturating_add(next.len);
        }
        let len = u32::try_from(len).unwrap_or(u32::MAX).min(left);
        let state = if first.hole { STATE_HOLE_ZERO } else { 0 };
        body.extend_from_slice(&len.to_be_bytes());
        body.extend_from_slice(&state.to_be_bytes());
        left -= len;
        if left == 0 {
            break;
        }
    }
    (body.len() > 4).then_some(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(body: Option<Vec<u8>>) -> Vec<(u32, u32)> {
        let body = body.unwrap();
        assert_eq!(body[..4], ALLOCATION_ID.to_be_bytes());
        let words: Vec<u32> =
            body[4..].as_chunks::<4>().0.iter().map(|word| u32::from_be_bytes(*word)).collect();
        words.chunks(2).map(|pair| (pair[0], pair[1])).collect()
    }

    #[test]
    fn extents_are_joined_and_cut() {
        let extent = |len, hole| Extent { len, hole };
        let list = [extent(5, true), extent(0, false), extent(7, true), extent(8, false)];
        assert_eq!(decode(encode_extents(&list, 100, false)), [(12, 3), (8, 0)]);
        assert_eq!(decode(encode_extents(&list, 14, false)), [(12, 3), (2, 0)]);
        assert_eq!(decode(encode_extents(&list, 14, true)), [(12, 3)]);
        assert_eq!(decode(encode_extents(&list, 3, true)), [(3, 3)]);
        assert_eq!(encode_extents(&[extent(0, true)], 3, false), None);
        let endless = [extent(u64::MAX, false), extent(u64::MAX, false)];
        assert_eq!(decode(encode_extents(&endless, u32::MAX, false)), [(u32::MAX, 0)]);
    }

    #[test]
    fn a_reply_holds_no_more_extents_than_its_limit() {
        let list: Vec<Extent> =
            (0..40_000).map(|index| Extent { len: 1, hole: index % 2 == 0 }).collect();
        let reply = decode(encode_extents(&list, 40_000, false));
        assert_eq!(reply.len(), REPLY_EXTENT_COUNT_MAX);
    }
}
