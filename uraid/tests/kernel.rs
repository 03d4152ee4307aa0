//! Goal: arrays go to the kernel's md and come back. Method: a real kernel (User-Mode Linux)
//! assembles, checks and writes what uraid made, and the other way round; contents are compared
//! with a model, redundancy with the raw checker and the kernel's own check.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::image::{assert_same, bytes, file};
use common::nbd::Client;
use common::rawcheck::RawSuper;
use common::server::Server;
use common::traveller::{Array, Kind};
use common::uml::{self, Guest};
use common::{peer, scratch, succeed, uraid};
use rustix::process::Signal;

const MD: &str = include_str!("common/md.sh");
/// Where and how much the kernel writes: odd, and over several stripes.
const PIECE: (usize, usize) = (300_001, 1_234_567);

/// uraid makes and writes each of them; the kernel finds it in sync and right, and writes; the raw
/// checker and uraid find that.
fn send(kinds: &[Kind]) {
    const MEMBER_BYTES: u64 = 3 << 20;
    if !uml::present() || !peer::present(&["nbdcopy"]) {
        return;
    }
    let work = scratch();
    let mut arrays: Vec<Array> = kinds.iter().map(|kind| Array::new(work.path(), *kind)).collect();
    let mut script = MD.to_owned();
    let mut before = Vec::new();
    for (array, seed) in arrays.iter_mut().zip(1..) {
        array.create(MEMBER_BYTES);
        array.fill(seed);
        script += &array.header();
        script += &format!("start; hash; check; put $array/piece.bin {}; end\n", PIECE.0);
        before.push(array.hash_line());
        array.piece(seed + 1000, PIECE.0, PIECE.1);
    }
    let said = Guest::boot(work.path()).run(&script);
    assert!(!said.contains("BAD"), "{said}");
    for line in before {
        assert!(said.contains(&line), "no {line} in\n{said}");
    }
    arrays.iter().for_each(Array::judge);
}

const VERSIONS: [&str; 4] = ["0.90", "1.0", "1.1", "1.2"];

/// A kind in every version of the superblock, half of them with bitmaps.
fn versions(kind: Kind, with_bitmap: impl Fn(usize) -> bool) -> Vec<Kind> {
    let chunk = |index| if index < 2 { "4K" } else { "64K" };
    let one = |(index, version)| {
        let kind = kind.with_metadata(version);
        if with_bitmap(index) { kind.with_bitmap(chunk(index)) } else { kind }
    };
    VERSIONS.into_iter().enumerate().map(one).collect()
}

/// The first layout in every version; the others in two each, one with a bitmap and one without,
/// all eight in turn.
fn layouts(level: &'static str, layouts: &[(&'static str, usize)]) -> Vec<Kind> {
    let kinds = layouts.iter().map(|(layout, members)| Kind::new(level, Some(layout), *members));
    let some = |(turn, kind)| match turn {
        0 => versions(kind, |index| index % 2 == 0),
        _ => {
            let all = versions(kind, |index| (index + turn) / 2 % 2 == 0);
            all.into_iter().skip(turn % 2).step_by(2).collect()
        }
    };
    kinds.enumerate().flat_map(some).collect()
}

#[test]
fn stripes_mirrors_and_nested_arrays_are_at_home_in_the_kernel() {
    let raid0 = Kind::new("0", None, 3);
    let mut kinds: Vec<Kind> = VERSIONS[1..].iter().map(|v| raid0.with_metadata(v)).collect();
    for with_bitmap in [0, 1] {
        kinds.extend(versions(Kind::new("1", None, 3), |index| index % 2 == with_bitmap));
    }
    kinds.extend(layouts("10", &[("n2", 4), ("f2", 4), ("o2", 3), ("n3", 5), ("f2", 3)]));
    kinds.extend(versions(Kind::new("50", None, 6), |index| index % 2 == 0));
    kinds.extend(versions(Kind::new("60", None, 8), |index| index % 2 == 1));
    send(&kinds);
}

#[test]
fn parity_on_rotating_and_on_fixed_members_is_at_home_in_the_kernel() {
    let mut kinds = versions(Kind::new("4", None, 4), |index| index % 2 == 1);
    kinds.extend(layouts(
        "5",
        &[
            ("left-symmetric", 4),
            ("left-asymmetric", 4),
            ("right-symmetric", 3),
            ("right-asymmetric", 5),
            ("parity-first", 4),
            ("parity-last", 4),
        ],
    ));
    send(&kinds);
}

#[test]
fn two_parities_are_at_home_in_the_kernel() {
    send(&layouts(
        "6",
        &[
            ("left-symmetric", 5),
            ("left-asymmetric", 5),
            ("right-symmetric", 4),
            ("right-asymmetric", 5),
            ("parity-first", 5),
            ("parity-last", 5),
            ("left-symmetric-6", 5),
            ("left-asymmetric-6", 4),
            ("right-symmetric-6", 5),
            ("right-asymmetric-6", 6),
            ("parity-first-6", 5),
            ("ddf-zero-restart", 5),
            ("ddf-N-restart", 4),
            ("ddf-N-continue", 5),
        ],
    ));
}

const KERNELS: &[Kind] = &[
    Kind::new("0", None, 3),
    Kind::new("0", None, 4).with_metadata("1.0"),
    Kind::new("0", None, 2).with_metadata("1.1"),
    Kind::new("1", None, 2),
    Kind::new("1", None, 3).with_metadata("0.90").with_bitmap("64K"),
    Kind::new("4", None, 4),
    Kind::new("4", None, 3).with_metadata("1.0").with_bitmap("64K"),
    Kind::new("5", Some("left-symmetric"), 4),
    Kind::new("5", Some("left-asymmetric"), 4).with_metadata("1.1"),
    Kind::new("5", Some("right-symmetric"), 3).with_metadata("0.90"),
    Kind::new("5", Some("right-asymmetric"), 5).with_bitmap("64K"),
    Kind::new("5", Some("parity-first"), 4).with_metadata("1.0"),
    Kind::new("5", Some("parity-last"), 3).with_metadata("1.1").with_bitmap("64K"),
    Kind::new("6", None, 5),
    Kind::new("6", Some("parity-last"), 4).with_metadata("0.90").with_bitmap("64K"),
    Kind::new("6", Some("right-asymmetric-6"), 5).with_metadata("1.1"),
    Kind::new("6", Some("ddf-N-continue"), 5).with_metadata("1.0").with_bitmap("64K"),
    Kind::new("10", Some("n2"), 4),
    Kind::new("10", Some("f2"), 4),
    Kind::new("10", Some("o2"), 3).with_metadata("1.0").with_bitmap("64K"),
    Kind::new("50", None, 6),
    Kind::new("50", None, 8).with_metadata("1.1").with_bitmap("64K"),
    Kind::new("60", None, 8),
    Kind::new("60", None, 10).with_metadata("0.90"),
];

/// The kernel makes, writes, loses a member (of each group) and writes on; uraid reads that and
/// writes; the kernel finds its array again, and rebuilds the lost member from what uraid wrote.
#[test]
fn what_the_kernel_made_comes_here_and_goes_back() {
    const MEMBER_BYTES: u64 = 4 << 20;
    if !uml::present() || !peer::present(&["nbdcopy"]) {
        return;
    }
    let work = scratch();
    let mut guest = Guest::boot(work.path());
    let new = |kind: &Kind| Array::new(work.path(), *kind);
    let mut arrays: Vec<Array> = KERNELS.iter().map(new).collect();
    let mut script = MD.to_owned();
    for (array, seed) in arrays.iter_mut().zip(1..) {
        // More than the array holds: it takes its part.
        array.content = bytes(seed, array.members.len() * MEMBER_BYTES as usize);
        file(&array.folder, "in.bin", &array.content);
        file(&array.folder, "piece.bin", &bytes(seed + 1000, PIECE.1));
        script += &array.header();
        script += &array.create_line(MEMBER_BYTES, "");
        script += "degrade; end\n";
    }
    let said = guest.run(&script);
    let mut script = MD.to_owned();
    for (array, seed) in arrays.iter_mut().zip(2001..) {
        let prefix = format!("{} size ", array.name);
        let size = said.lines().find_map(|line| line.strip_prefix(&prefix));
        let size = size.unwrap_or_else(|| panic!("{} was not made\n{said}", array.name));
        array.content.truncate(size.parse().unwrap());
        array.piece(seed - 1000, PIECE.0, PIECE.1);
        // The member that the kernel failed is given as well: it must be left out.
        let cat = succeed(uraid().arg("cat").args(&array.members));
        assert_same(&cat, &array.content, &format!("{}: degraded by the kernel", array.name));
        array.fill(seed);
        script += &array.header();
        let rebuild = if array.kind.shape.level == "0" { "" } else { "rebuild;" };
        script += &format!("degraded=1; start; hash; {rebuild} degraded=0; check; hash; end\n");
    }
    let said = guest.run(&script);
    assert!(!said.contains("BAD"), "{said}");
    for array in &arrays {
        assert_eq!(said.matches(&array.hash_line()).count(), 2, "{}\n{said}", array.name);
        // A new member is written as a whole: what a turn by the bitmap is measured against.
        let refilled = array.refilled(&said);
        let groups = if array.kind.shape.level == "0" { 0 } else { array.kind.groups() };
        assert_eq!(refilled.len(), groups, "{}\n{said}", array.name);
        for (sectors, all) in refilled {
            assert!(sectors >= all, "{}: {sectors} of {all} sectors", array.name);
        }
        array.judge();
    }
}

/// Turns over every bit of a byte of a member's data area.
fn damage(member: &Path, offset: usize) {
    let image = fs::read(member).unwrap();
    let at = RawSuper::of(&image).unwrap().data_offset + offset;
    let file = fs::OpenOptions::new().write(true).open(member).unwrap();
    file.write_all_at(&[!image[at]], at as u64).unwrap();
}

/// Writes, and leaves the array dirty.
fn write_something(server: &Server) {
    let mut client = Client::connect(&server.uri).unwrap();
    client.write(300_001, &bytes(9, 100_000)).unwrap();
    client.flush().unwrap();
}

/// What the other tests rely on can say no: arrays made wrong on purpose are told, each by the
/// check that is meant for it, and their sound neighbours are not.
#[test]
fn the_kernel_tells_what_is_wrong() {
    const MEMBER_BYTES: u64 = 3 << 20;
    if !uml::present() || !peer::present(&["nbdcopy"]) {
        return;
    }
    let work = scratch();
    let mut guest = Guest::boot(work.path());
    let kinds = [
        Kind::new("1", None, 2).with_metadata("1.0"),
        Kind::new("5", None, 4).with_bitmap("64K"),
        Kind::new("6", None, 4).with_metadata("0.90"),
        Kind::new("10", Some("n2"), 4).with_metadata("1.1"),
        Kind::new("50", None, 6),
    ];
    for kind in kinds {
        let mut array = Array::new(work.path(), kind);
        array.create(MEMBER_BYTES);
        array.fill(1);
        let script = format!("{MD}{}start; hash; check; end\n", array.header());
        let name = &array.name;
        let mut told = |what: &str| {
            let said = guest.run(&script);
            let is_told = said.contains(&format!("BAD {what} of {name}"));
            assert!(is_told, "{name}: {what} is not told:\n{said}");
            said
        };
        // In the kernel's turn nothing is wrong yet but one copy, or parity.
        damage(&array.members[0], 20_000);
        let said = told("mismatch_cnt");
        assert_eq!(said.matches("BAD").count(), 1, "{name}\n{said}");
        damage(&array.members[0], 20_000);
        let server = Server::start_dirty(&array.folder, &array.members);
        write_something(&server);
        server.signal(Signal::KILL);
        let said = told("resync");
        assert!(said.contains(&format!("BAD state of {name}")), "{said}");
        let is_bitmap_told = said.contains(&format!("BAD bitmap of {name}"));
        assert_eq!(is_bitmap_told, kind.bitmap_chunk.is_some(), "{said}");
        // The kernel has resynced it; now a member fails. Something is written without it, as mdadm
        // takes a member of version 0.90 back that is a single event behind.
        let server = Server::start(&array.folder, &array.members);
        succeed(uraid().arg("fail").arg("--control").arg(&server.control).arg(&array.members[1]));
        write_something(&server);
        server.stop();
        told("degraded");
    }
}
