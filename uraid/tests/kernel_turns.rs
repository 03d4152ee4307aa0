//! Goal: arrays go back and forth between uraid and the kernel's md while members fail and come
//! back on either side, and when the kernel's machine loses its power. Method: a real kernel
//! (User-Mode Linux); contents against a model, events against the time before, what a member that
//! came back was written against what it missed, redundancy with the raw checker and the kernel's
//! check.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use common::image::{Random, bytes, file};
use common::nbd::Client;
use common::server::Server;
use common::traveller::{Array, Kind};
use common::uml::{self, Guest};
use common::{peer, scratch, succeed, uraid};
use serde_json::Value;

const MD: &str = include_str!("common/md.sh");
const TURNS: u64 = 10;
const PIECE_BYTES: usize = 200_000;
const MEMBER_BYTES: u64 = 6 << 20;

const TURNING: &[Kind] = &[
    Kind::new("1", None, 3).with_bitmap("64K"),
    Kind::new("4", None, 3).with_metadata("1.0").with_bitmap("64K"),
    Kind::new("5", None, 4).with_bitmap("64K"),
    Kind::new("6", None, 5).with_bitmap("64K"),
    Kind::new("10", Some("n2"), 4).with_metadata("1.1").with_bitmap("64K"),
    Kind::new("50", None, 6).with_bitmap("64K"),
];

/// The event count of each group, which all its members say.
fn events(array: &Array) -> Vec<u64> {
    let text = succeed(uraid().arg("examine").arg("--json").args(&array.members));
    let members: Value = serde_json::from_slice(&text).unwrap();
    let of = |member: &Value| member["events"].as_u64().unwrap();
    let all: Vec<u64> = members.as_array().unwrap().iter().map(of).collect();
    let groups = all.chunks(all.len() / array.kind.groups());
    let one = |group: &[u64]| {
        assert!(group.iter().all(|one| *one == group[0]), "{}: {all:?}", array.name);
        group[0]
    };
    groups.map(one).collect()
}

fn wait(server: &Server, what: &str, done: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let status = server.status();
        if done(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "{what} does not come: {status:#}");
        thread::sleep(Duration::from_millis(30));
    }
}

fn groups(status: &Value) -> &[Value] {
    status["groups"].as_array().unwrap()
}

fn manage(verb: &str, server: &Server, member: &Path) {
    succeed(uraid().arg(verb).arg("--control").arg(&server.control).arg(member));
}

/// Waits until nothing is missing; returns how often `member` was written since it came back, of
/// which nothing was asked by anybody else meanwhile.
fn refilled(server: &Server, member: &Path) -> u64 {
    let status = wait(server, "the recovery", |status| {
        let idle = groups(status).iter().all(|group| group["sync_action"] == "idle");
        status["degraded"] == 0 && idle
    });
    let listed = groups(&status).iter().flat_map(|group| group["members"].as_array().unwrap());
    let is_it = |one: &&Value| one["path"].as_str().is_some_and(|path| Path::new(path) == member);
    let mut found = listed.filter(is_it);
    let writes = found.next().unwrap()["writes"].as_u64().unwrap();
    assert!(found.next().is_none(), "{status:#}");
    writes
}

/// A member is lost and a blank one fills its place: returns the writes that all of it takes.
fn lose_a_member(array: &Array) -> u64 {
    let member = &array.members[0];
    let server = Server::start(&array.folder, &array.members);
    manage("fail", &server, member);
    manage("remove", &server, member);
    fs::remove_file(member).unwrap();
    fs::File::create(member).unwrap().set_len(MEMBER_BYTES).unwrap();
    manage("add", &server, member);
    let writes = refilled(&server, member);
    server.stop();
    writes
}

/// uraid's turn: a member fails, is written without, and comes back by the bitmap. Returns the
/// writes that this took.
fn take_turn(array: &mut Array, turn: u64, at: usize) -> u64 {
    let member = array.members[turn as usize % array.members.len()].clone();
    let server = Server::start(&array.folder, &array.members);
    manage("fail", &server, &member);
    let piece = bytes(turn * 31, PIECE_BYTES);
    let mut client = Client::connect(&server.uri).unwrap();
    client.write(at as u64, &piece).unwrap();
    client.flush().unwrap();
    drop(client);
    array.content[at..at + PIECE_BYTES].copy_from_slice(&piece);
    manage("remove", &server, &member);
    manage("re-add", &server, &member);
    let writes = refilled(&server, &member);
    server.stop();
    writes
}

#[test]
fn each_side_in_turn_fails_a_member_writes_and_takes_it_back() {
    if !uml::present() || !peer::present(&["nbdcopy"]) {
        return;
    }
    let work = scratch();
    let mut guest = Guest::boot(work.path());
    let new = |kind: &Kind| Array::new(work.path(), *kind);
    let mut arrays: Vec<Array> = TURNING.iter().map(new).collect();
    let mut all_writes = Vec::new();
    for (array, seed) in arrays.iter_mut().zip(1..) {
        array.create(MEMBER_BYTES);
        array.fill(seed);
        all_writes.push(lose_a_member(array));
    }
    let mut before: Vec<Vec<u64>> = arrays.iter().map(events).collect();
    for turn in 0..TURNS {
        let at = 300_001 + turn as usize * 250_000;
        if turn % 2 == 0 {
            for (array, all) in arrays.iter_mut().zip(&all_writes) {
                let some = take_turn(array, turn, at);
                let name = &array.name;
                assert!(some > 0 && some <= all / 3, "{name} turn {turn}: {some} of {all} writes");
            }
        } else {
            let mut script = MD.to_owned();
            for array in &mut arrays {
                let slot = turn as usize % array.members.len();
                array.piece(turn * 77, at, PIECE_BYTES);
                script += &array.header();
                script += &format!("start; turn {slot} {at}; hash; check; end\n");
            }
            let said = guest.run(&script);
            assert!(!said.contains("BAD"), "turn {turn}:\n{said}");
            for array in &arrays {
                let name = &array.name;
                assert!(said.contains(&array.hash_line()), "{name} turn {turn}\n{said}");
                let [(some, all)] = array.refilled(&said)[..] else { panic!("{name}\n{said}") };
                // What it missed, its superblock and its bitmap.
                assert!(some > 0 && some <= all / 3, "{name} turn {turn}: {some} of {all} sectors");
            }
        }
        for (array, before) in arrays.iter().zip(&mut before) {
            array.judge();
            let now = events(array);
            let is_later = now.iter().zip(before.iter()).any(|(now, before)| now > before);
            assert!(is_later, "{}: events {before:?} -> {now:?}", array.name);
            *before = now;
        }
    }
}

/// What loses its power, and how mdadm is told of its log.
const WRITTEN: &[(Kind, &str)] = &[
    // Bits are taken back after two seconds: the first fill is not to be among them.
    (Kind::new("1", None, 3).with_bitmap("64K"), "--delay=1"),
    (Kind::new("4", None, 3), ""),
    (Kind::new("5", None, 4), ""),
    (Kind::new("5", None, 3), "--consistency-policy=ppl"),
    (Kind::new("6", None, 5).with_bitmap("64K"), "--delay=1"),
    (Kind::new("10", Some("n2"), 4).with_bitmap("64K"), "--delay=1"),
    (Kind::new("50", None, 6), ""),
];
/// How often the power is cut.
const CUTS: u64 = 3;
const CUT_MEMBER_BYTES: u64 = 4 << 20;

/// The kernel's machine loses its power while it writes. Here the array is resynced, by its bitmap,
/// wholly without one, or not at all with partial parity logs; each sector is old or new; and the
/// kernel finds it in sync and writes on until the next cut.
#[test]
fn arrays_of_a_kernel_that_loses_its_power_are_made_right_here() {
    if !uml::present() {
        return;
    }
    let work = scratch();
    let new = |(kind, options): &(Kind, &'static str)| (Array::new(work.path(), *kind), *options);
    let mut arrays: Vec<(Array, &str)> = WRITTEN.iter().map(new).collect();
    let mut begin = MD.to_owned();
    for ((array, options), index) in arrays.iter_mut().zip(0..) {
        // More than the array holds: it takes its part.
        array.content = bytes(index, array.members.len() * CUT_MEMBER_BYTES as usize);
        file(&array.folder, "in.bin", &array.content);
        begin += &array.header();
        begin += &format!("first={}\n", 10 * index);
        begin += &array.create_line(CUT_MEMBER_BYTES, options);
        begin += "stay_dirty; write_later\n";
    }
    begin += "sleep 4\n";
    for cut in 0..CUTS {
        let seed = 100 + cut;
        let mut random = Random::new(seed);
        let (count, delay) = (3 + random.below(40), random.below(300));
        eprintln!("cut {cut}: seed {seed}, {count} writes to each array and {delay} ms");
        for (array, _) in &arrays {
            let _ = fs::remove_file(array.folder.join("started"));
            file(&array.folder, "new.bin", &bytes(1000 + seed, array.content.len()));
        }
        let mut guest = Guest::boot(work.path());
        guest.begin(&format!("seed={seed} count={count}\n{begin}touch /run/go; wait\n"));
        for (array, _) in &arrays {
            guest.wait_for(&array.folder.join("started"));
        }
        thread::sleep(Duration::from_millis(delay));
        let said = guest.cut();
        // What came back from the cut before was in sync and right.
        assert!(!said.contains("BAD"), "cut {cut}\n{said}");
        begin = MD.to_owned();
        for ((array, options), index) in arrays.iter_mut().zip(0..) {
            let is_right = cut == 0 || said.contains(&array.hash_line());
            assert!(is_right, "{}: cut {cut}\n{said}", array.name);
            make_right(array, options, 1000 + seed);
            begin += &array.header();
            begin += &format!("first={}\n", 10 * index);
            begin += "start; hash; check; stay_dirty; write_later\n";
        }
    }
    let end = begin.replace("stay_dirty; write_later", "end");
    let said = Guest::boot(work.path()).run(&end);
    assert!(!said.contains("BAD"), "{said}");
    for (array, _) in &arrays {
        assert!(said.contains(&array.hash_line()), "{}\n{said}", array.name);
    }
}

/// Opens an array after a power cut, and judges what becomes of it; `seed` is that of what was
/// being written.
fn make_right(array: &mut Array, options: &str, seed: u64) {
    let name = &array.name;
    let server = Server::start(&array.folder, &array.members);
    let status = wait(&server, "the resync", |status| {
        groups(status).iter().all(|group| group["in_sync"] == true)
    });
    let gone_over = status["statistics"]["resynced_bytes"].as_u64().unwrap();
    let size = status["size_bytes"].as_u64().unwrap();
    if options.contains("ppl") {
        let log = server.log();
        let is_recovered = log.contains("recovered from the partial parity logs, everything: true");
        assert!(is_recovered && gone_over == 0, "{name}: {gone_over} of {size}\n{log}");
    } else {
        assert_eq!(status["was_clean"], false, "{name}");
        let is_partial = 0 < gone_over && gone_over < size;
        let is_whole = gone_over >= size;
        let has_bitmap = array.kind.bitmap_chunk.is_some();
        assert!(if has_bitmap { is_partial } else { is_whole }, "{name}: {gone_over} of {size}");
    }
    server.stop();
    let now = succeed(uraid().arg("cat").args(&array.members));
    let new = bytes(seed, now.len());
    let mut written = 0;
    for (index, sector) in now.chunks(512).enumerate() {
        let range = index * 512..index * 512 + sector.len();
        let is_new = sector == &new[range.clone()];
        assert!(is_new || sector == &array.content[range], "{name}: sector {index}");
        written += u64::from(is_new);
    }
    // Three writes of 4 KiB at least had ended, perhaps to the same place.
    assert!(written >= 8, "{name}: {written} sectors are new");
    array.content = now;
    array.judge();
}
