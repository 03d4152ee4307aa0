//! Goal: libnbd, which checks replies strictly, finds a complete server. Method: nbdinfo and nbdsh.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use common::server::Server;
use common::shape::Shape;
use common::{peer, run, scratch, succeed, succeed_text};

fn serve(folder: &std::path::Path) -> Server {
    let members = Shape { level: "5", layout: None, members: 5 }.create(folder, "64K", 8 << 20);
    Server::start(folder, &members)
}

#[test]
fn nbdinfo_describes_the_export() {
    if !peer::present(&["nbdinfo"]) {
        return;
    }
    let folder = scratch();
    let server = serve(folder.path());
    let text = succeed_text(peer::command("nbdinfo").arg("--json").arg(&server.uri));
    let info: serde_json::Value = serde_json::from_str(&text).unwrap();
    let export = &info["exports"][0];
    assert_eq!(export["export-size"], server.status()["size_bytes"]);
    assert_eq!(export["block_size_preferred"], 256 << 10, "the full stripe");
    for ability in ["fua", "flush", "multi_conn", "trim", "zero", "cache", "df", "fast_zero"] {
        let ability = ability.replace('_', "-");
        let can = ["--can", &ability];
        let status = run(peer::command("nbdinfo").args(can).arg(&server.uri)).status;
        assert!(status.success(), "--can {ability}: {status}");
    }
    succeed(peer::command("nbdinfo").arg("--list").arg(&server.uri));
    succeed(peer::command("nbdinfo").arg("--map").arg(&server.uri));
    server.stop();
}

#[test]
fn nbdsh_scripts_run() {
    if !peer::present(&["nbdsh"]) {
        return;
    }
    let folder = scratch();
    let server = serve(folder.path());
    let script = r#"
h.pwrite(b'x' * 777, 12345)
assert h.pread(777, 12345) == b'x' * 777
assert h.pread(2, 12344) == b'\0x'
h.pwrite(b'y' * 4096, 1048576, nbd.CMD_FLAG_FUA)
h.zero(100, 1048576)
assert h.pread(101, 1048576) == b'\0' * 100 + b'y'
h.trim(1048576, 2097152)
h.cache(65536, 0)
h.flush()
h.set_strict_mode(0)
size = h.get_size()
for action in (lambda: h.pread(512, size), lambda: h.pwrite(b'z' * 512, size - 511)):
    try:
        action()
        assert False, 'a request beyond the end was accepted'
    except nbd.Error as error:
        assert error.errno in ('EINVAL', 'ENOSPC'), error.errno
buffers = [nbd.Buffer.from_bytearray(bytearray(bytes([i]) * 65536)) for i in range(64)]
cookies = [h.aio_pwrite(b, 4194304 + 65536 * i) for i, b in enumerate(buffers)]
while h.aio_in_flight() > 0:
    h.poll(-1)
for i, c in enumerate(cookies):
    assert h.aio_command_completed(c)
    assert h.pread(65536, 4194304 + 65536 * i) == bytes([i]) * 65536
"#;
    succeed(peer::command("nbdsh").args(["-u", &server.uri, "-c", script]));
    let map = "h.block_status(h.get_size(), 0, lambda *extents: 0)";
    succeed(peer::command("nbdsh").args(["--base-allocation", "-u", &server.uri, "-c", map]));
    server.stop();
}
