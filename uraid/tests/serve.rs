//! Goal: `uraid serve` and the commands around it do what they say, on their own, without any peer.
//! Method: start it in each of its ways, talk to its sockets, stop it in each of its ways.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::image::{assert_same, bytes};
use common::nbd::Client;
use common::rawcheck::{RawSet, RawSuper};
use common::server::Server;
use common::shape::Shape;
use common::{hashes, run, scratch, succeed, succeed_text, uraid};
use rustix::process::Signal;

const RAID5: Shape = Shape { level: "5", layout: None, members: 4 };
const MEMBER_BYTES: u64 = 4 << 20;

fn array(folder: &Path) -> Vec<PathBuf> {
    RAID5.create(folder, "64K", MEMBER_BYTES)
}

fn write_something(server: &Server) -> Vec<u8> {
    let content = bytes(5, 700_000);
    let mut client = Client::connect(&server.uri).unwrap();
    client.write(12_345, &content).unwrap();
    client.flush().unwrap();
    content
}

fn is_clean(member: &Path) -> bool {
    RawSuper::of(&std::fs::read(member).unwrap()).unwrap().is_clean()
}

#[test]
fn signals_and_stop_end_it_cleanly() {
    let folder = scratch();
    let members = array(folder.path());
    for signal in [Some(Signal::TERM), Some(Signal::INT), None] {
        let server = Server::start(folder.path(), &members);
        let content = write_something(&server);
        match signal {
            Some(signal) => assert_eq!(server.signal(signal).code(), Some(0)),
            None => server.stop(),
        }
        assert!(members.iter().all(|member| is_clean(member)), "{signal:?}");
        let raw = RawSet::open(&members);
        assert_eq!(raw.mismatches(), [], "{signal:?}");
        assert_same(&raw.content()[12_345..][..content.len()], &content, "content");
        let left = ["nbd.sock", "control.sock"].map(|name| folder.path().join(name).exists());
        assert_eq!(left, [false; 2], "a socket is left behind");
    }
}

/// A client that is connected and idle must not hold up a stop.
#[test]
fn an_idle_client_does_not_hold_up_the_stop() {
    let folder = scratch();
    let members = array(folder.path());
    let server = Server::start(folder.path(), &members);
    let _idle = Client::connect(&server.uri).unwrap();
    let _silent = UnixStream::connect(folder.path().join("nbd.sock")).unwrap();
    let begun = std::time::Instant::now();
    server.stop();
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

#[test]
fn dirty_and_degraded_wants_force() {
    let folder = scratch();
    let members = array(folder.path());
    let server = Server::start_dirty(folder.path(), &members);
    let content = write_something(&server);
    server.signal(Signal::KILL);
    assert!(!is_clean(&members[1]));
    let kept = &members[1..];
    let before = hashes(kept);
    let mut command = uraid();
    command.args(["serve", "--nbd"]).arg(format!("unix:{}", folder.path().join("n").display()));
    command.arg("--control").arg(folder.path().join("c")).args(kept);
    let refused = run(&mut command);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("--force"), "{said}");
    assert_eq!(hashes(kept), before);
    // It can still be looked at, and forced.
    let text = succeed_text(uraid().arg("detail").args(kept));
    assert!(text.contains("degraded") && text.contains("not stopped cleanly"), "{text}");
    let server = Server::start_with(folder.path(), kept, &["--force"]);
    let mut client = Client::connect(&server.uri).unwrap();
    assert_same(&client.read(12_345, content.len()).unwrap(), &content, "after force");
    drop(client);
    server.stop();
}

#[test]
fn read_only_changes_no_member() {
    let folder = scratch();
    let members = array(folder.path());
    let before = hashes(&members);
    let server = Server::start_with(folder.path(), &members, &["--read-only"]);
    let mut client = Client::connect(&server.uri).unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), [0; 4096]);
    let refused = client.write(0, &[1; 512]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(1), "EPERM");
    assert_eq!(server.status()["read_only"], true);
    drop(client);
    server.stop();
    assert_eq!(hashes(&members), before);
}

#[test]
fn views_agree() {
    let folder = scratch();
    let members = array(folder.path());
    let server = Server::start(folder.path(), &members);
    write_something(&server);
    let ask = |arguments: &[&str]| {
        let mut command = uraid();
        succeed_text(command.args(arguments).arg("--control").arg(&server.control))
    };
    let detail: serde_json::Value = serde_json::from_str(&ask(&["detail", "--json"])).unwrap();
    assert_eq!(detail["status"]["size_bytes"], server.status()["size_bytes"]);
    let counters = &server.status()["statistics"];
    let names = ["full_stripe_writes", "rmw", "rcw", "member_reads", "member_writes", "merged"];
    assert!(names.iter().all(|name| counters[name].is_u64()), "{counters}");
    assert!(counters["full_stripe_writes"].as_u64().unwrap() > 0, "{counters}");
    let mdstat = ask(&["status", "--mdstat"]);
    let blocks = server.status()["size_bytes"].as_u64().unwrap() >> 10;
    let line = "blocks super 1.2 level 5, 64k chunk, algorithm 2 [4/4] [UUUU]";
    assert!(mdstat.contains(&format!("{blocks} {line}")), "{mdstat}");
    assert!(ask(&["status"]).contains("members:"));
    assert!(ask(&["detail"]).contains("Raid Level : raid5"));
    let mut test = uraid();
    let test = run(test.args(["detail", "--test", "--control"]).arg(&server.control));
    assert_eq!(test.status.code(), Some(0));
    server.stop();
}

#[test]
fn the_control_socket_answers_anything_with_one_line() {
    let folder = scratch();
    let members = array(folder.path());
    let server = Server::start(folder.path(), &members);
    for (request, right) in [
        ("{\"verb\":\"status\"}\n", "{\"ok\":true,"),
        ("{\"verb\":\"explode\"}\n", "{\"ok\":false,\"error\":\"unknown verb"),
        ("what?\n", "{\"ok\":false,\"error\":\"not a request"),
    ] {
        let mut stream = UnixStream::connect(&server.control).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(right), "{request}: {answer}");
        assert_eq!(answer.lines().count(), 1, "{answer}");
    }
    server.stop();
}

#[test]
fn several_listeners_serve_one_array() {
    let folder = scratch();
    let members = array(folder.path());
    let other = folder.path().join("other.sock");
    let address = format!("unix:{}", other.display());
    let server = Server::start_with(
        folder.path(),
        &members,
        &["--nbd", &address, "--nbd", "tcp:127.0.0.1:0"],
    );
    let content = write_something(&server);
    let uri = format!("nbd+unix:///?socket={}", other.display());
    let mut client = Client::connect(&uri).unwrap();
    assert_same(&client.read(12_345, content.len()).unwrap(), &content, "the other socket");
    drop(client);
    assert!(server.next_line().starts_with("ready nbd+unix:///"), "one line for each listener");
    assert!(server.next_line().starts_with("ready nbd://127.0.0.1:"), "one line for each listener");
    server.stop();
}

#[test]
fn cat_gives_ranges() {
    let folder = scratch();
    let members = array(folder.path());
    let server = Server::start(folder.path(), &members);
    let content = write_something(&server);
    server.stop();
    let cat = |offset: &str, length: &str| {
        let mut command = uraid();
        succeed(command.args(["cat", "--offset", offset, "--length", length]).args(&members))
    };
    assert_same(&cat("12345", "700000"), &content, "cat");
    assert_same(&cat("13K", "3"), &content[13 * 1024 - 12_345..][..3], "cat");
    assert_eq!(cat("1M", "0"), b"");
    let beyond = run(uraid().args(["cat", "--offset", "1T"]).args(&members));
    assert_eq!(beyond.status.code(), Some(1));
    // A reader that has had enough is no failure.
    let mut child = uraid().arg("cat").args(&members).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}

/// Without a word: five files, RAID 5, sockets, and what to try next; again: the same array.
#[test]
fn the_embedded_default_makes_and_keeps_an_array() {
    let folder = scratch();
    let data = folder.path().join("uraid-data");
    let content = bytes(9, 300_000);
    for round in 0..2 {
        let mut server = Server::start_default(folder.path());
        let text = server.lines_until("stop");
        for word in ["nbdinfo", "status", "detail"] {
            assert!(text.contains(word), "{text}");
        }
        let status = server.status();
        let shape = (&status["level"], &status["chunk_bytes"]);
        assert_eq!(shape, (&"raid5".into(), &65536.into()), "{status}");
        assert_eq!(status["groups"][0]["members"].as_array().unwrap().len(), 5);
        let mut client = Client::connect(&server.uri).unwrap();
        if round == 0 {
            client.write(999, &content).unwrap();
        } else {
            assert_same(&client.read(999, content.len()).unwrap(), &content, "kept");
        }
        drop(client);
        server.stop();
    }
    let count = std::fs::read_dir(&data).unwrap().count();
    assert_eq!(count, 5, "five members and nothing else after a stop");
    let size = std::fs::metadata(data.join("member0.img")).unwrap().len();
    assert_eq!(size, 256 << 20);
}
