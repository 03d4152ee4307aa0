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
/// Seconds after which a member hangs: far more than a busy machine takes for an answer.
const TIMEOUT: &str = "6";

struct Broken {
    folder: tempfile::TempDir,
    /// The slots' members, then the spares.
    members: Vec<Breakable>,
}

impl Broken {
    fn new(shape: Shape, spares: usize) -> Self {
        let folder = scratch();
        let mut images = shape.paths(folder.path());
        let mut create = shape.create_command(folder.path(), "64K", MEMBER_BYTES);
        for spare in 0..spares {
            images.push(folder.path().join(format!("spare{spare}.img")));
            create.arg("--spare").arg(&images[shape.members + spare]);
        }
        succeed(&mut create);
        let members = images.iter().map(|image| Breakable::over(image)).collect();
        Self { folder, members }
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.members.iter().map(|member| member.path.clone()).collect()
    }

    fn serve(&self) -> Server {
        let events = self.folder.path().join("events").display().to_string();
        let arguments = ["--events", &events, "--io-timeout", TIMEOUT];
        Server::start_with(self.folder.path(), &self.paths(), &arguments)
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

/// Members break under load; spares take their places if there are any. Every byte is there.
fn survives(shape: Shape, breaks: &[(usize, Break)], spares: usize) {
    let mut broken = Broken::new(shape, spares);
    let server = broken.serve();
    break_under_load(&mut broken, &server, breaks);
    if spares > 0 {
        succeed(uraid().args(["wait", "--control"]).arg(&server.control));
    }
    let content = whole_content(&server.uri);
    let status = server.status();
    let lost: Vec<PathBuf> =
        breaks.iter().map(|(slot, _)| broken.members[*slot].path.clone()).collect();
    let degraded = lost.len() - spares;
    assert_eq!(status["degraded"], degraded, "{breaks:?}: {status}");
    assert_eq!(detail(&server.control).1, i32::from(degraded > 0), "{breaks:?}");
    let mdstat =
        succeed_text(uraid().args(["status", "--mdstat", "--control"]).arg(&server.control));
    assert_eq!(mdstat.matches("(F)").count(), lost.len(), "{breaks:?}: {mdstat}");
    let hung = breaks.iter().filter(|(_, how)| *how == Break::Hangs);
    // The stop does not wait for who hangs; the kernel keeps the process until they answer.
    server.stop_and(|| hung.for_each(|(slot, _)| broken.members[*slot].resumes()));
    let mut failed = broken.told("Fail");
    let mut right = lost.clone();
    failed.sort();
    right.sort();
    assert_eq!(failed, right, "{breaks:?}: each failure is told once");
    assert_eq!(broken.told("SpareActive").len(), spares, "{breaks:?}");

    // What is left alone, from the images: nothing that was written is missing.
    let kept = broken.members.iter().filter(|member| !lost.contains(&member.path));
    let images: Vec<PathBuf> = kept.map(|member| member.image.clone()).collect();
    let again = succeed(uraid().arg("cat").args(&images));
    assert_same(&again, &content, &format!("{breaks:?}: after the stop"));
    if degraded == 0 {
        // Including what was recovered: without each of the others.
        for without in 0..images.len() {
            let mut rest = images.clone();
            rest.remove(without);
            let again = succeed(uraid().arg("cat").args(&rest));
            assert_same(&again, &content, &format!("{breaks:?}: without {without}"));
        }
    }
    // The superblocks of the others say that these are out: an image that is given is not used.
    let all: Vec<PathBuf> = broken.members.iter().map(|member| member.image.clone()).collect();
    let text = succeed_text(uraid().arg("detail").args(&all));
    let state = if degraded > 0 { "clean, degraded" } else { "State : clean\n" };
    assert!(text.contains(state), "{breaks:?}: {text}");
}

fn is_possible() -> bool {
    peer::present(&["fio"]) && breakable::is_possible()
}

#[test]
fn raid5_bears_each_member_failing_with_errors() {
    if is_possible() {
        (0..RAID5.members).for_each(|slot| survives(RAID5, &[(slot, Break::Errors)], slot % 2));
    }
}

#[test]
fn raid5_bears_each_member_vanishing() {
    if is_possible() {
        (0..RAID5.members)
            .for_each(|slot| survives(RAID5, &[(slot, Break::Vanishes)], (slot + 1) % 2));
    }
}

#[test]
fn raid5_bears_each_member_hanging() {
    if is_possible() {
        (0..RAID5.members).for_each(|slot| survives(RAID5, &[(slot, Break::Hangs)], slot % 2));
    }
}

/// Every pair, each way of breaking with each.
fn raid6_bears_pairs(parity: usize) {
    if !is_possible() {
        return;
    }
    let ways = [Break::Errors, Break::Vanishes, Break::Hangs];
    let pairs = (0..RAID6.members).flat_map(|b| (0..b).map(move |a| (a, b)));
    for (turn, (a, b)) in pairs.enumerate().filter(|(turn, _)| turn % 2 == parity) {
        let (first, second) = (ways[turn % 3], ways[(turn / 3) % 3]);
        survives(RAID6, &[(a, first), (b, second)], turn % 3);
    }
}

#[test]
fn raid6_bears_each_odd_pair_failing() {
    raid6_bears_pairs(1);
}

#[test]
fn raid6_bears_each_even_pair_failing() {
    raid6_bears_pairs(0);
}

/// A second failure in a RAID 5: requests that need the lost members fail, others do not, nothing
/// is made up, `detail` tells the story; and the members as they are, brought back, have all that
/// was flushed before.
#[test]
fn beyond_redundancy_there_are_errors_and_a_way_back() {
    if !is_possible() {
        return;
    }
    let mut broken = Broken::new(RAID5, 0);
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
