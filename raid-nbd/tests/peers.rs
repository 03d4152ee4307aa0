//! Smoke tests with real clients: libnbd's nbdinfo, nbdcopy and nbdsh, and qemu's qemu-io and
//! qemu-img.
//!
//! A client that is not installed is skipped with a line that says so; where `CI` is set that is a
//! failure.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use raid_io::{Array, MemoryOptions};
use support::*;

/// A server, and its address.
struct Peer {
    server: Socket,
    uri: String,
}

impl Peer {
    fn new() -> Self {
        let mut memory = MemoryOptions::default();
        memory.member_bytes = 16 << 20;
        let server = serve(Array::in_memory(memory).unwrap(), |_| {});
        let uri = server.server.uris()[0].clone();
        Self { server, uri }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.server.directory.path().join(name)
    }
}

/// Whether a program is there; says what is skipped where it is not.
fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    if !found {
        assert!(std::env::var_os("CI").is_none(), "{program} is missing, and CI must have it");
        println!("skipped: needs {program}");
    }
    found
}

/// Run a program that must succeed; its standard output.
fn run(program: &str, arguments: &[&str]) -> String {
    // nbdsh is a Python module of the system's own Python, which another one may hide.
    let path = std::env::var("PATH").unwrap_or_default();
    let path = if program == "nbdsh" { format!("/usr/bin:{path}") } else { path };
    let output = Command::new(program).args(arguments).env("PATH", path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{text}{errors}", output.status);
    text
}

/// A file of bytes that repeat nowhere in it.
fn image(path: &Path, len: usize) {
    let mut state = 1_u64;
    let bytes: Vec<u8> = (0..len.div_ceil(8))
        .flat_map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state ^ state >> 31).to_le_bytes()
        })
        .collect();
    std::fs::write(path, &bytes[..len]).unwrap();
}

#[test]
fn nbdinfo_describes_the_export() {
    if !has("nbdinfo") {
        return;
    }
    let peer = Peer::new();
    let json = run("nbdinfo", &["--json", &peer.uri]);
    for expected in [
        "\"protocol\": \"newstyle-fixed\"",
        "\"structured\": true",
        "\"export-name\": \"disk\"",
        "\"description\": \"a disk\"",
        "\"base:allocation\"",
        "\"is_read_only\": false",
        "\"can_cache\": true",
        "\"can_df\": true",
        "\"can_fast_zero\": true",
        "\"can_flush\": true",
        "\"can_fua\": true",
        "\"can_multi_conn\": true",
        "\"can_zero\": true",
        "\"block_size_minimum\": 1",
        "\"block_size_maximum\": 33554432",
    ] {
        assert!(json.contains(expected), "{expected} is not in {json}");
    }
    assert!(run("nbdinfo", &["--list", &peer.uri]).contains("export=\"disk\""));
    let size: u64 = run("nbdinfo", &["--size", &peer.uri]).trim().parse().unwrap();
    assert!(size > 16 << 20);
    // An array that nobody wrote may be one hole; what was written is data.
    peer.server.connect().begin(false, false).check_alive();
    assert!(run("nbdinfo", &["--map", &peer.uri]).contains("data"));
}

#[test]
fn nbdcopy_brings_back_what_it_took() {
    if !has("nbdcopy") || !has("nbdinfo") {
        return;
    }
    let peer = Peer::new();
    let size: usize = run("nbdinfo", &["--size", &peer.uri]).trim().parse().unwrap();
    let (source, target) = (peer.path("source"), peer.path("target"));
    image(&source, size);
    run("nbdcopy", &["--flush", source.to_str().unwrap(), &peer.uri]);
    run("nbdcopy", &[&peer.uri, target.to_str().unwrap()]);
    assert!(std::fs::read(&source).unwrap() == std::fs::read(&target).unwrap(), "bytes differ");
    // One connection, odd request sizes.
    let options = ["--connections=1", "--requests=9", "--request-size=65536"];
    image(&source, size - 4097);
    run("nbdcopy", &[&options[..], &[source.to_str().unwrap(), &peer.uri]].concat());
    run("nbdcopy", &[&options[..], &[&peer.uri, target.to_str().unwrap()]].concat());
    let target = std::fs::read(&target).unwrap();
    assert!(std::fs::read(&source).unwrap()[..] == target[..size - 4097], "bytes differ");
    if has("qemu-img") {
        let raw = ["compare", "-f", "raw", "-F", "raw"];
        let path = peer.path("again");
        std::fs::write(&path, &target).unwrap();
        run("qemu-img", &[&raw[..], &[path.to_str().unwrap(), &peer.uri]].concat());
    }
}

/// qemu negotiates extended headers first: they are refused, and it goes on without them.
#[test]
fn qemu_io_finds_its_patterns() {
    if !has("qemu-io") {
        return;
    }
    let peer = Peer::new();
    let commands = [
        "write -P 0xa5 1M 64k",
        "write -f -P 0xa6 2M 64k",
        "write -P 0xa7 3000001 511",
        "read -P 0xa5 1M 64k",
        "read -P 0xa6 2M 64k",
        "read -P 0xa7 3000001 511",
        "write -z 1M 64k",
        "read -P 0 1M 64k",
        "write -z -u 2M 4k",
        "read -P 0 2M 4k",
        "read -P 0xa6 2101248 60k",
        "discard 4M 1M",
        "flush",
        "map",
    ];
    let mut arguments = vec!["-f", "raw", "-t", "none"];
    for command in commands {
        arguments.extend(["-c", command]);
    }
    arguments.push(&peer.uri);
    run("qemu-io", &arguments);
}

/// Requests that libnbd itself would refuse to send, many in flight, and every option by hand.
#[test]
fn nbdsh_gets_the_errors_of_the_protocol() {
    if !has("nbdsh") {
        return;
    }
    let peer = Peer::new();
    let script = r#"
import errno
h.set_strict_mode(0)
size = h.get_size()
def fails(number, call, *args):
    try:
        call(*args)
    except nbd.Error as error:
        assert error.errnum == number, (error.errnum, number)
    else:
        assert False, "it succeeded"
fails(errno.EINVAL, h.pread, 1, size)
fails(errno.EINVAL, h.pread, 512, 2**64 - 512)
fails(errno.ENOSPC, h.pwrite, b"x" * 1000, size - 1)
fails(errno.ENOSPC, h.zero, 2, size - 1)
fails(errno.EINVAL, h.trim, 2, size - 1)
fails(errno.EINVAL, h.pread, 512, 0, 1 << 9)
fails(errno.ENOTSUP, h.zero, 512, 0, nbd.CMD_FLAG_FAST_ZERO)
h.pwrite(b"abc" * 1000, 4095, nbd.CMD_FLAG_FUA)
assert h.pread(3000, 4095) == b"abc" * 1000
assert h.pread(3000, 4095, nbd.CMD_FLAG_DF) == b"abc" * 1000
h.zero(1000, 4095, nbd.CMD_FLAG_NO_HOLE)
assert h.pread(1000, 4095) == bytes(1000)
h.trim(65536, 131072, nbd.CMD_FLAG_FUA)
h.cache(65536, 0)
h.flush()
buffers = [(h.aio_pread(b, i * 777), b) for i, b in [(i, nbd.Buffer(100 + i)) for i in range(64)]]
while h.aio_in_flight() > 0:
    h.poll(-1)
    for cookie, _ in buffers:
        try:
            h.aio_command_completed(cookie)
        except nbd.Error:
            pass
h.shutdown()
"#;
    run("nbdsh", &["-u", &peer.uri, "-c", script]);
    let script = r#"
extents = []
h.block_status(h.get_size(), 0, lambda context, offset, entries, error: extents.extend(entries))
assert sum(extents[::2]) > 0, extents
extents = []
h.block_status(1000, 10, lambda c, o, entries, e: extents.extend(entries), nbd.CMD_FLAG_REQ_ONE)
assert len(extents) == 2 and extents[0] == 1000, extents
"#;
    run("nbdsh", &["--base-allocation", "-u", &peer.uri, "-c", script]);
    let script = r#"
contexts = []
h.add_meta_context("base:")
h.opt_list_meta_context(lambda name: contexts.append(name))
assert contexts == ["base:allocation"], contexts
exports = []
h.opt_list(lambda name, text: exports.append((name, text)))
assert exports == [("disk", "a disk")], exports
h.set_export_name("other")
try:
    h.opt_info()
    assert False
except nbd.Error:
    pass
h.set_export_name("")
h.opt_info()
h.set_full_info(True)
h.opt_info()
assert h.get_canonical_export_name() == "disk"
assert h.get_export_description() == "a disk"
h.opt_go()
assert h.get_size() > 0
h.shutdown()
"#;
    run("nbdsh", &["--opt-mode", "-u", &peer.uri, "-c", script]);
    run("nbdsh", &["--opt-mode", "-u", &peer.uri, "-c", "h.opt_abort()"]);
}
