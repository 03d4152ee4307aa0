//! RAID 10: copies over any number of slots.
//!
//! ```text
//! near=2, 3 slots     far=2, 4 slots         offset=2, 4 slots
//!   A  A  B             A  B  C  D             A  B  C  D
//!   B  C  C             E  F  G  H             D  A  B  C
//!   D  D  E             -- half way --         E  F  G  H
//!                       D  A  B  C             H  E  F  G
//!                       H  E  F  G
//! ```
//!
//! The near copies of chunk `c` are the places `c * near ..` counted along the rows. Each of them
//! has `far - 1` more copies, each `near` slots further (inside its far set) and one stride down: a
//! part of the member, or one row in the offset layout. Facts: md `__raid10_find_phys`,
//! `calc_sectors`. Tests: `tests/layout_tables.rs`, `tests/layout.rs`, `tests/golden_layout.rs`.

use super::divider::Divider;
use super::{FarSets, Raid10Layout};
use crate::slots::SlotSet;
use alloc::boxed::Box;
use alloc::vec;

/// Where the copies of a RAID 10 are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopyMap {
    layout: Raid10Layout,
    slot_count: Divider,
    chunk_shift: u32,
    /// Rows of one part of the member (far), or 1 (offset): what lies between far copies.
    stride_rows: u64,
    /// `far_slots[f * slot_count + slot]`: the slot of far copy `f` of what is on `slot`.
    far_slots: Box<[u8]>,
    chunk_count: u64,
    used_rows: u64,
}

impl CopyMap {
    /// A map for members of `member_rows` chunks; none where two different chunks would fall on one
    /// place.
    pub(crate) fn new(
        layout: Raid10Layout,
        slot_count: u8,
        chunk_shift: u32,
        member_rows: u64,
    ) -> Option<Self> {
        let far_slots = far_slots(layout, slot_count)?;
        let (slots, near, far) =
            (u64::from(slot_count), u64::from(layout.near), u64::from(layout.far));
        // A chunk whose near copies go on in the next row would meet far copies there.
        if layout.offset && layout.far > 1 && !slots.is_multiple_of(near) {
            return None;
        }
        let part_rows = member_rows / far;
        let chunk_count = part_rows.checked_mul(slots)? / near;
        let used_rows = chunk_count.checked_mul(near * far)?.div_ceil(slots);
        let stride_rows = if layout.offset { 1 } else { used_rows / far };
        let slot_count = Divider::new(slots);
        Some(Self {
            layout,
            slot_count,
            chunk_shift,
            stride_rows,
            far_slots,
            chunk_count,
            used_rows,
        })
    }

    /// Chunks of the array.
    pub(crate) fn chunk_count(&self) -> u64 {
        self.chunk_count
    }

    /// Rows used on each member.
    pub(crate) fn used_rows(&self) -> u64 {
        self.used_rows
    }

    /// Slot and offset on the member of a copy of the array's byte `offset`; `copy` as md counts:
    /// the far copies of the first near copy, then those of the second.
    #[inline]
    pub(crate) fn copy(&self, offset: u64, copy: usize) -> (usize, u64) {
        let far = u32::from(self.layout.far);
        let (near_copy, far_copy) =
            if far == 1 { (copy as u32, 0) } else { (copy as u32 / far, copy as u32 % far) };
        let chunk = offset >> self.chunk_shift;
        let position = chunk * u64::from(self.layout.near) + u64::from(near_copy);
        let (base_row, base_slot) = self.slot_count.div_rem(position);
        let first_row = if self.layout.offset { base_row * u64::from(far) } else { base_row };
        let row = first_row + u64::from(far_copy) * self.stride_rows;
        let table_row = far_copy as usize * self.slot_count.divisor() as usize;
        let slot = usize::from(self.far_slots[table_row + base_slot as usize]);
        let inside = offset & ((1 << self.chunk_shift) - 1);
        (slot, (row << self.chunk_shift) + inside)
    }

    /// The array's byte at `member_offset` of `slot`, and which copy that is; none where no chunk
    /// lies.
    pub(crate) fn logical_of(&self, slot: usize, member_offset: u64) -> Option<(u64, usize)> {
        let row = member_offset >> self.chunk_shift;
        if row >= self.used_rows {
            return None;
        }
        let far = u64::from(self.layout.far);
        let (base_row, far_copy) = if self.layout.offset {
            (row / far, row % far)
        } else {
            (row % self.stride_rows, row / self.stride_rows)
        };
        let slots = self.slot_count.divisor();
        let far_copy = usize::try_from(far_copy).ok()?;
        let start = far_copy * slots as usize;
        let table = self.far_slots.get(start..start + slots as usize)?;
        let base_slot = table.iter().position(|&s| usize::from(s) == slot)? as u64;
        let position = base_row * slots + base_slot;
        let near = u64::from(self.layout.near);
        let chunk = position / near;
        let inside = member_offset & ((1 << self.chunk_shift) - 1);
        let copy = (position % near) as usize * usize::from(self.layout.far) + far_copy;
        (chunk < self.chunk_count).then_some(((chunk << self.chunk_shift) + inside, copy))
    }

    /// The different sets of slots that hold the copies of one chunk; the pattern repeats after
    /// `slot_count` chunks.
    pub(crate) fn copy_sets(&self) -> impl Iterator<Item = SlotSet> + '_ {
        let chunks = self.slot_count.divisor().min(self.chunk_count);
        (0..chunks).map(|chunk| {
            let copies = 0..self.layout.copy_count();
            copies.map(|copy| self.copy(chunk << self.chunk_shift, copy).0).collect()
        })
    }
}

/// The table of [`CopyMap::far_slots`]; none when two slots have their copy on one.
fn far_slots(layout: Raid10Layout, slot_count: u8) -> Option<Box<[u8]>> {
    let slots = usize::from(slot_count);
    let (near, far) = (usize::from(layout.near), usize::from(layout.far));
    let set_size = match layout.far_sets {
        FarSets::Whole => slots,
        FarSets::Divided => slots / far,
        FarSets::Copies => near * far,
    };
    if set_size == 0 || set_size > slots {
        return None;
    }
    // The slots left over when the sets do not fit evenly belong to the last set.
    let last_start = (slots / set_size - 1) * set_size;
    let has_rest = !slots.is_multiple_of(set_size);
    let mut table = vec![0u8; slots * far];
    for base in 0..slots {
        let mut slot = base;
        table[base] = u8::try_from(base).ok()?;
        for copy in 1..far {
            let moved = slot + near;
            slot = if has_rest && moved > last_start {
                last_start + (moved - last_start) % (set_size + slots % set_size)
            } else {
                moved % set_size + slot / set_size * set_size
            };
            table[copy * slots + base] = u8::try_from(slot).ok()?;
        }
    }
    let is_one_to_one = table.chunks(slots).all(|row| {
        let reached: SlotSet = row.iter().map(|&slot| usize::from(slot)).collect();
        reached.len() == slots
    });
    is_one_to_one.then(|| table.into())
}
