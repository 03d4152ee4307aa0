//! Goal: no two bytes ever share a place, and sizes are md's. Method: the laws of a geometry over
//! every small shape of every level, chunk by chunk, from the array's side and from the members';
//! then the sizes against formulas of their own. md's tables and names are in `layout_tables.rs`,
//! arrays made by md in `golden_layout.rs`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod shapes;

use raid_core::geometry::*;
use raid_core::slots::SlotSet;
use shapes::{CHUNK, geometry_of, parity, raid6_shapes, try_geometry};
use std::collections::HashMap;

/// Every law of a geometry, over every chunk, from both sides.
fn check_laws(geometry: &Geometry, member_bytes: &[u64]) {
    let label = format!("{} {} {:?}", geometry.level(), geometry.layout(), member_bytes);
    let step = if geometry.chunk_bytes() == 0 { SECTOR_BYTES } else { geometry.chunk_bytes() };
    let mut owners = HashMap::new();
    let mut offset = 0;
    while offset < geometry.array_bytes() {
        let mut slots = SlotSet::EMPTY;
        let contiguous = geometry.place(offset).contiguous_bytes;
        assert!(contiguous > 0 && offset + contiguous <= geometry.array_bytes(), "{label}");
        for copy in 0..geometry.copy_count() {
            let place = geometry.copy(offset, copy);
            assert_eq!(place.contiguous_bytes, contiguous, "{label}");
            slots.insert(place.slot);
            for inside in [0, 1, contiguous / 2, contiguous - 1] {
                let at = Place {
                    slot: place.slot,
                    member_offset: place.member_offset + inside,
                    contiguous_bytes: contiguous - inside,
                };
                assert_eq!(geometry.copy(offset + inside, copy), at, "{label} {offset}+{inside}");
                let logical = Logical { offset: offset + inside, copy };
                assert_eq!(
                    geometry.logical_of(at.slot, at.member_offset),
                    Some(logical),
                    "{label}"
                );
            }
            let end = place.member_offset + contiguous;
            assert!(end <= member_bytes[place.slot], "{label}: {offset} beyond the member");
            if !matches!(geometry.level(), Level::Raid0 | Level::Linear) {
                assert!(end <= geometry.component_bytes(), "{label}: beyond the component");
            }
            let key = (place.slot, place.member_offset);
            assert_eq!(
                owners.insert(key, logical_key(offset, copy)),
                None,
                "{label}: shared place"
            );
        }
        let is_enough = geometry.parity_count() > 0 || slots.len() > geometry.max_degraded();
        assert!(is_enough, "{label}: copies on {slots:?}");
        offset += contiguous;
    }
    check_members(geometry, member_bytes, step, &label);
}

fn logical_key(offset: u64, copy: usize) -> (u64, usize) {
    (offset, copy)
}

/// From the members' side: what says it holds something is where that something is looked for.
fn check_members(geometry: &Geometry, member_bytes: &[u64], step: u64, label: &str) {
    let mut found_bytes = 0;
    for (slot, &bytes) in member_bytes.iter().enumerate() {
        for start in (0..bytes + 2 * step).step_by(usize::try_from(step).unwrap()) {
            let Some(logical) = geometry.logical_of(slot, start) else { continue };
            let place = geometry.copy(logical.offset, logical.copy);
            assert_eq!((place.slot, place.member_offset), (slot, start), "{label}");
            found_bytes += place.contiguous_bytes.min(step);
        }
    }
    if geometry.level() != Level::Linear {
        assert_eq!(found_bytes, geometry.array_bytes() * geometry.copy_count() as u64, "{label}");
    }
    assert_eq!(geometry.logical_of(geometry.slot_count(), 0), None, "{label}");
    for slot in 0..geometry.slot_count() {
        for beyond in [1 << 40, i64::MAX as u64, u64::MAX - 4095, u64::MAX] {
            assert_eq!(geometry.logical_of(slot, beyond), None, "{label}");
        }
    }
}

fn check_stripes(geometry: &Geometry) {
    let data_count = geometry.data_slots();
    assert_eq!(data_count + geometry.parity_count(), geometry.slot_count());
    assert_eq!(geometry.unit_bytes(), geometry.chunk_bytes() * data_count as u64);
    assert_eq!(geometry.unit_count(), geometry.stripe_count());
    for index in 0..geometry.stripe_count() {
        let stripe = geometry.stripe(index);
        assert_eq!((stripe.index, stripe.data_count()), (index, data_count));
        let mut slots = SlotSet::EMPTY;
        let mut exponents = SlotSet::EMPTY;
        for k in 0..data_count {
            let slot = stripe.data_slot(k);
            assert!(slots.insert(slot), "{:?}: slot {slot} twice", geometry.layout());
            assert_eq!(stripe.kind_of(slot), ChunkKind::Data(k));
            assert!(stripe.syndrome_index(k) < stripe.syndrome_width());
            assert!(exponents.insert(stripe.syndrome_index(k)));
            let offset = index * geometry.unit_bytes() + k as u64 * geometry.chunk_bytes() + 7;
            assert_eq!(
                geometry.locate(offset),
                Location { stripe: index, data: k, chunk_offset: 7 }
            );
            let place = geometry.place(offset);
            let member_offset = geometry.member_offset_of_stripe(index) + 7;
            assert_eq!((place.slot, place.member_offset), (slot, member_offset));
        }
        let p = stripe.p.unwrap();
        assert!(slots.insert(p) && stripe.kind_of(p) == ChunkKind::P);
        assert_eq!(stripe.q.is_some(), geometry.parity_count() == 2);
        if let Some(q) = stripe.q {
            assert!(slots.insert(q) && stripe.kind_of(q) == ChunkKind::Q);
        }
        assert_eq!(slots, geometry.slots());
    }
}

#[test]
fn laws_of_parity_levels() {
    for slot_count in 2..=9 {
        let sizes = vec![2 * slot_count as u64 * CHUNK + 512; slot_count];
        let mut geometries = vec![geometry_of(Level::Raid4, Layout::None, CHUNK, &sizes)];
        for layout in ParityLayout::ALL {
            for level in [Level::Raid5, Level::Raid6] {
                if layout.fits(level) && slot_count >= level.slot_count_min() {
                    geometries.push(geometry_of(level, Layout::Parity(layout), CHUNK, &sizes));
                }
            }
        }
        for geometry in geometries {
            check_laws(&geometry, &sizes);
            check_stripes(&geometry);
        }
    }
}

// The arithmetic in bytes must hold at the most slots there can be.
#[test]
fn laws_of_stripes_with_many_slots() {
    for (layout, slot_count) in raid6_shapes() {
        check_stripes(&parity(Level::Raid6, layout, slot_count, 2 * slot_count as u64 + 1));
        if layout.fits(Level::Raid5) {
            check_stripes(&parity(Level::Raid5, layout, slot_count, slot_count as u64 + 3));
        }
    }
}

/// Every RAID 10 layout with up to four near and far copies.
fn raid10_layouts() -> impl Iterator<Item = Raid10Layout> {
    let copies = (1..=4).flat_map(|near| (1..=4).map(move |far| (near, far)));
    copies.flat_map(|(near, far)| {
        let sets = [FarSets::Whole, FarSets::Divided, FarSets::Copies];
        let kinds = sets.into_iter().flat_map(|sets| [(sets, false), (sets, true)]);
        kinds.map(move |(far_sets, offset)| Raid10Layout { near, far, offset, far_sets })
    })
}

#[test]
fn laws_of_raid10() {
    let mut checked_count = 0;
    for layout in raid10_layouts() {
        for slot_count in 2..=9 {
            for rows in u64::from(layout.far)..=13 {
                let sizes = vec![rows * CHUNK + 1024; slot_count];
                match try_geometry(Level::Raid10, Layout::Raid10(layout), CHUNK, &sizes) {
                    Ok(geometry) => {
                        check_laws(&geometry, &sizes);
                        if rows == 12 {
                            check_tolerance(&geometry);
                        }
                        checked_count += 1;
                    }
                    Err(error) => check_raid10_refusal(layout, slot_count, error),
                }
            }
        }
    }
    assert!(checked_count > 1000, "{checked_count} shapes checked");
}

fn check_raid10_refusal(layout: Raid10Layout, slot_count: usize, error: GeometryError) {
    let copies = layout.copy_count();
    match error {
        GeometryError::NoRedundancy { .. } => assert!(copies < 2),
        GeometryError::TooManyCopies { .. } => assert!(copies > slot_count),
        GeometryError::OverlappingCopies { .. } => {
            let is_wrapped = layout.offset && !slot_count.is_multiple_of(usize::from(layout.near));
            let has_sets = layout.far_sets != FarSets::Whole;
            assert!(layout.far > 1 && layout.near > 1 && (is_wrapped || has_sets), "{layout:?}");
        }
        other => panic!("{layout:?} {slot_count}: {other}"),
    }
}

/// `tolerates` and `max_degraded` against every set of lost slots and every chunk.
fn check_tolerance(geometry: &Geometry) {
    let slot_count = geometry.slot_count();
    let chunks = geometry.array_bytes() / geometry.chunk_bytes();
    let mut least_fatal = slot_count;
    for bits in 0u32..1 << slot_count {
        let missing: SlotSet = (0..slot_count).filter(|slot| bits >> slot & 1 == 1).collect();
        let is_readable = (0..chunks).all(|chunk| {
            let offset = chunk * geometry.chunk_bytes();
            let mut copies = (0..geometry.copy_count()).map(|copy| geometry.copy(offset, copy));
            copies.any(|place| !missing.contains(place.slot))
        });
        assert_eq!(
            geometry.tolerates(&missing),
            is_readable,
            "{:?} {missing:?}",
            geometry.layout()
        );
        if !is_readable {
            least_fatal = least_fatal.min(missing.len());
        }
    }
    assert_eq!(geometry.max_degraded() + 1, least_fatal, "{:?}", geometry.layout());
}

#[test]
fn tolerance_of_the_other_levels() {
    let losses = [
        (geometry_of(Level::Raid0, Layout::default_for(Level::Raid0), CHUNK, &[CHUNK; 4]), 0),
        (geometry_of(Level::Linear, Layout::None, 0, &[CHUNK; 4]), 0),
        (geometry_of(Level::Raid1, Layout::None, 0, &[CHUNK; 4]), 3),
        (geometry_of(Level::Raid4, Layout::None, CHUNK, &[CHUNK; 4]), 1),
        (parity(Level::Raid5, ParityLayout::LeftSymmetric, 4, 4), 1),
        (parity(Level::Raid6, ParityLayout::LeftSymmetric, 4, 4), 2),
    ];
    for (geometry, max_degraded) in losses {
        assert_eq!(geometry.max_degraded(), max_degraded);
        for bits in 0u32..16 {
            let missing: SlotSet = (0..4).filter(|slot| bits >> slot & 1 == 1).collect();
            assert_eq!(geometry.tolerates(&missing), missing.len() <= max_degraded);
        }
        // Slots that the array does not have are no loss.
        assert!(geometry.tolerates(&[4, 5, 255].into_iter().collect()));
    }
}

// FC-20: six members in three mirrors survive exactly the triples that leave each mirror a member.
#[test]
fn raid10_of_six_survives_the_right_triples() {
    let geometry =
        geometry_of(Level::Raid10, Layout::parse(Level::Raid10, "n2").unwrap(), CHUNK, &[CHUNK; 6]);
    let mut survived = 0;
    for bits in (0u32..64).filter(|bits| bits.count_ones() == 3) {
        let missing: SlotSet = (0..6).filter(|slot| bits >> slot & 1 == 1).collect();
        let is_pair_gone = (0..3).any(|pair| bits >> (2 * pair) & 3 == 3);
        assert_eq!(geometry.tolerates(&missing), !is_pair_gone);
        survived += usize::from(!is_pair_gone);
    }
    assert_eq!(survived, 8);
}

#[test]
fn laws_of_raid0_over_any_members() {
    for chunk in [CHUNK, 3 * CHUNK] {
        for layout in [Raid0Layout::Original, Raid0Layout::Alternate] {
            for code in 0..4usize.pow(5) {
                let chunks = (0..5).map(|digit| [0, 1, 2, 5][code / 4usize.pow(digit) % 4]);
                // Zero stands for a member that is not there, so arrays of 1 to 5 members come up.
                let sizes: Vec<u64> = chunks.filter(|&c| c > 0).map(|c| c * chunk + 512).collect();
                if !sizes.is_empty() {
                    let layout = Layout::Raid0(layout);
                    check_laws(&geometry_of(Level::Raid0, layout, chunk, &sizes), &sizes);
                }
            }
        }
    }
}

#[test]
fn laws_of_raid1_and_linear() {
    for sizes in [vec![CHUNK + 512], vec![3 * CHUNK; 2], vec![512, 1024, 512], vec![1536; 5]] {
        check_laws(&geometry_of(Level::Raid1, Layout::None, 0, &sizes), &sizes);
        check_laws(&geometry_of(Level::Linear, Layout::None, 0, &sizes), &sizes);
    }
    // Rounding is md's "Rounding: 4K": the tails of the members are not used.
    let rounded = geometry_of(Level::Linear, Layout::None, CHUNK, &[CHUNK + 512, 2 * CHUNK, CHUNK]);
    assert_eq!(rounded.array_bytes(), 4 * CHUNK);
    assert_eq!(rounded.place(CHUNK).slot, 1);
    assert_eq!(rounded.logical_of(0, CHUNK), None, "the tail is not used");
}

// FC-19: the published size, by formulas that are not the engine's, for exact and ragged members.
#[test]
fn sizes_are_whole_chunks_of_the_shortest_member() {
    for slot_count in 2..=8usize {
        for chunk in [4 << 10, 12 << 10, 64 << 10, 512 << 10u64] {
            for (extra, whole) in [(0, 24), (512, 24), (chunk - 512, 24)] {
                let mut sizes = vec![30 * chunk; slot_count];
                sizes[slot_count / 2] = 24 * chunk + extra;
                check_sizes(slot_count, chunk, whole, &sizes);
            }
        }
    }
}

fn check_sizes(slot_count: usize, chunk: u64, whole: u64, sizes: &[u64]) {
    let slots = slot_count as u64;
    let shortest = *sizes.iter().min().unwrap();
    let raid1 = geometry_of(Level::Raid1, Layout::None, 0, sizes);
    assert_eq!(raid1.array_bytes(), shortest, "RAID 1 is not rounded to chunks");
    let raid0 = geometry_of(Level::Raid0, Layout::default_for(Level::Raid0), chunk, sizes);
    if !chunk.is_power_of_two() {
        let layout = Layout::default_for(Level::Raid5);
        let refused = GeometryError::ChunkNotPowerOfTwo { level: Level::Raid5, chunk_bytes: chunk };
        assert_eq!(try_geometry(Level::Raid5, layout, chunk, sizes), Err(refused));
        return;
    }
    assert_eq!(raid0.array_bytes(), (30 * (slots - 1) + whole) * chunk);
    let raid5 = geometry_of(Level::Raid5, Layout::default_for(Level::Raid5), chunk, sizes);
    assert_eq!(
        (raid5.array_bytes(), raid5.component_bytes()),
        ((slots - 1) * whole * chunk, whole * chunk)
    );
    if slot_count >= 4 {
        let raid6 = geometry_of(Level::Raid6, Layout::default_for(Level::Raid6), chunk, sizes);
        assert_eq!(raid6.array_bytes(), (slots - 2) * whole * chunk);
    }
    for (name, copies) in [("n2", 2), ("f2", 2), ("o2", 2), ("n3", 3), ("f3", 3)] {
        if copies <= slots {
            let layout = Layout::parse(Level::Raid10, name).unwrap();
            let raid10 = geometry_of(Level::Raid10, layout, chunk, sizes);
            assert_eq!(raid10.array_bytes(), whole * slots / copies * chunk, "{name} {slots}");
        }
    }
}

// Arrays at the end of what an offset can say, where sums and products would overflow first.
#[test]
fn largest_arrays_do_not_overflow() {
    let shapes = [
        (Level::Raid0, "original", 254usize, i64::MAX as u64 / 254),
        (Level::Raid5, "right-asymmetric", 255, i64::MAX as u64 / 254),
        (Level::Raid6, "left-symmetric", 255, i64::MAX as u64 / 253),
        (Level::Raid10, "n2", 255, i64::MAX as u64 / 128),
        (Level::Raid10, "f2", 3, i64::MAX as u64 / 2),
        (Level::Raid10, "n255", 255, i64::MAX as u64),
        (Level::Raid1, "default", 255, i64::MAX as u64),
        (Level::Linear, "default", 255, i64::MAX as u64 / 255),
    ];
    for (level, name, slot_count, member_bytes) in shapes {
        let layout = match name {
            "n255" => Layout::Raid10(Raid10Layout::near(255)),
            _ => Layout::parse(level, name).unwrap(),
        };
        let geometry = geometry_of(level, layout, CHUNK, &vec![member_bytes; slot_count]);
        assert!(geometry.array_bytes() <= i64::MAX as u64);
        for offset in [0, geometry.array_bytes() / 2, geometry.array_bytes() - 1] {
            for copy in [0, geometry.copy_count() - 1] {
                let place = geometry.copy(offset, copy);
                assert!(place.slot < slot_count && place.member_offset < member_bytes);
                let logical = geometry.logical_of(place.slot, place.member_offset);
                assert_eq!(logical, Some(Logical { offset, copy }), "{level} {name}");
            }
        }
        let huge = vec![u64::MAX; slot_count];
        assert_eq!(try_geometry(level, layout, CHUNK, &huge), Err(GeometryError::ArrayTooLarge));
    }
}

#[test]
fn bad_shapes_are_refused_with_the_comparison() {
    use GeometryError as E;
    let raid5 = Layout::default_for(Level::Raid5);
    let refused = |level, layout, chunk, sizes: &[u64]| {
        try_geometry(level, layout, chunk, sizes).unwrap_err()
    };
    let size = 1 << 30;
    let (level, layout) = (Level::Raid6, raid5);
    let too_few = E::SlotCountTooSmall { level, slot_count: 3, slot_count_min: 4 };
    assert_eq!(refused(level, layout, CHUNK, &[size; 3]), too_few);
    assert_eq!(too_few.to_string(), "raid6: slot count 3 < 4");
    let level = Level::Raid5;
    for (chunk_bytes, error, text) in [
        (0, E::ChunkTooSmall { level, chunk_bytes: 0 }, "raid5: chunk size 0 < 4096"),
        (2048, E::ChunkTooSmall { level, chunk_bytes: 2048 }, "raid5: chunk size 2048 < 4096"),
        (
            12288,
            E::ChunkNotPowerOfTwo { level, chunk_bytes: 12288 },
            "raid5: chunk size 12288 is not a power of two",
        ),
        (2 << 30, E::ChunkTooLarge { chunk_bytes: 2 << 30 }, "chunk size 2147483648 > 1073741824"),
    ] {
        assert_eq!(refused(level, raid5, chunk_bytes, &[size; 3]), error);
        assert_eq!(error.to_string(), text);
    }
    let level = Level::Raid0;
    let layout = Layout::default_for(level);
    let odd = E::ChunkNotMultiple { level, chunk_bytes: 6144, unit_bytes: 4096 };
    assert_eq!(refused(level, layout, 6144, &[size]), odd);
    let unsaid = Layout::Raid0(Raid0Layout::Unspecified);
    let zones = E::Raid0LayoutUnspecified { zone_count: 2 };
    assert_eq!(refused(level, unsaid, CHUNK, &[size, 2 * size, size]), zones);
    let small = E::MemberTooSmall { slot: 1, member_bytes: 4095, needed_bytes: 4096 };
    assert_eq!(refused(level, layout, CHUNK, &[size, 4095]), small);
    assert_eq!(small.to_string(), "slot 1: member data size 4095 < 4096");
    assert_eq!(refused(Level::Raid5, raid5, CHUNK, &[size, 4095]), small);
    assert_eq!(
        refused(Level::Raid1, raid5, 0, &[size; 2]),
        E::LayoutMismatch { level: Level::Raid1, layout: raid5 }
    );
    let far3 = Layout::Raid10(Raid10Layout::far(3));
    let few_rows = E::MemberTooSmall { slot: 0, member_bytes: 8192, needed_bytes: 12288 };
    assert_eq!(refused(Level::Raid10, far3, CHUNK, &[8192; 3]), few_rows);
    let copies = E::TooManyCopies { layout: far3, copy_count: 3, slot_count: 2 };
    assert_eq!(refused(Level::Raid10, far3, CHUNK, &[size; 2]), copies);
    assert_eq!(copies.to_string(), "far=3: copies 3 > slot count 2");
    let one = Layout::Raid10(Raid10Layout::near(1));
    let none = E::NoRedundancy { layout: one, copy_count: 1 };
    assert_eq!(refused(Level::Raid10, one, CHUNK, &[size; 2]), none);
    assert_eq!(
        refused(Level::Raid1, Layout::None, 0, &[size; 256]),
        E::SlotCountTooLarge { slot_count: 256 }
    );
    let spec = GeometrySpec {
        level: Level::Raid1,
        layout: Layout::None,
        slot_count: 2,
        chunk_bytes: 0,
        member_data_bytes: &[size],
    };
    assert_eq!(Geometry::new(spec), Err(E::MemberSizeCount { size_count: 1, slot_count: 2 }));
    // md 7.3 takes this shape, and its own check then counts 2048 mismatched sectors on 5 MiB:
    // chunks share places.
    let near_offset = Layout::parse(Level::Raid10, "near=2, offset=2").unwrap();
    let overlapping = E::OverlappingCopies { layout: near_offset, slot_count: 5 };
    assert_eq!(refused(Level::Raid10, near_offset, CHUNK, &[size; 5]), overlapping);
}

#[test]
fn lock_units_cover_the_array() {
    let raid0 = Layout::default_for(Level::Raid0);
    for (level, layout, chunk, unit) in [
        (Level::Raid0, raid0, 4096, 256 << 10),
        (Level::Raid0, raid0, 12288, 252 << 10),
        (Level::Raid0, raid0, 1 << 20, 1 << 20),
        (Level::Raid10, Layout::default_for(Level::Raid10), 64 << 10, 256 << 10),
        (Level::Raid1, Layout::None, 0, 256 << 10),
        (Level::Linear, Layout::None, 0, 256 << 10),
        (Level::Raid5, Layout::default_for(Level::Raid5), 64 << 10, 192 << 10),
    ] {
        let geometry = geometry_of(level, layout, chunk, &[9 << 20; 4]);
        assert_eq!(geometry.unit_bytes(), unit, "{level}");
        let covered = geometry.unit_count() * unit;
        assert!(covered >= geometry.array_bytes() && covered - unit < geometry.array_bytes());
    }
}
