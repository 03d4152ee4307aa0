//! RAID 0 over members of any size: zones.
//!
//! ```text
//!              slot 0   slot 1   slot 2
//! zone 0         0        1        2          rows as long as the shortest member
//!                3        4        5
//! zone 1       (end)      6        7          alternate: the zone counts its own chunks
//!                         8        9
//! zone 2                (end)      10
//! ```
//!
//! In the original layout the chunk's number in the whole array decides the slot: 6 mod 2 = 0 is
//! still the zone's first slot here, but when zone 0 ends at an odd chunk, every row of zone 1 is
//! turned by one. Facts: md `create_strip_zones`, `map_sector`. Tests: `tests/layout_tables.rs`,
//! `tests/layout.rs`, `tests/golden_layout.rs`.

use super::Raid0Layout;
use super::divider::Divider;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A range of the array that is striped over the same slots. All in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Zone {
    array_start: u64,
    /// Not included.
    array_end: u64,
    member_start: u64,
    /// Added to the chunk's number before the slot is looked up.
    turn: u64,
    slot_count: Divider,
    slots: Box<[u8]>,
}

/// Where the chunks of a RAID 0 are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ZoneMap {
    zones: Box<[Zone]>,
    chunk: Divider,
    /// `Some` when the chunk is a power of two.
    chunk_shift: Option<u32>,
}

/// Slot, offset on the member, bytes to the end of the chunk.
type ZonePlace = (usize, u64, u64);

impl ZoneMap {
    /// Zones for members of these sizes, each a multiple of `chunk_bytes` and not zero; the sum
    /// must fit.
    pub(crate) fn new(layout: Raid0Layout, chunk_bytes: u64, member_bytes: &[u64]) -> Self {
        let mut ends: Vec<u64> = member_bytes.to_vec();
        ends.sort_unstable();
        ends.dedup();
        let chunk = Divider::new(chunk_bytes);
        let mut zones = Vec::with_capacity(ends.len());
        let (mut array_start, mut member_start) = (0, 0);
        for member_end in ends {
            let slots: Box<[u8]> = (0u8..=u8::MAX)
                .zip(member_bytes)
                .filter(|&(_, &bytes)| bytes > member_start)
                .map(|(slot, _)| slot)
                .collect();
            let count = slots.len() as u64;
            let array_end = array_start + (member_end - member_start) * count;
            let turn = match layout {
                Raid0Layout::Alternate => 0,
                Raid0Layout::Original | Raid0Layout::Unspecified => {
                    chunk.div_rem(array_start).0 % count
                }
            };
            let slot_count = Divider::new(count);
            zones.push(Zone { array_start, array_end, member_start, turn, slot_count, slots });
            (array_start, member_start) = (array_end, member_end);
        }
        let chunk_shift = chunk_bytes.is_power_of_two().then(|| chunk_bytes.trailing_zeros());
        Self { zones: zones.into(), chunk, chunk_shift }
    }

    pub(crate) fn zone_count(&self) -> usize {
        self.zones.len()
    }

    /// Chunk number and offset inside the chunk.
    #[inline]
    fn split(&self, bytes: u64) -> (u64, u64) {
        match self.chunk_shift {
            Some(shift) => (bytes >> shift, bytes & (self.chunk.divisor() - 1)),
            None => self.chunk.div_rem(bytes),
        }
    }

    /// The place of the array's byte `offset`; none behind the last zone.
    #[inline]
    pub(crate) fn place(&self, offset: u64) -> Option<ZonePlace> {
        let zone = self.zones.iter().find(|zone| offset < zone.array_end)?;
        let (chunk, inside) = self.split(offset - zone.array_start);
        let (row, column) = zone.slot_count.div_rem(chunk);
        let turned = column + zone.turn;
        let count = zone.slot_count.divisor();
        let slot =
            usize::from(zone.slots[(turned - if turned < count { 0 } else { count }) as usize]);
        let chunk_bytes = self.chunk.divisor();
        Some((slot, zone.member_start + row * chunk_bytes + inside, chunk_bytes - inside))
    }

    /// The array's byte at `member_offset` of `slot`; none behind the member's last whole chunk.
    pub(crate) fn logical_of(&self, slot: usize, member_offset: u64) -> Option<u64> {
        let zone = self.zones.iter().find(|zone| {
            let height = (zone.array_end - zone.array_start) / zone.slot_count.divisor();
            (zone.member_start..zone.member_start + height).contains(&member_offset)
        })?;
        let count = zone.slot_count.divisor();
        let turned = zone.slots.iter().position(|&s| usize::from(s) == slot)? as u64;
        let column = (turned + count - zone.turn) % count;
        let (row, inside) = self.split(member_offset - zone.member_start);
        Some(zone.array_start + (row * count + column) * self.chunk.divisor() + inside)
    }
}
