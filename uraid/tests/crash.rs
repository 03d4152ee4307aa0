//! Goal: when the serving process is killed in the middle of writing, everything that it
//! acknowledged and flushed is there afterwards, and the array says that it was not stopped
//! cleanly. Method: kill -9 under load; a client that knows which block it wrote last judges its
//! part of the array.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use common::fio::Job;
use common::image::{Random, assert_same, bytes};
use common::nbd::Client;
use common::rawcheck::{RawSet, RawSuper};
use common::server::Server;
use common::shape::Shape;
use common::{peer, scratch, succeed, succeed_text, uraid};
use rustix::process::Signal;

const BLOCK: usize = 12 << 10;
const BLOCK_COUNT: u64 = 400;
const PART_BYTES: u64 = 8 << 20;

/// What a block may hold after the crash: the last write acknowledged, or the one under way.
#[derive(Default)]
struct Block {
    acknowledged: u64,
    begun: u64,
}

fn content(block: u64, generation: u64) -> Vec<u8> {
    if generation == 0 { vec![0; BLOCK] } else { bytes(block << 32 | generation, BLOCK) }
}

/// Writes numbered blocks until the server is gone, and says what it knows of each.
fn write_until_killed(uri: &str, start: u64) -> BTreeMap<u64, Block> {
    let mut blocks: BTreeMap<u64, Block> = BTreeMap::new();
    let mut client = Client::connect(uri).unwrap();
    let mut random = Random::new(7);
    for generation in 1.. {
        let index = random.below(BLOCK_COUNT);
        let block = blocks.entry(index).or_default();
        block.begun = generation;
        let offset = start + index * BLOCK as u64;
        if client.write(offset, &content(index, generation)).is_err() {
            break;
        }
        block.acknowledged = generation;
        if generation % 16 == 0 && client.flush().is_err() {
            break;
        }
    }
    blocks
}

/// Keeps other parts of the array busy, in stripes shared with nobody.
fn other_load(folder: &Path, uri: &str) -> Child {
    let lines = ["rw=randwrite", "bsrange=512-1m", "iodepth=32", "time_based", "runtime=60"];
    let job = Job { uri, jobs: 3, bytes: PART_BYTES, lines: &lines };
    job.command(folder).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn killed_array(folder: &Path, shape: Shape) -> (Vec<PathBuf>, BTreeMap<u64, Block>) {
    let members = shape.create(folder, "64K", 24 << 20);
    let server = Server::start_dirty(folder, &members);
    let uri = server.uri.clone();
    let mut fio = other_load(folder, &uri);
    let writer = thread::spawn(move || write_until_killed(&uri, 3 * PART_BYTES));
    thread::sleep(Duration::from_millis(1500));
    let status = server.signal(Signal::KILL);
    assert!(!status.success());
    let blocks = writer.join().unwrap();
    let _ = fio.kill();
    let _ = fio.wait();
    (members, blocks)
}

fn check_blocks(array: &[u8], blocks: &BTreeMap<u64, Block>) {
    for (index, block) in blocks {
        let at = 3 * PART_BYTES as usize + *index as usize * BLOCK;
        let found = &array[at..at + BLOCK];
        if found == content(*index, block.acknowledged) {
            continue;
        }
        assert_ne!(block.begun, block.acknowledged, "block {index}: an acknowledged write is lost");
        // The write under way may have arrived in part: sectors of either.
        let (old, new) = (content(*index, block.acknowledged), content(*index, block.begun));
        for sector in (0..BLOCK).step_by(512) {
            let range = sector..sector + 512;
            let found = &found[range.clone()];
            let known = found == &old[range.clone()] || found == &new[range.clone()];
            assert!(known, "block {index}, byte {sector}: neither old nor new");
        }
    }
}

fn crash(shape: Shape) {
    if !peer::present(&["fio"]) {
        return;
    }
    let folder = scratch();
    let (members, blocks) = killed_array(folder.path(), shape);
    assert!(
        blocks.values().filter(|block| block.acknowledged > 0).count() > 20,
        "too little written"
    );

    // The superblocks say so, and so do the views, before anything writes again.
    let superblock = RawSuper::of(&std::fs::read(&members[0]).unwrap()).unwrap();
    assert!(!superblock.is_clean(), "{superblock:?}");
    let text = succeed_text(uraid().arg("detail").args(&members));
    assert!(text.contains("not stopped cleanly"), "{text}");
    check_blocks(&succeed(uraid().arg("cat").args(&members)), &blocks);

    let server = Server::start_dirty(folder.path(), &members);
    assert_eq!(server.status()["was_clean"], false, "{}", server.status());
    let mut client = Client::connect(&server.uri).unwrap();
    let size = client.size;
    let mut array = Vec::new();
    while (array.len() as u64) < size {
        let len = (1 << 20).min(size - array.len() as u64);
        array.extend(client.read(array.len() as u64, len as usize).unwrap());
    }
    check_blocks(&array, &blocks);

    // Writes to stripes whose parity cannot be trusted must make it right.
    for (offset, step) in (0..size).step_by(100_000).zip(0..) {
        let len = 100_000.min(size - offset) as usize;
        client.write(offset, &bytes(step, len)).unwrap();
    }
    client.flush().unwrap();
    drop(client);
    server.stop();
    let raw = RawSet::open(&members);
    assert_eq!(raw.mismatches(), [], "{shape:?}");
    let first = &raw.content()[..100_000];
    assert_same(first, &bytes(0, 100_000), "after the repair by writing");
}

#[test]
fn raid5_survives_a_kill() {
    crash(Shape { level: "5", layout: None, members: 4 });
}

#[test]
fn raid6_survives_a_kill() {
    crash(Shape { level: "6", layout: None, members: 5 });
}

#[test]
fn raid10_survives_a_kill() {
    crash(Shape { level: "10", layout: None, members: 4 });
}
