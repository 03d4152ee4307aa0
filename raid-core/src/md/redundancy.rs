//! Whether an array can go on without some of its slots.

use alloc::vec;

use crate::geometry::{Geometry, GeometrySpec};
use crate::layout::{Layout, Level};
use crate::slots::SlotSet;

/// Says whether every byte of an array can still be had when the slots marked `true` are missing.
///
/// `level` and `layout` are md's numbers; what is no shape of an array bears nothing.
pub(super) fn tolerates(level: i32, layout: u32, missing: &[bool]) -> bool {
    if !missing.contains(&true) {
        // Also for shapes that Geometry refuses: it says why, better than this could.
        return true;
    }
    // Redundancy does not depend on sizes, so any that have room for every layout do.
    const CHUNK_BYTES: u64 = 4096;
    let sizes = vec![CHUNK_BYTES << 10; missing.len()];
    let Ok(level) = Level::from_md(level) else { return false };
    let Ok(layout) = Layout::from_md(level, layout) else { return false };
    let geometry = Geometry::new(GeometrySpec {
        level,
        layout,
        slot_count: missing.len(),
        chunk_bytes: CHUNK_BYTES,
        member_data_bytes: &sizes,
    });
    let mut slots = SlotSet::new();
    for slot in (0..missing.len()).filter(|&slot| missing[slot]) {
        slots.insert(slot);
    }
    geometry.is_ok_and(|geometry| geometry.tolerates(&slots))
}

/// The parity levels, which cannot be trusted while dirty and degraded.
pub(super) fn has_parity(level: i32) -> bool {
    matches!(level, 4..=6)
}

/// Whether a slot holds nothing but parity in every stripe, so that losing it loses no data.
pub(super) fn is_parity_slot(level: i32, layout: u32, slot: usize, slot_count: usize) -> bool {
    match (level, layout) {
        (4, _) | (5, 5) => slot + 1 == slot_count,
        (5, 4) => slot == 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{is_parity_slot, tolerates};

    fn missing(slot_count: usize, slots: &[usize]) -> alloc::vec::Vec<bool> {
        (0..slot_count).map(|slot| slots.contains(&slot)).collect()
    }

    /// Which losses each level bears, by hand.
    #[test]
    fn losses() {
        const NEAR2: u32 = 0x102;
        const FAR2: u32 = 0x201;
        const OFFSET2: u32 = 0x1_0201;
        let cases: &[(i32, u32, usize, &[usize], bool)] = &[
            (0, 1, 3, &[], true),
            (0, 1, 3, &[1], false),
            (-1, 0, 3, &[1], false),
            (1, 0, 3, &[0, 2], true),
            (1, 0, 3, &[0, 1, 2], false),
            (5, 2, 4, &[3], true),
            (5, 2, 4, &[0, 3], false),
            (6, 2, 5, &[0, 3], true),
            (6, 2, 5, &[0, 1, 3], false),
            (10, NEAR2, 4, &[0, 2], true),
            (10, NEAR2, 4, &[0, 1], false),
            (10, NEAR2, 4, &[1, 2], true),
            // Odd counts: pairs (0,1) (2,3) (4,0) (1,2) (3,4).
            (10, NEAR2, 5, &[4, 0], false),
            (10, NEAR2, 5, &[0, 2], true),
            // Far and offset: the copy is one slot on, (0,1) (1,2) (2,3) (3,0).
            (10, FAR2, 4, &[0, 2], true),
            (10, FAR2, 4, &[0, 3], false),
            (10, OFFSET2, 4, &[1, 2], false),
            (10, 0x103, 6, &[0, 1], true),
            (10, 0x103, 6, &[3, 4, 5], false),
            // Two near and two far copies on four slots: everything is everywhere.
            (10, 0x202, 4, &[0, 1, 2], true),
        ];
        for &(level, layout, slot_count, slots, expected) in cases {
            let answer = tolerates(level, layout, &missing(slot_count, slots));
            assert_eq!(answer, expected, "level {level} layout {layout:#x} missing {slots:?}");
        }
    }

    /// RAID 4 and the two fixed layouts of RAID 5 have a slot without data.
    #[test]
    fn parity_slots() {
        assert!(is_parity_slot(4, 0, 3, 4) && !is_parity_slot(4, 0, 0, 4));
        assert!(is_parity_slot(5, 4, 0, 4) && is_parity_slot(5, 5, 3, 4));
        assert!(!is_parity_slot(5, 2, 3, 4) && !is_parity_slot(6, 4, 0, 5));
    }
}
