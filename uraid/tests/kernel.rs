//! Goal: arrays go to the kernel's md and come back. Method: a real kernel (User-Mode Linux)
//! assembles, checks and writes what uraid made, and the other way round; contents are compared
//! with a model, redundancy with the raw checker and the kernel's own check.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::fs;

use common::image::{assert_same, bytes, file};
use common::traveller::Array;
use common::uml::{self, Guest};
use common::{peer, scratch, succeed, uraid};

const MD: &str = include_str!("common/md.sh");
const MEMBER_BYTES: u64 = 8 << 20;
/// Where and how much the kernel writes: odd, and over several stripes.
const PIECE: (usize, usize) = (300_001, 1_234_567);

const SHAPES: &[(&str, Option<&str>, usize)] = &[
    ("0", None, 3),
    ("1", None, 2),
    ("4", None, 4),
    ("5", Some("left-symmetric"), 4),
    ("5", Some("left-asymmetric"), 4),
    ("5", Some("right-symmetric"), 3),
    ("5", Some("right-asymmetric"), 5),
    ("6", None, 5),
    ("10", Some("n2"), 4),
    ("10", Some("f2"), 4),
    ("10", Some("o2"), 3),
    ("50", None, 6),
    ("60", None, 8),
];

/// More layouts, versions of the superblock and bitmaps, for arrays that are made here.
const MORE: &[(&str, Option<&str>, usize, &[&str])] = &[
    ("5", Some("parity-first"), 4, &[]),
    ("5", Some("parity-last"), 4, &[]),
    ("6", Some("left-asymmetric"), 5, &["--metadata", "1.1"]),
    ("6", Some("right-symmetric"), 5, &["--bitmap", "internal", "--bitmap-chunk", "64K"]),
    ("6", Some("right-asymmetric"), 4, &["--metadata", "1.0", "--bitmap", "internal"]),
    ("6", Some("parity-first"), 5, &[]),
    ("6", Some("ddf-zero-restart"), 5, &[]),
    ("6", Some("ddf-N-restart"), 5, &[]),
    ("6", Some("ddf-N-continue"), 5, &[]),
    ("6", Some("left-symmetric-6"), 5, &[]),
    ("6", Some("parity-first-6"), 5, &[]),
    ("10", Some("n3"), 5, &["--bitmap", "internal"]),
    ("10", Some("f2"), 3, &["--metadata", "1.1"]),
    ("10", Some("o2"), 4, &["--metadata", "1.0", "--bitmap", "internal", "--bitmap-chunk", "64K"]),
    ("0", None, 4, &["--metadata", "1.0"]),
    ("1", None, 3, &["--metadata", "0.90"]),
    ("1", None, 4, &["--metadata", "1.0", "--bitmap", "internal"]),
    ("1", None, 5, &["--metadata", "1.1", "--bitmap", "internal"]),
    ("4", None, 5, &["--metadata", "0.90"]),
    ("5", Some("left-symmetric"), 3, &["--metadata", "0.90"]),
    ("5", Some("left-symmetric"), 5, &["--metadata", "1.0"]),
    ("5", Some("left-symmetric"), 6, &["--bitmap", "internal", "--bitmap-chunk", "4K"]),
    ("5", Some("left-symmetric"), 7, &["--metadata", "1.1", "--bitmap", "internal"]),
    ("10", Some("n2"), 6, &["--metadata", "0.90"]),
    ("60", None, 10, &["--bitmap", "internal"]),
];

/// uraid makes and writes; the kernel finds it in sync and right, writes, and uraid reads that.
#[test]
fn what_uraid_made_is_at_home_in_the_kernel() {
    if !uml::present() || !peer::present(&["nbdcopy"]) {
        return;
    }
    let work = scratch();
    let mut guest = Guest::boot(work.path());
    let plain = SHAPES.iter().map(|&shape| (shape, &[][..]));
    let more =
        MORE.iter().map(|&(level, layout, members, options)| ((level, layout, members), options));
    let shapes: Vec<(_, &[&str])> = plain.chain(more).collect();
    let mut arrays: Vec<Array> =
        shapes.iter().map(|(shape, _)| Array::new(work.path(), shape)).collect();
    let mut script = MD.to_owned();
    for ((array, (_, options)), seed) in arrays.iter_mut().zip(&shapes).zip(1..) {
        succeed(array.shape.create_command(&array.folder, "64K", MEMBER_BYTES).args(*options));
        array.is_raw_known &= !options.contains(&"--metadata");
        array.fill(seed);
        script += &array.header();
        let has_bitmap = usize::from(options.contains(&"--bitmap"));
        script += &format!("bitmap={has_bitmap}\n");
        script += "start; hash; check; put $array/piece.bin 300001; end\n";
    }
    let before: Vec<String> = arrays.iter().map(Array::hash_line).collect();
    for (array, seed) in arrays.iter_mut().zip(1000..) {
        array.piece(seed, PIECE.0, PIECE.1);
    }
    let said = guest.run(&script);
    assert!(!said.contains("BAD"), "{said}");
    for line in before {
        assert!(said.contains(&line), "no {line} in\n{said}");
    }
    arrays.iter().for_each(Array::judge);
}

/// The kernel makes, writes, loses a member and writes on; uraid reads that and writes; the kernel
/// finds its array again, and rebuilds the lost member from what uraid wrote.
#[test]
fn what_the_kernel_made_comes_here_and_goes_back() {
    if !uml::present() || !peer::present(&["nbdcopy"]) {
        return;
    }
    let work = scratch();
    let mut guest = Guest::boot(work.path());
    let redundant = SHAPES.iter().filter(|shape| !matches!(shape.0, "0" | "50" | "60"));
    let mut arrays: Vec<Array> = redundant.map(|shape| Array::new(work.path(), shape)).collect();
    let mut script = MD.to_owned();
    for (array, seed) in arrays.iter_mut().zip(1..) {
        for member in &array.members {
            fs::File::create(member).unwrap().set_len(MEMBER_BYTES).unwrap();
        }
        // More than any of the arrays holds: each takes its part.
        array.content = bytes(seed, 8 * MEMBER_BYTES as usize);
        file(&array.folder, "in.bin", &array.content);
        file(&array.folder, "piece.bin", &bytes(seed + 1000, PIECE.1));
        let shape = array.shape;
        let layout = shape.layout.map_or(String::new(), |name| format!("--layout={name}"));
        script += &array.header();
        script += &format!("create {} {} {layout}; degrade; end\n", shape.level, shape.members);
    }
    let said = guest.run(&script);
    let mut script = MD.to_owned();
    for (array, seed) in arrays.iter_mut().zip(2001..) {
        let prefix = format!("{} size ", array.name);
        let size = said.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap();
        array.content.truncate(size.parse().unwrap());
        array.piece(seed - 1000, PIECE.0, PIECE.1);
        // The member that the kernel failed is given as well: it must be left out.
        let cat = succeed(uraid().arg("cat").args(&array.members));
        assert_same(&cat, &array.content, &format!("{}: degraded by the kernel", array.name));
        array.fill(seed);
        script += &array.header();
        script += "degraded=1; start; hash; rebuild; degraded=0; check; hash; end\n";
    }
    let said = guest.run(&script);
    assert!(!said.contains("BAD"), "{said}");
    for array in &arrays {
        assert_eq!(said.matches(&array.hash_line()).count(), 2, "{}\n{said}", array.name);
        array.judge();
    }
}
