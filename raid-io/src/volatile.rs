//! Arrays without superblocks: in memory, or over devices that somebody brings along.

use std::sync::Arc;

use raid_core::geometry::{Geometry, GeometrySpec};
use raid_core::layout::{Layout, Level};
use raid_core::plan::Trust;
use raid_core::slots::SlotSet;
use raid_core::volume::{GroupConfig, OuterConfig};

use crate::member::{Member, MemberDevice, MemoryDevice};
use crate::start::{Group, Outer, start, stripe_bytes};
use crate::{Array, Error, MemoryOptions};

/// Makes an array of memory.
pub(crate) fn in_memory(options: MemoryOptions) -> Result<Array, Error> {
    let block = options.block_bytes;
    if block != 512 && block != 4096 {
        return Err(Error::Options(format!("block size {block} is neither 512 nor 4096")));
    }
    let devices = (0..options.slot_count)
        .map(|_| Some(Arc::new(MemoryDevice::new(options.member_bytes, block)) as Arc<_>))
        .collect();
    over_devices(devices, &options)
}

/// Makes an array over devices; `None` is a missing member.
pub(crate) fn over_devices(
    devices: Vec<Option<Arc<dyn MemberDevice>>>,
    options: &MemoryOptions,
) -> Result<Array, Error> {
    let count = group_count(options.groups, devices.len())?;
    let layout = layout_of(options.level, options.layout.as_deref())?;
    let mut groups = Vec::new();
    for (index, devices) in devices.chunks(devices.len() / count).enumerate() {
        let sizes: Vec<u64> = devices
            .iter()
            .map(|device| device.as_ref().map_or(options.member_bytes, |d| d.size_bytes()))
            .collect();
        let chunk = u64::from(options.chunk_bytes);
        let geometry = geometry(options.level, layout, chunk, &sizes)?;
        let mut in_sync = SlotSet::new();
        for (slot, device) in devices.iter().enumerate() {
            if device.is_some() {
                in_sync.insert(slot);
            }
        }
        let config = GroupConfig {
            data_offsets: vec![0; devices.len()],
            geometry,
            in_sync,
            trust: Trust::InSync,
            dirty: false,
            intent: None,
            recovering: Vec::new(),
            doubtful: false,
        };
        let member = |(slot, device): (usize, &Option<Arc<dyn MemberDevice>>)| {
            let name = format!("memory-{index}-{slot}");
            device.as_ref().map(|device| Member::other(name, Arc::clone(device)))
        };
        let members = devices.iter().enumerate().map(member).collect();
        groups.push(Group { config, members, metadata: None });
    }
    let outer = if count > 1 { Some(outer_of(&groups, vec![0; count])?) } else { None };
    start(groups, outer, &options.open)
}

/// Makes the stripes over groups that have no superblock of their own.
fn outer_of(groups: &[Group], data_offsets: Vec<u64>) -> Result<Outer, Error> {
    let chunk = outer_chunk_bytes(&groups[0].config.geometry);
    let sizes: Vec<u64> = groups.iter().map(|group| group.config.geometry.array_bytes()).collect();
    let layout = Layout::default_for(Level::Raid0);
    let geometry = geometry(Level::Raid0, layout, chunk, &sizes)?;
    Ok(Outer { config: OuterConfig { geometry, data_offsets }, superblock: None })
}

/// Returns the outer chunk: a full stripe of a group, or the next power of two, so that a long
/// write gives each group whole stripes where the shape allows it.
pub(crate) fn outer_chunk_bytes(inner: &Geometry) -> u64 {
    stripe_bytes(inner).next_power_of_two()
}

/// Checks that members divide into groups.
pub(crate) fn group_count(groups: u32, members: usize) -> Result<usize, Error> {
    let count = groups.max(1) as usize;
    if members == 0 || !members.is_multiple_of(count) {
        return Err(Error::Options(format!("{members} members do not divide into {count} groups")));
    }
    Ok(count)
}

/// Reads a layout's name, or takes the level's own.
pub(crate) fn layout_of(level: Level, name: Option<&str>) -> Result<Layout, Error> {
    match name {
        None => Ok(Layout::default_for(level)),
        Some(name) => Layout::parse(level, name)
            .map_err(|error| Error::Options(format!("layout {name:?}: {error}"))),
    }
}

/// Makes a geometry, or says why there is none.
pub(crate) fn geometry(
    level: Level,
    layout: Layout,
    chunk_bytes: u64,
    member_data_bytes: &[u64],
) -> Result<Geometry, Error> {
    let slot_count = member_data_bytes.len();
    Geometry::new(GeometrySpec { level, layout, slot_count, chunk_bytes, member_data_bytes })
        .map_err(|error| Error::Options(error.to_string()))
}
