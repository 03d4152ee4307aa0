//! Member operations between the plan and the driver: merged where they touch, taken apart when
//! they fail.
//!
//! A new operation that continues the last one not yet sent to the same member becomes a part of
//! it: neighbouring chunks on one member go out as one vectored operation. When a merged operation
//! fails, its pieces are sent again alone, so that the failure stays with the bytes concerned.

use super::parts::PartId;
use crate::counters::{Counter, QueueCounters};
use crate::memory::Segment;
use crate::plan::IoKind;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Segments of one operation: 128, well below the kernel's IOV_MAX of 1024, and enough for 8 MiB of
/// 64 KiB chunks.
const SEGMENT_COUNT_MAX: usize = 128;

/// Bytes of one merged transfer: 1 MiB, beyond which larger operations were not seen to be faster,
/// while several of them keep a device busy.
const MERGED_BYTES_MAX: u64 = 1024 * 1024;

/// Bytes of one merged write of zeroes, which transfers nothing: 1 GiB.
const MERGED_ZEROES_MAX: u64 = 1 << 30;

/// An operation for one member.
#[derive(Clone, Copy, Debug)]
pub struct MemberIo<'a> {
    /// Give it back to [`super::Queue::handle_io`].
    pub token: u32,
    /// Index of the member over all groups.
    pub member: usize,
    /// What to do.
    pub kind: IoKind,
    /// First byte on the member.
    pub offset: u64,
    /// Length in bytes; 0 for a flush.
    pub len: u64,
    /// The memory, for reads and writes: lengths add up to `len`.
    pub segments: &'a [Segment],
    /// The write must be stable when it is answered.
    pub fua: bool,
}

/// How a member operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberError {
    /// The member is not there any more.
    Gone,
    /// An input/output error.
    Io,
    /// The member has no room for a write.
    NoSpace,
    /// The member did not answer in time.
    Timeout,
}

/// Who waits for a piece of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A healthy read of a request: `position` is its first byte within the group.
    Direct { tag: u32, group: u32, position: u64 },
    /// A part's phase.
    Part(PartId),
}

/// One planned operation within a merged one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) owner: Owner,
    pub(super) slot: usize,
    pub(super) offset: u64,
    pub(super) segment: Segment,
}

#[derive(Debug)]
pub(super) struct Operation {
    pub(super) member: usize,
    pub(super) kind: IoKind,
    pub(super) fua: bool,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) segments: Vec<Segment>,
    pub(super) pieces: Vec<Piece>,
    /// Its pieces have been handled as failed; the member may still use its memory.
    pub(super) abandoned: bool,
    active: bool,
}

/// All operations of a queue.
#[derive(Debug)]
pub(super) struct Operations {
    slab: Vec<Operation>,
    free: Vec<u32>,
    ready: VecDeque<u32>,
    /// For each member, the operation that was added last and is not sent yet.
    last: Vec<Option<u32>>,
}

impl Operations {
    pub(super) fn new(member_count: usize) -> Self {
        Self {
            slab: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            last: alloc::vec![None; member_count],
        }
    }

    /// Adds an operation, merging it into the member's last one if it continues that.
    pub(super) fn push(
        &mut self,
        member: usize,
        kind: IoKind,
        fua: bool,
        piece: Piece,
        counters: &QueueCounters,
    ) {
        if let Some(last) = self.last[member]
            && self.slab[last as usize].take_in(kind, fua, &piece)
        {
            counters.count(Counter::Merged, 1);
            return;
        }
        let token = self.push_alone(member, kind, fua, piece);
        self.last[member] = Some(token);
    }

    /// Adds an operation that nothing is merged with.
    pub(super) fn push_alone(
        &mut self,
        member: usize,
        kind: IoKind,
        fua: bool,
        piece: Piece,
    ) -> u32 {
        let token = self.free.pop().unwrap_or_else(|| {
            self.slab.push(Operation::new());
            self.slab.len() as u32 - 1
        });
        let operation = &mut self.slab[token as usize];
        assert!(!operation.active, "operation {token} is in use");
        operation.active = true;
        operation.abandoned = false;
        operation.member = member;
        operation.kind = kind;
        operation.fua = fua;
        operation.offset = piece.offset;
        operation.len = u64::from(piece.segment.len);
        operation.segments.clear();
        operation.segments.push(piece.segment);
        operation.pieces.clear();
        operation.pieces.push(piece);
        self.ready.push_back(token);
        token
    }

    pub(super) fn poll(&mut self, counters: &QueueCounters) -> Option<MemberIo<'_>> {
        let token = self.ready.pop_front()?;
        let operation = &self.slab[token as usize];
        if self.last[operation.member] == Some(token) {
            self.last[operation.member] = None;
        }
        if operation.kind == IoKind::Flush {
            counters.count(Counter::Flushes, 1);
        }
        let transfers = matches!(operation.kind, IoKind::Read | IoKind::Write);
        Some(MemberIo {
            token,
            member: operation.member,
            kind: operation.kind,
            offset: operation.offset,
            len: operation.len,
            segments: if transfers { &operation.segments } else { &[] },
            fua: operation.fua,
        })
    }

    /// The operation behind a token that was polled.
    pub(super) fn get(&mut self, token: u32) -> &mut Operation {
        let operation = &mut self.slab[token as usize];
        assert!(operation.active, "operation {token} is not under way");
        operation
    }

    /// Ends an operation whose pieces have been taken, and keeps their memory.
    pub(super) fn recycle(&mut self, token: u32, pieces: Vec<Piece>) {
        let operation = &mut self.slab[token as usize];
        operation.active = false;
        operation.pieces = pieces;
        self.free.push(token);
    }
}

impl Operation {
    fn new() -> Self {
        Self {
            member: 0,
            kind: IoKind::Flush,
            fua: false,
            offset: 0,
            len: 0,
            segments: Vec::new(),
            pieces: Vec::new(),
            abandoned: false,
            active: false,
        }
    }

    /// Takes `piece` in if it continues this operation.
    fn take_in(&mut self, kind: IoKind, fua: bool, piece: &Piece) -> bool {
        let bytes_max = match self.kind {
            IoKind::Flush => return false,
            IoKind::Read | IoKind::Write => MERGED_BYTES_MAX,
            IoKind::WriteZeroes { .. } => MERGED_ZEROES_MAX,
        };
        let len = u64::from(piece.segment.len);
        let continues = self.kind == kind
            && self.fua == fua
            && self.offset + self.len == piece.offset
            && self.len + len <= bytes_max
            && self.segments.len() < SEGMENT_COUNT_MAX;
        if !continues {
            return false;
        }
        self.len += len;
        self.pieces.push(*piece);
        if kind == IoKind::Read || kind == IoKind::Write {
            match self.segments.last_mut() {
                Some(last) if last.touches(&piece.segment) => last.len += piece.segment.len,
                _ => self.segments.push(piece.segment),
            }
        }
        true
    }
}
