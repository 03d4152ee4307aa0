//! The decision, in the order: same array, no copies, newest, current, slots, features, degraded.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::{
    Access, AssembleError, AssembleOptions, Assembly, Candidate, Consistency, RejectReason,
    Rejected, SlotMember, SlotState, Unsupported,
};
use crate::md::redundancy::{has_parity, is_parity_slot, tolerates};
use crate::md::superblock::{Features, Minor, Role};
use crate::md::{SECTOR_BYTES, Superblock};

/// Decides what the array is.
///
/// The result does not depend on the order of the candidates, except that it names them by index.
///
/// # Errors
///
/// [`AssembleError`], which names the members and slots concerned.
pub fn assemble(
    candidates: &[Candidate<'_>],
    options: AssembleOptions,
) -> Result<Assembly, AssembleError> {
    let mut decision = Decision::new(candidates)?;
    decision.check_same_array()?;
    decision.check_copies()?;
    decision.check_newest_agree()?;
    decision.find_current();
    if !options.force {
        decision.check_split()?;
    }
    decision.fill_slots()?;
    decision.check_features(options)?;
    let is_startable = decision.is_bearable() || options.force && decision.force_stale();
    if !is_startable {
        return Err(decision.too_many_missing());
    }
    decision.check_journal(options)?;
    decision.check_dirty_degraded(options)?;
    Ok(decision.finish())
}

/// A candidate with a superblock.
#[derive(Clone, Copy)]
struct Known<'a> {
    index: usize,
    name: &'a str,
    superblock: &'a Superblock,
}

/// The state of the decision; each step fills in what the next ones need.
struct Decision<'a> {
    /// Candidates with a superblock, newest first, then by number and identity, so that the order
    /// in which they were offered does not matter.
    known: Vec<Known<'a>>,
    candidates: &'a [Candidate<'a>],
    /// The first of `known`.
    newest: Known<'a>,
    /// Active in their slots by `find_current`.
    current: Vec<Known<'a>>,
    slots: Vec<Option<SlotMember>>,
    spares: Vec<usize>,
    rejected: Vec<Rejected>,
    forced: Vec<usize>,
    journal: Option<usize>,
    warnings: Vec<String>,
}

impl<'a> Decision<'a> {
    fn new(candidates: &'a [Candidate<'a>]) -> Result<Self, AssembleError> {
        let mut known = Vec::new();
        let mut rejected = Vec::new();
        let mut reasons = Vec::new();
        for (index, candidate) in candidates.iter().enumerate() {
            match candidate.superblock {
                Ok(superblock) => known.push(Known { index, name: candidate.name, superblock }),
                Err(error) => {
                    reasons.push((candidate.name.to_string(), error.clone()));
                    let reason = RejectReason::Superblock(error.clone());
                    rejected.push(Rejected { member: index, reason });
                }
            }
        }
        known.sort_by_key(|known| {
            let superblock = known.superblock;
            (core::cmp::Reverse(superblock.events), superblock.dev_number, superblock.device_uuid)
        });
        let Some(&newest) = known.first() else {
            return Err(AssembleError::NoSuperblock { reasons });
        };
        let slots = alloc::vec![None; newest.superblock.slot_count as usize];
        Ok(Self {
            known,
            candidates,
            newest,
            current: Vec::new(),
            slots,
            spares: Vec::new(),
            rejected,
            forced: Vec::new(),
            journal: None,
            warnings: Vec::new(),
        })
    }

    fn check_same_array(&self) -> Result<(), AssembleError> {
        let first = self.newest;
        let is_other =
            |other: &&Known<'_>| other.superblock.array_uuid != first.superblock.array_uuid;
        match self.known.iter().find(is_other) {
            None => Ok(()),
            Some(second) => Err(AssembleError::DifferentArrays {
                first: first.name.to_string(),
                first_uuid: first.superblock.array_uuid,
                second: second.name.to_string(),
                second_uuid: second.superblock.array_uuid,
            }),
        }
    }

    /// A copy of a member is refused even when it is stale: which one is the original cannot be
    /// known.
    fn check_copies(&self) -> Result<(), AssembleError> {
        for (position, first) in self.known.iter().enumerate() {
            let device_uuid = first.superblock.device_uuid;
            let is_copy = |other: &&Known<'_>| match other.superblock.minor {
                // Has no identities: only a copy that is still the same can be told.
                Minor::V0_90 => other.superblock == first.superblock,
                _ => other.superblock.device_uuid == device_uuid,
            };
            if let Some(second) = self.known[position + 1..].iter().find(is_copy) {
                let (first, second) = (first.name.to_string(), second.name.to_string());
                return Err(AssembleError::DuplicateDevice { first, second, device_uuid });
            }
        }
        Ok(())
    }

    fn check_newest_agree(&self) -> Result<(), AssembleError> {
        let first = self.newest;
        let events = first.superblock.events;
        for second in self.known[1..].iter().take_while(|known| known.superblock.events == events) {
            if let Some(what) = disagreement(first.superblock, second.superblock) {
                let (first, second) = (first.name.to_string(), second.name.to_string());
                return Err(AssembleError::Disagreement { first, second, events, what });
            }
        }
        Ok(())
    }

    /// Sorts the candidates into current members, spares and rejected ones; see the module's rules.
    fn find_current(&mut self) {
        let newest_events = self.newest.superblock.events;
        for position in 0..self.known.len() {
            let known = self.known[position];
            match self.verdict(known, newest_events) {
                Verdict::Current => self.current.push(known),
                Verdict::Spare => self.spares.push(known.index),
                Verdict::Journal => self.journal = self.journal.or(Some(known.index)),
                Verdict::Rejected(reason) => {
                    self.rejected.push(Rejected { member: known.index, reason });
                }
            }
        }
    }

    fn verdict(&self, known: Known<'_>, newest_events: u64) -> Verdict {
        let own = known.superblock;
        let events = own.events;
        // `known` is sorted by events, so this never wraps.
        let lag = newest_events - events;
        // A number that a newer member has by now is not this one's any more.
        let is_number_reused = self.known.iter().any(|other| {
            other.superblock.dev_number == own.dev_number && other.superblock.events > events
        });
        let listed = self.newest.superblock.role_of(own.dev_number);
        match (own.role(), listed) {
            (Role::Journal, listed) => {
                // As for a slot: one event behind it was only missed by the last update.
                let is_current = listed == Role::Journal && lag <= 1 && !is_number_reused;
                match (is_current, self.journal) {
                    (true, None) => Verdict::Journal,
                    // There is one at most.
                    (true, Some(_)) => Verdict::Rejected(RejectReason::Journal),
                    (false, _) => {
                        Verdict::Rejected(RejectReason::StaleJournal { events, newest_events })
                    }
                }
            }
            // The kernel would take it for a spare again; whoever failed it meant it.
            (Role::Spare, Role::Faulty) => {
                Verdict::Rejected(RejectReason::Faulty { events, newest_events })
            }
            (Role::Spare, _) => Verdict::Spare,
            (Role::Active(_), Role::Faulty) if lag <= 1 && crate::planted::is(27) => {
                Verdict::Current
            }
            (Role::Faulty, _) | (_, Role::Faulty) => {
                Verdict::Rejected(RejectReason::Faulty { events, newest_events })
            }
            (Role::Active(slot), Role::Active(newest_slot))
                if slot == newest_slot && !is_number_reused =>
            {
                let is_current = lag == 0
                    || lag == 1
                        && disagreement_constant(own, self.newest.superblock).is_none()
                        && !self.calls_current_faulty(own);
                if is_current {
                    Verdict::Current
                } else {
                    Verdict::Rejected(RejectReason::Stale { events, newest_events })
                }
            }
            (Role::Active(slot), _) => {
                Verdict::Rejected(RejectReason::Removed { slot, events, newest_events })
            }
        }
    }

    fn calls_current_faulty(&self, own: &Superblock) -> bool {
        self.current.iter().any(|other| own.role_of(other.superblock.dev_number) == Role::Faulty)
    }

    /// Looks for a left-out member whose own tables go on without every current one.
    fn check_split(&self) -> Result<(), AssembleError> {
        for known in &self.known {
            let own = known.superblock;
            let is_out = self.rejected.iter().any(|rejected| rejected.member == known.index);
            if !is_out || !matches!(own.role(), Role::Active(_)) {
                continue;
            }
            let all = self.current.iter().map(|other| other.superblock);
            let split = went_on_without(own, all).map(|index| &self.current[index]);
            if let Some(current) = split {
                return Err(AssembleError::SplitBrain {
                    current: current.name.to_string(),
                    stale: known.name.to_string(),
                });
            }
        }
        Ok(())
    }

    /// Puts the current members into their slots; a replacement stands back for the original.
    fn fill_slots(&mut self) -> Result<(), AssembleError> {
        let current = core::mem::take(&mut self.current);
        let is_replacement =
            |known: &Known<'_>| known.superblock.features.has(Features::REPLACEMENT);
        let (replacements, originals): (Vec<Known<'_>>, Vec<Known<'_>>) =
            current.iter().copied().partition(is_replacement);
        for known in originals {
            self.fill_slot(known)?;
        }
        for known in replacements {
            let Role::Active(slot) = known.superblock.role() else { continue };
            if self.slots.get(usize::from(slot)).is_some_and(Option::is_none) {
                self.fill_slot(known)?;
            } else {
                let reason = RejectReason::Replacement { slot };
                self.rejected.push(Rejected { member: known.index, reason });
            }
        }
        self.current = current;
        Ok(())
    }

    fn fill_slot(&mut self, known: Known<'_>) -> Result<(), AssembleError> {
        let Role::Active(slot) = known.superblock.role() else { return Ok(()) };
        // A slot beyond the table is possible while a reshape removes slots, which is refused
        // later.
        let Some(place) = self.slots.get_mut(usize::from(slot)) else { return Ok(()) };
        if let Some(other) = place {
            return Err(AssembleError::DuplicateSlot {
                first: self.candidates[other.member].name.to_string(),
                second: known.name.to_string(),
                slot,
            });
        }
        *place = Some(slot_member(known));
        Ok(())
    }

    fn check_features(&self, options: AssembleOptions) -> Result<(), AssembleError> {
        let newest = self.newest.superblock;
        let (features, can) = (newest.features, options.abilities);
        let is_writing = options.access == Access::ReadWrite;
        let refuse = |what, can_read| Err(AssembleError::Unsupported { what, can_read });
        if features.has(Features::RESHAPE) {
            return refuse(Unsupported::Reshape, false);
        }
        if features.has(Features::CLUSTERED) {
            return refuse(Unsupported::Cluster, false);
        }
        if features.has(Features::JOURNAL) && !(can.journal && has_parity(newest.level)) {
            return refuse(Unsupported::Journal, false);
        }
        let has_bad_blocks =
            |known: &Known<'_>| known.superblock.features.has(Features::BAD_BLOCKS);
        if !can.bad_blocks && self.current.iter().any(has_bad_blocks) {
            return refuse(Unsupported::BadBlocks, false);
        }
        if features.has(Features::PPL | Features::MULTIPLE_PPLS)
            && (is_writing || !newest.is_clean())
            && !(can.ppl && newest.level == 5)
        {
            return refuse(Unsupported::Ppl, newest.is_clean());
        }
        if features.has(Features::BITMAP) && is_writing && !newest.is_clean() && !can.bitmap {
            return refuse(Unsupported::Bitmap, true);
        }
        let obstacle = self.current.iter().find_map(|known| {
            let obstacle = known.superblock.write_obstacle()?;
            Some(AssembleError::WriteObstacle { name: known.name.to_string(), obstacle })
        });
        obstacle.filter(|_| is_writing).map_or(Ok(()), Err)
    }

    fn check_journal(&mut self, options: AssembleOptions) -> Result<(), AssembleError> {
        let is_needed = self.newest.superblock.features.has(Features::JOURNAL);
        if !is_needed {
            // Somebody's journal, but the array has none.
            if let Some(member) = self.journal.take() {
                self.rejected.push(Rejected { member, reason: RejectReason::Journal });
            }
            return Ok(());
        }
        if self.journal.is_some() {
            return Ok(());
        }
        if !options.force || options.access == Access::ReadWrite {
            let (rejected, is_forced) = (self.named_rejects(), options.force);
            return Err(AssembleError::JournalMissing { rejected, is_forced });
        }
        self.warnings.push(
            "opened by force without its journal: writes may be missing that were acknowledged"
                .to_string(),
        );
        Ok(())
    }

    /// What makes the redundancy right again after a crash.
    fn consistency(&self) -> Consistency {
        let features = self.newest.superblock.features;
        if features.has(Features::JOURNAL) {
            Consistency::Journal
        } else if features.has(Features::PPL | Features::MULTIPLE_PPLS) {
            Consistency::Ppl
        } else if features.has(Features::BITMAP) {
            Consistency::Bitmap
        } else {
            Consistency::Resync
        }
    }

    /// Slots without a member, or with one that is not filled to the end.
    fn missing(&self) -> Vec<usize> {
        let is_missing = |slot: &Option<SlotMember>| {
            slot.as_ref().is_none_or(|member| member.recovered_bytes.is_some())
        };
        (0..self.slots.len()).filter(|&slot| is_missing(&self.slots[slot])).collect()
    }

    fn tolerates(&self, missing: &[usize]) -> bool {
        let mut flags = alloc::vec![false; self.slots.len()];
        missing.iter().for_each(|&slot| flags[slot] = true);
        tolerates(self.newest.superblock.level, self.newest.superblock.layout, &flags)
    }

    fn is_bearable(&self) -> bool {
        self.tolerates(&self.missing())
    }

    /// Members that force may put back into missing slots, newest first, one for each slot.
    fn forceable(&self) -> Vec<Known<'a>> {
        let mut taken = alloc::vec![false; self.slots.len()];
        let missing = self.missing();
        let mut forceable = Vec::new();
        for &known in &self.known {
            let Role::Active(slot) = known.superblock.role() else { continue };
            let slot = usize::from(slot);
            let is_out = self.rejected.iter().any(|rejected| {
                rejected.member == known.index
                    && matches!(
                        rejected.reason,
                        RejectReason::Faulty { .. }
                            | RejectReason::Removed { .. }
                            | RejectReason::Stale { .. }
                    )
            });
            // Of another shape than the array, or never filled: no help.
            let is_fit = disagreement_constant(known.superblock, self.newest.superblock).is_none()
                && known.superblock.recovered_bytes().is_none();
            if is_out && is_fit && missing.contains(&slot) && !taken[slot] {
                taken[slot] = true;
                forceable.push(known);
            }
        }
        forceable
    }

    /// The fewest members that make the array bearable, newest first; `None` when all are not
    /// enough.
    fn force_choice(&self) -> Option<Vec<Known<'a>>> {
        let mut missing = self.missing();
        let mut choice = Vec::new();
        for known in self.forceable() {
            if self.tolerates(&missing) {
                break;
            }
            let Role::Active(slot) = known.superblock.role() else { continue };
            missing.retain(|&other| other != usize::from(slot));
            choice.push((known, usize::from(slot)));
        }
        if !self.tolerates(&missing) {
            return None;
        }
        // The oldest first: whoever is not needed after all stays out.
        for position in (0..choice.len()).rev() {
            missing.push(choice[position].1);
            if self.tolerates(&missing) {
                choice.remove(position);
            } else {
                missing.pop();
            }
        }
        Some(choice.into_iter().map(|(known, _)| known).collect())
    }

    fn force_stale(&mut self) -> bool {
        let Some(choice) = self.force_choice() else { return false };
        for known in choice {
            let Role::Active(slot) = known.superblock.role() else { continue };
            self.slots[usize::from(slot)] = Some(slot_member(known));
            self.rejected.retain(|rejected| rejected.member != known.index);
            self.forced.push(known.index);
            self.warnings.push(format!(
                "{} was put back into slot {slot} by force: its event count is {}, the array's \
                    {}; its content may be old",
                known.name, known.superblock.events, self.newest.superblock.events
            ));
        }
        true
    }

    fn named_rejects(&self) -> Vec<(String, RejectReason)> {
        let named = |rejected: &Rejected| {
            (self.candidates[rejected.member].name.to_string(), rejected.reason.clone())
        };
        self.rejected.iter().map(named).collect()
    }

    fn too_many_missing(&self) -> AssembleError {
        AssembleError::TooManyMissing {
            missing: self.missing(),
            slot_count: self.slots.len(),
            level: self.newest.superblock.level,
            rejected: self.named_rejects(),
            can_force: self.force_choice().is_some(),
        }
    }

    fn check_dirty_degraded(&mut self, options: AssembleOptions) -> Result<(), AssembleError> {
        let newest = self.newest.superblock;
        let (level, layout, slot_count) = (newest.level, newest.layout, self.slots.len());
        let mut missing = self.missing();
        // A slot of parity alone holds no data that could come back wrong.
        missing.retain(|&slot| !is_parity_slot(level, layout, slot, slot_count));
        if !has_parity(level) || missing.is_empty() || newest.is_clean() {
            return Ok(());
        }
        // Its recovery writes, so it is no help to somebody who only wants to read.
        let is_logged = self.consistency() == Consistency::Ppl
            && options.abilities.ppl
            && options.access == Access::ReadWrite;
        if is_logged {
            return Ok(());
        }
        if !options.force {
            return Err(AssembleError::DirtyDegraded { missing, rejected: self.named_rejects() });
        }
        self.warnings.push(
            "started by force though not stopped cleanly and degraded: data regenerated for a \
                missing slot may be wrong"
                .to_string(),
        );
        Ok(())
    }

    fn finish(mut self) -> Assembly {
        let newest = self.newest.superblock;
        for known in &self.current {
            if let Some(obstacle) = known.superblock.write_obstacle() {
                self.warnings.push(format!("{}: read-only: {obstacle}", known.name));
            }
        }
        self.spares.sort_unstable();
        self.rejected.sort_unstable_by_key(|rejected| rejected.member);
        let consistency = self.consistency();
        let is_redundant = newest.level > 0;
        let resynced = (is_redundant && !newest.is_clean())
            .then(|| newest.resync_offset_sectors.saturating_mul(SECTOR_BYTES));
        Assembly {
            array_uuid: newest.array_uuid,
            name: newest.name(),
            level: newest.level,
            layout: newest.layout_in_use(),
            chunk_bytes: u64::from(newest.chunk_sectors) * SECTOR_BYTES,
            component_bytes: newest.component_bytes(),
            logical_block_bytes: newest.logical_block_bytes,
            events: newest.events,
            resynced_bytes: resynced,
            slots: self
                .slots
                .into_iter()
                .map(|slot| slot.map_or(SlotState::Missing, SlotState::Member))
                .collect(),
            spares: self.spares,
            rejected: self.rejected,
            newest: self.newest.index,
            forced: self.forced,
            bitmap: newest.bitmap(),
            consistency,
            journal: self.journal,
            warnings: self.warnings,
        }
    }
}

/// What becomes of a candidate.
enum Verdict {
    Current,
    Journal,
    Rejected(RejectReason),
    Spare,
}

fn slot_member(known: Known<'_>) -> SlotMember {
    let superblock = known.superblock;
    SlotMember {
        member: known.index,
        dev_number: superblock.dev_number,
        data: superblock.data_bytes(),
        recovered_bytes: superblock.recovered_bytes(),
        is_write_mostly: superblock.device_flags & 1 != 0,
    }
}

/// The first field in which two superblocks of one array differ that never differs in one array.
fn disagreement_constant(first: &Superblock, second: &Superblock) -> Option<&'static str> {
    let fields = [
        ("the level", first.level == second.level),
        ("the layout", first.layout == second.layout),
        ("the chunk size", first.chunk_sectors == second.chunk_sectors),
        ("the slot count", first.slot_count == second.slot_count),
        ("the used size", first.size_sectors == second.size_sectors),
        ("the creation time", first.created == second.created),
        ("the logical block size", first.logical_block_bytes == second.logical_block_bytes),
        ("the metadata version", first.minor == second.minor),
    ];
    fields.into_iter().find(|&(_, is_equal)| !is_equal).map(|(what, _)| what)
}

/// The first field in which two superblocks differ that is common to all of one generation.
fn disagreement(first: &Superblock, second: &Superblock) -> Option<&'static str> {
    if let Some(what) = disagreement_constant(first, second) {
        return Some(what);
    }
    if first.resync_offset_sectors != second.resync_offset_sectors {
        return Some("the resync position");
    }
    // Tables may differ in length: numbers that are not listed are not active.
    let count = first.roles().len().max(second.roles().len()) as u32;
    let active = |superblock: &Superblock, number| match superblock.role_of(number) {
        Role::Active(slot) => Some(slot),
        _ => None,
    };
    (0..count)
        .any(|number| active(first, number) != active(second, number))
        .then_some("the roles of the members")
}

/// Says whether the tables of a member that was left out go on without every current one: its
/// history and theirs have parted. Returns the index of a current member whose slot is empty there.
pub fn went_on_without<'a>(
    own: &Superblock,
    current: impl Iterator<Item = &'a Superblock> + Clone,
) -> Option<usize> {
    let knows = |other: &Superblock| matches!(own.role_of(other.dev_number), Role::Active(_));
    let is_empty_there = |other: &Superblock| match other.role() {
        Role::Active(slot) => own.active_in(slot).next().is_none(),
        _ => false,
    };
    if current.clone().any(knows) {
        return None;
    }
    current.clone().position(is_empty_there)
}
