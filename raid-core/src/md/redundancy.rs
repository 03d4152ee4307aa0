//! Whether an array can go on without some of its slots.

use alloc::vec::Vec;

/// Says whether every byte of an array can still be had when the slots marked `true` are missing.
///
/// `level` and `layout` are md's numbers, already checked.
pub(super) fn tolerates(level: i32, layout: u32, missing: &[bool]) -> bool {
    let missing_count = missing.iter().filter(|&&is_missing| is_missing).count();
    match level {
        1 => missing_count < missing.len(),
        4 | 5 => missing_count <= 1,
        6 => missing_count <= 2,
        10 => missing_count == 0 || mirrors_tolerate(layout, missing),
        _ => missing_count == 0,
    }
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

/// RAID 10: at least one copy of each chunk is on a slot that is there.
fn mirrors_tolerate(layout: u32, missing: &[bool]) -> bool {
    let slot_count = missing.len();
    let near = (layout & 0xff) as usize;
    // Chunk c starts at slot c * near; all start slots come up within slot_count chunks.
    (0..slot_count).all(|chunk| {
        let first = chunk * near % slot_count;
        copies(layout, slot_count, first).iter().any(|&slot| !missing[slot])
    })
}

/// The slots of all copies of a chunk whose first copy is on slot `first` (md: raid10_find_phys).
fn copies(layout: u32, slot_count: usize, first: usize) -> Vec<usize> {
    let near = (layout & 0xff) as usize;
    let far = (layout >> 8 & 0xff) as usize;
    let (set_size, last_start) = far_sets(layout, slot_count);
    let mut slots = Vec::new();
    for copy in 0..near {
        let mut slot = (first + copy) % slot_count;
        slots.push(slot);
        for _ in 1..far {
            slot = if slot >= last_start && !slot_count.is_multiple_of(set_size) {
                last_start + (slot - last_start + near) % (slot_count - last_start)
            } else {
                slot / set_size * set_size + (slot % set_size + near) % set_size
            };
            slots.push(slot);
        }
    }
    slots
}

/// Size of the sets within which far copies move, and where the last one (which takes the rest) starts.
fn far_sets(layout: u32, slot_count: usize) -> (usize, usize) {
    let near = (layout & 0xff) as usize;
    let far = (layout >> 8 & 0xff) as usize;
    let set_size = match layout >> 17 {
        // Every far copy anywhere.
        0 => slot_count,
        // The first form: as many sets as far copies.
        1 => slot_count / far,
        // The improved form.
        _ => far * near,
    };
    // A damaged layout may ask for empty sets.
    let set_size = if set_size == 0 { slot_count } else { set_size };
    (set_size, (slot_count / set_size).saturating_sub(1) * set_size)
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
