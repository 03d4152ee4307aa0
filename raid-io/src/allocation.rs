//! Which parts of an array hold data, told from the holes of its members.

use std::collections::HashMap;

use crate::Extent;
use crate::bad_blocks::BadRanges;
use crate::member::Member;
use crate::shared::Shared;

/// Returns the extents of a range that lies inside the array.
pub(crate) fn extents(shared: &Shared, offset: u64, len: u64) -> Vec<Extent> {
    let members = shared.members();
    let mut known = Known::new();
    let mut extents: Vec<Extent> = Vec::new();
    let end = offset + len;
    let mut at = offset;
    while at < end && !members.is_empty() {
        let (hole, until) = run(shared, &members, &mut known, at, end);
        push(&mut extents, until - at, hole);
        at = until;
    }
    // A stopped array has no members to ask.
    push(&mut extents, end - at, false);
    extents
}

/// What the last question to a member was answered: from where, to where, and whether it is a hole.
type Known = HashMap<usize, (u64, u64, bool)>;

/// Returns the state of the byte `at`, and a place up to which it is the same.
fn run(shared: &Shared, members: &[Member], known: &mut Known, at: u64, end: u64) -> (bool, u64) {
    let volume = &shared.volume;
    let (group, position, outer_run) = volume.locate(at);
    let geometry = volume.geometry(group);
    let (slot, start, inner_run) = if geometry.parity_count() > 0 {
        let location = geometry.locate(position);
        let slot = geometry.stripe(location.stripe).data_slot(location.data);
        let start = geometry.member_offset_of_stripe(location.stripe) + location.chunk_offset;
        (slot, start, geometry.chunk_bytes() - location.chunk_offset)
    } else {
        let place = geometry.place(position);
        (place.slot, place.member_offset, place.contiguous_bytes)
    };
    let run = outer_run.min(inner_run).min(end - at);
    // A slot that is not in sync says nothing about the data, nor does one of copies that may
    // differ.
    let copies_differ = geometry.parity_count() == 0 && !volume.is_trusted(group);
    if copies_differ || !volume.in_sync(group).contains(slot) {
        return (false, at + run);
    }
    let index = volume.member_index(group, slot);
    // One that has joined since the table was looked at says nothing yet.
    let is_whole = |member: &&Member| member.bad_ranges().is_none_or(BadRanges::is_empty);
    let Some(member) = members.get(index).filter(is_whole) else {
        return (false, at + run);
    };
    let start = start + volume.data_offset(index);
    let (from, until, hole) = known.get(&index).copied().unwrap_or((0, 0, false));
    let (until, hole) = if (from..until).contains(&start) {
        (until, hole)
    } else {
        let (hole, until) = member.device().extent(start);
        let until = until.max(start + 1);
        known.insert(index, (start, until, hole));
        (until, hole)
    };
    (hole, at + run.min(until - start))
}

/// Adds to the last extent, or begins another.
fn push(extents: &mut Vec<Extent>, len: u64, hole_and_zero: bool) {
    match extents.last_mut() {
        _ if len == 0 => {}
        Some(last) if last.hole_and_zero == hole_and_zero => last.len += len,
        _ => extents.push(Extent { len, hole_and_zero }),
    }
}
