//! From members whose places are known to a running array.

use std::sync::Arc;

use raid_core::geometry::Geometry;
use raid_core::layout::Level;
use raid_core::volume::{GroupConfig, OuterConfig, Volume, VolumeConfig};

use crate::member::{Device, Member, MemberDevice};
use crate::metadata::{GroupMetadata, Metadata};
use crate::ring::Ring;
use crate::shared::Shared;
use crate::walk::group_bytes_of;
use crate::{Array, Backend, Error, Limits, OpenOptions};

/// The longest read or write.
const REQUEST_BYTES_MAX: u32 = raid_core::volume::REQUEST_BYTES_MAX as u32;

/// One md array, decided: what the engine must know, and who fills the slots.
pub(crate) struct Group {
    pub(crate) config: GroupConfig,
    pub(crate) members: Vec<Option<Member>>,
    /// `None` for members that have no superblocks.
    pub(crate) metadata: Option<GroupMetadata>,
}

/// The stripes over the groups of a nested array.
pub(crate) struct Outer {
    pub(crate) config: OuterConfig,
    pub(crate) superblock: Option<raid_core::md::Superblock>,
}

impl Group {
    /// Makes the bitmaps of all members in sync say the same.
    fn settle_bitmap(&mut self) -> Result<(), Error> {
        let Some(metadata) = &mut self.metadata else { return Ok(()) };
        let Some(bitmap) = &mut metadata.bitmap else { return Ok(()) };
        let in_slots = self.members.iter().zip(&metadata.slots);
        let members: Vec<_> =
            in_slots.filter_map(|(m, superblock)| m.as_ref().zip(superblock.as_ref())).collect();
        bitmap.settle(&members)
    }
}

/// Starts an array.
pub(crate) fn start(
    mut groups: Vec<Group>,
    outer: Option<Outer>,
    options: &OpenOptions,
) -> Result<Array, Error> {
    if !options.read_only {
        groups.iter_mut().try_for_each(Group::settle_bitmap)?;
    }
    let used = groups.iter().flat_map(|group| group.members.iter().flatten());
    let block_bytes = used.clone().map(|member| member.device().block_bytes()).max();
    let block_bytes = block_bytes.unwrap_or(512).max(512);
    let rotational = used.clone().any(|m| m.as_file().is_some_and(|file| file.is_rotational()));
    let files = used.filter(|member| member.as_file().is_some()).count();
    let uring = files > 0 && choose_uring(options.backend)?;

    let mut configs = Vec::new();
    let mut members = Vec::new();
    let mut superblocks = Vec::new();
    for group in groups {
        configs.push(group.config);
        members.extend(group.members.into_iter().map(|member| member.unwrap_or_else(absent)));
        superblocks.extend(group.metadata);
    }
    let (outer, outer_superblock) = match outer {
        Some(outer) => (Some(outer.config), outer.superblock),
        None => (None, None),
    };
    let stripe = stripe_bytes(&configs[0].geometry) * configs.len() as u64;
    let chunk_bytes = configs[0].geometry.chunk_bytes();
    let has_metadata = superblocks.len() == configs.len();
    let redundant_parity = configs[0].geometry.parity_count() > 0;
    let config = VolumeConfig { groups: configs, outer, block_bytes, read_only: options.read_only };
    let volume = Volume::new(config).map_err(|error| Error::Assemble(error.to_string()))?;
    let inner_stripe = stripe_bytes(volume.geometry(0));
    let granule = if redundant_parity { inner_stripe } else { u64::from(block_bytes).max(4096) };
    let small = |bytes: u64| u32::try_from(bytes).unwrap_or(REQUEST_BYTES_MAX);
    let limits = Limits {
        size_bytes: volume.array_bytes(),
        block_bytes,
        optimal_bytes: small(stripe).max(block_bytes),
        chunk_bytes: small(if chunk_bytes == 0 { stripe } else { chunk_bytes }),
        request_bytes_max: REQUEST_BYTES_MAX,
        discard_granularity_bytes: small(granule),
        rotational,
        read_only: options.read_only,
        can_unmap: !options.read_only,
    };
    for (group, superblocks) in superblocks.iter().enumerate() {
        // An orderly stop has recorded how far a resync came.
        let Some(position) = superblocks.resynced_bytes.filter(|bytes| *bytes > 0) else {
            continue;
        };
        let bytes = group_bytes_of(volume.geometry(group), position);
        let unit = volume.resync_unit(group);
        // With a bitmap the position is in its bits.
        if !volume.is_trusted(group) && volume.intent_counts(group).is_none() {
            volume.note_synced(group, bytes / unit * unit, volume.suspicion(group));
        }
    }
    let metadata = has_metadata.then(|| Metadata::new(superblocks, outer_superblock));
    Ok(Array::over(Shared::new(options.clone(), limits, volume, uring, members, metadata)))
}

/// Returns the array bytes of a full stripe, or the nearest thing where a level has no stripes.
pub(crate) fn stripe_bytes(geometry: &Geometry) -> u64 {
    match geometry.level() {
        Level::Raid1 | Level::Linear => 64 << 10,
        Level::Raid0 => geometry.chunk_bytes() * geometry.slot_count() as u64,
        Level::Raid10 => {
            let copies = geometry.copy_count().max(1);
            geometry.chunk_bytes() * (geometry.slot_count() / copies).max(1) as u64
        }
        Level::Raid4 | Level::Raid5 | Level::Raid6 => {
            geometry.chunk_bytes() * geometry.data_slots() as u64
        }
    }
}

/// Decides between rings and blocking calls.
pub(crate) fn choose_uring(backend: Backend) -> Result<bool, Error> {
    if backend == Backend::Blocking {
        return Ok(false);
    }
    match Ring::probe() {
        Ok(()) => Ok(true),
        Err(source) if backend == Backend::IoUring => {
            Err(Error::System { action: "use io_uring", source })
        }
        Err(error) => {
            tracing::warn!("io_uring is not to be had ({error}), using blocking calls");
            Ok(false)
        }
    }
}

/// Stands in the place of a missing member; the engine never asks it anything.
struct Absent;

pub(crate) fn absent() -> Member {
    Member::other("", Arc::new(Absent))
}

impl MemberDevice for Absent {
    fn size_bytes(&self) -> u64 {
        0
    }

    fn read_at(&self, _: &mut [std::io::IoSliceMut<'_>], _: u64) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::NotFound.into())
    }

    fn write_at(&self, _: &[std::io::IoSlice<'_>], _: u64) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::NotFound.into())
    }

    fn flush(&self) -> std::io::Result<()> {
        Err(std::io::ErrorKind::NotFound.into())
    }

    fn is_instant(&self) -> bool {
        true
    }
}

/// Says whether the device of a slot is there.
pub(crate) fn is_absent(member: &Member) -> bool {
    matches!(&member.device, Device::Other(device) if device.size_bytes() == 0)
}
