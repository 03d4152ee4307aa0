//! Geometries for the tests.
#![allow(dead_code, unreachable_pub, reason = "each test uses some of these")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use raid_core::geometry::*;

/// A small chunk, so that small arrays have many.
pub const CHUNK: u64 = 4096;

/// A geometry that must be good.
pub fn geometry_of(level: Level, layout: Layout, chunk_bytes: u64, sizes: &[u64]) -> Geometry {
    try_geometry(level, layout, chunk_bytes, sizes).unwrap()
}

/// A geometry, or why not.
pub fn try_geometry(
    level: Level,
    layout: Layout,
    chunk_bytes: u64,
    member_data_bytes: &[u64],
) -> Result<Geometry, GeometryError> {
    let slot_count = member_data_bytes.len();
    Geometry::new(GeometrySpec { level, layout, slot_count, chunk_bytes, member_data_bytes })
}

/// A parity level of so many stripes.
pub fn parity(level: Level, layout: ParityLayout, slot_count: usize, stripes: u64) -> Geometry {
    geometry_of(level, Layout::Parity(layout), CHUNK, &vec![stripes * CHUNK; slot_count])
}

/// Every RAID 6 layout with few slots and with the most.
pub fn raid6_shapes() -> impl Iterator<Item = (ParityLayout, usize)> {
    ParityLayout::ALL.into_iter().flat_map(|l| [4, 5, 6, 7, 8, 9, 254, 255].map(|n| (l, n)))
}
