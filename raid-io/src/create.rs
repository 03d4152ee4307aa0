//! Making an array: everything is checked before the first byte is written.
//!
//! ```text
//! look at paths -> open what exists -> signatures -> sizes -> make files -> superblocks -> start
//!                  '--------------- nothing is written ------------'
//! ```

use std::path::{Path, PathBuf};

use raid_core::layout::{Layout, Level};
use raid_core::md::bitmap::{BitmapImage, BitmapWishes};
use raid_core::md::create::{
    CreateOptions as Wishes, CreatePlan, Initial, NewMember, NewPlace, plan,
};
use raid_core::md::signature::{Kind, probe, ranges};
use raid_core::md::superblock::Minor;
use raid_core::md::{MdTime, MdUuid, Superblock};

use crate::file::{Access, MemberFile};
use crate::member::Member;
use crate::metadata::{now, random_uuid, write_superblock};
use crate::open::{Loaded, open_members, start_loaded};
use crate::volatile::{geometry, group_count, layout_of, outer_chunk_bytes};
use crate::{Array, BitmapChoice, CreateOptions, Error, MetadataVersion, OpenOptions};

/// Used bytes of each member above which mdadm gives an array a bitmap unasked.
const BITMAP_FROM_BYTES: u64 = 100 << 30;

/// A member of an array, to be.
pub(crate) struct Candidate {
    path: PathBuf,
    /// Open, unless it is to be made.
    member: Option<Member>,
    size: u64,
    /// All of it reads as zeroes.
    is_zero: bool,
    /// Superblocks that would contradict the new one.
    pub(crate) stale: Vec<u64>,
}

pub(crate) fn create(options: &CreateOptions, paths: &[PathBuf]) -> Result<Array, Error> {
    if options.metadata == MetadataVersion::V0_90 && !options.name.is_empty() {
        return Err(Error::Options("superblocks of version 0.90 have no name".into()));
    }
    if options.level == Level::Linear {
        return Err(Error::Options("linear arrays are read and not made".into()));
    }
    let count = group_count(options.groups, paths.len())?;
    let layout = layout_of(options.level, options.layout.as_deref())?;
    let mut candidates = look(options, paths)?;
    let slots = paths.len();
    let plans = plan_groups(options, layout, &candidates, slots, count)?;
    let outer = if count > 1 { Some(plan_outer(options, layout, &plans)?) } else { None };
    let before = remember(&candidates, slots, &plans)?;
    let made = make_files(&mut candidates, options.open.direct)?;
    let result = write_and_start(options, &candidates, slots, &plans, outer.as_ref());
    if result.is_err() {
        // As far as that is still possible, members that were there look as before.
        for (member, offset, bytes) in before {
            let _ = member.write_range(offset, &bytes);
        }
        // They were made above and hold nothing but what was written above.
        for path in made {
            let _ = std::fs::remove_file(path);
        }
    }
    result
}

/// Keeps what metadata will be written over, for an array that cannot be made after all: no room is
/// found out only by writing.
fn remember(
    candidates: &[Candidate],
    slots: usize,
    plans: &[CreatePlan],
) -> Result<Vec<(Member, u64, Vec<u8>)>, Error> {
    let mut before = Vec::new();
    for (group, plan) in plans.iter().enumerate() {
        let places = places(group, plans.len(), slots, candidates.len());
        for (&(index, _), superblock) in places.iter().zip(&plan.superblocks) {
            let candidate = &candidates[index];
            let Some(member) = &candidate.member else { continue };
            let mut ranges = vec![(superblock.super_offset_bytes(), 4096)];
            ranges.extend(candidate.stale.iter().map(|offset| (*offset, 4096)));
            ranges.extend(
                bitmap_of(plan, superblock, candidate.size)
                    .map(|(offset, image)| (offset, image.bytes().len() as u64)),
            );
            for (offset, len) in ranges {
                let len = candidate.size.saturating_sub(offset).min(len);
                before.push((member.clone(), offset, member.read_range(offset, len as usize)?));
            }
        }
    }
    // What was written over twice must get its first content back last.
    before.reverse();
    Ok(before)
}

/// Returns the bitmap of a new member, and where it starts.
fn bitmap_of(plan: &CreatePlan, superblock: &Superblock, size: u64) -> Option<(u64, BitmapImage)> {
    let mut image = plan.bitmap.clone()?;
    let active = plan.superblocks.iter().filter(|superblock| is_active(superblock)).count();
    image.set_events(superblock.events, active == superblock.slot_count as usize);
    Some((superblock.bitmap_room(size)?.start, image))
}

/// Opens and examines every member that exists.
fn look(options: &CreateOptions, paths: &[PathBuf]) -> Result<Vec<Candidate>, Error> {
    let all: Vec<PathBuf> = paths.iter().chain(&options.spares).cloned().collect();
    let (mut existing, mut missing) = (Vec::new(), Vec::new());
    for path in &all {
        match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                missing.push(path.clone())
            }
            _ => existing.push(path.clone()),
        }
    }
    for (index, path) in missing.iter().enumerate() {
        if missing[..index].contains(path) {
            return Err(unsuited(path, "is given twice"));
        }
        if options.member_bytes.is_none() {
            return Err(unsuited(path, "does not exist, and no size is given to make it with"));
        }
    }
    let mut opened = if existing.is_empty() {
        Vec::new()
    } else {
        open_members(&existing, Access::Exclusive, options.open.direct)?
    };
    let mut candidates = Vec::new();
    for path in all {
        let place = opened.iter().position(|member| member.name() == path);
        candidates.push(match place {
            Some(place) => examine(path, opened.swap_remove(place), options.force)?,
            None => Candidate {
                path,
                member: None,
                size: options.member_bytes.unwrap_or(0),
                is_zero: true,
                stale: Vec::new(),
            },
        });
    }
    Ok(candidates)
}

/// Looks for somebody's data on a member.
pub(crate) fn examine(path: PathBuf, member: Member, force: bool) -> Result<Candidate, Error> {
    let size = member.device().size_bytes();
    let is_zero = member.device().extent(0) == (true, size);
    let mut stale = Vec::new();
    if !is_zero {
        let (head, tail) = ranges(size);
        let read = |range: std::ops::Range<u64>| {
            member.read_range(range.start, (range.end - range.start) as usize)
        };
        let findings = probe(size, &read(head)?, &read(tail)?);
        if let Some(finding) = findings.first().filter(|_| !force) {
            let reason = format!("holds {finding}; --force overwrites it");
            return Err(unsuited(&path, &reason));
        }
        stale = findings.iter().filter(|f| f.kind == Kind::Md).map(|f| f.offset).collect();
    }
    Ok(Candidate { path, member: Some(member), size, is_zero, stale })
}

/// Plans each group. The candidates are the slots of all groups, then the spares.
fn plan_groups(
    options: &CreateOptions,
    layout: Layout,
    candidates: &[Candidate],
    slots: usize,
    count: usize,
) -> Result<Vec<CreatePlan>, Error> {
    let time = MdTime::new(now().unix_seconds(), 0);
    let zero = candidates[..slots].iter().all(|candidate| candidate.is_zero);
    let is_trusted = zero || options.assume_clean || !options.level.is_redundant();
    let mut plans = Vec::new();
    for group in 0..count {
        let new_member = |(index, place): (usize, NewPlace)| NewMember {
            member_bytes: candidates[index].size,
            device_uuid: random_uuid(),
            place,
            device_flags: 0,
        };
        let members: Vec<NewMember> =
            places(group, count, slots, candidates.len()).into_iter().map(new_member).collect();
        let name = match (count, options.name.as_str()) {
            _ if options.metadata == MetadataVersion::V0_90 => String::new(),
            (1, name) => name.to_owned(),
            (_, "") => format!("{group}"),
            (_, name) => format!("{name}-{group}"),
        };
        let chunk = if options.level == Level::Raid1 { 0 } else { u64::from(options.chunk_bytes) };
        let uuid = if count == 1 { options.uuid } else { None };
        let mut wishes = Wishes {
            minor: minor(options.metadata),
            level: options.level.to_md(),
            layout: layout.to_md(),
            chunk_bytes: chunk,
            slot_count: slots / count,
            name: &name,
            host: None,
            array_uuid: uuid.map_or_else(random_uuid, MdUuid::from),
            time,
            size_bytes: options.size_bytes,
            data_offset_bytes: None,
            initial: if is_trusted { Initial::AssumeClean } else { Initial::Resync },
            bitmap: None,
        };
        let planned = |wishes: &Wishes<'_>| {
            plan(wishes, &members).map_err(|error| Error::Options(error.to_string()))
        };
        let mut plan = planned(&wishes)?;
        if wants_bitmap(options, plan.component_bytes) {
            let chunk_bytes = options.bitmap_chunk_bytes;
            wishes.bitmap = Some(BitmapWishes { chunk_bytes, ..BitmapWishes::default() });
            plan = planned(&wishes)?;
        }
        plans.push(plan);
    }
    Ok(plans)
}

fn minor(version: MetadataVersion) -> Minor {
    match version {
        MetadataVersion::V0_90 => Minor::V0_90,
        MetadataVersion::V1_0 => Minor::V1_0,
        MetadataVersion::V1_1 => Minor::V1_1,
        MetadataVersion::V1_2 => Minor::V1_2,
    }
}

fn wants_bitmap(options: &CreateOptions, component_bytes: u64) -> bool {
    match options.bitmap {
        BitmapChoice::None => false,
        BitmapChoice::Internal => true,
        BitmapChoice::Automatic => {
            options.level.is_redundant() && component_bytes > BITMAP_FROM_BYTES
        }
    }
}

/// Returns the candidates of a group, and what each is for. Spares go round the groups.
fn places(group: usize, count: usize, slots: usize, all: usize) -> Vec<(usize, NewPlace)> {
    let width = slots / count;
    let in_slots = (0..width).map(|slot| (group * width + slot, NewPlace::Slot(slot as u16)));
    let spares = (slots..all).filter(|index| (index - slots) % count == group);
    in_slots.chain(spares.map(|index| (index, NewPlace::Spare))).collect()
}

/// Plans the striped set over the groups.
fn plan_outer(
    options: &CreateOptions,
    layout: Layout,
    plans: &[CreatePlan],
) -> Result<CreatePlan, Error> {
    let mut members = Vec::new();
    let mut chunk_bytes = 0;
    for (slot, plan) in plans.iter().enumerate() {
        let width = plan.superblocks.iter().filter(|s| is_active(s)).count();
        let sizes = vec![plan.component_bytes; width];
        let inner = geometry(options.level, layout, u64::from(options.chunk_bytes), &sizes)?;
        chunk_bytes = outer_chunk_bytes(&inner);
        members.push(NewMember {
            member_bytes: inner.array_bytes(),
            device_uuid: random_uuid(),
            place: NewPlace::Slot(slot as u16),
            device_flags: 0,
        });
    }
    // Version 0.90 has no words for a RAID 0. Nor may the outer superblock lie in front: as the
    // data of the inner arrays begins with their members, it would be found as that of a member,
    // and mdadm believes the newer one.
    let outer_minor = match options.metadata {
        MetadataVersion::V0_90 => Minor::V1_0,
        version => minor(version),
    };
    let wishes = Wishes {
        minor: outer_minor,
        level: Level::Raid0.to_md(),
        layout: Layout::default_for(Level::Raid0).to_md(),
        chunk_bytes,
        slot_count: plans.len(),
        name: &options.name,
        host: None,
        array_uuid: options.uuid.map_or_else(random_uuid, MdUuid::from),
        time: MdTime::new(now().unix_seconds(), 0),
        size_bytes: None,
        data_offset_bytes: None,
        initial: Initial::AssumeClean,
        bitmap: None,
    };
    plan(&wishes, &members).map_err(|error| Error::Options(error.to_string()))
}

fn is_active(superblock: &Superblock) -> bool {
    matches!(superblock.role(), raid_core::md::superblock::Role::Active(_))
}

/// Makes the files that do not exist. Returns their paths; on an error none of them is left.
fn make_files(candidates: &mut [Candidate], direct: bool) -> Result<Vec<PathBuf>, Error> {
    let mut made: Vec<PathBuf> = Vec::new();
    for candidate in candidates.iter_mut().filter(|candidate| candidate.member.is_none()) {
        match MemberFile::create(&candidate.path, candidate.size, direct) {
            Ok(file) => {
                candidate.member = Some(Member::file(file));
                made.push(candidate.path.clone());
            }
            Err(error) => {
                for path in made {
                    let _ = std::fs::remove_file(path);
                }
                return Err(error);
            }
        }
    }
    Ok(made)
}

/// Writes the superblocks, from the inside out, and starts the array.
fn write_and_start(
    options: &CreateOptions,
    candidates: &[Candidate],
    slots: usize,
    plans: &[CreatePlan],
    outer: Option<&CreatePlan>,
) -> Result<Array, Error> {
    let mut loaded = Vec::new();
    for (group, plan) in plans.iter().enumerate() {
        let places = places(group, plans.len(), slots, candidates.len());
        for (&(index, _), superblock) in places.iter().zip(&plan.superblocks) {
            let candidate = &candidates[index];
            let Some(member) = &candidate.member else { continue };
            wipe(member, &candidate.stale)?;
            if let Some((offset, image)) = bitmap_of(plan, superblock, candidate.size) {
                member.write_range(offset, image.bytes())?;
            }
            write_superblock(member, superblock)?;
            loaded.push(Loaded { member: member.clone(), superblock: Ok(superblock.clone()) });
        }
    }
    let Some(outer) = outer else { return start_loaded(&loaded, &options.open) };
    let mut rest = loaded;
    let mut reloaded = Vec::new();
    for (plan, superblock) in plans.iter().zip(&outer.superblocks) {
        let after = rest.split_off(plan.superblocks.len());
        let inner = OpenOptions { read_only: false, ..options.open.clone() };
        let array = start_loaded(&rest, &inner)?;
        array.write_at(superblock.encode().as_slice(), superblock.super_offset_bytes())?;
        array.stop()?;
        for one in rest {
            reloaded.push(crate::open::load(one.member)?);
        }
        rest = after;
    }
    start_loaded(&reloaded, &options.open)
}

/// Overwrites superblocks of an array that the member belonged to.
pub(crate) fn wipe(member: &Member, offsets: &[u64]) -> Result<(), Error> {
    let size = member.device().size_bytes();
    for &offset in offsets {
        let len = size.saturating_sub(offset).min(4096);
        member.write_range(offset, &vec![0; len as usize])?;
    }
    Ok(())
}

fn unsuited(path: &Path, reason: &str) -> Error {
    Error::UnsuitableMember { path: path.to_owned(), reason: reason.into() }
}
