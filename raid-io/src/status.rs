//! An array's state, as values that can be shown and serialised.

use raid_core::counters::Counters;
use raid_core::geometry::Geometry;
use raid_core::layout::Layout;
use raid_core::md::Superblock;
use raid_core::md::superblock::{Features, Role};
use raid_core::volume::Volume;
use serde::{Deserialize, Serialize};

use crate::file::MemberFile;
use crate::member::Member;
use crate::metadata::{GroupMetadata, Metadata};
use crate::shared::Shared;
use crate::start::is_absent;
use crate::walk::Goal;

/// A running array at one moment: what `status --json` prints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The array's name, from its superblock.
    pub name: String,
    /// The array's identity in md's notation, four groups of eight digits.
    pub uuid: String,
    /// "raid5", "raid10", "raid50", ...
    pub level: String,
    /// The layout by mdadm's name, empty for levels that have none.
    pub layout: String,
    /// The chunk size, zero for levels that have none.
    pub chunk_bytes: u64,
    /// The array's size.
    pub size_bytes: u64,
    /// Refuses writes.
    pub read_only: bool,
    /// md's array state: "clean", "active", "readonly" or "failed".
    pub state: String,
    /// No write was outstanding when the array was stopped the last time; a resync may have been.
    pub was_clean: bool,
    /// What member I/O goes through: "io_uring" or "blocking".
    pub backend: String,
    /// Slots that are not in sync, in all groups.
    pub degraded: u32,
    /// The groups; one, unless the level is nested.
    pub groups: Vec<GroupStatus>,
    /// Counters since the array was opened.
    pub statistics: Statistics,
}

/// One md array: the whole, or one group of a nested array.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Its identity in md's notation.
    pub uuid: String,
    /// Its level.
    pub level: String,
    /// Its layout by mdadm's name, empty for levels that have none.
    pub layout: String,
    /// Its chunk size, zero for levels that have none.
    pub chunk_bytes: u64,
    /// Its size as an array of its own.
    pub size_bytes: u64,
    /// Slots of a fully functional array.
    pub slot_count: u32,
    /// Slots that are not in sync.
    pub degraded: u32,
    /// Slots that may be lost before data is, whichever they are.
    pub degraded_max: u32,
    /// So many slots are lost that data is.
    #[serde(default)]
    pub failed: bool,
    /// A write failed on a member that the group cannot do without. It keeps its slot; requests
    /// that need it may fail, and the group stays marked as not clean.
    #[serde(default)]
    pub write_failed: bool,
    /// Parity and copies are known to match the data.
    pub in_sync: bool,
    /// What goes on in the background: "idle", "resync", "recover", "check" or "repair".
    pub sync_action: String,
    /// Bytes of each member that the action has passed.
    pub sync_done_bytes: u64,
    /// Bytes of each member that the action goes over.
    pub sync_total_bytes: u64,
    /// Bytes of each member that the action goes over in a second, on average since it began.
    #[serde(default)]
    pub sync_bytes_per_second: u64,
    /// Sectors where the last check found that redundancy and data do not agree, as md counts.
    #[serde(default)]
    pub mismatch_sectors: u64,
    /// Its write-intent bitmap, if it keeps one.
    #[serde(default)]
    pub bitmap: Option<BitmapStatus>,
    /// Its members, by slot, then the ones without.
    pub members: Vec<MemberStatus>,
}

/// The write-intent bitmap of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BitmapStatus {
    /// Bytes that one bit stands for.
    pub chunk_bytes: u64,
    /// Bits in all.
    pub regions: u64,
    /// Bits that are set: regions that may be out of sync after a crash.
    pub dirty: u64,
    /// Regions that are out of sync now, and wait for a resync.
    pub unsynced: u64,
}

/// One member, or a slot without one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its path, empty for a missing member.
    pub path: String,
    /// md's `dev_number`, its permanent identity.
    pub number: Option<u32>,
    /// The slot it fills.
    pub slot: Option<u32>,
    /// "in_sync", "recovering" (into its slot), "replacement" (beside the member that is in sync in
    /// its slot, listed after it), "faulty", "spare", "journal", "missing", or "stale"
    /// for a member that was given and is left out.
    pub state: String,
    /// Why it is left out.
    #[serde(default)]
    pub reason: String,
    /// Major and minor number of a block device.
    pub device: Option<(u32, u32)>,
    /// Read errors that were answered by regeneration.
    pub read_errors: u64,
    /// Reads sent to it since the array was opened.
    pub reads: u64,
    /// Writes sent to it since the array was opened.
    pub writes: u64,
}

/// Counters of the engine's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// Read requests completed.
    pub reads: u64,
    /// Write requests completed.
    pub writes: u64,
    /// Flush requests completed.
    pub flushes: u64,
    /// Bytes of the completed reads.
    pub read_bytes: u64,
    /// Bytes of the completed writes.
    pub written_bytes: u64,
    /// Stripes written without a read.
    pub full_stripe_writes: u64,
    /// Stripes written by read-modify-write.
    pub rmw: u64,
    /// Stripes written by reconstruct-write.
    pub rcw: u64,
    /// Reads that had to regenerate lost data.
    pub degraded_reads: u64,
    /// Reads sent to members.
    pub member_reads: u64,
    /// Writes sent to members.
    pub member_writes: u64,
    /// Member operations that were saved by joining neighbours.
    pub merged: u64,
    /// Writes of write-intent bitmap blocks to members.
    #[serde(default)]
    pub bitmap_writes: u64,
    /// Array bytes that resyncs have gone over.
    #[serde(default)]
    pub resynced_bytes: u64,
    /// Places that were written anew and read back, because they could not be read or were wrong.
    #[serde(default)]
    pub rewritten: u64,
    /// Checks that have ended.
    #[serde(default)]
    pub scrubs: u64,
}

/// Everything `mdadm --detail` shows of an array.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Detail {
    /// The state.
    pub status: Status,
    /// The metadata version: "1.2".
    pub version: String,
    /// Creation time, in seconds of the Unix clock.
    pub creation_time: u64,
    /// The last superblock update, in seconds of the Unix clock.
    pub update_time: u64,
    /// The bytes used of each member.
    pub component_bytes: u64,
    /// The event count.
    pub events: u64,
    /// "resync", "bitmap", "journal", "ppl" or "none".
    pub consistency_policy: String,
}

/// Returns the state of an array.
pub(crate) fn status(shared: &Shared) -> Status {
    let volume = &shared.volume;
    let counters = volume.counters();
    let members = shared.members();
    let groups: Vec<GroupStatus> = (0..volume.group_count())
        .map(|group| group_status(shared, group, &counters, &members))
        .collect();
    let face = shared.metadata.as_ref().map(Metadata::face);
    let outer = volume.outer_geometry();
    let geometry = outer.unwrap_or_else(|| volume.geometry(0));
    let (level, layout) = match outer {
        None => (groups[0].level.clone(), groups[0].layout.clone()),
        Some(_) => (format!("{}0", groups[0].level), groups[0].layout.clone()),
    };
    let state = if (0..groups.len()).any(|group| volume.is_stopped(group)) {
        "failed"
    } else if shared.limits.read_only {
        "readonly"
    } else if (0..groups.len()).any(|group| volume.is_dirty(group)) {
        "active"
    } else {
        "clean"
    };
    let was_clean = shared
        .metadata
        .as_ref()
        .is_none_or(|metadata| (0..groups.len()).all(|group| metadata.group(group).was_clean));
    Status {
        name: face.as_ref().map(Superblock::name).unwrap_or_default(),
        uuid: face.as_ref().map(|face| face.array_uuid.to_string()).unwrap_or_default(),
        level,
        layout,
        chunk_bytes: geometry.chunk_bytes(),
        size_bytes: volume.array_bytes(),
        read_only: shared.limits.read_only,
        state: state.into(),
        was_clean,
        backend: if shared.uring { "io_uring" } else { "blocking" }.into(),
        degraded: groups.iter().map(|group| group.degraded).sum(),
        groups,
        statistics: statistics(shared, &counters),
    }
}

fn statistics(shared: &Shared, counters: &Counters) -> Statistics {
    let requests = shared.requests();
    Statistics {
        reads: requests.reads,
        writes: requests.writes,
        flushes: requests.flushes,
        read_bytes: requests.read_bytes,
        written_bytes: requests.written_bytes,
        full_stripe_writes: counters.full_stripe_writes,
        rmw: counters.rmw,
        rcw: counters.rcw,
        degraded_reads: counters.regenerated_reads,
        member_reads: counters.member_reads,
        member_writes: counters.member_writes,
        merged: counters.merged,
        bitmap_writes: shared.metadata.as_ref().map_or(0, Metadata::bitmap_writes),
        resynced_bytes: shared.resynced_total(),
        rewritten: counters.members.iter().map(|member| member.rewritten).sum(),
        scrubs: shared.scrubs(),
    }
}

fn group_status(
    shared: &Shared,
    group: usize,
    counters: &Counters,
    members: &[Member],
) -> GroupStatus {
    let volume = &shared.volume;
    let geometry = volume.geometry(group);
    let metadata = shared.metadata.as_ref().map(|metadata| metadata.group(group));
    let in_sync = volume.in_sync(group);
    let recovering = volume.recovering(group);
    // A member that failed keeps its place in the list until another one takes it.
    let number_of = |index: usize| {
        let name = members.get(index).map(Member::name);
        let mut left = metadata.iter().flat_map(|metadata| &metadata.left_out);
        left.find(|one| Some(one.member.name()) == name).and_then(|one| one.number)
    };
    let mut listed = Vec::new();
    for slot in 0..geometry.slot_count() {
        let index = volume.member_index(group, slot);
        let member = members.get(index).filter(|member| !is_absent(member));
        let state = match member {
            None => "missing",
            Some(_) if in_sync.contains(slot) => "in_sync",
            // In this slot, but not filled yet.
            Some(_) if recovering.contains(slot) => "recovering",
            Some(_) => "faulty",
        };
        let own = counters.members.get(index).copied().unwrap_or_default();
        let superblock = metadata.as_ref().and_then(|metadata| metadata.slots[slot].as_ref());
        listed.push(MemberStatus {
            path: member
                .filter(|_| state != "missing")
                .map(|m| m.name().display().to_string())
                .unwrap_or_default(),
            number: superblock.map(|superblock| superblock.dev_number).or_else(|| number_of(index)),
            slot: u32::try_from(slot).ok(),
            state: state.into(),
            device: member.and_then(Member::as_file).and_then(MemberFile::device_numbers),
            read_errors: own.read_errors,
            reads: own.reads,
            writes: own.writes,
            reason: String::new(),
        });
        let replacement = volume.replacement_index(group, slot);
        let replacement = replacement.and_then(|index| Some((index, members.get(index)?)));
        if let Some((index, member)) = replacement {
            let own = counters.members.get(index).copied().unwrap_or_default();
            let state = metadata.as_ref().and_then(|metadata| metadata.replacements[slot].as_ref());
            listed.push(MemberStatus {
                path: member.name().display().to_string(),
                number: state.map(|state| state.superblock.dev_number),
                slot: u32::try_from(slot).ok(),
                state: "replacement".into(),
                device: member.as_file().and_then(MemberFile::device_numbers),
                read_errors: own.read_errors,
                reads: own.reads,
                writes: own.writes,
                reason: String::new(),
            });
        }
    }
    if let Some(metadata) = &metadata {
        list_others(&mut listed, metadata);
        list_unrecorded(&mut listed, metadata, volume, group, members);
    }
    let layout = geometry.layout();
    let degraded = geometry.slot_count() - in_sync.len();
    let activity = shared.activity(group);
    let action = match activity {
        Some(activity) => activity.goal.name(),
        None => about_to(shared, group),
    };
    let position = match activity {
        Some(activity) if activity.goal != Goal::Resync => activity.position,
        None if action == Goal::Recover.name() => 0,
        _ => synced_below(volume, group),
    };
    let passed = activity.map_or(0, |activity| {
        let millis = activity.began.elapsed().as_millis().max(1);
        (u128::from(component_position(geometry, activity.passed)) * 1000 / millis) as u64
    });
    GroupStatus {
        uuid: metadata.map(|metadata| metadata.newest.array_uuid.to_string()).unwrap_or_default(),
        level: geometry.level().to_string(),
        layout: if layout == Layout::None { String::new() } else { layout.to_string() },
        chunk_bytes: geometry.chunk_bytes(),
        size_bytes: geometry.array_bytes(),
        slot_count: geometry.slot_count() as u32,
        degraded: degraded as u32,
        degraded_max: geometry.max_degraded() as u32,
        failed: !geometry.tolerates(&geometry.slots().difference(in_sync)),
        write_failed: volume.is_suspect(group) || volume.is_stopped(group),
        in_sync: volume.is_trusted(group),
        sync_action: action.into(),
        sync_done_bytes: component_position(geometry, position),
        sync_total_bytes: geometry.component_bytes(),
        sync_bytes_per_second: passed,
        mismatch_sectors: volume.mismatch_sectors(group),
        bitmap: bitmap_status(shared, group),
        members: listed,
    }
}

/// Lists the members that are in no slot, or are being recovered into one.
fn list_others(listed: &mut Vec<MemberStatus>, metadata: &GroupMetadata) {
    let status = |member: &Member, number| MemberStatus {
        path: member.name().display().to_string(),
        number,
        device: member.as_file().and_then(MemberFile::device_numbers),
        ..MemberStatus::default()
    };
    for (member, superblock) in &metadata.others {
        let mut one = status(member, Some(superblock.dev_number));
        one.state = if superblock.role() == Role::Journal { "journal" } else { "spare" }.into();
        let slot = match superblock.role() {
            Role::Active(slot) => listed
                .iter_mut()
                .find(|one| one.slot == Some(slot.into()) && one.state == "missing"),
            _ => None,
        };
        match slot {
            Some(place) => *place = MemberStatus { slot: place.slot, ..one },
            None => listed.push(one),
        }
    }
    for left_out in &metadata.left_out {
        let path = left_out.member.name().display().to_string();
        if listed.iter().any(|one| one.slot.is_some() && one.path == path) {
            continue;
        }
        let mut one = status(&left_out.member, left_out.number);
        one.state = if left_out.is_faulty { "faulty" } else { "stale" }.into();
        one.reason.clone_from(&left_out.reason);
        listed.push(one);
    }
}

/// Lists members that have just been replaced, or failed to replace another one, and that the
/// superblocks do not call faulty yet.
fn list_unrecorded(
    listed: &mut Vec<MemberStatus>,
    metadata: &GroupMetadata,
    volume: &Volume,
    group: usize,
    members: &[Member],
) {
    for (slot, one) in metadata.replacements.iter().enumerate() {
        let Some(one) = one else { continue };
        if volume.replacement_index(group, slot) == Some(one.index) {
            continue;
        }
        let took_over = volume.member_index(group, slot) == one.index;
        let (index, superblock) = match &metadata.slots[slot] {
            Some(old) if took_over => (one.replaces, old),
            _ => (one.index, &one.superblock),
        };
        if took_over && let Some(place) = listed.iter_mut().find(|m| m.slot == Some(slot as u32)) {
            place.number = Some(one.superblock.dev_number);
        }
        listed.extend(members.get(index).map(|member| MemberStatus {
            path: member.name().display().to_string(),
            number: Some(superblock.dev_number),
            state: "faulty".into(),
            device: member.as_file().and_then(MemberFile::device_numbers),
            ..MemberStatus::default()
        }));
    }
}

/// Returns what is going to be done in a group in which nothing goes on yet.
fn about_to(shared: &Shared, group: usize) -> &'static str {
    let volume = &shared.volume;
    if !shared.bell.is_heard() {
        "idle"
    } else if !volume.is_trusted(group) {
        Goal::Resync.name()
    } else if !volume.recovering(group).is_empty()
        || !volume.replacing(group).is_empty()
        || shared.has_spare_for(group)
    {
        Goal::Recover.name()
    } else {
        "idle"
    }
}

/// Returns the group bytes below which no resync is due.
fn synced_below(volume: &Volume, group: usize) -> u64 {
    volume.next_unsynced(group, 0).map_or(u64::MAX, |(first, _)| first)
}

fn bitmap_status(shared: &Shared, group: usize) -> Option<BitmapStatus> {
    let (dirty, unsynced) = shared.volume.intent_counts(group)?;
    let metadata = shared.metadata.as_ref()?;
    metadata.with_bitmap(group, |bitmap| BitmapStatus {
        chunk_bytes: bitmap.head().chunk_bytes.into(),
        regions: bitmap.head().bit_count(),
        dirty,
        unsynced,
    })
}

/// Returns how much of each member lies below a group byte.
pub(crate) fn component_position(geometry: &Geometry, group_bytes: u64) -> u64 {
    let (part, whole) = (group_bytes.min(geometry.array_bytes()), geometry.array_bytes().max(1));
    let bytes = u128::from(geometry.component_bytes()) * u128::from(part) / u128::from(whole);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Returns everything that is known of an array.
pub(crate) fn detail(shared: &Shared) -> Detail {
    let status = status(shared);
    let geometry = shared.volume.geometry(0);
    let Some(metadata) = &shared.metadata else {
        return Detail { status, ..Detail::default() };
    };
    let face = metadata.face();
    // The outer superblock of a nested array is never written again; its groups' are.
    let newest = metadata.group(0).newest;
    let policy = match (geometry.level().is_redundant(), newest.ppl(), newest.bitmap()) {
        (false, ..) => "none",
        _ if newest.features.has(Features::JOURNAL) => "journal",
        (true, Some(_), _) => "ppl",
        (true, None, Some(_)) => "bitmap",
        (true, None, None) => "resync",
    };
    Detail {
        status,
        version: face.minor.to_string(),
        creation_time: face.created.unix_seconds(),
        update_time: newest.updated.unix_seconds(),
        component_bytes: geometry.component_bytes(),
        events: newest.events,
        consistency_policy: policy.into(),
    }
}
