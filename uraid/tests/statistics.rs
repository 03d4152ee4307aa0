//! Goal: a sequential write costs no read, and one member write for each member of each stripe.
//! Method: 1 GiB over RAID 5 on five files; the engine's own counters must add up.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use common::fio::Job;
use common::server::Server;
use common::shape::Shape;
use common::{peer, scratch, succeed};

const TOTAL_BYTES: u64 = 1 << 30;
const MEMBERS: u64 = 5;
const STRIPE_BYTES: u64 = (MEMBERS - 1) * (64 << 10);

#[test]
fn sequential_writes_are_full_stripes() {
    if !peer::present(&["fio"]) {
        return;
    }
    let folder = scratch();
    let shape = Shape { level: "5", layout: None, members: MEMBERS as usize };
    let members = shape.create(folder.path(), "64K", TOTAL_BYTES / (MEMBERS - 1) + (4 << 20));
    let server = Server::start(folder.path(), &members);
    let lines = ["rw=write", "bs=1m", "iodepth=16"];
    let job = Job { uri: &server.uri, jobs: 1, bytes: TOTAL_BYTES, lines: &lines };
    succeed(&mut job.command(folder.path()));
    let status = server.status();
    server.stop();
    let counters = &status["statistics"];
    let counter =
        |name: &str| counters[name].as_u64().unwrap_or_else(|| panic!("{name}: {counters}"));
    let stripes = TOTAL_BYTES / STRIPE_BYTES;
    assert_eq!(counter("full_stripe_writes"), stripes, "{counters}");
    assert_eq!(counter("rmw") + counter("rcw"), 0, "{counters}");
    assert_eq!(counter("member_reads"), 0, "{counters}");
    assert_eq!(counter("member_writes"), stripes * MEMBERS, "{counters}");
    // Neighbours were joined before they went out: fewer operations than writes.
    assert!(counter("merged") > 0, "{counters}");
    let by_member = status["groups"][0]["members"].as_array().unwrap();
    let writes: u64 = by_member.iter().map(|member| member["writes"].as_u64().unwrap()).sum();
    assert_eq!(writes, counter("member_writes"), "{status}");
}
