//! Goal: members of a served array fail, come back, are added and checked through the control
//! socket, while clients go on. Method: the real command; a client that writes and verifies all the
//! time; the raw members judged afterwards.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::image::{assert_same, bytes, file};
use common::nbd::Client;
use common::rawcheck::RawSet;
use common::server::Server;
use common::shape::Shape;
use common::{peer, run, scratch, succeed, succeed_text, uraid};
use rustix::process::Signal;

const MEMBER_BYTES: u64 = 16 << 20;
const PIECE: usize = 64 << 10;

/// A client that writes pieces all over the array and reads them back, until told to end; then it
/// says what the array must hold.
struct Load {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Vec<u8>>,
}

impl Load {
    fn on(server: &Server, mut content: Vec<u8>) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let mut client = Client::connect(&server.uri).unwrap();
        let stop = Arc::clone(&ended);
        let thread = thread::spawn(move || {
            let pieces = content.len() / PIECE;
            for turn in 0_usize.. {
                let at = turn * 7 % pieces * PIECE;
                let piece = bytes(turn as u64 + 1, PIECE);
                client.write(at as u64, &piece).unwrap();
                content[at..at + PIECE].copy_from_slice(&piece);
                let look = turn * 13 % pieces * PIECE;
                let found = client.read(look as u64, PIECE).unwrap();
                assert!(found == content[look..look + PIECE], "piece at {look} in turn {turn}");
                if stop.load(Ordering::Acquire) {
                    break;
                }
            }
            client.flush().unwrap();
            content
        });
        Self { ended, thread }
    }

    fn end(self) -> Vec<u8> {
        self.ended.store(true, Ordering::Release);
        self.thread.join().unwrap()
    }
}

fn manage(verb: &str, server: &Server, member: &Path) {
    succeed(uraid().arg(verb).arg("--control").arg(&server.control).arg(member));
}

fn wait_whole(server: &Server) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let status = server.status();
        if status["degraded"] == 0 && status["groups"][0]["sync_action"] == "idle" {
            return;
        }
        assert!(Instant::now() < deadline, "{status:#}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn blank(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::File::create(&path).unwrap().set_len(MEMBER_BYTES).unwrap();
    path
}

fn judge(members: &[PathBuf], content: &[u8]) {
    assert_same(&succeed(uraid().arg("cat").args(members)), content, "uraid cat");
    let raw = RawSet::open(members);
    assert_same(&raw.content(), content, "raw");
    assert_eq!(raw.mismatches(), []);
}

/// Each member in turn is failed under load, removed, and another one takes its place.
#[test]
fn each_member_is_failed_under_load_and_another_takes_over() {
    for shape in [
        Shape { level: "1", layout: None, members: 2 },
        Shape { level: "5", layout: None, members: 4 },
        Shape { level: "6", layout: None, members: 5 },
    ] {
        let folder = scratch();
        let mut members = shape.create(folder.path(), "64K", MEMBER_BYTES);
        let server = Server::start(folder.path(), &members);
        let size = server.status()["size_bytes"].as_u64().unwrap() as usize;
        let mut content = vec![0; size];
        for (slot, member) in members.iter_mut().enumerate() {
            let load = Load::on(&server, content);
            manage("fail", &server, member);
            manage("remove", &server, member);
            let new = blank(folder.path(), &format!("new{slot}.img"));
            manage("add", &server, &new);
            wait_whole(&server);
            content = load.end();
            *member = new;
        }
        server.stop();
        judge(&members, &content);
    }
}

/// A server that was stopped for longer than members may take to answer does not blame them.
#[test]
fn a_server_that_was_suspended_keeps_its_members() {
    let shape = Shape { level: "5", layout: None, members: 4 };
    let folder = scratch();
    let members = shape.create(folder.path(), "64K", MEMBER_BYTES);
    let server = Server::start_with(folder.path(), &members, &["--io-timeout", "2"]);
    let size = server.status()["size_bytes"].as_u64().unwrap() as usize;
    let load = Load::on(&server, vec![0; size]);
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(200));
        server.pause(Duration::from_secs(3));
    }
    let content = load.end();
    assert_eq!(server.status()["degraded"], 0, "{}", server.log());
    server.stop();
    judge(&members, &content);
}

/// Each member in turn is copied to another one under load, which takes its place.
#[test]
fn each_member_is_replaced_under_load() {
    for shape in [
        Shape { level: "1", layout: None, members: 2 },
        Shape { level: "6", layout: None, members: 5 },
        Shape { level: "10", layout: None, members: 4 },
    ] {
        let folder = scratch();
        let mut members = shape.create(folder.path(), "64K", MEMBER_BYTES);
        let server = Server::start(folder.path(), &members);
        let size = server.status()["size_bytes"].as_u64().unwrap() as usize;
        let mut content = vec![0; size];
        for (slot, member) in members.iter_mut().enumerate() {
            let load = Load::on(&server, content);
            let new = blank(folder.path(), &format!("new{slot}.img"));
            let mut replace = uraid();
            replace.arg("replace").arg("--control").arg(&server.control).arg(&member).arg(&new);
            succeed(&mut replace);
            let deadline = Instant::now() + Duration::from_secs(60);
            let name = new.display().to_string();
            let place = |status: &serde_json::Value| {
                let listed = status["groups"][0]["members"].as_array().unwrap().clone();
                listed.into_iter().find(|one| one["path"] == name.as_str()).unwrap()
            };
            loop {
                let status = server.status();
                // The array is whole all the time.
                assert_eq!(status["degraded"], 0, "{status:#}");
                let place = place(&status);
                assert_eq!(place["slot"], slot, "{status:#}");
                if place["state"] == "in_sync" {
                    break;
                }
                assert!(Instant::now() < deadline, "{status:#}");
                thread::sleep(Duration::from_millis(20));
            }
            manage("remove", &server, member);
            content = load.end();
            *member = new;
        }
        server.stop();
        judge(&members, &content);
    }
}

/// A member comes back under load and gets what it missed, by the bitmap.
#[test]
fn a_member_comes_back_under_load() {
    let shape = Shape { level: "5", layout: None, members: 4 };
    let folder = scratch();
    let mut create = shape.create_command(folder.path(), "64K", MEMBER_BYTES);
    succeed(create.args(["--bitmap", "internal", "--bitmap-chunk", "64K"]));
    let members = shape.paths(folder.path());
    let server = Server::start(folder.path(), &members);
    let size = server.status()["size_bytes"].as_u64().unwrap() as usize;
    let load = Load::on(&server, vec![0; size]);
    for slot in [0, 3, 1] {
        manage("fail", &server, &members[slot]);
        thread::sleep(Duration::from_millis(100));
        manage("remove", &server, &members[slot]);
        manage("re-add", &server, &members[slot]);
        wait_whole(&server);
    }
    let content = load.end();
    server.stop();
    judge(&members, &content);
}

/// kill -9 while a member is being filled: it goes on, and nothing that was flushed is lost.
#[test]
fn a_recovery_survives_kills() {
    let shape = Shape { level: "5", layout: None, members: 4 };
    let folder = scratch();
    let mut members = shape.create(folder.path(), "64K", MEMBER_BYTES);
    let server = Server::start(folder.path(), &members);
    let mut client = Client::connect(&server.uri).unwrap();
    let content = bytes(3, client.size as usize);
    for at in (0..content.len()).step_by(1 << 20) {
        let end = content.len().min(at + (1 << 20));
        client.write(at as u64, &content[at..end]).unwrap();
    }
    client.flush().unwrap();
    drop(client);
    manage("fail", &server, &members[2]);
    manage("remove", &server, &members[2]);
    members[2] = blank(folder.path(), "new.img");
    server.stop();
    let rest: Vec<PathBuf> = [0, 1, 3].map(|slot| members[slot].clone()).into();
    let slow = ["--speed-max", "20M"];
    let mut server = Server::start_with(folder.path(), &rest, &slow);
    manage("add", &server, &members[2]);
    for turn in 0..10_u64 {
        thread::sleep(Duration::from_millis(15 * (turn % 5)));
        server.signal(Signal::KILL);
        let _ = std::fs::remove_file(folder.path().join("control.sock"));
        server = Server::start_with(folder.path(), &members, &slow);
    }
    wait_whole(&server);
    server.stop();
    judge(&members, &content);
}

/// A check tells, a repair makes right.
#[test]
fn a_check_tells_and_a_repair_makes_right() {
    let shape = Shape { level: "6", layout: None, members: 5 };
    let folder = scratch();
    let members = shape.create(folder.path(), "64K", MEMBER_BYTES);
    let server = Server::start(folder.path(), &members);
    let size = server.status()["size_bytes"].as_u64().unwrap() as usize;
    let content = Load::on(&server, vec![0; size]).end();
    server.stop();
    let damaged = std::fs::File::options().write(true).open(&members[1]).unwrap();
    damaged.write_all_at(&bytes(9, 4096), MEMBER_BYTES - (1 << 20)).unwrap();
    let server = Server::start(folder.path(), &members);
    let check = |verb: &str| {
        succeed(uraid().arg(verb).arg("--wait").arg("--control").arg(&server.control));
        server.status()["groups"][0]["mismatch_sectors"].as_u64().unwrap()
    };
    assert_eq!([check("check"), check("repair"), check("check")], [8, 8, 0]);
    assert!(server.log().contains("m1.img is wrong, repaired"), "{}", server.log());
    server.stop();
    judge(&members, &content);
}

/// What cannot be done is refused in one line, and nothing changes.
#[test]
fn what_would_lose_data_is_refused() {
    let shape = Shape { level: "5", layout: None, members: 3 };
    let folder = scratch();
    let members = shape.create(folder.path(), "64K", MEMBER_BYTES);
    let server = Server::start(folder.path(), &members);
    manage("fail", &server, &members[0]);
    let other = file(folder.path(), "text", b"not a member");
    for (verb, member, word) in [
        ("fail", &members[1], "data would be lost"),
        ("remove", &members[1], "in use"),
        ("fail", &other, "not a member"),
        ("re-add", &other, "too small"),
        ("add", &members[1], "is the same as"),
        ("add", &other, "too small"),
    ] {
        let refused = run(uraid().arg(verb).arg("--control").arg(&server.control).arg(member));
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{verb}: {text}");
        assert!(text.contains(word) && text.lines().count() == 1, "{verb}: {text}");
    }
    assert_eq!(server.status()["degraded"], 1);
    server.stop();
}

/// mdadm finds the member that took over, and its superblock, in order.
#[test]
fn mdadm_reads_what_became_of_the_members() {
    if !peer::present(&["mdadm"]) {
        return;
    }
    let shape = Shape { level: "5", layout: None, members: 3 };
    let folder = scratch();
    let members = shape.create(folder.path(), "64K", MEMBER_BYTES);
    let server = Server::start(folder.path(), &members);
    manage("fail", &server, &members[1]);
    let new = blank(folder.path(), "new.img");
    manage("add", &server, &new);
    wait_whole(&server);
    server.stop();
    let text = succeed_text(peer::command("mdadm").arg("--examine").arg(&new));
    assert!(text.contains("Device Role : Active device 1"), "{text}");
    assert!(text.contains("Array State : AAA"), "{text}");
    assert!(text.contains("State : clean") && text.contains("- correct"), "{text}");
}
