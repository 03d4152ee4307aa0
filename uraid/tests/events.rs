//! Goal: what happens to an array is told under mdadm's names, on every path, and what is asked
//! over the control socket is either done or refused. Method: the real command; a hook that writes
//! down how it was called; every path must tell the same events.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::server::Server;
use common::shape::Shape;
use common::{run, scratch, succeed, succeed_text, uraid};
use serde_json::Value;

const RAID5: Shape = Shape { level: "5", layout: None, members: 4 };
const MEMBER_BYTES: u64 = 4 << 20;

/// A program that appends its arguments, one in brackets each, to `calls` in `folder`.
fn hook(folder: &Path, last: &str) -> PathBuf {
    let path = folder.join("hook");
    let calls = folder.join("calls");
    let lines = format!(
        "#!/bin/sh\nline=\nfor a; do line=\"$line[$a]\"; done\necho \"$line\" >> '{}'\n\
         echo on standard output\n{last}\n",
        calls.display()
    );
    std::fs::write(&path, lines).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

fn lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Waits for something that is not asked for by a request.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn named(folder: &Path) -> Vec<PathBuf> {
    let mut command = RAID5.create_command(folder, "64K", MEMBER_BYTES);
    succeed(command.args(["--name", "a name; rm -rf $HOME"]));
    RAID5.paths(folder)
}

#[test]
fn every_path_tells_the_same_events() {
    let folder = scratch();
    let members = named(folder.path());
    let (hook, file) = (hook(folder.path(), "exit 3"), folder.path().join("events"));
    let (hook_path, file_path) = (hook.display().to_string(), file.display().to_string());
    // One member is left out, so that there is something to tell.
    let arguments = ["--hook", &hook_path, "--events", &file_path];
    let server = Server::start_with(folder.path(), &members[..3], &arguments);
    until("the event of a degraded array", || lines(&file).len() == 2);
    let mut listener = uraid()
        .args(["events", "--control"])
        .arg(&server.control)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The listener's first event shows that it listens; tests are sent until then.
    let mut output = BufReader::new(listener.stdout.take().unwrap());
    let mut first = String::new();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| output.read_line(&mut first).unwrap());
        while !reader.is_finished() {
            succeed(uraid().args(["events", "--test", "--control"]).arg(&server.control));
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let log = folder.path().join("serve.log");
    server.stop();
    let mut heard = first;
    output.read_to_string(&mut heard).unwrap();
    assert!(listener.wait().unwrap().success(), "the stream ends with the array");

    let told: Vec<Value> =
        lines(&file).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = told.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names[..2], ["NewArray", "DegradedArray"]);
    assert!(names[2..names.len() - 1].iter().all(|name| *name == "TestMessage"), "{names:?}");
    assert_eq!(names.last(), Some(&"DeviceDisappeared"));
    assert!(told.iter().all(|event| event["array"] == "a name; rm -rf $HOME"), "{told:?}");
    // The listener got the same lines from where it came in.
    let heard: Vec<&str> = heard.lines().collect();
    assert_eq!(heard, lines(&file)[told.len() - heard.len()..]);
    // Hooks run at the same time, so their lines come in any order.
    let mut calls = lines(&folder.path().join("calls"));
    let mut right: Vec<String> =
        names.iter().map(|name| format!("[{name}][a name; rm -rf $HOME]")).collect();
    calls.sort();
    right.sort();
    assert_eq!(calls, right);
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("WARN DegradedArray: 1 slots of"), "{log}");
    assert!(log.contains(" NewArray: exit status: 3"), "{log}");
    assert!(log.contains("on standard output"), "a hook's output belongs to the log: {log}");
}

/// Hooks that hang: events, requests and the stop go on without them.
#[test]
fn a_hook_that_hangs_holds_up_nothing() {
    let folder = scratch();
    let members = RAID5.create(folder.path(), "64K", MEMBER_BYTES);
    let fifo = folder.path().join("gate");
    succeed(Command::new("mkfifo").arg(&fifo));
    let program = hook(folder.path(), &format!("read word < '{}'", fifo.display()));
    let file = folder.path().join("events");
    let server = Server::start_with(
        folder.path(),
        &members,
        &["--hook", &program.display().to_string(), "--events", &file.display().to_string()],
    );
    for _ in 0..40 {
        succeed(uraid().args(["events", "--test", "--control"]).arg(&server.control));
    }
    until("41 events in the file", || lines(&file).len() == 41);
    assert!(lines(&folder.path().join("calls")).len() <= 4, "so many run at once");
    assert_eq!(server.status()["degraded"], 0);
    server.stop();
    // Let those that run end.
    for _ in 0..4 {
        let opened = rustix::fs::open(
            &fifo,
            rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK,
            rustix::fs::Mode::empty(),
        );
        if let Ok(gate) = opened {
            let _ = rustix::io::write(&gate, b"x\n");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_hook_that_cannot_be_is_refused_before_a_member_is_touched() {
    let folder = scratch();
    let members = RAID5.create(folder.path(), "64K", MEMBER_BYTES);
    let before = common::hashes(&members);
    for (option, value) in [("--hook", "/nonexistent/hook"), ("--hook", "/"), ("--events", "/")] {
        let mut command = uraid();
        command.current_dir(folder.path()).args(["serve", option, value]).args(&members);
        let output = run(&mut command);
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(value) && said.lines().count() == 1, "{said}");
    }
    assert_eq!(common::hashes(&members), before);
}

/// With JOURNAL_STREAM saying that standard error is the journal, lines begin with a priority.
#[test]
fn the_journal_gets_priorities() {
    let folder = scratch();
    let members = RAID5.create(folder.path(), "64K", MEMBER_BYTES);
    let log = folder.path().join("log");
    let file = std::fs::File::create(&log).unwrap();
    let stat = rustix::fs::fstat(&file).unwrap();
    let mut command = uraid();
    command.current_dir(folder.path()).arg("serve").args(&members[..3]).stderr(file);
    command.env("JOURNAL_STREAM", format!("{}:{}", stat.st_dev, stat.st_ino));
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let control = folder.path().join("uraid-data/control.sock");
    until("a warning", || lines(&log).iter().any(|line| line.contains("DegradedArray")));
    until("a stop", || run(uraid().arg("stop").arg("--control").arg(&control)).status.success());
    assert!(child.wait().unwrap().success());
    let lines = lines(&log);
    assert!(lines.iter().any(|line| line.starts_with("<4>DegradedArray: 1 slots")), "{lines:?}");
    assert!(lines.iter().any(|line| line == "<6>stopped cleanly"), "{lines:?}");
    assert!(lines.iter().all(|line| line.starts_with('<')), "{lines:?}");
}

fn ask(control: &Path, request: &str) -> Value {
    let mut stream = UnixStream::connect(control).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream.write_all(b"\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer.lines().count(), 1, "{request}: {answer}");
    serde_json::from_str(&answer).unwrap()
}

/// What cannot be done is said, and nothing has happened.
#[test]
fn requests_that_make_no_sense_change_nothing() {
    let folder = scratch();
    let members = RAID5.create(folder.path(), "64K", MEMBER_BYTES);
    let server = Server::start(folder.path(), &members);
    let before = server.status();
    for (request, right) in [
        (r#"{"verb":"fail"}"#, "missing field `member`"),
        (r#"{"verb":"fail","member":"m1.img"}"#, "not an absolute path"),
        (r#"{"verb":"fail","member":"/dev/null"}"#, "not a member of this array"),
        (r#"{"verb":"status","when":"now"}"#, "unknown field `when`"),
        (r#"{"verb":"set-speed"}"#, "neither min nor max"),
        (r#"{"verb":"set-speed","min":9,"max":8}"#, "min 9 is more than max 8"),
    ] {
        let answer = ask(&server.control, request);
        assert_eq!(answer["ok"], false, "{request}");
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains(right), "{request}: {error}");
    }
    assert_eq!(server.status()["groups"], before["groups"]);
    assert_eq!(ask(&server.control, r#"{"verb":"wait"}"#)["ok"], true, "nothing to wait for");
    server.stop();
}

/// Until the engine does them, these commands say so, whatever the folder they are called in, and
/// nothing changes. Each line goes when its verb works.
#[test]
fn what_cannot_be_done_is_refused_in_words() {
    let folder = scratch();
    let members = RAID5.create(folder.path(), "64K", MEMBER_BYTES);
    let server = Server::start(folder.path(), &members);
    let before = server.status();
    for (arguments, code, right) in [
        (&["remove", "m1.img"][..], 1, "it is in use; fail it first"),
        (&["add", "m9.img"], 1, "cannot open"),
        (&["add", "m1.img"], 1, "is the same as"),
        (&["re-add", "m1.img"], 1, "is the same as"),
        (&["replace", "m1.img", "m9.img"], 1, "m9.img: cannot open: No such file"),
        (&["set-speed", "--min", "9M", "--max", "8M"], 1, "min 9437184 is more than max 8388608"),
        (&["set-speed"], 2, "required"),
        (&["fail"], 2, "required"),
        (&["fail", "stranger"], 1, "stranger: not a member of this array"),
    ] {
        let mut command = uraid();
        command.current_dir(folder.path()).args(arguments).arg("--control").arg(&server.control);
        let output = run(&mut command);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(right), "{arguments:?}: {said}");
        assert!(code == 2 || said.lines().count() == 1, "{arguments:?}: {said}");
    }
    assert_eq!(server.status()["groups"], before["groups"]);
    server.stop();
}

/// Prometheus text, read by a parser of the test's own.
fn samples(text: &str) -> Vec<(String, f64)> {
    assert!(text.ends_with("# EOF\n"), "{text}");
    let is_sample = |line: &&str| !line.starts_with('#');
    let split = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    text.lines().filter(is_sample).map(split).collect()
}

#[test]
fn metrics_say_what_status_says() {
    let folder = scratch();
    let members = RAID5.create(folder.path(), "64K", MEMBER_BYTES);
    let server = Server::start(folder.path(), &members[1..]);
    let mut client = common::nbd::Client::connect(&server.uri).unwrap();
    client.write(12_345, &common::image::bytes(5, 700_000)).unwrap();
    client.read(0, 65536).unwrap();
    client.flush().unwrap();
    drop(client);
    let text = succeed_text(uraid().args(["metrics", "--control"]).arg(&server.control));
    let status = server.status();
    let all = samples(&text);
    let device = status["name"].as_str().filter(|name| !name.is_empty());
    let device = device.unwrap_or_else(|| status["uuid"].as_str().unwrap());
    let value = |name: &str, labels: &str| {
        let name = format!("{name}{{device=\"{device}\"{labels}}}");
        let found: Vec<f64> = all.iter().filter(|(n, _)| *n == name).map(|(_, v)| *v).collect();
        assert_eq!(found.len(), 1, "{name}\n{text}");
        found[0]
    };
    let counters = &status["statistics"];
    for (metric, labels, counter) in [
        ("raid_io_operations_total", ",op=\"write\"", "writes"),
        ("raid_io_operations_total", ",op=\"read\"", "reads"),
        ("raid_io_operations_total", ",op=\"flush\"", "flushes"),
        ("raid_io_bytes_total", ",op=\"write\"", "written_bytes"),
        ("raid_io_bytes_total", ",op=\"read\"", "read_bytes"),
        ("raid_rmw_total", "", "rmw"),
        ("raid_rcw_total", "", "rcw"),
        ("raid_full_stripe_writes_total", "", "full_stripe_writes"),
        ("raid_degraded_reads_total", "", "degraded_reads"),
    ] {
        let right = counters[counter].as_f64().unwrap();
        assert_eq!(value(metric, labels), right, "{metric}{labels}: {counters}");
    }
    assert!(value("raid_io_bytes_total", ",op=\"write\"") >= 700_000.0);
    // The stock alert: slots required without a member in use.
    let lost = value("raid_disks_required", "") - value("raid_disks", ",state=\"active\"");
    assert_eq!((lost, value("raid_degraded", "")), (1.0, 1.0));
    let group = &status["groups"][0];
    assert_eq!(value("raid_blocks", "") * 1024.0, group["size_bytes"].as_f64().unwrap());
    for member in group["members"].as_array().unwrap().iter().filter(|m| m["path"] != "") {
        let labels = format!(",member={},op=\"write\"", member["path"]);
        let right = member["writes"].as_f64().unwrap();
        assert_eq!(value("raid_member_operations_total", &labels), right);
    }
    server.stop();
}
