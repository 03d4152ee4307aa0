//! Goal: an array that was not stopped cleanly is made right again, and a spare is filled, however
//! often the server dies meanwhile. Method: kill -9 under fio's writes, then ten more times while a
//! resync or a recovery is due, at random moments after flushed writes (how far it has come is not
//! asserted: that is a matter of the machine's speed); in the end the raw checker finds parity and
//! mirrors right.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use common::fio::Job;
use common::image::{Random, assert_same, bytes};
use common::nbd::Client;
use common::rawcheck::RawSet;
use common::server::Server;
use common::shape::Shape;
use common::{peer, scratch, succeed, uraid};
use rustix::process::Signal;

const MEMBER_BYTES: u64 = 96 << 20;
const KILLS: u64 = 10;
const BLOCK: usize = 24 << 10;

/// Leaves an array dirty, with writes cut off in the middle.
fn dirty(folder: &Path, members: &[PathBuf]) {
    let server = Server::start(folder, members);
    let lines = ["rw=randwrite", "bsrange=512-1m", "iodepth=32", "time_based", "runtime=60"];
    let job = Job { uri: &server.uri, jobs: 2, bytes: 32 << 20, lines: &lines };
    let mut fio = job.command(folder);
    let mut fio = fio.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while server.status()["statistics"]["writes"].as_u64().unwrap() < 200 {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(!server.signal(Signal::KILL).success());
    let _ = fio.kill();
    let _ = fio.wait();
}

fn kills_in_a_row(shape: Shape, seed: u64) {
    if !peer::present(&["fio"]) {
        return;
    }
    let folder = scratch();
    let members = shape.create(folder.path(), "64K", MEMBER_BYTES);
    dirty(folder.path(), &members);
    let mut random = Random::new(seed);
    let mut written = Vec::new();
    for round in 0..KILLS {
        let server = Server::start(folder.path(), &members);
        // Every other time at once, so that the resync has hardly begun, on any machine.
        if round % 2 == 0 {
            let mut client = Client::connect(&server.uri).unwrap();
            // Beyond what fio wrote, and in other places each time.
            let offset = (64 << 20) + round * 3 * BLOCK as u64 + 512 * random.below(90);
            client.write(offset, &bytes(round, BLOCK)).unwrap();
            client.flush().unwrap();
            written.push((offset, bytes(round, BLOCK)));
            thread::sleep(Duration::from_micros(random.below(60_000)));
        }
        assert!(!server.signal(Signal::KILL).success());
    }

    let server = Server::start(folder.path(), &members);
    succeed(uraid().args(["wait", "--control"]).arg(&server.control));
    let group = &server.status()["groups"][0];
    assert_eq!((&group["in_sync"], &group["sync_action"]), (&true.into(), &"idle".into()));
    server.stop();
    let raw = RawSet::open(&members);
    assert_eq!(raw.mismatches(), [], "{shape:?}, seed {seed}");
    let content = raw.content();
    for (offset, right) in &written {
        let found = &content[*offset as usize..][..BLOCK];
        assert_same(found, right, &format!("{shape:?}, seed {seed}, byte {offset}"));
    }
}

#[test]
fn raid5_resyncs_through_ten_kills() {
    kills_in_a_row(Shape { level: "5", layout: None, members: 4 }, 11);
}

#[test]
fn raid6_resyncs_through_ten_kills() {
    kills_in_a_row(Shape { level: "6", layout: None, members: 5 }, 12);
}

#[test]
fn raid10_resyncs_through_ten_kills() {
    kills_in_a_row(Shape { level: "10", layout: None, members: 4 }, 13);
}

/// A spare is being filled, fio writes to one half of the array, pieces are flushed into the other,
/// and the server is killed at ten random moments.
fn kills_in_a_recovery(shape: Shape, seed: u64) {
    if !peer::present(&["fio"]) {
        return;
    }
    let folder = scratch();
    let mut members = shape.paths(folder.path());
    let spare = folder.path().join("spare.img");
    let mut create = shape.create_command(folder.path(), "64K", MEMBER_BYTES);
    succeed(create.arg("--spare").arg(&spare));
    let all = [members.clone(), vec![spare.clone()]].concat();
    // Force: of a stripe that was being written in a degraded array, what is lost may be wrong.
    let arguments = ["--force", "--speed-max", "10M"];
    let mut random = Random::new(seed);
    let mut written = Vec::new();
    for round in 0..KILLS {
        let server = Server::start_with(folder.path(), &all, &arguments);
        let mut client = Client::connect(&server.uri).unwrap();
        if round == 0 {
            for at in (0..64 << 20).step_by(BLOCK) {
                client.write(at as u64, &bytes(at as u64, BLOCK)).unwrap();
            }
            client.flush().unwrap();
            succeed(uraid().args(["fail", "--control"]).arg(&server.control).arg(&members[1]));
        }
        let status = server.status();
        assert_eq!(status["degraded"], 1, "{shape:?}, round {round}: {status:#}");
        let lines = ["rw=randwrite", "bsrange=512-256k", "iodepth=16", "time_based", "runtime=60"];
        let job = Job { uri: &server.uri, jobs: 1, bytes: 32 << 20, lines: &lines };
        let mut fio = job.command(folder.path());
        let mut fio = fio.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let offset = (40 << 20) + round * 3 * BLOCK as u64 + 512 * random.below(90);
        client.write(offset, &bytes(round, BLOCK)).unwrap();
        client.flush().unwrap();
        written.push((offset, bytes(round, BLOCK)));
        thread::sleep(Duration::from_micros(random.below(400_000)));
        assert!(!server.signal(Signal::KILL).success());
        let _ = fio.kill();
        let _ = fio.wait();
    }

    let server = Server::start_with(folder.path(), &all, &["--force"]);
    succeed(uraid().args(["wait", "--control"]).arg(&server.control));
    let status = server.status();
    assert_eq!(status["degraded"], 0, "{status:#}");
    server.stop();
    members[1] = spare;
    let raw = RawSet::open(&members);
    assert_eq!(raw.mismatches(), [], "{shape:?}, seed {seed}");
    let mut right = Vec::new();
    (0..64 << 20).step_by(BLOCK).for_each(|at| right.extend(bytes(at as u64, BLOCK)));
    written.iter().for_each(|(at, piece)| right[*at as usize..][..BLOCK].copy_from_slice(piece));
    let content = raw.content();
    let behind = (40 << 20)..(64 << 20);
    assert_same(&content[behind.clone()], &right[behind], &format!("{shape:?}, seed {seed}"));
}

#[test]
fn raid1_recovers_through_ten_kills() {
    kills_in_a_recovery(Shape { level: "1", layout: None, members: 2 }, 21);
}

#[test]
fn raid5_recovers_through_ten_kills() {
    kills_in_a_recovery(Shape { level: "5", layout: None, members: 4 }, 22);
}

#[test]
fn raid6_recovers_through_ten_kills() {
    kills_in_a_recovery(Shape { level: "6", layout: None, members: 5 }, 23);
}

#[test]
fn raid10_recovers_through_ten_kills() {
    kills_in_a_recovery(Shape { level: "10", layout: None, members: 4 }, 24);
}
