//! Members come, fail and go while the array runs.
//!
//! A slot's member is changed in this order, with the group's superblocks locked: the member gets a
//! place in the table that queues look members up in, its bitmap, a superblock in memory, and joins
//! the engine; then the superblocks of all members are written. A crash before that leaves a spare
//! that nobody relies on.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use raid_core::md::Superblock;
use raid_core::md::assemble::went_on_without;
use raid_core::md::create::plan_spare;
use raid_core::md::superblock::{Features, Role};
use raid_core::volume::{Join, Loss};

use crate::bad_blocks::BadRanges;
use crate::create::{examine, wipe};
use crate::deadline::{Call, call, call_all};
use crate::file::{Access, MemberFile};
use crate::member::{Member, MemberDevice};
use crate::metadata::{LeftOut, Replacement, Turn, random_uuid, write_superblock};
use crate::open::load;
use crate::shared::Shared;
use crate::walk::Goal;
use crate::{Added, Error};

mod replace;

/// How long a change waits for superblocks that a queue writes. Whoever waits for the change
/// itself (an acknowledgement) has no such limit.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a member comes into a slot.
#[derive(Clone, Copy, Debug)]
enum Entry {
    /// It holds the group bytes below `recovered`, and gets the rest.
    Fill { recovered: u64 },
    /// It was here before, and gets what the bitmap says that it missed.
    CatchUp,
    /// Beside a member that is in sync, whose place it takes when it is filled.
    Replace { recovered: u64 },
}

impl Shared {
    /// Appends a member to the table; returns its index.
    fn enlist(&self, member: Member) -> Result<usize, Error> {
        let full = "this array has taken in as many members as it can before it is opened again";
        let mut table = self.table();
        // A stop empties the table, after it has said so.
        if self.is_stopping() {
            return Err(Error::Stopped);
        }
        let index = self.volume.reserve_member().ok_or(Error::Unsupported(full))?;
        let mut members: Vec<Member> = table.iter().cloned().collect();
        assert!(index == members.len(), "member {index} in a table of {}", members.len());
        members.push(member);
        *table = members.into();
        drop(table);
        self.table_changed();
        Ok(index)
    }

    /// Lets a member's file go, as soon as no queue holds it any more.
    fn dismiss(&self, name: &Path) {
        let mut table = self.table();
        let absent = crate::start::absent();
        let keep = |member: &Member| if member.name() == name { &absent } else { member }.clone();
        *table = table.iter().map(keep).collect();
        drop(table);
        self.table_changed();
    }

    /// Says whether a slot has no member and there is a spare.
    pub(crate) fn has_spare_for(&self, group: usize) -> bool {
        let Some(metadata) = &self.metadata else { return false };
        let present = self.volume.in_sync(group).union(self.volume.recovering(group));
        let is_vacant = !self.volume.geometry(group).slots().difference(present).is_empty();
        let is_spare = |(_, superblock): &(Member, Superblock)| superblock.role() == Role::Spare;
        is_vacant && metadata.lock(group).others.iter().any(is_spare)
    }

    /// Lets a spare into a slot that has no member; true if one has joined.
    pub(crate) fn let_spare_in(&self, group: usize) -> bool {
        let Some(metadata) = &self.metadata else { return false };
        let present = self.volume.in_sync(group).union(self.volume.recovering(group));
        let all = self.volume.geometry(group).slots();
        let Some(slot) = all.difference(present).lowest() else { return false };
        let turn = metadata.turn(group);
        let is_spare = |(_, superblock): &(Member, Superblock)| superblock.role() == Role::Spare;
        let mut state = metadata.lock(group);
        let Some(at) = state.others.iter().position(is_spare) else { return false };
        // It is about to be filled; between here and there it is neither a spare nor in the slot.
        self.begin_activity(group, Goal::Recover);
        let (member, superblock) = state.others.remove(at);
        drop(state);
        let name = member.name().to_owned();
        let joined = self.join(group, slot, member, superblock, Entry::Fill { recovered: 0 });
        drop(turn);
        if joined.is_err() {
            self.end_activity();
        }
        match joined {
            Ok(()) => {
                tracing::info!("{}: spare steps in for slot {slot}", name.display());
                self.volume.request_update(group);
                if let Err(error) = self.record(group) {
                    tracing::error!("group {group}: {error}");
                }
                true
            }
            Err(error) => {
                tracing::error!("{}: cannot step in for slot {slot}: {error}", name.display());
                false
            }
        }
    }

    /// Puts a member into an empty slot, or beside the one that is there. It is the caller's turn.
    fn join(
        &self,
        group: usize,
        slot: usize,
        member: Member,
        superblock: Superblock,
        entry: Entry,
    ) -> Result<(), Error> {
        let Some(metadata) = &self.metadata else { return Err(unknown(member.name())) };
        let geometry = self.volume.geometry(group);
        let (start, used) = (superblock.data_bytes().start, geometry.component_bytes());
        let size = member.device().size_bytes();
        if start.checked_add(used).is_none_or(|end| end > size) {
            return Err(member.unsuited(format!("data {start}+{used} > member size {size}")));
        }
        let member = match member.bad_ranges() {
            Some(_) => member,
            None => {
                let bad = BadRanges::load(&member, &superblock)?;
                member.with_bad_ranges(bad)
            }
        };
        let script = metadata.bitmap_copy(group, &member, &superblock)?;
        call(&member, self.clock.patience(), Box::new(move |member| script.play(member)))?;
        let index = self.enlist(member)?;
        let (recovered, by_bitmap) = match entry {
            Entry::Fill { recovered } | Entry::Replace { recovered } => (recovered, false),
            Entry::CatchUp => (0, true),
        };
        let join = Join { member: index, data_offset: start, recovered, by_bitmap };
        let mut state = metadata.lock(group);
        let joined = if let Entry::Replace { .. } = entry {
            let replaces = self.volume.member_index(group, slot);
            state.replacements[slot] = Some(Replacement { index, replaces, superblock });
            self.volume.join_replacement(group, slot, join)
        } else {
            state.slots[slot] = Some(superblock);
            self.volume.join(group, slot, join)
        };
        joined.map_err(|error| {
            let vacant = if let Entry::Replace { .. } = entry {
                state.replacements[slot].take().map(drop)
            } else {
                state.slots[slot].take().map(drop)
            };
            assert!(vacant.is_some(), "slot {slot} was just filled");
            Error::Options(error.to_string())
        })
    }

    /// Ends a recovery that has nothing left to do.
    pub(crate) fn finish_recovery(&self, group: usize) -> Result<(), Error> {
        let members = self.members();
        let filled = self.volume.recovering(group);
        let filled = filled.iter().map(|slot| self.volume.member_index(group, slot));
        let replacing = self.volume.replacing(group);
        let replacing =
            replacing.iter().filter_map(|slot| self.volume.replacement_index(group, slot));
        let joined: Vec<usize> = filled.chain(replacing).collect();
        let flush = |index: &usize| -> Option<(Member, Call)> {
            Some((members.get(*index)?.clone(), Box::new(Member::flush)))
        };
        let flushes = joined.iter().filter_map(flush).collect();
        let results = call_all(flushes, self.clock.patience());
        for (index, result) in joined.into_iter().zip(results) {
            if let Err(error) = result {
                // It is not needed: the next spare may do better.
                let _left = self.volume.fail_member(index);
                self.record(group)?;
                return Err(error);
            }
        }
        let finished = self.volume.finish_recovery(group);
        for slot in finished.iter() {
            tracing::info!("group {group}: slot {slot} is in sync");
        }
        self.record(group)
    }

    /// Lists what a recovery could not get as lost on the members that were to be filled: durably,
    /// before they count as filled there.
    ///
    /// A write may have reached such a place since; then the log says too much, and the next read
    /// of it is regenerated and heals it.
    ///
    /// # Errors
    /// Returns an error if a member has no log or no room in it, or it cannot be written: then the
    /// member must not count as filled.
    pub(crate) fn record_losses(&self, group: usize) -> Result<(), Error> {
        let dropped = self.volume.losses_dropped();
        if self.losses_dropped.swap(dropped, Ordering::Relaxed) != dropped {
            let reason = "more sectors than can be listed cannot be regenerated";
            return Err(Error::Assemble(format!("group {group}: {reason}")));
        }
        let Some(first) = self.volume.poll_loss() else { return Ok(()) };
        let mut sectors = 0;
        let members = self.members();
        let Some(metadata) = &self.metadata else { return Ok(()) };
        let turn = metadata.turn(group);
        let rest = std::iter::from_fn(|| self.volume.poll_loss());
        for Loss { group, slot, member_offset, len } in std::iter::once(first).chain(rest) {
            sectors += len / 512;
            // Of a slot that is in sync the replacement alone is filled.
            let own = self.volume.recovering(group).contains(slot);
            let index = match self.volume.replacement_index(group, slot).filter(|_| !own) {
                Some(index) => index,
                None => self.volume.member_index(group, slot),
            };
            let Some(member) = members.get(index) else { continue };
            let start = self.volume.data_offset(index) + member_offset;
            let unlisted = || {
                member.unsuited(format!(
                    "slot {slot} of group {group} cannot be filled: {sectors} sectors from byte \
                     {member_offset} of its data on cannot be regenerated, their sources are \
                     unreadable, and it has no bad-block log to list them in"
                ))
            };
            member.bad_ranges().ok_or_else(unlisted)?.add(start..start + len);
        }
        let Loss { slot, member_offset, .. } = first;
        metadata.store_bad_blocks(group, &self.volume, &members, self.clock.patience())?;
        drop(turn);
        tracing::error!(
            "group {group}: {sectors} sectors of slot {slot} from byte {member_offset} of its data \
             on are lost: their sources are unreadable; they are listed in its bad-block log"
        );
        self.volume.request_update(group);
        self.record(group)
    }

    /// Takes what a check has found.
    pub(crate) fn take_findings(&self) {
        while let Some(finding) = self.volume.poll_finding() {
            let who = match finding.slot {
                Some(slot) => {
                    let index = self.volume.member_index(finding.group, slot);
                    let members = self.members();
                    members.get(index).map(|member| member.name().display().to_string())
                }
                None => None,
            };
            tracing::warn!(
                "group {}: mismatch at byte {} ({} bytes from {} on each member's data), {}{}",
                finding.group,
                finding.offset,
                finding.len,
                finding.member_offset,
                who.as_ref().map_or("nobody can be named".into(), |who| format!("{who} is wrong")),
                if finding.repaired { ", repaired" } else { "" },
            );
        }
    }

    /// Finds a member by its name: `(group, slot, index)` of one that is in a slot.
    fn find_in_slot(&self, name: &Path) -> Option<(usize, usize, usize)> {
        let members = self.members();
        (0..self.volume.group_count()).find_map(|group| {
            let present = self.volume.in_sync(group).union(self.volume.recovering(group));
            present.iter().find_map(|slot| {
                let own = Some(self.volume.member_index(group, slot));
                let places = [own, self.volume.replacement_index(group, slot)];
                let is_it = |index: &usize| {
                    members.get(*index).is_some_and(|member| same(member.name(), name))
                };
                let index = places.into_iter().flatten().find(is_it)?;
                Some((group, slot, index))
            })
        })
    }

    /// Declares a member faulty by hand.
    pub(crate) fn fail(&self, name: &Path) -> Result<(), Error> {
        self.check_writable()?;
        if let Some((group, slot, index)) = self.find_in_slot(name) {
            let needed = |_| Error::UnsuitableMember {
                path: name.to_owned(),
                reason: format!(
                    "slot {slot} is needed: without it data would be lost, and it is not failed"
                ),
            };
            self.volume.fail_member(index).map_err(needed)?;
            self.record(group)?;
            self.bell.ring();
            return Ok(());
        }
        let Some(metadata) = &self.metadata else { return Err(unknown(name)) };
        for group in 0..self.volume.group_count() {
            let turn = metadata.turn(group);
            let mut state = metadata.lock(group);
            let spare = state.others.iter().position(|(member, superblock)| {
                same(member.name(), name) && superblock.role() == Role::Spare
            });
            if let Some(at) = spare {
                let (member, superblock) = state.others.remove(at);
                state.given_up.push(superblock.dev_number);
                state.left_out.push(LeftOut {
                    member,
                    number: Some(superblock.dev_number),
                    is_faulty: true,
                    reason: "failed by hand".into(),
                });
                drop((state, turn));
                self.volume.request_update(group);
                return self.record(group);
            }
            if state.left_out.iter().any(|one| same(one.member.name(), name)) {
                return Ok(());
            }
        }
        Err(unknown(name))
    }

    /// Lets a faulty member or a spare go.
    pub(crate) fn remove(&self, name: &Path) -> Result<(), Error> {
        self.check_writable()?;
        if self.find_in_slot(name).is_some() {
            let reason = "it is in use; fail it first";
            return Err(Error::UnsuitableMember { path: name.to_owned(), reason: reason.into() });
        }
        let Some(metadata) = &self.metadata else { return Err(unknown(name)) };
        for group in 0..self.volume.group_count() {
            let _turn = metadata.turn(group);
            let mut state = metadata.lock(group);
            let before = state.others.len() + state.left_out.len();
            state.left_out.retain(|one| !same(one.member.name(), name));
            state.others.retain(|(member, superblock)| {
                !same(member.name(), name) || superblock.role() != Role::Spare
            });
            if state.others.len() + state.left_out.len() < before {
                drop(state);
                let members = self.members();
                let found = members.iter().find(|member| same(member.name(), name));
                if let Some(found) = found.map(|member| member.name().to_owned()) {
                    self.dismiss(&found);
                }
                return Ok(());
            }
        }
        Err(unknown(name))
    }

    /// Takes a member in: one that was here before goes on where it left, anything else stands by.
    pub(crate) fn add(&self, path: &Path, force: bool) -> Result<Added, Error> {
        match self.look_at(path)? {
            (member, Some((group, superblock))) => self.take_back(group, member, superblock, false),
            (member, None) => self.take_in(member, force),
        }
    }

    /// Takes a member back that can catch up.
    pub(crate) fn re_add(&self, path: &Path) -> Result<(), Error> {
        match self.look_at(path)? {
            (member, Some((group, superblock))) => {
                self.take_back(group, member, superblock, true).map(drop)
            }
            (member, None) => Err(member.unsuited("was never a member of this array")),
        }
    }

    /// Opens what is to be taken in; tells which group it was in, if it was.
    fn look_at(&self, path: &Path) -> Result<(Member, Option<(usize, Superblock)>), Error> {
        self.check_writable()?;
        let unsupported = "arrays without superblocks take nobody in";
        let metadata = self.metadata.as_ref().ok_or(Error::Unsupported(unsupported))?;
        // Looked at before it is locked: our own lock would be taken for somebody else's.
        let file = MemberFile::open(path, Access::ReadOnly, false)?;
        let twin = |member: &Member| {
            member.as_file().is_some_and(|other| other.identity() == file.identity())
        };
        if let Some(twin) = self.members().iter().find(|member| twin(member)) {
            let reason = format!("is the same as {}", twin.name().display());
            return Err(Error::UnsuitableMember { path: path.to_owned(), reason });
        }
        drop(file);
        let file = MemberFile::open(path, Access::Exclusive, self.options.direct)?;
        let (size, used) = (file.size_bytes(), self.volume.geometry(0).component_bytes());
        if size < used {
            let reason = format!("is too small: {size} bytes < {used} that a member holds");
            return Err(Error::UnsuitableMember { path: path.to_owned(), reason });
        }
        let loaded = load(Member::file(file))?;
        let member = loaded.member;
        let known = loaded.superblock.ok().and_then(|superblock| {
            let mut groups = 0..self.volume.group_count();
            let of =
                |group: &usize| metadata.group(*group).newest.array_uuid == superblock.array_uuid;
            groups.find(of).map(|group| (group, superblock))
        });
        Ok((member, known))
    }

    /// A member that failed still has its file open, and locked: it is let go before it is looked
    /// at anew.
    pub(crate) fn release_faulty(&self, path: &Path) {
        let Some(metadata) = &self.metadata else { return };
        for group in 0..self.volume.group_count() {
            let _turn = metadata.turn(group);
            let mut state = metadata.lock(group);
            state.left_out.retain(|one| !same(one.member.name(), path));
        }
        if self.find_in_slot(path).is_none() {
            let members = self.members();
            if let Some(member) = members.iter().find(|member| same(member.name(), path)) {
                let name = member.name().to_owned();
                drop(members);
                self.dismiss(&name);
            }
        }
    }

    /// A member of this array comes back.
    fn take_back(
        &self,
        group: usize,
        member: Member,
        superblock: Superblock,
        only_if_covered: bool,
    ) -> Result<Added, Error> {
        let Some(metadata) = &self.metadata else { return Err(unknown(member.name())) };
        let turn = metadata.turn(group);
        let state = metadata.lock(group);
        let newest = &state.newest;
        if superblock.events > newest.events {
            let (events, ours) = (superblock.events, newest.events);
            return Err(member.unsuited(format!(
                "it has seen more of this array than the array itself: events {events} > {ours}"
            )));
        }
        if went_on_without(&superblock, state.slots.iter().flatten()).is_some() {
            return Err(member.unsuited(
                "it went on without the members that are here: both sides have been written to, \
                 and one would be lost; clear its superblock to give it up",
            ));
        }
        let number = superblock.dev_number;
        if state.superblocks().any(|other| other.dev_number == number) {
            return Err(member.unsuited(format!("its number {number} is taken by another member")));
        }
        let cleared = metadata.with_bitmap(group, |bitmap| bitmap.head().events_cleared);
        let slot = match superblock.role() {
            Role::Active(slot) => Some(usize::from(slot)),
            _ => None,
        };
        let is_free = |slot: &usize| {
            *slot < state.slots.len()
                && !self.volume.in_sync(group).contains(*slot)
                && !self.volume.recovering(group).contains(*slot)
        };
        // It must have seen all that are here now at work, or what it says of itself is of a time
        // that the bitmap knows nothing of.
        let mut here = state.slots.iter().flatten();
        let saw_all = here.all(|other| superblock.role_of(other.dev_number) == other.role());
        let covered = cleared.is_some_and(|cleared| superblock.events >= cleared)
            && superblock.recovered_bytes().is_none()
            && saw_all;
        if let Some(slot) = slot.filter(|slot| covered && is_free(slot)) {
            let name = member.name().to_owned();
            drop(state);
            self.join(group, slot, member, superblock, Entry::CatchUp)?;
            drop(turn);
            tracing::info!("{}: back in slot {slot}, by the bitmap", name.display());
            self.volume.request_update(group);
            self.record(group)?;
            self.bell.ring();
            return Ok(Added::ReAdded { slot: slot as u32 });
        }
        if only_if_covered {
            let reason = match cleared {
                None => "cannot catch up: there is no bitmap to say what it missed".to_owned(),
                Some(cleared) => format!(
                    "cannot catch up: its events {} < {cleared} that the bitmap reaches back to, \
                     its slot is taken, or others have joined since",
                    superblock.events
                ),
            };
            return Err(member.unsuited(reason));
        }
        // Nothing says what it missed: it is filled from the start, under the number it had.
        let peer = state.slots.iter().flatten().next().unwrap_or(newest).clone();
        let size = member.device().size_bytes();
        let spare = plan_spare(&peer, number, superblock.device_uuid, size)
            .map_err(|error| member.unsuited(error.to_string()))?;
        drop(state);
        self.stand_by(group, turn, member, spare)
    }

    /// Something new becomes a spare, of the group that needs one most.
    fn take_in(&self, member: Member, force: bool) -> Result<Added, Error> {
        let Some(metadata) = &self.metadata else { return Err(unknown(member.name())) };
        let size = member.device().size_bytes();
        let candidate = examine(member.name().to_owned(), member.clone(), force)?;
        let mut groups: Vec<usize> = (0..self.volume.group_count()).collect();
        groups.sort_by_key(|group| self.volume.in_sync(*group).len());
        let group = groups[0];
        let turn = metadata.turn(group);
        let state = metadata.lock(group);
        let peer = state.slots.iter().flatten().next().unwrap_or(&state.newest).clone();
        let used: Vec<u32> = state
            .superblocks()
            .map(|superblock| superblock.dev_number)
            .chain(state.left_out.iter().filter_map(|one| one.number))
            .collect();
        // A number that a member has had before stays its own, as long as there are others.
        let is_new =
            |number: &u32| !used.contains(number) && state.newest.role_of(*number) == Role::Spare;
        let number = (peer.slot_count..).find(is_new).unwrap_or(peer.slot_count);
        let spare = plan_spare(&peer, number, random_uuid(), size)
            .map_err(|error| member.unsuited(error.to_string()))?;
        drop(state);
        wipe(&member, &candidate.stale)?;
        self.stand_by(group, turn, member, spare)
    }

    fn stand_by(
        &self,
        group: usize,
        turn: Turn<'_>,
        member: Member,
        mut spare: Superblock,
    ) -> Result<Added, Error> {
        let Some(metadata) = &self.metadata else { return Err(unknown(member.name())) };
        spare.features.0 &= !Features::RECOVERY_BITMAP;
        write_superblock(&member, &spare)?;
        tracing::info!("{}: stands by", member.name().display());
        let mut state = metadata.lock(group);
        state.newcomers.push(spare.dev_number);
        state.others.push((member, spare));
        drop((state, turn));
        self.volume.request_update(group);
        self.record(group)?;
        self.bell.ring();
        Ok(Added::Spare)
    }

    /// Makes what was asked for durable, here or by the queue that has taken it over.
    fn record(&self, group: usize) -> Result<(), Error> {
        let begun = Instant::now();
        while !self.volume.is_recorded(group) && begun.elapsed() < PATIENCE {
            self.update_now();
            if !self.volume.is_recorded(group) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        if self.volume.is_stopped(group) || !self.volume.is_recorded(group) {
            return Err(Error::Assemble("the superblocks could not be written".into()));
        }
        Ok(())
    }

    fn check_writable(&self) -> Result<(), Error> {
        if self.limits.read_only {
            return Err(Error::ReadOnly);
        }
        if self.is_stopping() { Err(Error::Stopped) } else { Ok(()) }
    }
}

/// Whether two paths name the same member, as far as names tell.
fn same(a: &Path, b: &Path) -> bool {
    let full = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    a == b || full(a) == full(b)
}

fn unknown(path: &Path) -> Error {
    let path: PathBuf = path.to_owned();
    Error::UnsuitableMember { path, reason: "is not a member of this array".into() }
}
