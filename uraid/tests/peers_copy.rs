//! Goal: the array's bytes are what was written, at every level, layout and chunk size, whole and
//! without any members it can lose. Method: nbdcopy random images in and out; `uraid cat` and the
//! raw checker, which knows nothing of the engine, must find the same bytes in the member files.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::image::{assert_same, bytes, file};
use common::rawcheck::RawSet;
use common::server::Server;
use common::shape::{self, Shape};
use common::{copy_into, peer, scratch, succeed, uraid};

const CHUNKS: [(&str, u64); 3] = [("4K", 4 << 10), ("64K", 64 << 10), ("512K", 512 << 10)];
/// What the superblock and its neighbours take of a member.
const RESERVED: u64 = 2 << 20;

/// A few stripes and a tail that fills no chunk, no sector even.
fn member_bytes(chunk_bytes: u64) -> u64 {
    RESERVED + (chunk_bytes * 4).max(160 << 10) + chunk_bytes / 2 + 512
}

fn copy_in(server: &Server, image: &Path) {
    succeed(peer::command("nbdcopy").arg("--flush").arg(image).arg(&server.uri));
}

fn copy_out(server: &Server, folder: &Path) -> Vec<u8> {
    let target = folder.join("out.img");
    let _ = fs::remove_file(&target);
    succeed(peer::command("nbdcopy").arg(&server.uri).arg(&target));
    fs::read(&target).unwrap()
}

fn array_bytes(members: &[PathBuf]) -> usize {
    let json = succeed(uraid().args(["detail", "--json"]).args(members));
    let detail: serde_json::Value = serde_json::from_slice(&json).unwrap();
    detail["status"]["size_bytes"].as_u64().unwrap() as usize
}

/// An image whose last 333 bytes are the zeroes that no copy writes: its tail is odd.
fn image(folder: &Path, name: &str, seed: u64, len: usize) -> (PathBuf, Vec<u8>) {
    let content = bytes(seed, len - 333);
    let path = file(folder, name, &content);
    (path, content)
}

/// Everything that can read the array from its stopped members agrees on its first bytes.
fn check_stopped(members: &[PathBuf], right: &[u8], what: &str) {
    let cat = succeed(uraid().arg("cat").args(members));
    assert_same(&cat[..right.len()], right, &format!("{what}: uraid cat"));
    let raw = RawSet::open(members);
    assert_same(&raw.content()[..right.len()], right, &format!("{what}: raw content"));
    assert_eq!(raw.mismatches(), [], "{what}");
}

/// Writes and reads the array through `server`, stops it, and judges the stopped members.
fn write_and_check(
    server: Server,
    folder: &Path,
    members: &[PathBuf],
    (path, content): (PathBuf, Vec<u8>),
    what: &str,
) -> Vec<u8> {
    copy_in(&server, &path);
    let out = copy_out(&server, folder);
    assert_same(&out[..content.len()], &content, &format!("{what}: nbdcopy"));
    server.stop();
    check_stopped(members, &content, what);
    content
}

fn degraded(shape: &Shape, members: &[PathBuf], content: &[u8], chunk: &str) {
    for (lost, seed) in shape.tolerated().iter().zip(1000..) {
        let what = format!("{shape:?}, chunk {chunk}, without {lost:?}");
        let folder = scratch();
        let kept = members.iter().enumerate().filter(|(slot, _)| !lost.contains(slot));
        let kept: Vec<PathBuf> = kept.map(|(_, path)| path.clone()).collect();
        let kept = copy_into(&kept, folder.path());
        // Read what was written while whole, then write while degraded.
        let server = Server::start(folder.path(), &kept);
        let out = copy_out(&server, folder.path());
        assert_same(&out[..content.len()], content, &format!("{what}: degraded read"));
        let image = image(folder.path(), "in.img", seed, out.len());
        write_and_check(server, folder.path(), &kept, image, &what);
    }
}

fn matrix(shapes: &[Shape]) {
    if !peer::present(&["nbdcopy"]) {
        return;
    }
    for (chunk, chunk_bytes) in CHUNKS {
        for shape in shapes {
            let what = format!("{shape:?}, chunk {chunk}");
            let folder = scratch();
            let members = shape.create(folder.path(), chunk, member_bytes(chunk_bytes));
            let len = array_bytes(&members);
            let server = Server::start(folder.path(), &members);
            let image = image(folder.path(), "in.img", chunk_bytes, len);
            let content = write_and_check(server, folder.path(), &members, image, &what);
            // After a stop and a start.
            let server = Server::start(folder.path(), &members);
            let out = copy_out(&server, folder.path());
            assert_same(&out[..content.len()], &content, &format!("{what}: after a restart"));
            server.stop();
            degraded(shape, &members, &content, chunk);
        }
    }
}

#[test]
fn raid0_is_byte_identical() {
    matrix(shape::RAID0);
}

#[test]
fn raid1_is_byte_identical() {
    matrix(shape::RAID1);
}

#[test]
fn raid4_is_byte_identical() {
    matrix(shape::RAID4);
}

#[test]
fn raid5_is_byte_identical() {
    matrix(shape::RAID5);
}

#[test]
fn raid6_is_byte_identical() {
    matrix(shape::RAID6);
}

#[test]
fn raid10_near_is_byte_identical() {
    matrix(shape::RAID10_NEAR);
}

#[test]
fn raid10_far_and_offset_are_byte_identical() {
    matrix(shape::RAID10_FAR);
}

#[test]
fn raid50_is_byte_identical() {
    matrix(shape::RAID50);
}

#[test]
fn raid60_is_byte_identical() {
    matrix(shape::RAID60);
}
