//! What a part does while it holds its lock: plan, memory, member I/O and computing, phase by
//! phase.

use super::Queue;
use super::healing::Fix;
use super::ops::{MemberError, Owner, Piece};
use super::parts::{Part, PartId, PartKind};
use crate::counters::Counter;
use crate::memory::Segment;
use crate::plan::{IoKind, MappedView, Method, Phase, PlanError, StripeView};
use crate::planted;
use crate::request::RequestErrorKind;
use crate::slots::SlotSet;
use crate::volume::Group;

/// The slots that a plan may use, all as they were at one time.
struct Slots {
    generation: u64,
    readable: SlotSet,
    writable: SlotSet,
}

impl Slots {
    fn of(group: &Group, part: &Part) -> Self {
        loop {
            let generation = group.membership.generation();
            let filled = group.readable(part.unit);
            let writable = match part.kind {
                PartKind::Recover => {
                    let lacking = group.membership.recovering().difference(filled);
                    lacking.union(group.membership.replacing())
                }
                PartKind::Check => SlotSet::new(),
                _ => group.membership.writable(),
            };
            if group.membership.generation() == generation {
                let filled = if planted::is(35) { group.geometry.slots() } else { filled };
                let readable = filled.difference(part.unreadable);
                return Self { generation, readable, writable };
            }
        }
    }
}

impl Queue {
    pub(super) fn make_plan(&mut self, id: PartId) {
        let part = &mut self.parts[id as usize];
        let group = &self.volume.groups[part.group];
        let slots = Slots::of(group, part);
        part.generation = slots.generation;
        let (readable, writable) = (slots.readable, slots.writable);
        part.plan.clear();
        part.phase = 0;
        part.replan = false;
        part.found.clear();
        part.unread_back = false;
        let (trust, block_bytes) = (group.trust_unit(part.unit), self.volume.block_bytes);
        let planned: Result<(), PlanError> = if group.geometry.parity_count() > 0 {
            let view = StripeView {
                geometry: &group.geometry,
                stripe: group.geometry.stripe(part.unit),
                readable,
                writable,
                trust,
                block_bytes,
            };
            match part.kind {
                PartKind::Write => {
                    let Part { extents, unmap, plan, .. } = part;
                    self.planner.write_stripe(&view, extents, *unmap, plan)
                }
                PartKind::Fix => {
                    let Part { fixes, fixing, plan, .. } = part;
                    let Fix { slot, row, len, .. } = fixes[*fixing];
                    let view = StripeView {
                        readable: readable.difference(SlotSet::one(slot)),
                        writable: SlotSet::one(slot),
                        ..view
                    };
                    let filled = self.planner.fill_stripe(&view, row, len, plan);
                    self.planner.read_back(row, plan);
                    filled
                }
                PartKind::Check | PartKind::Recover | PartKind::Resync => {
                    let Part { extents, kind, plan, .. } = part;
                    extents.iter().try_for_each(|extent| {
                        let (row, len) = (extent.row, extent.segment.len);
                        match kind {
                            PartKind::Check => {
                                self.planner.check_stripe(&view, row, len, plan);
                                Ok(())
                            }
                            PartKind::Recover => self.planner.fill_stripe(&view, row, len, plan),
                            _ => self.planner.resync_stripe(&view, row, len, plan),
                        }
                    })
                }
                _ => self.planner.read_stripe(&view, &part.extents, &mut part.plan),
            }
        } else {
            let view =
                MappedView { geometry: &group.geometry, readable, writable, trust, block_bytes };
            let start = part.unit * group.lock_unit();
            let Part { extents, kind, unmap, plan, fixes, fixing, .. } = part;
            extents.iter().try_for_each(|extent| {
                let offset = start + u64::from(extent.row);
                match kind {
                    PartKind::Write => {
                        self.planner.write_mapped(&view, offset, extent.segment, *unmap, plan)
                    }
                    PartKind::Check => {
                        let (row, len) = (extent.row, extent.segment.len);
                        self.planner.check_mapped(&view, start, row, len, plan);
                        Ok(())
                    }
                    PartKind::Fix => {
                        let Fix { slot, row, len, .. } = fixes[*fixing];
                        let wrong: SlotSet = fixes.iter().map(|fix| fix.slot).collect();
                        let readable = readable.difference(wrong);
                        let view = MappedView { readable, writable: SlotSet::one(slot), ..view };
                        let offset = start + u64::from(row);
                        let filled = self.planner.fill_mapped(&view, offset, len, plan);
                        self.planner.read_back(row, plan);
                        filled
                    }
                    PartKind::Recover => {
                        self.planner.fill_mapped(&view, offset, extent.segment.len, plan)
                    }
                    PartKind::Resync => {
                        self.planner.resync_mapped(&view, offset, extent.segment.len, plan)
                    }
                    _ => self.planner.read_mapped(&view, offset, extent.segment, plan),
                }
            })
        };
        if planned.is_err() {
            return self.plan_failed(id);
        }
        self.count_method(id);
        let part = &self.parts[id as usize];
        if part.plan.scratch_bytes == 0 {
            self.run_phase(id);
        } else {
            self.scratch_waiting.push_back(id);
            self.give_scratch();
        }
    }

    fn count_method(&self, id: PartId) {
        let plan = &self.parts[id as usize].plan;
        if plan.regenerates {
            self.count(Counter::RegeneratedReads);
        }
        match plan.method {
            Some(Method::FullStripe) => self.count(Counter::FullStripeWrites),
            Some(Method::ReadModifyWrite) => self.count(Counter::Rmw),
            Some(Method::ReconstructWrite) => self.count(Counter::Rcw),
            Some(Method::Regenerate) => self.count(Counter::RegeneratingWrites),
            Some(Method::DataOnly) | None => {}
        }
    }

    /// Gives scratch memory to those that wait, in their order.
    pub(super) fn give_scratch(&mut self) {
        while let Some(&id) = self.scratch_waiting.front() {
            let part = &mut self.parts[id as usize];
            let Some(range) = self.scratch.take(part.plan.scratch_bytes) else { return };
            part.scratch = Some(range);
            self.scratch_waiting.pop_front();
            self.run_phase(id);
        }
    }

    /// Starts the phase that a part has come to.
    pub(super) fn run_phase(&mut self, id: PartId) {
        let part = &mut self.parts[id as usize];
        let Some(&phase) = part.plan.phases.get(part.phase) else {
            return self.acknowledge(id);
        };
        let (span, list, fua) = match phase {
            Phase::Compute(_) => return self.computes.push_back(id),
            Phase::Read(span) => (span, &part.plan.reads, false),
            Phase::Write(span) => (span, &part.plan.writes, part.fua && !planted::is(7)),
        };
        let base = part.scratch.map_or(0, |range| range.offset);
        let membership = &self.volume.groups[part.group].membership;
        let mut members = core::mem::take(&mut self.targets);
        members.clear();
        members.extend(list[span.range()].iter().map(|op| membership.member(op.slot)));
        if matches!(phase, Phase::Read(_)) && membership.generation() != part.generation {
            // Another member may be in a slot that is to be read. (A write goes to whoever is in
            // the slot now: it is right there too.)
            self.targets = members;
            self.give_back_scratch(id);
            return self.make_plan(id);
        }
        let fills = part.kind == PartKind::Recover;
        let recovering = membership.recovering();
        let counters = self.volume.queue_counters(self.id);
        let mut outstanding = 0;
        for (op, &member) in list[span.range()].iter().zip(&members) {
            let segment = crate::plan::rebase(op.segment, base);
            let replacement = membership.replacement(op.slot).filter(|_| op.kind != IoKind::Read);
            let own = op.kind == IoKind::Read || !fills || recovering.contains(op.slot);
            for member in own.then_some(member).into_iter().chain(replacement) {
                match op.kind {
                    IoKind::Read => counters.count_read(member, u64::from(segment.len)),
                    _ => counters.count_write(member, u64::from(segment.len)),
                }
                let offset = self.volume.data_offset(member) + op.offset;
                let piece = Piece { owner: Owner::Part(id), slot: op.slot, offset, segment };
                self.operations.push(member, op.kind, fua, piece, counters);
                outstanding += 1;
            }
        }
        part.outstanding = outstanding;
        self.targets = members;
        if outstanding == 0 {
            // What was to be filled has left meanwhile.
            self.parts[id as usize].phase += 1;
            self.run_phase(id);
        }
    }

    /// Sends a flush to every member that takes writes.
    pub(super) fn send_flushes(&mut self, id: PartId) {
        let part = &mut self.parts[id as usize];
        let membership = &self.volume.groups[part.group].membership;
        let mut slots = membership.writable();
        if planted::is(6)
            && let Some(last) = slots.iter().last()
        {
            slots.remove(last);
        }
        part.plan.clear();
        part.phase = 0;
        part.outstanding = 0;
        for slot in slots.iter() {
            let members = [Some(membership.member(slot)), membership.replacement(slot)];
            for member in members.into_iter().flatten() {
                let piece =
                    Piece { owner: Owner::Part(id), slot, offset: 0, segment: Segment::EMPTY };
                self.operations.push_alone(member, IoKind::Flush, false, piece);
                part.outstanding += 1;
            }
        }
    }

    /// Takes the end of one of a part's operations.
    pub(super) fn part_piece_done(
        &mut self,
        id: PartId,
        member: usize,
        slot: usize,
        kind: IoKind,
        result: Result<(), MemberError>,
    ) {
        let part = &mut self.parts[id as usize];
        assert!(part.outstanding > 0, "part {id} has no operation under way");
        part.outstanding -= 1;
        if let Err(error) = result {
            let group = &self.volume.groups[part.group];
            if kind == IoKind::Read && part.reads_back(slot) {
                let _borne = group.fail(slot, member);
                part.unread_back = true;
            } else if kind == IoKind::Read && planted::is(30) {
                // Nothing.
            } else if kind == IoKind::Read {
                part.unreadable.insert(slot);
                part.replan = true;
            } else if group.membership.is_vital(slot, member) || !group.fail(slot, member) {
                part.unwritten.push((slot, member));
                part.no_space |= error == MemberError::NoSpace;
            }
        }
        if part.outstanding > 0 {
            return;
        }
        if part.unread_back {
            self.finish_fixes(id);
        } else if part.replan {
            self.give_back_scratch(id);
            self.make_plan(id);
        } else if !part.unwritten.is_empty() {
            self.handle_unwritten(id);
        } else {
            part.phase += 1;
            self.run_phase(id);
        }
    }

    /// Some members did not take a write: they leave the array if it can bear that, and what was
    /// written to the others then stands for it. Else the request fails and the stripe is
    /// suspect.
    fn handle_unwritten(&mut self, id: PartId) {
        let part = &mut self.parts[id as usize];
        let group = &self.volume.groups[part.group];
        if part.kind == PartKind::Fix {
            let failed = core::mem::take(&mut part.unwritten);
            failed.iter().for_each(|&(slot, member)| {
                let _borne = group.fail(slot, member);
            });
            return self.finish_fixes(id);
        }
        let borne = !part.no_space
            && part
                .unwritten
                .iter()
                .all(|&(slot, member)| planted::is(17) || group.fail(slot, member));
        part.unwritten.clear();
        if borne {
            part.phase += 1;
            return self.run_phase(id);
        }
        if matches!(part.kind, PartKind::Resync | PartKind::Write) {
            group.mark_suspect(Some(part.unit));
        }
        let kind = if part.no_space { RequestErrorKind::NoSpace } else { RequestErrorKind::Io };
        self.finish_part(id, Some(kind));
    }
}
