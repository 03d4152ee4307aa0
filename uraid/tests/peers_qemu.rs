//! Goal: QEMU's NBD client finds what it expects. Method: qemu-io writes patterns with FUA, zeroes
//! and discards and reads them back, traced, so that the negotiation is seen; qemu-img compares
//! images.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::path::PathBuf;

use common::image::{bytes, file};
use common::rawcheck::RawSet;
use common::server::Server;
use common::shape::Shape;
use common::{peer, run, scratch, succeed, succeed_text};

const RAID5: Shape = Shape { level: "5", layout: None, members: 4 };

fn serve(folder: &std::path::Path) -> (Vec<PathBuf>, Server) {
    let members = RAID5.create(folder, "64K", 8 << 20);
    let server = Server::start(folder, &members);
    (members, server)
}

#[test]
fn patterns_are_read_back() {
    if !peer::present(&["qemu-io"]) {
        return;
    }
    let folder = scratch();
    let (members, server) = serve(folder.path());
    let mut command = peer::command("qemu-io");
    command.args(["-f", "raw", "-t", "none"]);
    for step in [
        "write -P 0xa5 1M 64k",
        "write -f -P 0xa6 2M 64k",
        "write -P 0x11 3333k 777k",
        "read -P 0xa5 1M 64k",
        "read -P 0xa6 2M 64k",
        "read -P 0x11 3333k 777k",
        "write -z 1M 64k",
        "read -P 0 1M 64k",
        "write -z -u 2M 64k",
        "read -P 0 2M 64k",
        "discard 4M 1M",
        "flush",
    ] {
        command.args(["-c", step]);
    }
    succeed(command.arg(&server.uri));
    server.stop();
    assert_eq!(RawSet::open(&members).mismatches(), []);
}

/// A client that knows extended headers asks for them first, and must come down to structured
/// replies when they are refused.
#[test]
fn extended_headers_are_refused_cleanly() {
    if !peer::present(&["qemu-io"]) {
        return;
    }
    let folder = scratch();
    let (_members, server) = serve(folder.path());
    let mut command = peer::command("qemu-io");
    command.args(["-T", "nbd_*", "-f", "raw", "-c", "write -P 7 0 64k", "-c", "read -P 7 0 64k"]);
    let output = run(command.args(["-c", "map"]).arg(&server.uri));
    let trace = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{trace}");
    let asked = trace.contains("option request 11 (extended headers)");
    assert_eq!(asked, version_of_qemu() >= (8, 2), "{trace}");
    if asked {
        let refusal = "option reply 11 (extended headers), type 2147483649 (unsupported)";
        assert!(trace.contains(refusal), "{trace}");
    }
    assert!(trace.contains("option reply 8 (structured reply), type 1 (ack)"), "{trace}");
    server.stop();
}

fn version_of_qemu() -> (u32, u32) {
    let text = succeed_text(peer::command("qemu-io").arg("--version"));
    let version =
        text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    let mut parts = version.unwrap().split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

#[test]
fn qemu_img_compares_equal() {
    if !peer::present(&["qemu-img"]) {
        return;
    }
    let folder = scratch();
    let (_members, server) = serve(folder.path());
    let size = server.status()["size_bytes"].as_u64().unwrap() as usize;
    let image = file(folder.path(), "in.img", &bytes(1, size));
    let convert = ["convert", "-n", "-f", "raw", "-O", "raw"];
    succeed(peer::command("qemu-img").args(convert).arg(&image).arg(&server.uri));
    let compare = ["compare", "-f", "raw", "-F", "raw"];
    succeed(peer::command("qemu-img").args(compare).arg(&image).arg(&server.uri));
    // The comparison can fail.
    let other = file(folder.path(), "other.img", &bytes(2, size));
    let status = run(peer::command("qemu-img").args(compare).arg(&other).arg(&server.uri)).status;
    assert_eq!(status.code(), Some(1));
    server.stop();
}
