//! Goal: arrays go back and forth between uraid and the kernel's md while members fail and come
//! back on either side, and when the kernel's machine loses its power. Method: a real kernel
//! (User-Mode Linux); contents against a model, events against the time before, redundancy with the
//! raw checker and the kernel's check.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use common::image::{bytes, file};
use common::nbd::Client;
use common::server::Server;
use common::traveller::Array;
use common::uml::{self, Guest};
use common::{peer, scratch, succeed, uraid};
use serde_json::Value;

const MD: &str = include_str!("common/md.sh");
const TURNS: u64 = 10;
const PIECE_BYTES: usize = 200_000;
const MEMBER_BYTES: u64 = 8 << 20;

const SHAPES: &[(&str, Option<&str>, usize)] =
    &[("1", None, 3), ("5", None, 4), ("6", None, 5), ("10", Some("n2"), 4)];

fn make(work: &Path) -> Vec<Array> {
    let shapes = SHAPES.iter();
    let arrays = shapes.zip(1..).map(|(shape, seed)| {
        let mut array = Array::new(work, shape);
        let mut create = array.shape.create_command(&array.folder, "64K", MEMBER_BYTES);
        succeed(create.args(["--bitmap", "internal", "--bitmap-chunk", "64K"]));
        array.fill(seed);
        array
    });
    arrays.collect()
}

/// The event count that all members say.
fn events(array: &Array) -> u64 {
    let text = succeed(uraid().arg("examine").arg("--json").args(&array.members));
    let members: Value = serde_json::from_slice(&text).unwrap();
    let of = |member: &Value| member["events"].as_u64().unwrap();
    let all: Vec<u64> = members.as_array().unwrap().iter().map(of).collect();
    assert!(all.iter().all(|one| *one == all[0]), "{}: {all:?}", array.name);
    all[0]
}

fn wait(server: &Server, what: &str, done: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let status = server.status();
        if done(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "{what} does not come: {status:#}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// uraid's turn: a member fails, is written without, and comes back by the bitmap.
fn take_turn(array: &mut Array, turn: u64, at: usize) {
    let member = array.members[turn as usize % array.members.len()].clone();
    let server = Server::start(&array.folder, &array.members);
    let control = |verb: &str| {
        succeed(uraid().arg(verb).arg("--control").arg(&server.control).arg(&member));
    };
    control("fail");
    let piece = bytes(turn * 31, PIECE_BYTES);
    let mut client = Client::connect(&server.uri).unwrap();
    client.write(at as u64, &piece).unwrap();
    client.flush().unwrap();
    drop(client);
    array.content[at..at + PIECE_BYTES].copy_from_slice(&piece);
    control("remove");
    control("re-add");
    wait(&server, "the recovery", |status| {
        status["degraded"] == 0 && status["groups"][0]["sync_action"] == "idle"
    });
    server.stop();
}

#[test]
fn each_side_in_turn_fails_a_member_writes_and_takes_it_back() {
    if !uml::present() || !peer::present(&["nbdcopy"]) {
        return;
    }
    let work = scratch();
    let mut guest = Guest::boot(work.path());
    let mut arrays = make(work.path());
    let mut before: Vec<u64> = arrays.iter().map(events).collect();
    for turn in 0..TURNS {
        let at = 300_001 + turn as usize * 250_000;
        if turn % 2 == 0 {
            arrays.iter_mut().for_each(|array| take_turn(array, turn, at));
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
                assert!(said.contains(&array.hash_line()), "{} turn {turn}\n{said}", array.name);
            }
        }
        for (array, before) in arrays.iter().zip(&mut before) {
            array.judge();
            let now = events(array);
            assert!(now > *before, "{}: events {before} -> {now}", array.name);
            *before = now;
        }
    }
}

/// The kernel's machine loses its power while it writes; the array is resynced here by its bitmap
/// (or wholly without one), each sector is old or new, and the kernel finds it in sync.
#[test]
fn an_array_of_a_kernel_that_lost_its_power_is_made_right_here() {
    if !uml::present() {
        return;
    }
    // Bits are taken back after two seconds: the first fill is not to be among them.
    let bitmap = "--bitmap=internal --bitmap-chunk=64K --delay=1";
    for (shape, options) in SHAPES.iter().zip([bitmap, "", bitmap, bitmap]) {
        let work = scratch();
        let mut array = Array::new(work.path(), shape);
        for member in &array.members {
            fs::File::create(member).unwrap().set_len(MEMBER_BYTES).unwrap();
        }
        let (old, new) = (bytes(5, 4 * MEMBER_BYTES as usize), bytes(6, 4 * MEMBER_BYTES as usize));
        file(&array.folder, "in.bin", &old);
        file(&array.folder, "new.bin", &new);
        let mut guest = Guest::boot(work.path());
        let layout = array.shape.layout.map_or(String::new(), |name| format!("--layout={name}"));
        let mut script = format!("{MD}{}bitmap_options='{options}'\n", array.header());
        script += &format!(
            "create {} {} {layout}; sleep 4; write_for_ever\n",
            array.shape.level, array.shape.members
        );
        guest.begin(&script);
        guest.wait_for(&array.folder.join("started"));
        guest.cut();
        let server = Server::start(&array.folder, &array.members);
        assert_eq!(server.status()["was_clean"], false, "{}", array.name);
        let status = wait(&server, "the resync", |status| status["groups"][0]["in_sync"] == true);
        let gone_over = status["statistics"]["resynced_bytes"].as_u64().unwrap();
        let size = status["size_bytes"].as_u64().unwrap();
        let is_partial = gone_over < size;
        assert_eq!(is_partial, !options.is_empty(), "{}: {gone_over} of {size}", array.name);
        server.stop();
        array.content = succeed(uraid().arg("cat").args(&array.members));
        let mut written = 0;
        for (index, sector) in array.content.chunks(512).enumerate() {
            let range = index * 512..index * 512 + sector.len();
            let is_new = sector == &new[range.clone()];
            assert!(is_new || sector == &old[range], "{}: sector {index}", array.name);
            written += usize::from(is_new);
        }
        assert!(written >= 12 * 128, "{}: {written} sectors are new", array.name);
        array.judge();
        let mut guest = Guest::boot(work.path());
        let said = guest.run(&format!("{MD}{}start; hash; check; end\n", array.header()));
        assert!(!said.contains("BAD") && said.contains(&array.hash_line()), "{said}");
    }
}
