//! Goal: what the command writes and prints is what md's own tools know. Method: mdadm examines
//! each member, healthy and after a degraded write, and both must say the same.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::path::PathBuf;

use common::image::bytes;
use common::nbd::Client;
use common::server::Server;
use common::shape::{self, Shape};
use common::{peer, scratch, succeed_text, uraid};

/// Lines `key : value` of a frame that both tools print.
fn fields(text: &str) -> Vec<(String, String)> {
    let pair = |line: &str| line.split_once(" : ").map(|(k, v)| (k.trim().into(), v.trim().into()));
    text.lines().filter_map(pair).collect()
}

fn compare(member: &PathBuf) {
    let theirs = succeed_text(peer::command("mdadm").arg("--examine").arg(member));
    assert!(theirs.contains("- correct"), "{theirs}");
    let ours = succeed_text(uraid().arg("examine").arg(member));
    let theirs = fields(&theirs);
    let mut compared = 0;
    for (key, value) in fields(&ours) {
        let Some((_, right)) = theirs.iter().find(|(other, _)| *other == key) else { continue };
        // mdadm adds the checksum's number, which says nothing more.
        if key != "Checksum" {
            assert_eq!(value, *right, "{key} of {}\n{ours}", member.display());
            compared += 1;
        }
    }
    assert!(compared >= 11, "only {compared} fields are known to both\n{ours}");
}

fn write_a_little(folder: &std::path::Path, members: &[PathBuf]) {
    let server = Server::start(folder, members);
    let mut client = Client::connect(&server.uri).unwrap();
    client.write(5000, &bytes(1, 100_000)).unwrap();
    client.flush().unwrap();
    drop(client);
    server.stop();
}

fn examine(shape: &Shape) {
    let folder = scratch();
    let members = shape.create(folder.path(), "64K", 8 << 20);
    members.iter().for_each(compare);
    write_a_little(folder.path(), &members);
    members.iter().for_each(compare);
    if let Some(lost) = shape.tolerated().first() {
        let kept = members.iter().enumerate().filter(|(slot, _)| !lost.contains(slot));
        let kept: Vec<PathBuf> = kept.map(|(_, path)| path.clone()).collect();
        write_a_little(folder.path(), &kept);
        kept.iter().for_each(compare);
    }
}

#[test]
fn both_say_the_same_of_every_member() {
    if !peer::present(&["mdadm"]) {
        return;
    }
    let all = [
        shape::RAID0,
        shape::RAID1,
        shape::RAID4,
        shape::RAID5,
        shape::RAID6,
        shape::RAID10_NEAR,
        shape::RAID10_FAR,
        shape::RAID50,
        shape::RAID60,
    ];
    for shape in all.into_iter().flatten() {
        examine(shape);
    }
}

/// The other versions of the superblock, on a shape of each kind.
#[test]
fn both_say_the_same_of_every_version() {
    if !peer::present(&["mdadm"]) {
        return;
    }
    let shapes = [shape::RAID0, shape::RAID1, shape::RAID4, shape::RAID5, shape::RAID6];
    let shapes = shapes.into_iter().chain([shape::RAID10_FAR, shape::RAID50]);
    for shape in shapes.filter_map(|shapes| shapes.first()) {
        for version in ["0.90", "1.0", "1.1"] {
            // Version 0.90 does not say how a RAID 0 is striped.
            if version == "0.90" && shape.level == "0" {
                continue;
            }
            let folder = scratch();
            let mut command = shape.create_command(folder.path(), "64K", 8 << 20);
            succeed_text(command.args(["--metadata", version]));
            let members = shape.paths(folder.path());
            members.iter().for_each(compare);
            write_a_little(folder.path(), &members);
            members.iter().for_each(compare);
        }
    }
}
