//! Goal: the write-intent bitmap says where a crash may have left redundancy wrong, and mdadm knows
//! what it says. Method: kill -9 after known writes; the counters tell what the resync went over,
//! the raw checker whether all is right then, mdadm what is on the members.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use common::image::bytes;
use common::nbd::Client;
use common::rawcheck::RawSet;
use common::server::Server;
use common::shape::Shape;
use common::{peer, scratch, succeed, succeed_text, uraid};
use rustix::process::Signal;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Bytes of a region.
const REGION: u64 = 256 << 10;
const MEMBER_BYTES: u64 = 24 << 20;

fn create(folder: &Path, shape: &Shape, more: &[&str]) -> Vec<PathBuf> {
    let mut command = shape.create_command(folder, "64K", MEMBER_BYTES);
    succeed(command.args(["--bitmap", "internal"]).args(more));
    shape.paths(folder)
}

/// Waits until `check` holds of the server's status, and returns it.
fn wait(server: &Server, what: &str, check: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let status = server.status();
        if check(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "{what}: {status:#}\n{}", server.log());
        thread::sleep(Duration::from_millis(20));
    }
}

fn bitmap(status: &Value, field: &str) -> u64 {
    status["groups"][0]["bitmap"][field].as_u64().unwrap()
}

/// `mdadm --examine-bitmap`: a field of a member's bitmap. It looks for superblocks on block
/// devices alone, so it is given the bitmap as a file.
fn examined(member: &Path, key: &str) -> String {
    let view = succeed(uraid().args(["examine", "--json"]).arg(member));
    let view: Value = serde_json::from_slice(&view).unwrap();
    let start = view[0]["super_offset_bytes"].as_i64().unwrap()
        + 512 * view[0]["bitmap_offset_sectors"].as_i64().unwrap();
    let mut file = File::open(member).unwrap();
    file.seek(SeekFrom::Start(start as u64)).unwrap();
    let mut bytes = Vec::new();
    file.take(64 << 10).read_to_end(&mut bytes).unwrap();
    let copy = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&copy, bytes).unwrap();
    let text = succeed_text(peer::command("mdadm").arg("--examine-bitmap").arg(copy.path()));
    let pair = |line: &str| {
        line.split_once(" : ").map(|(k, v)| (k.trim().to_owned(), v.trim().to_owned()))
    };
    let found = text.lines().filter_map(pair).find(|(k, _)| k == key);
    found.unwrap_or_else(|| panic!("no {key}\n{text}")).1
}

fn killed(shape: Shape) {
    if !peer::present(&["mdadm"]) {
        return;
    }
    let folder = scratch();
    let members = create(folder.path(), &shape, &["--bitmap-chunk", "256K"]);
    let server = Server::start_dirty(folder.path(), &members);
    let mut client = Client::connect(&server.uri).unwrap();
    let size = client.size;
    // Three regions far apart, and what they cost.
    for place in [1, 9, 17] {
        client.write(size / 20 * place + 4096, &bytes(place, 10_000)).unwrap();
    }
    let status = wait(&server, "bits are set", |status| bitmap(status, "dirty") > 0);
    let dirty = bitmap(&status, "dirty");
    assert!((3..=6).contains(&dirty), "{status:#}");
    assert!(status["statistics"]["bitmap_writes"].as_u64().unwrap() >= 3, "{status:#}");
    // After two quiet periods nothing is set, on the members as well.
    wait(&server, "bits are taken back", |status| bitmap(status, "dirty") == 0);
    thread::sleep(Duration::from_millis(300));
    for member in &members {
        assert!(examined(member, "Bitmap").contains(" 0 dirty"), "{}", member.display());
    }
    client.write(size / 2, &bytes(5, 10_000)).unwrap();
    client.flush().unwrap();
    server.signal(Signal::KILL);
    for member in &members {
        assert!(!examined(member, "Bitmap").contains(" 0 dirty"), "{}", member.display());
    }

    // What the bitmap says is gone over, and no more.
    let server = Server::start_dirty(folder.path(), &members);
    let status = wait(&server, "resync", |status| status["groups"][0]["in_sync"] == true);
    let gone_over = status["statistics"]["resynced_bytes"].as_u64().unwrap();
    let width = members.len() as u64;
    assert!(gone_over > 0 && gone_over <= 3 * REGION * width, "{gone_over} of {size}: {status:#}");
    let mut client = Client::connect(&server.uri).unwrap();
    assert!(client.read(size / 2, 10_000).unwrap() == bytes(5, 10_000));
    drop(client);
    server.stop();
    assert_eq!(RawSet::open(&members).mismatches(), [], "{shape:?}");
    for member in &members {
        assert!(examined(member, "Bitmap").contains(" 0 dirty"), "{}", member.display());
    }
}

#[test]
fn raid1_resyncs_dirty_regions_alone() {
    killed(Shape { level: "1", layout: None, members: 2 });
}

#[test]
fn raid5_resyncs_dirty_regions_alone() {
    killed(Shape { level: "5", layout: None, members: 4 });
}

#[test]
fn raid6_resyncs_dirty_regions_alone() {
    killed(Shape { level: "6", layout: None, members: 5 });
}

#[test]
fn raid10_resyncs_dirty_regions_alone() {
    killed(Shape { level: "10", layout: Some("f2"), members: 3 });
}

/// While a member is missing nothing is taken back: the bits say what it misses.
#[test]
fn a_degraded_array_keeps_its_bits() {
    if !peer::present(&["mdadm"]) {
        return;
    }
    let folder = scratch();
    let shape = Shape { level: "5", layout: None, members: 4 };
    let members = create(folder.path(), &shape, &["--bitmap-chunk", "256K"]);
    let events = examined(&members[3], "Events");
    let server = Server::start_dirty(folder.path(), &members[..3]);
    let mut client = Client::connect(&server.uri).unwrap();
    client.write(1 << 20, &bytes(1, 10_000)).unwrap();
    thread::sleep(Duration::from_secs(11));
    assert!(bitmap(&server.status(), "dirty") > 0);
    drop(client);
    server.stop();
    for member in &members[..3] {
        assert!(!examined(member, "Bitmap").contains(" 0 dirty"), "{}", member.display());
        assert_eq!(examined(member, "Events Cleared"), events);
    }
    // Reopened with the missing member still out, they are there, and nothing is out of sync.
    let server = Server::start_dirty(folder.path(), &members[..3]);
    let status = server.status();
    assert!(bitmap(&status, "dirty") > 0 && bitmap(&status, "unsynced") == 0, "{status:#}");
    server.stop();
}

/// Arrays that the kernel wrote to when its machine was killed: the kernel's bits are enough.
#[test]
fn the_kernels_dirty_regions_are_resynced() {
    for name in ["dirty-raid5-n3-bitmap-v1.2", "dirty-raid10-n4-bitmap-v1.2"] {
        let folder = scratch();
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../raid-core/tests/golden");
        let golden = golden.join(name);
        let manifest = std::fs::read(golden.join("manifest.json")).unwrap();
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        let mut members = Vec::new();
        for member in manifest["members"].as_array().unwrap() {
            let file = member["file"].as_str().unwrap();
            let image = zstd::decode_all(File::open(golden.join(file)).unwrap()).unwrap();
            members.push(folder.path().join(file));
            std::fs::write(members.last().unwrap(), image).unwrap();
        }
        let server = Server::start_dirty(folder.path(), &members);
        let status = wait(&server, "resync", |status| status["groups"][0]["in_sync"] == true);
        server.stop();
        let array = succeed(uraid().arg("cat").args(&members));
        let sum = Sha256::digest(&array);
        let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(sum, *manifest["after_recovery"]["logical_sha256"].as_str().unwrap(), "{name}");
        assert_eq!(RawSet::open(&members).mismatches(), [], "{name}");
        let gone_over = status["statistics"]["resynced_bytes"].as_u64().unwrap();
        assert!(gone_over <= array.len() as u64, "{name}: {gone_over} of {}", array.len());
    }
}

/// Every version of the superblock, with a bitmap, before and after it was written to.
#[test]
fn mdadm_knows_superblocks_and_bitmaps_of_all_versions() {
    if !peer::present(&["mdadm"]) {
        return;
    }
    let shapes = [
        Shape { level: "1", layout: None, members: 2 },
        Shape { level: "5", layout: None, members: 3 },
        Shape { level: "6", layout: None, members: 4 },
        Shape { level: "10", layout: Some("n2"), members: 5 },
        Shape { level: "10", layout: Some("o2"), members: 4 },
    ];
    for version in ["0.90", "1.0", "1.1", "1.2"] {
        for shape in shapes {
            let folder = scratch();
            let members = create(folder.path(), &shape, &["--metadata", version]);
            check(version, &members, 0);
            let server = Server::start_dirty(folder.path(), &members);
            let mut client = Client::connect(&server.uri).unwrap();
            client.write(70_000, &bytes(3, 200_000)).unwrap();
            drop(client);
            server.stop();
            check(version, &members, 0);
            let array = succeed(uraid().arg("cat").args(&members));
            assert!(array[70_000..270_000] == bytes(3, 200_000), "{version} {shape:?}");
            assert_eq!(succeed(uraid().arg("cat").args(members.iter().rev())), array);
        }
    }
}

fn check(version: &str, members: &[PathBuf], dirty: u64) {
    for member in members {
        let text = succeed_text(peer::command("mdadm").arg("--examine").arg(member));
        assert!(text.contains("- correct"), "{text}");
        assert!(text.contains("Internal Bitmap"), "{text}");
        let shown = if version == "0.90" { "0.90.00" } else { version };
        assert!(text.contains(&format!("Version : {shown}\n")), "{text}");
        let events = text.lines().find_map(|line| line.trim().strip_prefix("Events : ")).unwrap();
        let ours = succeed_text(uraid().arg("examine").arg(member));
        assert!(ours.contains(&format!("Events : {events}\n")), "{ours}");
        assert_eq!(examined(member, "Magic"), "6d746962");
        assert_eq!(examined(member, "Events"), events);
        assert_eq!(examined(member, "State"), "OK");
        let bits = examined(member, "Bitmap");
        assert!(bits.contains(&format!(" {dirty} dirty")), "{bits}");
    }
}
