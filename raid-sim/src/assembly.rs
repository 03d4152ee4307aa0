//! From what is on the members to a volume, by the engine's own rules; and what those rules should
//! have said.

use raid_core::intent::IntentConfig;
use raid_core::layout::Level;
use raid_core::md::assemble::{
    Abilities, Access, AssembleError, AssembleOptions, Assembly, Candidate, SlotState, assemble,
};
use raid_core::md::bitmap::{
    BitmapContext, BitmapError, BitmapImage, HEAD_BYTES, MemberBitmap, believe,
};
use raid_core::md::regions::sync_bytes;
use raid_core::md::superblock::{AREA_BYTES, Context, Minor, decode};
use raid_core::md::{Superblock, SuperblockError};
use raid_core::plan::Trust;
use raid_core::slots::SlotSet;
use raid_core::volume::{GroupConfig, OuterConfig, Volume, VolumeConfig};

use crate::checks::{raw_role, raw_superblock};
use crate::machine::{BITMAP_OFFSET, Machine};
use crate::metadata::GroupMetadata;
use crate::options::{DATA_OFFSET, OUTER_OFFSET};
use crate::report::Violation;
use crate::workload::SECTOR;

/// A group that can be started.
#[derive(Clone, Debug)]
pub(crate) struct GroupStart {
    pub(crate) config: GroupConfig,
    pub(crate) metadata: GroupMetadata,
    /// How far an orderly stop said that a resync had come, in md's unit.
    pub(crate) resynced_bytes: Option<u64>,
    /// Started dirty and degraded, by force.
    pub(crate) forced: bool,
}

/// Assembles the array from the members that are there; `None` if too much is missing. `last` says
/// that every member is there: then force must start what does not start by itself.
pub(crate) fn assemble_all(
    machine: &mut Machine,
    last: bool,
) -> Result<Option<Vec<GroupStart>>, Violation> {
    let mut groups = Vec::new();
    for group in 0..machine.options.shape.groups {
        match assemble_group(machine, group, last)? {
            Some(start) => groups.push(start),
            None => return Ok(None),
        }
    }
    machine.counts.reassemblies += 1;
    Ok(Some(groups))
}

/// Makes the volume of started groups.
pub(crate) fn volume(machine: &Machine, groups: &[GroupStart]) -> Result<Volume, Violation> {
    let outer = machine.outer.as_ref().map(|geometry| OuterConfig {
        geometry: geometry.clone(),
        data_offsets: vec![OUTER_OFFSET; groups.len()],
    });
    let config = VolumeConfig {
        groups: groups.iter().map(|start| start.config.clone()).collect(),
        outer,
        block_bytes: machine.options.block,
        read_only: false,
    };
    let volume = Volume::new(config)
        .map_err(|error| Violation::new("O10", format!("assembled, but no volume: {error}")))?;
    for (group, start) in groups.iter().enumerate() {
        let Some(position) = start.resynced_bytes.filter(|&bytes| bytes > 0) else { continue };
        if !volume.is_trusted(group) && start.config.intent.is_none() {
            let whole = sync_bytes(&machine.geometry) == machine.geometry.array_bytes();
            let width = if whole { 1 } else { machine.geometry.data_slots() as u64 };
            let unit = volume.resync_unit(group);
            volume.note_synced(group, position * width / unit * unit, volume.suspicion(group));
        }
    }
    Ok(volume)
}

type Loaded = Vec<(String, Result<Superblock, SuperblockError>)>;

fn load(machine: &Machine, group: usize) -> Loaded {
    let slots = 0..machine.options.shape.slots;
    let present = slots.map(|slot| machine.member(group, slot));
    let present = present.filter(|&member| !machine.members[member].gone);
    present
        .map(|index| {
            let member = &machine.members[index];
            let context = Context { minor: Minor::V1_2, member_bytes: member.len() };
            let area = &member.live()[4096..4096 + AREA_BYTES];
            (format!("{index}"), decode(area, context))
        })
        .collect()
}

fn decide(loaded: &Loaded, member_bytes: u64, force: bool) -> Result<Assembly, AssembleError> {
    let candidates: Vec<Candidate<'_>> = loaded
        .iter()
        .map(|(name, superblock)| Candidate { name, member_bytes, superblock: superblock.as_ref() })
        .collect();
    let abilities = Abilities { bitmap: true, ..Abilities::NONE };
    assemble(&candidates, AssembleOptions { access: Access::ReadWrite, force, abilities })
}

/// `None` if it is refused and should be.
fn assemble_group(
    machine: &mut Machine,
    group: usize,
    last: bool,
) -> Result<Option<GroupStart>, Violation> {
    leave_out_contradicting(machine, group);
    let shape = machine.options.shape.clone();
    let member_bytes = DATA_OFFSET + shape.component;
    let loaded = load(machine, group);
    let present: SlotSet = (0..shape.slots)
        .filter(|&slot| !machine.members[machine.member(group, slot)].gone)
        .collect();
    let usable = present
        .difference(machine.recorded_out[group])
        .difference(called_faulty(machine, group, present));
    let all = machine.geometry.slots();
    let bearable = machine.geometry.tolerates(&all.difference(usable));
    let mut forced = false;
    let decided = match decide(&loaded, member_bytes, false) {
        Err(AssembleError::DirtyDegraded { .. }) => {
            check_dirty_degraded(machine, group, usable)?;
            machine.counts.refusals += 1;
            machine.counts.forced += 1;
            forced = true;
            decide(&loaded, member_bytes, true)
        }
        decided => decided,
    };
    let assembly = match decided {
        Ok(assembly) => assembly,
        // Superblocks of one event count that contradict each other, and nobody was left out by the
        // operator: both are from updates that a crash cut.
        Err(AssembleError::SplitBrain { .. }) if bearable => {
            machine.counts.disagreements += 1;
            decide(&loaded, member_bytes, true)
                .map_err(|error| Violation::new("O10", format!("force does not help: {error}")))?
        }
        Err(error) if bearable => {
            let what = format!("group {group} with slots {:?} is refused: {error}", list(usable));
            return Err(Violation::new("O10", what));
        }
        Err(_) if last => {
            // More members failed than the level bears, and writes stopped: what is on the members
            // that fell behind is as good as before.
            machine.counts.refusals += 1;
            forced = machine.geometry.parity_count() > 0;
            decide(&loaded, member_bytes, true)
                .map_err(|error| Violation::new("O7", format!("force does not help: {error}")))?
        }
        Err(_) => {
            machine.counts.refusals += 1;
            return Ok(None);
        }
    };
    let names: Vec<usize> =
        loaded.iter().filter_map(|(name, _)| name.parse::<usize>().ok()).collect();
    let start = start_of(machine, group, &assembly, &names, forced)?;
    if last && !bearable {
        // By force: whoever is in now is not out any more.
        let out = machine.recorded_out[group].difference(start.config.in_sync);
        machine.recorded_out[group] = out;
        return Ok(Some(start));
    }
    check_membership(machine, group, &start, bearable)?;
    Ok(Some(start))
}

/// Slots that the newest superblock there calls faulty (an update that the crash cut may say so on
/// some members before the engine has heard that it is durable), those two updates behind, and
/// those
/// one behind that call a member faulty who is not: two crashes, each in the middle of an update,
/// leave them out, which costs redundancy and no data.
fn called_faulty(machine: &Machine, group: usize, present: SlotSet) -> SlotSet {
    let image = |slot: usize| machine.members[machine.member(group, slot)].live();
    let newest = present.iter().max_by_key(|&slot| raw_superblock(image(slot)).events);
    let Some(newest) = newest else { return SlotSet::new() };
    let events = raw_superblock(image(newest)).events;
    let slots = machine.geometry.slots();
    let is_faulty = |teller: usize, slot: usize| raw_role(image(teller), slot) == 0xfffe;
    let is_out = |&slot: &usize| {
        let lag = present.contains(slot).then(|| events - raw_superblock(image(slot)).events);
        let contradicts = |lag: u64| {
            lag == 1 && slots.iter().any(|at| is_faulty(slot, at) && !is_faulty(newest, at))
        };
        lag.is_some_and(|lag| lag > 1 || contradicts(lag)) || is_faulty(newest, slot)
    };
    slots.iter().filter(is_out).collect()
}

/// Two superblocks of one event count that say different things are refused, whoever is right: an
/// update was cut on a member that was not there when the next one was made. The operator leaves
/// out whoever was not there.
fn leave_out_contradicting(machine: &mut Machine, group: usize) {
    let loaded = load(machine, group);
    let member_bytes = DATA_OFFSET + machine.options.shape.component;
    let decided = decide(&loaded, member_bytes, false);
    if !matches!(
        decided,
        Err(AssembleError::Disagreement { .. } | AssembleError::SplitBrain { .. })
    ) {
        return;
    }
    machine.counts.disagreements += 1;
    let out = machine.geometry.slots().difference(machine.last_in_sync[group]);
    for slot in out.iter() {
        let index = machine.member(group, slot);
        machine.members[index].gone = true;
    }
}

fn list(slots: SlotSet) -> Vec<usize> {
    slots.iter().collect()
}

/// A refusal for dirt is right only when a superblock says dirty, a slot with data is missing, and
/// the level has parity.
fn check_dirty_degraded(machine: &Machine, group: usize, usable: SlotSet) -> Result<(), Violation> {
    let dirty = usable.iter().any(|slot| {
        let image = machine.members[machine.member(group, slot)].live();
        raw_superblock(image).resync_offset != u64::MAX
    });
    let parity = machine.geometry.parity_count() > 0;
    let degraded = usable.len() < machine.options.shape.slots;
    if dirty && parity && degraded {
        return Ok(());
    }
    let what = format!("refused as dirty and degraded: {dirty}, {parity}, {degraded}");
    Err(Violation::new("O10", what))
}

/// Nobody is in sync who was durably recorded as faulty, or is not there.
fn check_membership(
    machine: &mut Machine,
    group: usize,
    start: &GroupStart,
    bearable: bool,
) -> Result<(), Violation> {
    let stale = start.config.in_sync.intersection(machine.recorded_out[group]);
    if !stale.is_empty() {
        let what =
            format!("group {group}: slots {:?} are back though recorded faulty", list(stale));
        return Err(Violation::new("O8", what));
    }
    if !bearable {
        let what = format!(
            "group {group} starts with slots {:?}, which are too few",
            list(start.config.in_sync)
        );
        return Err(Violation::new("O7", what));
    }
    Ok(())
}

fn start_of(
    machine: &Machine,
    group: usize,
    assembly: &Assembly,
    names: &[usize],
    forced: bool,
) -> Result<GroupStart, Violation> {
    let slots = machine.options.shape.slots;
    let mut in_sync = SlotSet::new();
    let mut superblocks = vec![None; slots];
    for (slot, state) in assembly.slots.iter().enumerate() {
        let SlotState::Member(found) = state else { continue };
        let index = names[found.member];
        if index != machine.member(group, slot) || found.data.start != DATA_OFFSET {
            return Err(Violation::new("O4", format!("member {index} is put into slot {slot}")));
        }
        let member = &machine.members[index];
        let context = Context { minor: Minor::V1_2, member_bytes: member.len() };
        let area = &member.live()[4096..4096 + AREA_BYTES];
        superblocks[slot] = decode(area, context).ok();
        in_sync.insert(slot);
    }
    let redundant = !matches!(machine.options.shape.level, Level::Raid0 | Level::Linear);
    let resynced_bytes = assembly.resynced_bytes.filter(|_| redundant);
    let unsynced = resynced_bytes.is_some() && !forced;
    let (intent, bitmap) = match machine.options.granule {
        Some(granule) => {
            let (words, file) = bitmaps(machine, group, assembly.events, &superblocks);
            (Some(IntentConfig { granule_bytes: granule, words }), Some(file))
        }
        None => (None, None),
    };
    Ok(GroupStart {
        config: GroupConfig {
            geometry: machine.geometry.clone(),
            data_offsets: vec![DATA_OFFSET; slots],
            in_sync,
            trust: if unsynced { Trust::Unsynced } else { Trust::InSync },
            dirty: resynced_bytes == Some(0),
            intent,
            recovering: Vec::new(),
            doubtful: resynced_bytes.is_some() && in_sync.len() < slots,
        },
        metadata: GroupMetadata { superblocks, bitmap },
        resynced_bytes,
        forced,
    })
}

/// The words of all bitmaps together, and a bitmap's bytes to go on with.
fn bitmaps(
    machine: &Machine,
    group: usize,
    events: u64,
    superblocks: &[Option<Superblock>],
) -> (Vec<u64>, Vec<u8>) {
    let sync = sync_bytes(&machine.geometry);
    let mut decoded: Vec<Result<BitmapImage, BitmapError>> = Vec::new();
    for (slot, superblock) in superblocks.iter().enumerate() {
        let Some(superblock) = superblock else { continue };
        let member = &machine.members[machine.member(group, slot)];
        let bytes = &member.live()[BITMAP_OFFSET as usize..DATA_OFFSET as usize];
        let context = BitmapContext::new(superblock, member.len(), sync);
        decoded.push(
            context
                .ok_or(BitmapError::Unreadable)
                .and_then(|context| BitmapImage::decode(bytes, &context, SECTOR as u32)),
        );
    }
    let members: Vec<MemberBitmap<'_>> = decoded
        .iter()
        .map(|bitmap| MemberBitmap { name: "member", bitmap: bitmap.as_ref() })
        .collect();
    let belief = believe(&members, events, sync);
    let usable = belief.base.and_then(|base| decoded[base].as_ref().ok());
    let any = decoded.iter().find_map(|bitmap| bitmap.as_ref().ok());
    let Some(image) = usable.or(any) else { return (Vec::new(), Vec::new()) };
    let mut image = image.clone();
    image.set_regions(&belief.dirty);
    let file = image.bytes().to_vec();
    let count = image.head().bit_count();
    let mut words = vec![0; count.div_ceil(64) as usize];
    for bit in 0..count {
        let byte = file[HEAD_BYTES + (bit / 8) as usize];
        if byte >> (bit % 8) & 1 != 0 {
            words[(bit / 64) as usize] |= 1 << (bit % 64);
        }
    }
    (words, file)
}
