//! Partial parity logs and journals: what they hold is brought to the members when an array is
//! opened, and they rest while it is open.
//!
//! ```text
//! open    log read -> what was being written made whole -> log emptied    (read-only: refused)
//! run     superblocks without the log's feature bit: a plain array for whoever finds it then
//! stop    the bit again, with the empty log
//! ```
//!
//! A log that is not kept must not be believed: an old entry over new data would be wrong, and an
//! empty log would make a degraded array look safe after a crash. So the bit goes with the first
//! superblock update, before the first write, and returns with the last one.

use raid_core::geometry::Geometry;
use raid_core::md::Superblock;
use raid_core::md::journal::{
    BLOCK_BYTES, Block, JournalPlace, Replay, StripeReplay, replay, scan,
};
use raid_core::md::ppl::{
    HEADER_BYTES, Header, PplError, Recovery, RowFix, is_clean_after, newest, recover, signature,
};
use raid_core::md::superblock::{Features, Role};
use raid_core::parity::Kernel;
use raid_core::plan::Trust;
use raid_core::slots::SlotSet;

use crate::Error;
use crate::member::Member;
use crate::metadata::GroupMetadata;
use crate::start::Group;

/// The feature bits of partial parity logs.
const PPL: u32 = Features::PPL | Features::MULTIPLE_PPLS;

/// A log's feature bits that superblocks do without while the array is open.
#[derive(Clone)]
pub(crate) struct Paused {
    /// Which of them each member had, by its number.
    bits: Vec<(u32, u32)>,
    /// The superblocks on the members do without them.
    is_recorded: bool,
}

impl GroupMetadata {
    /// Takes a log's feature bits out of all superblocks.
    fn pause_log(&mut self, bits: u32) {
        let mut had = Vec::new();
        for superblock in self.superblocks_mut() {
            had.push((superblock.dev_number, superblock.features.0 & bits));
            superblock.features.0 &= !bits;
        }
        self.paused = Some(Paused { bits: had, is_recorded: false });
    }

    /// Notes that the superblocks are being written as they are.
    pub(crate) fn note_recorded(&mut self) {
        if let Some(paused) = &mut self.paused {
            paused.is_recorded = true;
        }
    }

    /// Puts the feature bits back. Returns whether superblocks must be written for that.
    pub(crate) fn resume_log(&mut self) -> bool {
        let Some(Paused { bits, is_recorded }) = self.paused.take() else { return false };
        let bits_of = |number: u32| bits.iter().find(|(own, _)| *own == number).map(|(_, b)| *b);
        if !self.superblocks_mut().all(|superblock| bits_of(superblock.dev_number).is_some()) {
            tracing::warn!("the array has a member without a log now, and goes on without it");
            return false;
        }
        for superblock in self.superblocks_mut() {
            superblock.features.0 |= bits_of(superblock.dev_number).unwrap_or(0);
        }
        is_recorded
    }
}

impl Group {
    fn member(&self, slot: usize) -> Result<&Member, Error> {
        let member = self.members.get(slot).and_then(Option::as_ref);
        member.ok_or_else(|| Error::Assemble(format!("slot {slot} has no member")))
    }

    /// Reads from the data area of a slot's member.
    fn read_data(&self, slot: usize, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        self.member(slot)?.read_range(self.config.data_offsets[slot] + offset, len)
    }

    fn write_data(&self, slot: usize, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.member(slot)?.write_range(self.config.data_offsets[slot] + offset, bytes)
    }

    fn flush(&self) -> Result<(), Error> {
        self.members.iter().flatten().try_for_each(Member::flush)
    }

    fn is_degraded(&self) -> bool {
        self.config.in_sync.len() < self.members.len()
    }
}

/// Recovers an array from its partial parity logs if it was not stopped cleanly, and empties them.
///
/// # Errors
/// Returns an error if a member fails, or if the logs do not make a degraded array safe.
pub(crate) fn settle_ppl(
    group: &mut Group,
    metadata: &mut GroupMetadata,
    force: bool,
) -> Result<(), Error> {
    if metadata.resynced_bytes == Some(0) {
        recover_ppl(group, metadata, force)?;
        // The first write has to take the logs' bit out of the superblocks.
        group.config.dirty = false;
    }
    for (member, superblock) in group.members.iter().zip(&metadata.slots) {
        if let (Some(member), Some(superblock)) = (member, superblock) {
            empty_ppl(member, superblock)?;
        }
    }
    metadata.pause_log(PPL);
    Ok(())
}

/// What the log of one slot says, and its bytes.
type SlotLog = (usize, Vec<u8>, Result<Recovery, PplError>);

fn recover_ppl(group: &mut Group, metadata: &GroupMetadata, force: bool) -> Result<(), Error> {
    let mut logs: Vec<SlotLog> = Vec::new();
    for slot in group.config.in_sync.iter() {
        let Some(superblock) = &metadata.slots[slot] else { continue };
        logs.push(read_ppl(group, slot, superblock)?);
    }
    let is_degraded = group.is_degraded();
    let is_whole = |(slot, _, log): &SlotLog| match log {
        Ok(recovery) if recovery.damage.is_empty() => recovery.mismatch_count == 0,
        Ok(recovery) => {
            let count = recovery.damage.len();
            tracing::warn!("slot {slot}: {count} runs of rows were being written to a lost member");
            false
        }
        Err(error) => {
            tracing::warn!("slot {slot}: {error}");
            false
        }
    };
    let are_whole = logs.iter().filter(|log| is_whole(log)).count() == logs.len();
    if is_degraded && !are_whole && !force {
        return Err(Error::Assemble(
            "the array was not stopped cleanly, a member is missing, and the partial parity logs \
             do not tell all that was being written; --force starts it"
                .into(),
        ));
    }
    for (_, area, log) in &logs {
        for fix in log.iter().flat_map(|recovery| &recovery.fixes) {
            write_parity(group, area, fix)?;
        }
    }
    group.flush()?;
    let is_clean = is_clean_after(logs.iter().map(|(_, _, log)| log), is_degraded);
    group.config.trust = if is_clean || is_degraded { Trust::InSync } else { Trust::Unsynced };
    tracing::info!("recovered from the partial parity logs, everything: {is_clean}");
    Ok(())
}

fn read_ppl(group: &Group, slot: usize, superblock: &Superblock) -> Result<SlotLog, Error> {
    let member = group.member(slot)?;
    let range =
        superblock.ppl_bytes().ok_or_else(|| member.unsuited("it has no room for a log"))?;
    let area = member.read_range(range.start, (range.end - range.start) as usize)?;
    let (geometry, in_sync) = (&group.config.geometry, &group.config.in_sync);
    let recovery = newest(&area, signature(&superblock.array_uuid_bytes()))
        .map(|newest| recover(&newest, &area, geometry, slot, in_sync));
    Ok((slot, area, recovery))
}

/// Makes the parity of some rows right.
fn write_parity(group: &Group, area: &[u8], fix: &RowFix) -> Result<(), Error> {
    let mut parity = vec![0; fix.len as usize];
    let partial = fix.partial.clone().and_then(|range| area.get(range));
    partial.into_iter().for_each(|partial| xor(&mut parity, partial));
    for &slot in &fix.reads {
        let data = group.read_data(slot, fix.offset, parity.len())?;
        xor(&mut parity, &data);
    }
    group.write_data(fix.parity_slot, fix.offset, &parity)
}

fn xor(target: &mut [u8], source: &[u8]) {
    target.iter_mut().zip(source).for_each(|(target, source)| *target ^= source);
}

/// Writes an empty log, as far as there is another.
fn empty_ppl(member: &Member, superblock: &Superblock) -> Result<(), Error> {
    let Some(range) = superblock.ppl_bytes() else { return Ok(()) };
    let len = (range.end - range.start) as usize;
    if len < HEADER_BYTES {
        return Err(member.unsuited("its partial parity log has no room for a header"));
    }
    let mut empty = vec![0; len];
    let header = Header::empty().encode(signature(&superblock.array_uuid_bytes()));
    empty[..HEADER_BYTES].copy_from_slice(&header);
    if member.read_range(range.start, len)? == empty {
        return Ok(());
    }
    // The header first: then there are no entries. The rest must not look like another log.
    let (head, tail) = empty.split_at(HEADER_BYTES);
    member.write_range(range.start, head)?;
    member.flush()?;
    member.write_range(range.start + HEADER_BYTES as u64, tail)?;
    member.flush()
}

/// Brings what a journal holds to the members, and empties it.
///
/// # Errors
/// Returns an error if a member fails, if the journal is damaged, or if it holds something and the
/// array is opened read-only.
pub(crate) fn settle_journal(
    group: &mut Group,
    metadata: &mut GroupMetadata,
    is_read_only: bool,
) -> Result<(), Error> {
    let is_journal =
        |(_, superblock): &&mut (Member, Superblock)| superblock.role() == Role::Journal;
    let Some((member, superblock)) = metadata.others.iter_mut().find(is_journal) else {
        return Ok(());
    };
    let place = JournalPlace::new(superblock)
        .ok_or_else(|| member.unsuited("it is too small for a journal"))?;
    let mut read =
        |offset, block: &mut [u8; BLOCK_BYTES]| match member.read_range(offset, block.len()) {
            Ok(bytes) => {
                block.copy_from_slice(&bytes);
                true
            }
            Err(error) => {
                tracing::warn!("{error}");
                false
            }
        };
    let log = scan(&place, group.config.geometry.parity_count(), &mut read)
        .map_err(|error| member.unsuited(error.to_string()))?;
    let todo = replay(&log, &group.config.geometry);
    if is_read_only {
        return check_replayed(group, member, &place, &todo);
    }
    replay_journal(group, member, &place, &todo)?;
    let start = place.empty_block(todo.next_position, todo.next_sequence);
    member.write_range(place.offset(todo.next_position), &start)?;
    member.flush()?;
    superblock.recovery_offset_sectors = todo.next_position;
    // The first write has to take the journal's bit out of the superblocks.
    group.config.dirty = false;
    metadata.pause_log(Features::JOURNAL);
    Ok(())
}

/// Reads a block of the journal that it was found to have.
fn journal_block(journal: &Member, place: &JournalPlace, block: &Block) -> Result<Vec<u8>, Error> {
    let bytes = journal.read_range(place.offset(block.position), BLOCK_BYTES)?;
    let is_whole = place.checksum(&bytes) == block.checksum;
    if is_whole { Ok(bytes) } else { Err(journal.unsuited("a block of it has changed")) }
}

/// Makes sure that all of a journal is on the members: after an orderly stop its last writes are
/// still in it.
fn check_replayed(
    group: &Group,
    journal: &Member,
    place: &JournalPlace,
    todo: &Replay,
) -> Result<(), Error> {
    for row in &todo.stripes {
        for write in &row.data {
            // Of a member that is missing only the parity could tell.
            let is_missing = !group.config.in_sync.contains(write.slot);
            let bytes = journal_block(journal, place, &write.block)?;
            if is_missing || group.read_data(write.slot, row.offset, BLOCK_BYTES)? != bytes {
                return Err(Error::Assemble(
                    "the journal holds writes that are not on the members yet; it is replayed \
                     when the array is opened to be written"
                        .into(),
                ));
            }
        }
    }
    Ok(())
}

fn replay_journal(
    group: &Group,
    journal: &Member,
    place: &JournalPlace,
    todo: &Replay,
) -> Result<(), Error> {
    if todo.dropped_count > 0 {
        tracing::warn!("{} parts of the journal are incomplete, and left", todo.dropped_count);
    }
    let has_alone = todo.stripes.iter().any(|row| row.parity.is_empty());
    if has_alone && group.is_degraded() {
        return Err(Error::Assemble(
            "the journal holds data without its parity, and a member is missing: bring that back \
             first"
                .into(),
        ));
    }
    let block = |block: &Block| journal_block(journal, place, block);
    for row in &todo.stripes {
        if row.parity.is_empty() {
            replay_alone(group, row, &block)?;
            continue;
        }
        for write in row.data.iter().chain(&row.parity) {
            // What is missing is in the parity.
            if group.config.in_sync.contains(write.slot) {
                group.write_data(write.slot, row.offset, &block(&write.block)?)?;
            }
        }
    }
    if !todo.is_empty() {
        tracing::info!("{} rows of the journal were replayed", todo.stripes.len());
    }
    group.flush()
}

/// Writes data that has no parity in the journal, with parity that fits.
fn replay_alone(
    group: &Group,
    row: &StripeReplay,
    block: &impl Fn(&Block) -> Result<Vec<u8>, Error>,
) -> Result<(), Error> {
    let geometry: &Geometry = &group.config.geometry;
    let stripe = geometry.stripe(row.offset / geometry.chunk_bytes());
    let mut data = Vec::new();
    let mut written = SlotSet::new();
    for index in 0..stripe.data_count() {
        let slot = stripe.data_slot(index);
        data.push(match row.data.iter().find(|write| write.slot == slot) {
            Some(write) => {
                let bytes = block(&write.block)?;
                group.write_data(slot, row.offset, &bytes)?;
                written.insert(slot);
                bytes
            }
            None => group.read_data(slot, row.offset, BLOCK_BYTES)?,
        });
    }
    let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let (mut p, mut q) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
    match (stripe.p, stripe.q) {
        (Some(p_slot), Some(q_slot)) => {
            Kernel::best().gen_pq(&sources, &mut p, &mut q);
            group.write_data(p_slot, row.offset, &p)?;
            group.write_data(q_slot, row.offset, &q)
        }
        (Some(p_slot), None) => {
            Kernel::best().gen_p(&sources, &mut p);
            group.write_data(p_slot, row.offset, &p)
        }
        _ => Ok(()),
    }
}
