//! Goal: partial parity logs, journals and bad-block logs of arrays that Linux made are brought to
//! the members and honoured, and the arrays are md's again after a stop. Method: golden images are
//! served, written and stopped, some after damage that only the log makes good; the raw checker and
//! the recorded hashes judge.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use common::image::{assert_same, bytes};
use common::nbd::Client;
use common::rawcheck::RawSet;
use common::server::Server;
use common::{run, scratch, succeed, uraid};
use raid_core::geometry::{Geometry, GeometrySpec};
use raid_core::layout::{Layout, Level};
use raid_core::md::Superblock;
use raid_core::md::journal::{BLOCK_BYTES, JournalPlace, replay, scan};
use raid_core::md::superblock::{Context, Features, Minor, decode};
use rustix::process::Signal;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// One log or several on each member.
const PPL: u32 = Features::PPL | Features::MULTIPLE_PPLS;

/// Unpacks a golden array; returns its members and its manifest.
fn unpack(name: &str, to: &Path) -> (Vec<PathBuf>, Value) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../raid-core/tests/golden").join(name);
    let manifest = fs::read(golden.join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let mut members = Vec::new();
    for member in manifest["members"].as_array().unwrap() {
        let file = member["file"].as_str().unwrap();
        let path = to.join(file.trim_end_matches(".img.zst"));
        let image = zstd::decode_all(File::open(golden.join(file)).unwrap()).unwrap();
        fs::write(&path, image).unwrap();
        members.push(path);
    }
    (members, manifest)
}

fn superblock(member: &Path) -> Superblock {
    let image = fs::read(member).unwrap();
    let context = Context { minor: Minor::V1_2, member_bytes: image.len() as u64 };
    decode(&image[4096..8192], context).unwrap()
}

fn has(members: &[PathBuf], feature: u32) -> Vec<bool> {
    members.iter().map(|member| superblock(member).features.has(feature)).collect()
}

fn content(members: &[PathBuf]) -> Vec<u8> {
    succeed(uraid().arg("cat").args(members))
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The machine was killed during writes: the logs alone make parity right, without a resync.
#[test]
fn partial_parity_logs_recover_an_array() {
    let folder = scratch();
    let (members, manifest) = unpack("dirty-raid5-n3-ppl-v1.2", folder.path());
    let right = &manifest["after_recovery"]["logical_sha256"];
    let server = Server::start(folder.path(), &members);
    let status = server.status();
    server.stop();
    assert_eq!(status["statistics"]["resynced_bytes"], 0, "{status:#}");
    assert_eq!(sha256(&content(&members)), *right);
    assert_eq!(RawSet::open(&members).mismatches(), []);
    assert_eq!(has(&members, PPL), [true; 3]);
    assert!(superblock(&members[0]).is_clean());
}

/// As [`partial_parity_logs_recover_an_array`], with a member lost in the crash: what the logs
/// cover is right, or the array is refused.
#[test]
fn partial_parity_logs_make_a_degraded_array_safe() {
    let whole = scratch();
    let (all, _) = unpack("dirty-raid5-n3-ppl-v1.2", whole.path());
    let right = content(&all);
    for lost in 0..3 {
        let folder = scratch();
        let (mut members, _) = unpack("dirty-raid5-n3-ppl-v1.2", folder.path());
        members.remove(lost);
        let said = tried(folder.path(), &members);
        if said.contains("partial parity logs do not tell all") {
            continue;
        }
        let array = content(&members);
        let differing = array.iter().zip(&right).filter(|(a, b)| a != b).count();
        assert_eq!(differing, 0, "without member {lost}: {said}");
    }
}

/// Serves an array for a moment, if it can be; returns what was said.
fn tried(folder: &Path, members: &[PathBuf]) -> String {
    let socket = format!("unix:{}", folder.join("s").display());
    let mut command = std::process::Command::new("timeout");
    command.args(["-s", "TERM", "3", env!("CARGO_BIN_EXE_uraid"), "serve", "--nbd", &socket]);
    command.arg("--control").arg(folder.join("c")).args(members);
    String::from_utf8_lossy(&run(&mut command).stderr).into_owned()
}

/// While it is served the array is plain, so that nobody believes a log that is not kept.
fn paused(name: &str, feature: u32, slots: usize) {
    let folder = scratch();
    let (members, manifest) = unpack(name, folder.path());
    assert_eq!(sha256(&content(&members)), *manifest["logical_sha256"].as_str().unwrap());
    assert_eq!(has(&members, feature), vec![true; members.len()]);
    let server = Server::start(folder.path(), &members);
    let mut client = Client::connect(&server.uri).unwrap();
    client.write(100_000, &bytes(1, 150_000)).unwrap();
    assert_eq!(has(&members, feature), vec![false; members.len()]);
    drop(client);
    server.stop();
    assert_eq!(has(&members, feature), vec![true; members.len()]);
    assert_eq!(RawSet::open(&members[..slots]).mismatches(), []);
    assert_same(&content(&members)[100_000..250_000], &bytes(1, 150_000), "after the stop");

    let server = Server::start(folder.path(), &members);
    let mut client = Client::connect(&server.uri).unwrap();
    client.write(300_000, &bytes(2, 50_000)).unwrap();
    client.flush().unwrap();
    server.signal(Signal::KILL);
    assert_eq!(has(&members, feature), vec![false; members.len()]);
    let plain = &members[..slots];
    assert_same(&content(plain)[300_000..350_000], &bytes(2, 50_000), "after the kill");
}

#[test]
fn an_array_with_partial_parity_logs_is_used() {
    paused("raid5-n4-ppl-v1.2", PPL, 4);
}

#[test]
fn an_array_with_a_journal_is_used() {
    paused("raid5-n3-journal-v1.2", Features::JOURNAL, 3);
}

#[test]
fn without_its_journal_an_array_is_refused() {
    let folder = scratch();
    let (members, manifest) = unpack("raid5-n3-journal-v1.2", folder.path());
    let said = tried(folder.path(), &members[..3]);
    assert!(said.contains("the journal is missing"), "{said}");
    assert_eq!(sha256(&content(&members)), *manifest["logical_sha256"].as_str().unwrap());
}

fn write_at(path: &Path, offset: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

fn read_block(path: &Path, offset: u64, block: &mut [u8; BLOCK_BYTES]) -> bool {
    File::open(path).unwrap().read_exact_at(block, offset).is_ok()
}

fn geometry(superblock: &Superblock) -> Geometry {
    Geometry::new(GeometrySpec {
        level: Level::Raid5,
        layout: Layout::from_md(Level::Raid5, superblock.layout).unwrap(),
        slot_count: superblock.slot_count as usize,
        chunk_bytes: u64::from(superblock.chunk_sectors) * 512,
        member_data_bytes: &vec![superblock.component_bytes(); superblock.slot_count as usize],
    })
    .unwrap()
}

/// Sets the tail of the journal back.
fn set_tail(journal: &Path, position: u64) -> Superblock {
    let mut superblock = superblock(journal);
    superblock.recovery_offset_sectors = position;
    write_at(journal, 4096, superblock.encode().as_slice());
    superblock
}

/// The last dozen writes are in the journal and have not reached the members.
#[test]
fn a_journal_is_replayed() {
    let folder = scratch();
    let (members, manifest) = unpack("raid5-n3-journal-v1.2", folder.path());
    let place = JournalPlace::new(&set_tail(&members[3], 17104)).unwrap();
    let log = scan(&place, 1, &mut |offset, block| read_block(&members[3], offset, block)).unwrap();
    let start = superblock(&members[0]).data_bytes().start;
    let todo = replay(&log, &geometry(&superblock(&members[0])));
    assert!(todo.stripes.len() > 50);
    for row in &todo.stripes {
        for write in row.data.iter().chain(&row.parity) {
            write_at(&members[write.slot], start + row.offset, &[0xee; BLOCK_BYTES]);
        }
    }
    let output = run(uraid().arg("cat").args(&members));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("not on the members yet"), "{said}");

    let server = Server::start(folder.path(), &members);
    let mut client = Client::connect(&server.uri).unwrap();
    let first = client.read(0, 4096).unwrap();
    client.write(0, &first).unwrap();
    drop(client);
    server.stop();
    assert_eq!(sha256(&content(&members)), *manifest["logical_sha256"].as_str().unwrap());
    assert_eq!(RawSet::open(&members[..3]).mismatches(), []);
    // It is empty now.
    assert_ne!(superblock(&members[3]).recovery_offset_sectors, 17104);
}

/// A write whose parity had not been computed: data alone is in the journal.
#[test]
fn data_alone_in_a_journal_gets_its_parity() {
    let folder = scratch();
    let (members, _) = unpack("raid5-n3-journal-v1.2", folder.path());
    let before = content(&members);
    let place = JournalPlace::new(&set_tail(&members[3], 0)).unwrap();
    let (new, sector) = (bytes(9, BLOCK_BYTES), 1000_u64);
    let mut meta = place.empty_block(0, 77);
    meta[12..16].copy_from_slice(&52_u32.to_le_bytes());
    meta[36..40].copy_from_slice(&8_u32.to_le_bytes());
    meta[40..48].copy_from_slice(&sector.to_le_bytes());
    meta[48..52].copy_from_slice(&place.checksum(&new).to_le_bytes());
    meta[4..8].fill(0);
    let sum = place.checksum(&meta);
    meta[4..8].copy_from_slice(&sum.to_le_bytes());
    write_at(&members[3], place.offset(0), &meta);
    write_at(&members[3], place.offset(8), &new);
    write_at(&members[3], place.offset(16), &[0; BLOCK_BYTES]);

    Server::start(folder.path(), &members).stop();
    let mut right = before;
    right[sector as usize * 512..][..BLOCK_BYTES].copy_from_slice(&new);
    assert_same(&content(&members), &right, "after the replay");
    assert_eq!(RawSet::open(&members[..3]).mismatches(), []);
}

/// Ranges listed as lost are regenerated, and healed when they are written.
#[test]
fn listed_bad_blocks_are_not_read_and_heal() {
    let folder = scratch();
    let (members, manifest) = unpack("raid5-n4-badblocks-v1.2", folder.path());
    // What is there is not what was written.
    let listed = [(1, 2176, 8), (1, 3072, 16), (2, 4096, 8)];
    for (member, sector, count) in listed {
        write_at(&members[member], sector * 512, &vec![0xbb; count * 512]);
    }
    let right = content(&members);
    assert_eq!(sha256(&right), *manifest["logical_sha256"].as_str().unwrap());
    assert_eq!(has(&members, Features::BAD_BLOCKS), [false, true, true, false]);
    let server = Server::start(folder.path(), &members);
    let mut client = Client::connect(&server.uri).unwrap();
    let step = 1 << 20;
    for offset in (0..client.size).step_by(step) {
        let len = step.min((client.size - offset) as usize);
        let read = client.read(offset, len).unwrap();
        assert_same(&read, &right[offset as usize..][..len], "read");
        client.write(offset, &read).unwrap();
    }
    drop(client);
    server.stop();
    assert_eq!(has(&members, Features::BAD_BLOCKS), [false; 4]);
    assert_eq!(RawSet::open(&members).mismatches(), []);
    assert_same(&content(&members), &right, "after the writes");
}

/// A linear array is served to read from, and not to write to.
#[test]
fn a_linear_array_is_only_read() {
    let folder = scratch();
    let (members, _) = unpack("linear-n3-uneven-v1.2", folder.path());
    let said = tried(folder.path(), &members);
    assert!(said.contains("open it read-only"), "{said}");
    let server = Server::start_with(folder.path(), &members, &["--read-only"]);
    let mut client = Client::connect(&server.uri).unwrap();
    assert!(client.read(4096, 4096).unwrap() == content(&members)[4096..8192]);
    assert!(client.write(4096, &[0; 4096]).is_err());
    drop(client);
    server.stop();
}
