//! Goal: every layout is where md has it, under md's number and mdadm's name. Method: md's tables,
//! written out by hand, and the order of data in Q found by walking round the stripe as md words
//! it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod shapes;

use raid_core::geometry::*;
use shapes::{CHUNK, geometry_of, parity, raid6_shapes};

/// The stripes of a geometry, one word each: a digit for data, P and Q.
fn drawing(geometry: &Geometry, stripes: u64) -> Vec<String> {
    let draw = |stripe: Stripe| {
        let kinds = (0..geometry.slot_count()).map(|slot| match stripe.kind_of(slot) {
            ChunkKind::Data(k) => char::from_digit(k as u32, 10).unwrap(),
            ChunkKind::P => 'P',
            ChunkKind::Q => 'Q',
        });
        kinds.collect::<String>()
    };
    (0..stripes).map(|index| draw(geometry.stripe(index))).collect()
}

#[test]
fn raid5_tables() {
    let tables = [
        (ParityLayout::LeftAsymmetric, ["012P", "01P2", "0P12", "P012", "012P"]),
        (ParityLayout::RightAsymmetric, ["P012", "0P12", "01P2", "012P", "P012"]),
        (ParityLayout::LeftSymmetric, ["012P", "12P0", "2P01", "P012", "012P"]),
        (ParityLayout::RightSymmetric, ["P012", "2P01", "12P0", "012P", "P012"]),
        (ParityLayout::ParityFirst, ["P012"; 5]),
        (ParityLayout::ParityLast, ["012P"; 5]),
    ];
    for (layout, table) in tables {
        assert_eq!(drawing(&parity(Level::Raid5, layout, 4, 5), 5), table, "{layout:?}");
    }
    let raid4 = geometry_of(Level::Raid4, Layout::None, CHUNK, &[5 * CHUNK; 4]);
    assert_eq!(drawing(&raid4, 5), ["012P"; 5]);
    // Two slots: a mirror in the clothes of RAID 5.
    let two = parity(Level::Raid5, ParityLayout::LeftSymmetric, 2, 3);
    assert_eq!(drawing(&two, 3), ["0P", "P0", "0P"]);
}

#[test]
fn raid6_tables() {
    use ParityLayout::*;
    let tables = [
        (LeftAsymmetric, ["Q012P", "012PQ", "01PQ2", "0PQ12", "PQ012", "Q012P"]),
        (RightAsymmetric, ["PQ012", "0PQ12", "01PQ2", "012PQ", "Q012P", "PQ012"]),
        (LeftSymmetric, ["Q012P", "012PQ", "12PQ0", "2PQ01", "PQ012", "Q012P"]),
        (RightSymmetric, ["PQ012", "2PQ01", "12PQ0", "012PQ", "Q012P", "PQ012"]),
        (ParityFirst, ["PQ012"; 6]),
        (ParityLast, ["012PQ"; 6]),
        (DdfZeroRestart, ["PQ012", "0PQ12", "01PQ2", "012PQ", "Q012P", "PQ012"]),
        (DdfNRestart, ["012PQ", "01PQ2", "0PQ12", "PQ012", "Q012P", "012PQ"]),
        (DdfNContinue, ["012QP", "12QP0", "2QP01", "QP012", "P012Q", "012QP"]),
        (LeftAsymmetric6, ["012PQ", "01P2Q", "0P12Q", "P012Q", "012PQ", "01P2Q"]),
        (RightAsymmetric6, ["P012Q", "0P12Q", "01P2Q", "012PQ", "P012Q", "0P12Q"]),
        (LeftSymmetric6, ["012PQ", "12P0Q", "2P01Q", "P012Q", "012PQ", "12P0Q"]),
        (RightSymmetric6, ["P012Q", "2P01Q", "12P0Q", "012PQ", "P012Q", "2P01Q"]),
        (ParityFirst6, ["P012Q"; 6]),
    ];
    for (layout, table) in tables {
        assert_eq!(drawing(&parity(Level::Raid6, layout, 5, 6), 6), table, "{layout:?}");
    }
}

// The order of data in Q, found as md words it: walk round from the slot after Q (from slot 0 in
// DDF layouts and where Q is last), and count the data; DDF counts P and Q too.
#[test]
fn syndrome_order_follows_the_walk_round() {
    for (layout, slot_count) in raid6_shapes() {
        let geometry = parity(Level::Raid6, layout, slot_count, 2 * slot_count as u64);
        let is_ddf = (8..=10).contains(&layout.to_md());
        for index in 0..geometry.stripe_count() {
            let stripe = geometry.stripe(index);
            let start = if is_ddf { 0 } else { (stripe.q.unwrap() + 1) % slot_count };
            let mut exponent = 0;
            for slot in (0..slot_count).map(|step| (start + step) % slot_count) {
                if let ChunkKind::Data(k) = stripe.kind_of(slot) {
                    assert_eq!(stripe.syndrome_index(k), exponent, "{layout:?} {slot_count}");
                    exponent += 1;
                } else if is_ddf {
                    exponent += 1;
                }
            }
            assert_eq!(stripe.syndrome_width(), exponent, "{layout:?}");
        }
    }
}

/// The rows of a RAID 10, one word each: the chunk as a letter, a dot where nothing is.
fn copies_drawing(layout: &str, slot_count: usize, rows: u64) -> Vec<String> {
    let layout = Layout::parse(Level::Raid10, layout).unwrap();
    let geometry = geometry_of(Level::Raid10, layout, CHUNK, &vec![rows * CHUNK; slot_count]);
    let letter = |logical: Option<Logical>| {
        logical.map_or('.', |l| char::from(b'A' + u8::try_from(l.offset / CHUNK).unwrap()))
    };
    let draw =
        |row| (0..slot_count).map(|slot| letter(geometry.logical_of(slot, row * CHUNK))).collect();
    (0..rows).map(draw).collect()
}

#[test]
fn raid10_tables() {
    assert_eq!(copies_drawing("n2", 4, 3), ["AABB", "CCDD", "EEFF"]);
    assert_eq!(copies_drawing("n2", 3, 4), ["AAB", "BCC", "DDE", "EFF"]);
    assert_eq!(copies_drawing("n2", 3, 3), ["AAB", "BCC", "DD."]);
    assert_eq!(copies_drawing("n3", 5, 3), ["AAABB", "BCCCD", "DDEEE"]);
    assert_eq!(copies_drawing("f2", 4, 4), ["ABCD", "EFGH", "DABC", "HEFG"]);
    assert_eq!(copies_drawing("f2", 3, 5), ["ABC", "DEF", "CAB", "FDE", "..."]);
    assert_eq!(copies_drawing("f3", 3, 3), ["ABC", "CAB", "BCA"]);
    assert_eq!(copies_drawing("o2", 4, 4), ["ABCD", "DABC", "EFGH", "HEFG"]);
    assert_eq!(copies_drawing("o2", 3, 5), ["ABC", "CAB", "DEF", "FDE", "..."]);
    assert_eq!(copies_drawing("n2,f2", 4, 4), ["AABB", "CCDD", "BBAA", "DDCC"]);
    assert_eq!(copies_drawing("n2,f2", 5, 4), ["AABBC", "CDDEE", "BCAAB", "EECDD"]);
    let sets = "far=2, far-sets=copies";
    assert_eq!(copies_drawing(sets, 4, 2), ["ABCD", "BADC"]);
    assert_eq!(copies_drawing(sets, 5, 2), ["ABCDE", "BAECD"]);
    assert_eq!(copies_drawing("far=2, far-sets=divided", 6, 2), ["ABCDEF", "CABFDE"]);
}

// Members of 1, 2 and 3 chunks and of other sizes; the numbers are chunks of the array, by member.
#[test]
fn raid0_zone_tables() {
    let rows = |layout, sizes: &[u64]| -> Vec<Vec<u64>> {
        let sizes: Vec<u64> = sizes.iter().map(|chunks| chunks * CHUNK).collect();
        let geometry = geometry_of(Level::Raid0, Layout::Raid0(layout), CHUNK, &sizes);
        let member = |(slot, size): (usize, &u64)| {
            let chunks = 0..size / CHUNK;
            chunks.map(|c| geometry.logical_of(slot, c * CHUNK).unwrap().offset / CHUNK).collect()
        };
        sizes.iter().enumerate().map(member).collect()
    };
    let original = Raid0Layout::Original;
    let alternate = Raid0Layout::Alternate;
    assert_eq!(rows(alternate, &[1, 2, 3]), [vec![0], vec![1, 3], vec![2, 4, 5]]);
    // Zone 1 starts at chunk 3, which is odd: its first chunk goes to the second of its two slots.
    assert_eq!(rows(original, &[1, 2, 3]), [vec![0], vec![1, 4], vec![2, 3, 5]]);
    assert_eq!(rows(alternate, &[2, 1, 3]), [vec![0, 3], vec![1], vec![2, 4, 5]]);
    assert_eq!(rows(original, &[2, 1, 3]), [vec![0, 4], vec![1], vec![2, 3, 5]]);
    for layout in [original, alternate, Raid0Layout::Unspecified] {
        assert_eq!(rows(layout, &[2, 2, 2]), [[0, 3], [1, 4], [2, 5]]);
    }
}

#[test]
fn md_numbers_and_names_go_both_ways() {
    for level in Level::ALL {
        assert_eq!(Level::from_md(level.to_md()), Ok(level));
        assert_eq!(level.to_string().parse(), Ok(level));
        let mut known = 0;
        for number in (0..0x8_0000u32).chain([u32::MAX, 0x8_0102]) {
            let Ok(layout) = Layout::from_md(level, number) else { continue };
            assert!(layout.fits(level));
            if layout != Layout::None {
                assert_eq!(layout.to_md(), number);
            }
            let name = layout.to_string();
            if has_own_name(layout) {
                assert_eq!(Layout::parse(level, &name), Ok(layout), "{level} {name}");
            }
            known += 1;
        }
        match level {
            Level::Raid0 => assert_eq!(known, 3),
            Level::Raid5 => assert_eq!(known, 6),
            Level::Raid6 => assert_eq!(known, 14),
            Level::Raid10 => assert_eq!(known, 6 * 255 * 255),
            _ => assert!(known > 0),
        }
    }
    for number in [-4, -2, 2, 3, 7, 11, i32::MIN, i32::MAX] {
        assert_eq!(Level::from_md(number), Err(LayoutError::UnknownLevel { number }));
    }
    assert_eq!("stripe".parse(), Ok(Level::Raid0));
    assert_eq!("mirror".parse(), Ok(Level::Raid1));
    assert_eq!("10".parse(), Ok(Level::Raid10));
    assert_eq!("7".parse::<Level>(), Err(LayoutError::UnknownLevelName));
}

/// Not so: more copies than mdadm takes, no redundancy, and an offset that has nothing to put off.
fn has_own_name(layout: Layout) -> bool {
    let Layout::Raid10(layout) = layout else { return true };
    let is_mdadms = layout.near <= 200 && layout.far <= 200;
    is_mdadms && layout.copy_count() > 1 && !(layout.offset && layout.far == 1)
}

#[test]
fn layout_names_as_mdadm_takes_them() {
    let number = |level, name| Layout::parse(level, name).map(Layout::to_md).ok();
    for (level, name, expected) in [
        (Level::Raid0, "original", Some(1)),
        (Level::Raid0, "2", Some(2)),
        (Level::Raid0, "dangerous", Some(0)),
        (Level::Raid5, "ls", Some(2)),
        (Level::Raid5, "default", Some(2)),
        (Level::Raid5, "ddf-zero-restart", Some(1)),
        (Level::Raid5, "ddf-N-restart", Some(0)),
        (Level::Raid5, "ddf-N-continue", Some(2)),
        (Level::Raid5, "left-symmetric-6", None),
        (Level::Raid6, "ra", Some(1)),
        (Level::Raid6, "ddf-N-continue", Some(10)),
        (Level::Raid6, "parity-first-6", Some(20)),
        (Level::Raid6, "parity-last-6", None),
        (Level::Raid10, "n2", Some(0x102)),
        (Level::Raid10, "f3", Some(0x301)),
        (Level::Raid10, "o2", Some(0x10201)),
        (Level::Raid10, "near=2", Some(0x102)),
        (Level::Raid10, "near=2, far=2", Some(0x202)),
        (Level::Raid10, "far=2, far-sets=copies", Some(0x40201)),
        (Level::Raid10, "n200", Some(0x1c8)),
        (Level::Raid10, "n201", None),
        (Level::Raid10, "n0", None),
        (Level::Raid10, "n", None),
        (Level::Raid10, "n+2", None),
        (Level::Raid10, "", None),
        (Level::Raid10, "f2,o2", None),
        (Level::Raid10, "x2", None),
        (Level::Raid10, "\u{e9}2", None),
        (Level::Raid10, "far-sets=copies", None),
        (Level::Raid1, "default", Some(0)),
        (Level::Raid1, "n2", None),
    ] {
        assert_eq!(number(level, name), expected, "{level} {name:?}");
    }
    let unknown = Layout::parse(Level::Raid0, "best").unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "raid0 has no layout of that name; it knows original, alternate"
    );
    assert_eq!(Level::Raid10.to_string(), "raid10");
    let both = Layout::parse(Level::Raid10, "n2,o3").unwrap();
    assert_eq!(both.to_string(), "near=2, offset=3");
}
