//! Goal: concurrent writes of all sizes leave the right bytes and consistent redundancy. Method:
//! fio writes at random over four connections, 32 requests deep, and verifies by checksum;
//! afterwards the raw checker compares parity and mirrors in the member files.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::path::{Path, PathBuf};

use common::fio::Job;
use common::rawcheck::RawSet;
use common::server::Server;
use common::shape::Shape;
use common::{peer, scratch, succeed};

const MEMBER_BYTES: u64 = 24 << 20;
const JOB_BYTES: u64 = 8 << 20;

fn load(folder: &Path, members: &[PathBuf], what: &str) {
    let server = Server::start(folder, members);
    let lines = [
        "rw=randwrite",
        "bsrange=512-1m",
        "iodepth=32",
        "verify=crc32c",
        "verify_fatal=1",
        "do_verify=1",
        "randrepeat=0",
        "loops=2",
    ];
    let job = Job { uri: &server.uri, jobs: 4, bytes: JOB_BYTES, lines: &lines };
    succeed(&mut job.command(folder));
    let status = server.status();
    assert!(status["statistics"]["writes"].as_u64().unwrap() > 0, "{what}: {status}");
    server.stop();
    assert_eq!(RawSet::open(members).mismatches(), [], "{what}");
}

fn healthy_and_degraded(shape: Shape, lost: &[usize]) {
    if !peer::present(&["fio"]) {
        return;
    }
    let folder = scratch();
    let members = shape.create(folder.path(), "64K", MEMBER_BYTES);
    load(folder.path(), &members, &format!("{shape:?}"));
    let kept = members.iter().enumerate().filter(|(slot, _)| !lost.contains(slot));
    let kept: Vec<PathBuf> = kept.map(|(_, path)| path.clone()).collect();
    load(folder.path(), &kept, &format!("{shape:?} without {lost:?}"));
}

const fn shape(level: &'static str, layout: Option<&'static str>, members: usize) -> Shape {
    Shape { level, layout, members }
}

#[test]
fn raid1_verifies() {
    healthy_and_degraded(shape("1", None, 3), &[1]);
}

#[test]
fn raid4_verifies() {
    healthy_and_degraded(shape("4", None, 4), &[0]);
}

#[test]
fn raid5_verifies() {
    healthy_and_degraded(shape("5", None, 5), &[2]);
}

#[test]
fn raid6_verifies() {
    healthy_and_degraded(shape("6", None, 6), &[1, 4]);
}

#[test]
fn raid10_near_verifies() {
    healthy_and_degraded(shape("10", Some("n2"), 5), &[3]);
}

#[test]
fn raid10_far_verifies() {
    healthy_and_degraded(shape("10", Some("f2"), 4), &[0]);
}

#[test]
fn raid50_verifies() {
    healthy_and_degraded(shape("50", None, 6), &[1, 3]);
}

#[test]
fn raid60_verifies() {
    healthy_and_degraded(shape("60", None, 8), &[0, 1, 6]);
}
