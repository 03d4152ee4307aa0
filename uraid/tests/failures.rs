//! Goal: members fail while the array is written to, in every way that can be made without
//! privileges, and clients notice nothing; beyond redundancy they get errors, never wrong bytes.
//! Method: every member is a file of nbdfuse; fio verifies what it writes while members break, and
//! what is left is read again after a restart.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use common::breakable::{self, Break, Breakable};
use common::fio::Job;
use common::image::{assert_same, bytes};
use common::nbd::Client;
use common::server::Server;
use common::shape::Shape;
use common::{peer, run, scratch, succeed, succeed_text, uraid};
use serde_json::Value;

const RAID5: Shape = Shape { level: "5", layout: None, members: 4 };
const RAID6: Shape = Shape { level: "6", layout: None, members: 5 };
const MEMBER_BYTES: u64 = 12 << 20;
const JOB_BYTES: u64 = 8 << 20;

struct Broken {
    folder: tempfile::TempDir,
    members: Vec<Breakable>,
}

impl Broken {
    fn new(shape: Shape) -> Self {
        let folder = scratch();
        let images = shape.create(folder.path(), "64K", MEMBER_BYTES);
        let members = images.iter().map(|image| Breakable::over(image)).collect();
        Self { folder, members }
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.members.iter().map(|member| member.path.clone()).collect()
    }

    fn serve(&self) -> Server {
        let events = self.folder.path().join("events").display().to_string();
        Server::start_with(self.folder.path(), &self.paths(), &["--events", &events])
    }

    /// Members of the events called `name`, in order.
    fn told(&self, name: &str) -> Vec<PathBuf> {
        let text = std::fs::read_to_string(self.folder.path().join("events")).unwrap();
        let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let member = |event: Value| PathBuf::from(event["member"].as_str().unwrap_or_default());
        events.filter(|event| event["event"] == name).map(member).collect()
    }
}

fn writes(server: &Server) -> u64 {
    server.status()["statistics"]["writes"].as_u64().unwrap()
}

/// Runs fio, and breaks members one after the other under it; fio must find every byte.
fn break_under_load(broken: &mut Broken, server: &Server, breaks: &[(usize, Break)]) {
    let lines = [
        "rw=randwrite",
        "bsrange=4k-256k",
        "iodepth=16",
        "verify=crc32c",
        "verify_fatal=1",
        "do_verify=1",
        "randrepeat=0",
        "loops=2",
    ];
    let job = Job { uri: &server.uri, jobs: 2, bytes: JOB_BYTES, lines: &lines };
    let mut fio = job.command(broken.folder.path());
    let fio = fio.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut goal = 0;
    for (slot, how) in breaks {
        goal += 20;
        while writes(server) < goal {
            thread::sleep(Duration::from_millis(1));
        }
        broken.members[*slot].breaks(*how);
    }
    let before = writes(server);
    let output = fio.wait_with_output().unwrap();
    assert!(output.status.success(), "{breaks:?}: {output:?}\n{}", server.log());
    assert!(writes(server) > before + 20, "{breaks:?}: fio was done before the members broke");
}

fn whole_content(uri: &str) -> Vec<u8> {
    let mut client = Client::connect(uri).unwrap();
    let mut content = Vec::new();
    while (content.len() as u64) < client.size {
        let len = (1 << 20).min(client.size - content.len() as u64) as usize;
        content.extend(client.read(content.len() as u64, len).unwrap());
    }
    content
}

/// `uraid detail --test`: the text and the exit code.
fn detail(control: &Path) -> (String, i32) {
    let output = run(uraid().args(["detail", "--test", "--control"]).arg(control));
    (String::from_utf8(output.stdout).unwrap(), output.status.code().unwrap())
}

fn survives(shape: Shape, breaks: &[(usize, Break)]) {
    let mut broken = Broken::new(shape);
    let server = broken.serve();
    break_under_load(&mut broken, &server, breaks);
    let content = whole_content(&server.uri);
    let status = server.status();
    let lost: Vec<PathBuf> =
        breaks.iter().map(|(slot, _)| broken.members[*slot].path.clone()).collect();
    assert_eq!(status["degraded"], lost.len(), "{breaks:?}: {status}");
    assert_eq!(detail(&server.control).1, 1, "{breaks:?}");
    let mdstat =
        succeed_text(uraid().args(["status", "--mdstat", "--control"]).arg(&server.control));
    assert_eq!(mdstat.matches("(F)").count(), lost.len(), "{breaks:?}: {mdstat}");
    server.stop();
    let mut failed = broken.told("Fail");
    let mut right = lost.clone();
    failed.sort();
    right.sort();
    assert_eq!(failed, right, "{breaks:?}: each failure is told once");

    // What is left alone, from the images: nothing that was written is missing.
    let kept = broken.members.iter().filter(|member| !lost.contains(&member.path));
    let images: Vec<PathBuf> = kept.map(|member| member.image.clone()).collect();
    let again = succeed(uraid().arg("cat").args(&images));
    assert_same(&again, &content, &format!("{breaks:?}: after the stop"));
    // The superblocks of the others say that these are out: an image that is given is not used.
    let all: Vec<PathBuf> = broken.members.iter().map(|member| member.image.clone()).collect();
    let text = succeed_text(uraid().arg("detail").args(&all));
    assert!(text.contains("clean, degraded"), "{breaks:?}: {text}");
}

fn is_possible() -> bool {
    peer::present(&["fio"]) && breakable::is_possible()
}

#[test]
fn raid5_bears_each_member_failing_with_errors() {
    if is_possible() {
        (0..RAID5.members).for_each(|slot| survives(RAID5, &[(slot, Break::Errors)]));
    }
}

#[test]
fn raid5_bears_each_member_vanishing() {
    if is_possible() {
        (0..RAID5.members).for_each(|slot| survives(RAID5, &[(slot, Break::Vanishes)]));
    }
}

/// Every pair, in both orders of breaking by turns.
#[test]
fn raid6_bears_each_pair_failing() {
    if !is_possible() {
        return;
    }
    for b in 0..RAID6.members {
        for a in 0..b {
            let (first, second) = if (a + b) % 2 == 0 { (a, b) } else { (b, a) };
            survives(RAID6, &[(first, Break::Errors), (second, Break::Vanishes)]);
        }
    }
}

/// A second failure in a RAID 5: requests that need the lost members fail, others do not, nothing
/// is made up, `detail` tells the story; and the members as they are, brought back, have all that
/// was flushed before.
#[test]
fn beyond_redundancy_there_are_errors_and_a_way_back() {
    if !is_possible() {
        return;
    }
    let mut broken = Broken::new(RAID5);
    let server = broken.serve();
    let mut client = Client::connect(&server.uri).unwrap();
    let content = bytes(3, 6 << 20);
    for at in (0..content.len()).step_by(1 << 20) {
        client.write(at as u64, &content[at..at + (1 << 20)]).unwrap();
    }
    client.flush().unwrap();
    broken.members[0].breaks(Break::Errors);
    // Found out by a write to every member.
    client.write(6 << 20, &bytes(4, 1 << 20)).unwrap();
    client.flush().unwrap();
    assert_eq!(server.status()["degraded"], 1);
    broken.members[2].breaks(Break::Errors);
    let refused = client.write(7 << 20, &bytes(5, 1 << 20)).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(5), "EIO");
    let (mut right, mut failed) = (0, 0);
    for at in (0..content.len()).step_by(64 << 10) {
        match client.read(at as u64, 64 << 10) {
            Ok(found) => {
                assert_same(&found, &content[at..at + (64 << 10)], &format!("byte {at}"));
                right += 1;
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(5), "EIO");
                failed += 1;
            }
        }
    }
    // Of each stripe of three chunks and parity, one slot is gone and another answers no more.
    assert!(right > 0 && failed > 0, "{right} read, {failed} refused");
    drop(client);
    let (text, code) = detail(&server.control);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("State : active, FAILED\n"), "{text}");
    let lost = format!("    slot 0: {} has failed", broken.members[0].path.display());
    let last = format!("    slot 2: {} has made ", broken.members[2].path.display());
    assert!(text.contains(&lost) && text.contains(&last), "{text}");
    let output = run(uraid().arg("stop").arg("--control").arg(&server.control));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("not clean"), "{said}");
    assert_eq!(server.ended().code(), Some(1), "no clean stop is claimed");

    // Errors end; the member that failed first is out for good, the second one is needed. What is
    // regenerated for the first may be wrong where the write broke off, so that force is needed.
    broken.members.iter().filter(|member| member.is_broken()).for_each(Breakable::heal);
    let paths = broken.paths();
    let mut command = uraid();
    let refused = run(command.current_dir(broken.folder.path()).arg("serve").args(&paths));
    assert_eq!(refused.status.code(), Some(1), "dirty and degraded");
    let server = Server::start_with(broken.folder.path(), &paths, &["--force"]);
    let found = whole_content(&server.uri);
    assert_same(&found[..6 << 20], &content, "all that was flushed before");
    assert_same(&found[6 << 20..7 << 20], &bytes(4, 1 << 20), "after the first failure");
    assert_eq!(server.status()["degraded"], 1);
    server.stop();
}
