//! Opening an array: read the superblocks, let md's rules decide, start what they say.
//!
//! A nested array is opened from the inside out: the members' superblocks tell the groups apart;
//! each group is started read-only for a moment, to read the outer superblock through it.

use std::collections::HashMap;
use std::path::PathBuf;

use raid_core::layout::{Layout, Level};
use raid_core::md::assemble::{
    Abilities, Access as Wanted, AssembleOptions, Assembly, Candidate, Consistency, RejectReason,
    SlotState, assemble, split_by_array,
};
use raid_core::md::superblock::{AREA_BYTES, Features, Minor, find};
use raid_core::md::{Superblock, SuperblockError};
use raid_core::plan::Trust;
use raid_core::slots::SlotSet;
use raid_core::volume::{GroupConfig, OuterConfig, RecoveringConfig};

use crate::bad_blocks::BadRanges;
use crate::bitmap::{self, Bitmap};
use crate::file::{Access, MemberFile};
use crate::logs::{settle_journal, settle_ppl};
use crate::member::Member;
use crate::metadata::{GroupMetadata, LeftOut};
use crate::start::{Group, Outer, start};
use crate::volatile::geometry;
use crate::walk::recovered_group_bytes;
use crate::{Array, Error, OpenOptions};

/// What of an array's logs is read, honoured and kept here.
const ABILITIES: Abilities = Abilities::ALL;

/// A member that is open, and what its superblock says.
pub(crate) struct Loaded {
    pub(crate) member: Member,
    pub(crate) superblock: Result<Superblock, SuperblockError>,
}

pub(crate) fn open(paths: &[PathBuf], options: &OpenOptions) -> Result<Array, Error> {
    let access = if options.read_only { Access::ReadOnly } else { Access::Exclusive };
    let members = open_members(paths, access, options.direct)?;
    let loaded = members.into_iter().map(load).collect::<Result<Vec<_>, _>>()?;
    check_superblocks(&loaded, options)?;
    start_loaded(&loaded, options)
}

/// Refuses members that were named but cannot be used: a typing error or a damaged superblock must
/// not make the array degraded behind its owner's back. Leaving one out is done by not naming it.
fn check_superblocks(loaded: &[Loaded], options: &OpenOptions) -> Result<(), Error> {
    let broken = loaded.iter().find_map(|one| Some((one, one.superblock.as_ref().err()?)));
    match broken {
        Some((one, error)) if !options.force => Err(Error::UnsuitableMember {
            path: one.member.name().to_owned(),
            reason: error.to_string(),
        }),
        _ => Ok(()),
    }
}

/// Opens members, each once.
pub(crate) fn open_members(
    paths: &[PathBuf],
    access: Access,
    direct: bool,
) -> Result<Vec<Member>, Error> {
    if paths.is_empty() {
        return Err(Error::Options("no members are given".into()));
    }
    if access == Access::Exclusive {
        // Looked at before anything is locked: our own lock would be taken for somebody else's.
        refuse_twins(&open_each(paths, Access::ReadOnly, false)?)?;
    }
    let files = open_each(paths, access, direct)?;
    refuse_twins(&files)?;
    Ok(files.into_iter().map(Member::file).collect())
}

fn open_each(paths: &[PathBuf], access: Access, direct: bool) -> Result<Vec<MemberFile>, Error> {
    paths.iter().map(|path| MemberFile::open(path, access, direct)).collect()
}

/// Refuses a member that is there twice, under whichever paths.
fn refuse_twins(files: &[MemberFile]) -> Result<(), Error> {
    let mut seen = HashMap::new();
    for file in files {
        let path = file.path();
        if let Some(first) = seen.insert(file.identity(), path) {
            let reason = if first == path {
                "is given twice".into()
            } else {
                format!("is the same as {}", first.display())
            };
            return Err(Error::UnsuitableMember { path: path.to_owned(), reason });
        }
    }
    Ok(())
}

/// Reads a member's superblock, wherever it lies.
pub(crate) fn load(member: Member) -> Result<Loaded, Error> {
    let member_bytes = member.device().size_bytes();
    let superblock = find_superblock(member_bytes, |offset| member.read_range(offset, AREA_BYTES))?;
    Ok(Loaded { member, superblock })
}

/// Looks for the one superblock of a member among the places of all versions.
fn find_superblock(
    member_bytes: u64,
    read: impl Fn(u64) -> Result<Vec<u8>, Error>,
) -> Result<Result<Superblock, SuperblockError>, Error> {
    let mut areas = Vec::new();
    for minor in Minor::ALL {
        if let Some(offset) = minor.super_offset_bytes(member_bytes) {
            areas.push((minor, read(offset)?));
        }
    }
    if areas.is_empty() {
        let minor = Minor::V1_2;
        return Ok(Err(SuperblockError::MemberTooSmall { minor, member_bytes }));
    }
    let areas: Vec<_> = areas.iter().map(|(minor, bytes)| (*minor, bytes.as_slice())).collect();
    Ok(find(&areas, member_bytes, None))
}

/// Starts the array that these members make up.
pub(crate) fn start_loaded(loaded: &[Loaded], options: &OpenOptions) -> Result<Array, Error> {
    let names: Vec<String> =
        loaded.iter().map(|one| one.member.name().display().to_string()).collect();
    let candidates: Vec<Candidate<'_>> = loaded
        .iter()
        .zip(&names)
        .map(|(one, name)| Candidate {
            name,
            member_bytes: one.member.device().size_bytes(),
            superblock: one.superblock.as_ref(),
        })
        .collect();
    let arrays = split_by_array(&candidates);
    if arrays.len() <= 1 {
        let all: Vec<usize> = (0..loaded.len()).collect();
        let group = decide_group(loaded, &candidates, &all, options)?;
        if !options.read_only && !options.force {
            refuse_lone_group(&group, options)?;
        }
        return start(vec![group], None, options);
    }
    let mut groups = Vec::new();
    for array in &arrays {
        let group = decide_group(loaded, &candidates, &array.members, options);
        groups.push(group.map_err(|error| match error {
            Error::Assemble(reason) => Error::Assemble(format!(
                "the members are of {} arrays; array {}: {reason}",
                arrays.len(),
                array.array_uuid
            )),
            other => other,
        })?);
    }
    start_nested(groups, options)
}

/// Lets md's rules decide over the members of one array.
fn decide_group(
    loaded: &[Loaded],
    candidates: &[Candidate<'_>],
    indexes: &[usize],
    options: &OpenOptions,
) -> Result<Group, Error> {
    let own: Vec<Candidate<'_>> = indexes.iter().map(|index| candidates[*index]).collect();
    let assembly = decide(&own, options)?;
    let members: Vec<&Loaded> = indexes.iter().map(|index| &loaded[*index]).collect();
    group_of(&assembly, &members, options)
}

fn decide(candidates: &[Candidate<'_>], options: &OpenOptions) -> Result<Assembly, Error> {
    let access = if options.read_only { Wanted::ReadOnly } else { Wanted::ReadWrite };
    let assembly = assemble(
        candidates,
        AssembleOptions { access, force: options.force, abilities: ABILITIES },
    );
    let assembly = assembly.map_err(|error| {
        let hint = if error.can_force() && !options.force { "; --force starts it" } else { "" };
        Error::Assemble(format!("{error}{hint}"))
    })?;
    assembly.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    for rejected in &assembly.rejected {
        let name = candidates[rejected.member].name;
        tracing::warn!("{name} is left out: {}", rejected.reason);
    }
    Ok(assembly)
}

/// Turns the decision into what the engine must know.
fn group_of(
    assembly: &Assembly,
    members: &[&Loaded],
    options: &OpenOptions,
) -> Result<Group, Error> {
    let (level, layout) = level_of(assembly)?;
    if level == Level::Linear && !options.read_only {
        let reason = "linear arrays are read, to rescue what they hold; open it read-only";
        return Err(Error::Assemble(reason.into()));
    }
    let superblock = |index: usize| {
        let superblock = members[index].superblock.as_ref();
        superblock.cloned().map_err(|error| Error::Assemble(error.to_string()))
    };
    let slot_count = assembly.slots.len();
    let mut group = Group {
        config: GroupConfig {
            geometry: geometry_of(assembly, level, layout)?,
            data_offsets: vec![0; slot_count],
            in_sync: SlotSet::new(),
            trust: Trust::InSync,
            dirty: false,
            intent: None,
            recovering: Vec::new(),
            doubtful: false,
        },
        members: vec![None; slot_count],
        metadata: None,
    };
    let mut slots = vec![None; slot_count];
    let mut others = Vec::new();
    // Logs are taken back over members in sync alone; whoever is being filled waits.
    let keeps_log = matches!(assembly.consistency, Consistency::Journal | Consistency::Ppl);
    let mut recovering = Vec::new();
    for (slot, state) in assembly.slots.iter().enumerate() {
        let SlotState::Member(found) = state else { continue };
        let member = members[found.member].member.clone();
        group.config.data_offsets[slot] = found.data.start;
        let superblock = superblock(found.member)?;
        if found.recovered_bytes.is_some() && keeps_log {
            others.push((member, superblock));
        } else {
            match found.recovered_bytes {
                Some(position) => recovering.push((slot, position, superblock.features)),
                None => {
                    group.config.in_sync.insert(slot);
                }
            }
            let bad = BadRanges::load(&member, &superblock)?;
            slots[slot] = Some(superblock);
            group.members[slot] = Some(member.with_bad_ranges(bad));
        }
    }
    for &index in assembly.spares.iter().chain(&assembly.journal) {
        others.push((members[index].member.clone(), superblock(index)?));
    }
    // A missing slot's offset is never used, but must be one that its neighbours could have.
    let some_offset = group.config.in_sync.lowest().map_or(0, |s| group.config.data_offsets[s]);
    for slot in (0..slot_count).filter(|slot| group.members[*slot].is_none()) {
        group.config.data_offsets[slot] = some_offset;
    }
    let degraded = group.config.in_sync.len() < slot_count;
    let resynced_bytes = assembly.resynced_bytes.filter(|_| level.is_redundant());
    if resynced_bytes.is_some() && !(degraded && options.force) {
        group.config.trust = Trust::Unsynced;
    }
    group.config.doubtful = resynced_bytes.is_some() && degraded;
    group.config.dirty = resynced_bytes == Some(0);
    let was_clean = resynced_bytes != Some(0);
    let newest = superblock(assembly.newest)?;
    let (replacements, rejected): (Vec<_>, Vec<_>) = assembly.rejected.iter().partition(|one| {
        let is_replacement = matches!(one.reason, RejectReason::Replacement { .. });
        is_replacement && !options.read_only && level.is_redundant()
    });
    let mut unfinished = Vec::new();
    for rejected in replacements {
        if let RejectReason::Replacement { slot } = rejected.reason {
            let member = members[rejected.member].member.clone();
            unfinished.push((usize::from(slot), member, superblock(rejected.member)?));
        }
    }
    let left_out = rejected.iter().map(|rejected| {
        let Loaded { member, superblock } = members[rejected.member];
        LeftOut {
            member: member.clone(),
            number: superblock.as_ref().ok().map(|superblock| superblock.dev_number),
            is_faulty: matches!(rejected.reason, RejectReason::Faulty { .. }),
            reason: rejected.reason.to_string(),
        }
    });
    let left_out = left_out.collect();
    let mut metadata = GroupMetadata {
        slots,
        replacements: vec![None; slot_count],
        unfinished,
        others,
        resynced_bytes,
        was_clean,
        newest,
        left_out,
        newcomers: Vec::new(),
        given_up: Vec::new(),
        paused: None,
        bitmap: None,
    };
    match assembly.consistency {
        Consistency::Journal => settle_journal(&mut group, &mut metadata, options.read_only)?,
        Consistency::Ppl if !options.read_only => {
            settle_ppl(&mut group, &mut metadata, options.force)?;
        }
        Consistency::Ppl | Consistency::Bitmap | Consistency::Resync => {}
    }
    if assembly.bitmap.is_some() && level.is_redundant() {
        load_bitmap(&mut group, &mut metadata, assembly.events, options)?;
    }
    for (slot, position, features) in recovering.into_iter().filter(|_| level.is_redundant()) {
        let geometry = &group.config.geometry;
        let unit = raid_core::volume::lock_unit_bytes(geometry);
        group.config.recovering.push(RecoveringConfig {
            slot,
            recovered: recovered_group_bytes(geometry, position, unit),
            by_bitmap: features.has(Features::RECOVERY_BITMAP) && group.config.intent.is_some(),
        });
    }
    group.metadata = Some(metadata);
    Ok(group)
}

/// Reads the bitmap: which regions are not in sync after an unclean stop, and what is kept on.
fn load_bitmap(
    group: &mut Group,
    metadata: &mut GroupMetadata,
    events: u64,
    options: &OpenOptions,
) -> Result<(), Error> {
    let in_sync = group.config.in_sync;
    let in_slots = group.members.iter().zip(&metadata.slots).enumerate();
    let found = bitmap::Found {
        geometry: &group.config.geometry,
        members: in_slots
            .filter(|(slot, _)| in_sync.contains(*slot))
            .filter_map(|(_, (m, superblock))| m.as_ref().zip(superblock.as_ref()))
            .collect(),
        events,
        is_whole: group.config.in_sync.len() == group.members.len(),
        resynced_bytes: metadata.resynced_bytes,
    };
    match Bitmap::load(&found) {
        Ok((bitmap, intent)) => {
            metadata.bitmap = Some(bitmap);
            group.config.intent = Some(intent);
        }
        // Then everything is out of sync, which is all that a reader has to know.
        Err(error) if options.read_only => tracing::warn!("bitmap not used: {error}"),
        Err(error) => return Err(error),
    }
    Ok(())
}

fn level_of(assembly: &Assembly) -> Result<(Level, Layout), Error> {
    let wrong = |error: raid_core::layout::LayoutError| Error::Assemble(error.to_string());
    let level = Level::from_md(assembly.level).map_err(wrong)?;
    Ok((level, Layout::from_md(level, assembly.layout).map_err(wrong)?))
}

fn geometry_of(
    assembly: &Assembly,
    level: Level,
    layout: Layout,
) -> Result<raid_core::geometry::Geometry, Error> {
    let sizes: Vec<u64> = assembly
        .slots
        .iter()
        .map(|slot| match slot {
            // These use the whole data area of each member.
            SlotState::Member(member) if assembly.component_bytes == 0 => {
                member.data.end - member.data.start
            }
            _ => assembly.component_bytes,
        })
        .collect();
    geometry(level, layout, assembly.chunk_bytes, &sizes)
        .map_err(|error| Error::Assemble(error.to_string()))
}

/// Starts a striped set over groups: its superblock lies inside them.
fn start_nested(groups: Vec<Group>, options: &OpenOptions) -> Result<Array, Error> {
    let mut loaded = Vec::new();
    for group in &groups {
        loaded.push(outer_superblock(group, options)?);
    }
    let candidates: Vec<Candidate<'_>> = loaded
        .iter()
        .map(|(name, size, superblock)| Candidate {
            name,
            member_bytes: *size,
            superblock: superblock.as_ref(),
        })
        .collect();
    // The outer set has no state of its own that could be forced.
    let assembly =
        decide(&candidates, &OpenOptions { force: false, ..options.clone() }).map_err(|error| {
            Error::Assemble(format!(
                "the members are of {} arrays; as groups of a nested one: {error}",
                groups.len()
            ))
        })?;
    let (level, layout) = level_of(&assembly)?;
    if level != Level::Raid0 {
        return Err(Error::Assemble(format!("{level} over arrays is not supported")));
    }
    let geometry = geometry_of(&assembly, level, layout)?;
    let mut ordered: Vec<Option<Group>> = groups.into_iter().map(Some).collect();
    let mut groups = Vec::new();
    let mut data_offsets = Vec::new();
    for state in &assembly.slots {
        let SlotState::Member(found) = state else {
            return Err(Error::Assemble("a group of the nested array is missing".into()));
        };
        groups.extend(ordered.get_mut(found.member).and_then(Option::take));
        data_offsets.push(found.data.start);
    }
    let superblock = loaded.swap_remove(assembly.newest).2.ok();
    start(
        groups,
        Some(Outer { config: OuterConfig { geometry, data_offsets }, superblock }),
        options,
    )
}

/// Refuses to write to one group of a RAID 50 or 60 alone: the striped set over the groups would be
/// damaged without a trace in its own metadata.
fn refuse_lone_group(group: &Group, options: &OpenOptions) -> Result<(), Error> {
    let (_, _, found) = outer_superblock(group, options)?;
    let Ok(outer) = found else { return Ok(()) };
    if outer.level != Level::Raid0.to_md() || outer.slot_count < 2 {
        return Ok(());
    }
    Err(Error::Assemble(format!(
        "these members are one of the {} groups of the nested array {}; name the members of all \
         groups (--force starts the one group alone)",
        outer.slot_count, outer.array_uuid
    )))
}

/// Reads the outer superblock through one group: its name, its size, what was found.
fn outer_superblock(
    group: &Group,
    options: &OpenOptions,
) -> Result<(String, u64, Result<Superblock, SuperblockError>), Error> {
    let name = group.metadata.as_ref().map(|metadata| metadata.newest.array_uuid.to_string());
    let name = format!("group {}", name.unwrap_or_default());
    let look = OpenOptions { read_only: true, ..options.clone() };
    let array = start(vec![group.copy()], None, &look)?;
    let member_bytes = array.limits().size_bytes;
    let found = find_superblock(member_bytes, |offset| {
        let mut bytes = vec![0; AREA_BYTES];
        array.read_at(&mut bytes, offset)?;
        Ok(bytes)
    })?;
    array.stop()?;
    Ok((name, member_bytes, found))
}

impl Group {
    /// Returns the same group over the same open members.
    pub(crate) fn copy(&self) -> Self {
        Self {
            config: self.config.clone(),
            members: self.members.clone(),
            metadata: self.metadata.clone(),
        }
    }
}
