//! Requests are split: healthy aligned reads straight into member operations, all else into parts.

use super::ops::{MemberError, Owner, Piece};
use super::parts::{Birth, PartKind};
use super::{OUTSTANDING_MAX, Queue};
use crate::geometry::Geometry;
use crate::memory::{BufferName, Segment};
use crate::plan::{Extent, IoKind, MappedView};
use crate::planted;
use crate::request::{Repair, RequestError, RequestErrorKind, RequestKind};
use crate::slots::SlotSet;
use crate::volume::MAPPED_UNIT_BYTES;

/// A range of one group that belongs to a request.
#[derive(Clone, Copy, Debug)]
struct Range {
    tag: u32,
    group: usize,
    /// First byte within the group.
    position: u64,
    len: u64,
    /// First byte of the array.
    array_offset: u64,
    /// First byte in the request's buffer.
    buffer_offset: u32,
}

/// The one member operation that a piece of a read needs.
#[derive(Clone, Copy, Debug)]
struct Direct {
    slot: usize,
    /// Relative to the member's data.
    offset: u64,
    len: u64,
}

/// Why there is none.
enum Indirect {
    /// It takes a plan.
    Part,
    /// Nothing holds these bytes.
    Lost,
}

impl Queue {
    /// Splits off pieces and parts of a request until it is split up or has enough of them under
    /// way.
    pub(super) fn split_on(&mut self, tag: u32) {
        let state = &mut self.requests[tag as usize];
        state.splitting = true;
        if state.request.kind == RequestKind::Flush {
            for group in 0..self.volume.groups.len() {
                let kind = PartKind::Flush;
                let birth = Birth { kind, group, tag, ..Birth::default() };
                self.extents.clear();
                self.start_part(birth, SlotSet::new());
            }
        }
        loop {
            let state = &self.requests[tag as usize];
            let (cursor, end) = (state.cursor, state.end);
            if cursor >= end || state.outstanding >= OUTSTANDING_MAX {
                break;
            }
            let request = state.request;
            let (group, position, contiguous) = match request.kind {
                RequestKind::Check { group, .. }
                | RequestKind::Recover { group }
                | RequestKind::Resync { group } => (group as usize, cursor, end - cursor),
                _ => self.volume.locate(cursor),
            };
            let range = Range {
                tag,
                group,
                position,
                len: contiguous.min(end - cursor),
                array_offset: cursor,
                buffer_offset: (cursor - request.offset) as u32,
            };
            let consumed = match request.kind {
                RequestKind::Read => self.split_read(range),
                RequestKind::Check { .. } => {
                    self.split_part(range, PartKind::Check, SlotSet::new())
                }
                RequestKind::Recover { .. } => {
                    self.split_part(range, PartKind::Recover, SlotSet::new())
                }
                RequestKind::Resync { .. } => {
                    self.split_part(range, PartKind::Resync, SlotSet::new())
                }
                _ => self.split_write(range),
            };
            let state = &mut self.requests[tag as usize];
            // An error in between has moved the cursor to the end already.
            state.cursor = (cursor + consumed).max(state.cursor);
        }
        let state = &mut self.requests[tag as usize];
        state.splitting = false;
        if state.outstanding == 0 && state.cursor >= state.end {
            self.complete(tag);
        }
    }

    /// Splits off one piece or part of a read; returns its length in bytes, 0 if the range has more
    /// slices.
    fn split_read(&mut self, range: Range) -> u64 {
        loop {
            let membership = &self.volume.groups[range.group].membership;
            let generation = membership.generation();
            let direct = match self.direct_read(&range) {
                Ok(direct) => direct,
                Err(Indirect::Part) => {
                    return self.split_part(range, PartKind::Read, SlotSet::new());
                }
                Err(Indirect::Lost) => {
                    self.fail_request(range.tag, range.array_offset);
                    return range.len;
                }
            };
            let membership = &self.volume.groups[range.group].membership;
            let member = membership.member(direct.slot);
            // Else the slot may have got another member, which is not to be read there yet.
            if membership.generation() == generation {
                self.read_directly(&range, &direct, member);
                return direct.len;
            }
        }
    }

    /// Finds the one member that a read's first piece can be answered from without a lock.
    fn direct_read(&self, range: &Range) -> Result<Direct, Indirect> {
        let group = &self.volume.groups[range.group];
        let geometry = &group.geometry;
        let block_bytes = self.volume.block_bytes;
        let memory = u64::from(range.buffer_offset);
        let aligned = (range.position | range.len | memory) & u64::from(block_bytes - 1) == 0;
        if geometry.parity_count() == 0 {
            if !aligned {
                return Err(Indirect::Part);
            }
            // A copy is read without a lock: the whole unit around it must be in sync for any copy
            // to do, and recovered for a member that came back to be read.
            let unit = range.position / MAPPED_UNIT_BYTES;
            let within = match group.is_degraded() {
                true => MAPPED_UNIT_BYTES - range.position % MAPPED_UNIT_BYTES,
                false => u64::MAX,
            };
            let view = MappedView {
                geometry,
                readable: group.readable(unit),
                writable: SlotSet::new(),
                trust: group.trust_unit(unit),
                block_bytes,
            };
            let place = view.read_place(range.position).ok_or(Indirect::Lost)?;
            let (slot, offset, contiguous) = place;
            return Ok(Direct { slot, offset, len: contiguous.min(range.len).min(within) });
        }
        let chunk = geometry.chunk_bytes();
        let (stripe_index, within) = split_stripe(geometry, range.position);
        let stripe = geometry.stripe(stripe_index);
        let first = (within / chunk) as usize;
        if group.is_degraded() || !aligned {
            let readable = group.readable(stripe_index);
            let last = (within + range.len - 1).min(stripe_bytes(geometry) - 1) / chunk;
            let all_here =
                (first..=last as usize).all(|chunk| readable.contains(stripe.data_slot(chunk)));
            if !all_here || !aligned {
                return Err(Indirect::Part);
            }
        }
        let row = within % chunk;
        let offset = geometry.member_offset_of_stripe(stripe_index) + row;
        Ok(Direct { slot: stripe.data_slot(first), offset, len: (chunk - row).min(range.len) })
    }

    /// Reads from one member into the request's buffer, without a part.
    fn read_directly(&mut self, range: &Range, direct: &Direct, member: usize) {
        let Direct { slot, len, .. } = *direct;
        let segment = Segment {
            buffer: BufferName::Request(range.tag),
            offset: range.buffer_offset,
            len: len as u32,
        };
        let owner =
            Owner::Direct { tag: range.tag, group: range.group as u32, position: range.position };
        let offset = self.volume.data_offset(member) + direct.offset;
        let counters = self.volume.queue_counters(self.id);
        counters.count_read(member, len);
        let piece = Piece { owner, slot, offset, segment };
        self.operations.push(member, IoKind::Read, false, piece, counters);
        self.requests[range.tag as usize].outstanding += 1;
    }

    /// Splits off one part of a modifying request; returns its length in bytes, 0 if there are more
    /// slices.
    fn split_write(&mut self, range: Range) -> u64 {
        let geometry = &self.volume.groups[range.group].geometry;
        let kind = self.requests[range.tag as usize].request.kind;
        if kind == RequestKind::Discard {
            if geometry.parity_count() > 0 {
                let (_, within) = split_stripe(geometry, range.position);
                let run = range.len.min(stripe_bytes(geometry) - within);
                if run < stripe_bytes(geometry) {
                    return run;
                }
            } else {
                return self.split_mapped_discard(range);
            }
        }
        self.split_part(range, PartKind::Write, SlotSet::new())
    }

    /// A discard of levels without parity keeps the blocks that it covers only in part.
    fn split_mapped_discard(&mut self, range: Range) -> u64 {
        let block = u64::from(self.volume.block_bytes);
        let run = range.len.min(MAPPED_UNIT_BYTES - range.position % MAPPED_UNIT_BYTES);
        let start = if planted::is(20) {
            range.position / block * block
        } else {
            range.position.next_multiple_of(block)
        };
        let end = (range.position + run) / block * block;
        if start < end {
            let skipped = start.saturating_sub(range.position);
            let whole = Range {
                position: start,
                len: end - start,
                array_offset: range.array_offset + skipped,
                ..range
            };
            self.split_part(whole, PartKind::Write, SlotSet::new());
        }
        run
    }

    /// Makes a part of the range's first lock unit. Returns the length in bytes that the request's
    /// cursor moves: 0 while the stripe has slices left.
    fn split_part(&mut self, range: Range, kind: PartKind, unreadable: SlotSet) -> u64 {
        let geometry = &self.volume.groups[range.group].geometry;
        if geometry.parity_count() == 0 {
            let unit = range.position / MAPPED_UNIT_BYTES;
            let row = range.position % MAPPED_UNIT_BYTES;
            let run = range.len.min(MAPPED_UNIT_BYTES - row);
            let segment = self.request_segment(range.tag, range.buffer_offset, run as u32);
            self.extents.clear();
            self.extents.push(Extent { chunk: 0, row: row as u32, segment });
            self.start_part(self.birth(&range, kind, unit, 0), unreadable);
            return run;
        }
        let (unit, within) = split_stripe(geometry, range.position);
        let run = range.len.min(stripe_bytes(geometry) - within);
        let slice_bytes = self.volume.groups[range.group].slice_bytes;
        let slice_count = (geometry.chunk_bytes() / u64::from(slice_bytes)) as u32;
        let mut slice = self.requests[range.tag as usize].slice;
        while slice < slice_count {
            let window = (slice * slice_bytes, (slice + 1) * slice_bytes);
            if matches!(kind, PartKind::Check | PartKind::Recover | PartKind::Resync) {
                self.extents.clear();
                let segment = Segment::zero(slice_bytes);
                self.extents.push(Extent { chunk: 0, row: window.0, segment });
            } else {
                self.fill_extents(&range, within, run, window);
            }
            slice += 1;
            if !self.extents.is_empty() {
                self.start_part(self.birth(&range, kind, unit, slice - 1), unreadable);
                break;
            }
        }
        let state = &mut self.requests[range.tag as usize];
        state.slice = if slice < slice_count { slice } else { 0 };
        if slice < slice_count { 0 } else { run }
    }

    fn birth(&self, range: &Range, kind: PartKind, unit: u64, slice: u32) -> Birth {
        let request = &self.requests[range.tag as usize].request;
        let unmap = match request.kind {
            RequestKind::Discard => true,
            RequestKind::WriteZeroes { unmap } => unmap,
            _ => false,
        };
        let repair = match request.kind {
            RequestKind::Check { repair, .. } => repair,
            _ => Repair::None,
        };
        Birth {
            kind,
            group: range.group,
            unit,
            slice,
            tag: range.tag,
            array_offset: range.array_offset,
            fua: request.fua,
            unmap,
            alone: false,
            repair,
            fix: None,
        }
    }

    /// Fills `self.extents` with the bytes `within..within + run` of a stripe that lie in the rows
    /// of `window`.
    fn fill_extents(&mut self, range: &Range, within: u64, run: u64, window: (u32, u32)) {
        let chunk_bytes = self.volume.groups[range.group].geometry.chunk_bytes();
        self.extents.clear();
        let mut at = within;
        while at < within + run {
            let (chunk, row) = (at / chunk_bytes, at % chunk_bytes);
            let end_row = chunk_bytes.min(row + (within + run - at));
            let start = row.max(u64::from(window.0));
            let end = end_row.min(u64::from(window.1));
            if start < end {
                let skipped = at - within + (start - row);
                let buffer_offset = range.buffer_offset + skipped as u32;
                let len = (end - start) as u32;
                let segment = self.request_segment(range.tag, buffer_offset, len);
                self.extents.push(Extent { chunk: chunk as usize, row: start as u32, segment });
            }
            at += end_row - row;
        }
    }

    /// The memory of a request's bytes: its buffer, or constant zeroes.
    fn request_segment(&self, tag: u32, offset: u32, len: u32) -> Segment {
        match self.requests[tag as usize].request.kind {
            RequestKind::Read | RequestKind::Write => {
                Segment { buffer: BufferName::Request(tag), offset, len }
            }
            _ => Segment::zero(len),
        }
    }

    fn fail_request(&mut self, tag: u32, offset: u64) {
        let state = &mut self.requests[tag as usize];
        state.error = state.error.or(Some(RequestError { kind: RequestErrorKind::Io, offset }));
        state.cursor = state.end;
    }

    /// Ends a polled operation: its pieces are done, sent again alone, or handled as failed.
    pub(super) fn finish_operation(&mut self, token: u32, result: Result<(), MemberError>) {
        let operation = self.operations.get(token);
        assert!(!operation.abandoned, "operation {token} has been given up already");
        let (member, kind, fua) = (operation.member, operation.kind, operation.fua);
        let mut pieces = core::mem::take(&mut operation.pieces);
        if result.is_err() && pieces.len() > 1 {
            self.volume.queue_counters(self.id).count_error(member);
            for &piece in &pieces {
                self.operations.push_alone(member, kind, fua, piece);
            }
        } else {
            self.finish_pieces(&pieces, member, kind, result);
        }
        pieces.clear();
        self.operations.recycle(token, pieces);
        self.settle();
    }

    /// Handles the pieces of an operation that has ended, one way or the other.
    pub(super) fn finish_pieces(
        &mut self,
        pieces: &[Piece],
        member: usize,
        kind: IoKind,
        result: Result<(), MemberError>,
    ) {
        if result.is_err() {
            self.volume.queue_counters(self.id).count_error(member);
        }
        for piece in pieces {
            let is_over = matches!(result, Err(MemberError::Gone | MemberError::Timeout));
            if kind == IoKind::Read && is_over && !self.volume.read_only {
                self.fail_gone(piece, member);
            }
            if kind == IoKind::Read && result == Err(MemberError::Io) {
                self.volume.queue_counters(self.id).count_read_error(member);
                self.heal(piece, member);
            }
            match piece.owner {
                Owner::Part(id) => self.part_piece_done(id, member, piece.slot, kind, result),
                Owner::Direct { tag, group, position } => {
                    if result.is_err() {
                        self.read_elsewhere(piece, tag, group as usize, position);
                    }
                    self.finish_piece(tag, None);
                }
            }
        }
    }

    /// A member that is gone or does not answer leaves the array at once, if that can be borne; the
    /// next write records it.
    fn fail_gone(&self, piece: &Piece, member: usize) {
        let group = match piece.owner {
            Owner::Direct { group, .. } => group as usize,
            Owner::Part(id) => self.parts[id as usize].group(),
        };
        let _borne = self.volume.groups[group].fail(piece.slot, member);
    }

    /// A direct read failed: parts that do not read this slot take its place.
    fn read_elsewhere(&mut self, piece: &Piece, tag: u32, group: usize, position: u64) {
        let mut unreadable = SlotSet::new();
        unreadable.insert(piece.slot);
        let mut done = 0;
        let buffer_offset = piece.segment.offset;
        let array_offset = self.requests[tag as usize].request.offset + u64::from(buffer_offset);
        let len = u64::from(piece.segment.len);
        // The slice cursor belongs to the request's own splitting: lend it.
        let slice = core::mem::take(&mut self.requests[tag as usize].slice);
        while done < len {
            let range = Range {
                tag,
                group,
                position: position + done,
                len: len - done,
                array_offset: array_offset + done,
                buffer_offset: buffer_offset + done as u32,
            };
            done += self.split_part(range, PartKind::Read, unreadable);
        }
        self.requests[tag as usize].slice = slice;
    }
}

fn stripe_bytes(geometry: &Geometry) -> u64 {
    geometry.chunk_bytes() * geometry.data_slots() as u64
}

/// The stripe of a byte of a group, and the byte's place among the stripe's data.
fn split_stripe(geometry: &Geometry, position: u64) -> (u64, u64) {
    let location = geometry.locate(position);
    (location.stripe, location.data as u64 * geometry.chunk_bytes() + location.chunk_offset)
}
