//! Goal: whatever is wrong with the input, the command says so in one clear line, exits with 1 (2
//! for wrong usage), and leaves every member as it was. Method: each mistake once, hashes before
//! and after.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::image::{assert_same, bytes};
use common::nbd::Client;
use common::server::Server;
use common::shape::Shape;
use common::{copy_into, hashes, peer, run, scratch, succeed, uraid};

const MEMBER_BYTES: u64 = 4 << 20;
const RAID5: Shape = Shape { level: "5", layout: None, members: 3 };

/// Runs a command that must be refused with `code` and one line that has `words`, in a bounded
/// time.
#[track_caller]
fn refused(command: &mut Command, code: i32, words: &[&str]) {
    let output = run_bounded(command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{command:?}: {said}");
    assert!(output.stdout.is_empty(), "{command:?}: {}", String::from_utf8_lossy(&output.stdout));
    if code == 1 {
        assert_eq!(said.lines().count(), 1, "{command:?}: {said}");
        assert!(said.starts_with("uraid: "), "{command:?}: {said}");
    }
    let lower = said.to_lowercase();
    assert!(words.iter().any(|word| lower.contains(word)), "{command:?}: {said}");
}

/// Runs a command that might not end by itself when it is not refused.
fn run_bounded(command: &mut Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// As [`refused`], with no byte changed in `members`.
#[track_caller]
fn refused_unchanged(command: &mut Command, members: &[PathBuf], words: &[&str]) {
    let before = hashes(members);
    refused(command, 1, words);
    assert_eq!(hashes(members), before, "{command:?} changed a member");
}

/// `uraid serve` that would end by itself only when refused.
fn serve(folder: &Path, members: &[PathBuf]) -> Command {
    let mut command = uraid();
    command.arg("serve").arg("--nbd").arg(format!("unix:{}", folder.join("bad.sock").display()));
    command.arg("--control").arg(folder.join("badc.sock")).args(members);
    command
}

fn create(members: &[PathBuf]) -> Command {
    let mut command = uraid();
    command.args(["create", "--level", "5"]).args(members);
    command
}

/// Members that are plain files of zeroes.
fn blank(folder: &Path, count: usize) -> Vec<PathBuf> {
    let paths: Vec<PathBuf> = (0..count).map(|index| folder.join(format!("b{index}"))).collect();
    for path in &paths {
        fs::File::create(path).unwrap().set_len(MEMBER_BYTES).unwrap();
    }
    paths
}

#[test]
fn the_order_of_members_does_not_matter() {
    let folder = scratch();
    let members = RAID5.create(folder.path(), "64K", MEMBER_BYTES);
    let server = Server::start(folder.path(), &members);
    let content = bytes(1, 1 << 20);
    let mut client = Client::connect(&server.uri).unwrap();
    client.write(0, &content).unwrap();
    client.flush().unwrap();
    drop(client);
    server.stop();
    for order in [[2, 0, 1], [1, 2, 0], [2, 1, 0]] {
        let shuffled: Vec<PathBuf> = order.iter().map(|&slot| members[slot].clone()).collect();
        let mut command = uraid();
        command.args(["cat", "--length", "1M"]).args(&shuffled);
        assert_same(&succeed(&mut command), &content, &format!("{order:?}"));
        Server::start(folder.path(), &shuffled).stop();
    }
}

#[test]
fn a_member_twice_is_refused() {
    let folder = scratch();
    let blanks = blank(folder.path(), 2);
    let twice = [blanks.clone(), blanks[..1].to_vec()].concat();
    let words = ["twice", "same", "more than once"];
    refused_unchanged(&mut create(&twice), &blanks, &words);
    // The same file under another name.
    let link = folder.path().join("link");
    fs::hard_link(&blanks[0], &link).unwrap();
    refused_unchanged(&mut create(&[&blanks[..], &[link]].concat()), &blanks, &words);

    let members = RAID5.create(folder.path(), "64K", MEMBER_BYTES);
    let twice = [&members[..], &members[..1]].concat();
    refused_unchanged(&mut serve(folder.path(), &twice), &members, &words);
    // A copy of a member claims the same slot.
    let copies = folder.path().join("copy");
    fs::create_dir(&copies).unwrap();
    let copies = copy_into(&members[..1], &copies);
    let twice = [&members[..], &copies[..]].concat();
    let words = ["same", "both", "twice", "two members", "already", "claim"];
    refused_unchanged(&mut serve(folder.path(), &twice), &twice, &words);
}

#[test]
fn what_is_no_file_or_device_is_refused() {
    let folder = scratch();
    let members = RAID5.create(folder.path(), "64K", MEMBER_BYTES);
    let directory = folder.path().join("directory");
    fs::create_dir(&directory).unwrap();
    let with = |extra: &Path| [&members[..2], &[extra.to_owned()]].concat();
    for other in [directory.as_path(), Path::new("/dev/null"), Path::new("/dev/zero")] {
        let words = ["director", "neither a", "not a", "is no "];
        refused_unchanged(&mut serve(folder.path(), &with(other)), &members, &words);
        refused_unchanged(uraid().arg("cat").args(with(other)), &members, &words);
        refused_unchanged(uraid().arg("examine").arg(other), &members, &words);
        let blanks = blank(folder.path(), 2);
        let three = [&blanks[..], &[other.to_owned()]].concat();
        refused_unchanged(&mut create(&three), &blanks, &words);
    }
    let absent = folder.path().join("absent");
    refused_unchanged(&mut serve(folder.path(), &with(&absent)), &members, &["no such file"]);
    let blanks = blank(folder.path(), 2);
    let three = [&blanks[..], std::slice::from_ref(&absent)].concat();
    refused_unchanged(&mut create(&three), &blanks, &["does not exist"]);
    assert!(!absent.exists());
}

#[test]
fn too_small_a_file_is_refused() {
    let folder = scratch();
    let blanks = blank(folder.path(), 3);
    for len in [0, 511, 4096, 70_000] {
        fs::File::create(&blanks[2]).unwrap().set_len(len).unwrap();
        refused_unchanged(&mut create(&blanks), &blanks, &["small", "short", "bytes"]);
    }
    // Also when the command would make it.
    let three: Vec<PathBuf> = (0..3).map(|i| folder.path().join(format!("new{i}"))).collect();
    let mut command = create(&three);
    refused(command.args(["--member-size", "8K"]), 1, &["small", "short", "bytes"]);
    assert!(three.iter().all(|path| !path.exists()), "files of a refused create are left behind");
}

#[test]
fn broken_superblocks_are_refused() {
    let folder = scratch();
    let members = RAID5.create(folder.path(), "64K", MEMBER_BYTES);
    let broken = folder.path().join("broken");
    fs::create_dir(&broken).unwrap();
    type Damage = fn(&fs::File);
    let damage: [(&str, Damage); 5] = [
        ("truncated within the superblock", |file| file.set_len(4096 + 200).unwrap()),
        ("truncated within the data", |file| file.set_len(2 << 20).unwrap()),
        ("garbage", |file| file.write_all_at(&bytes(3, 4096), 4096).unwrap()),
        ("a flipped bit", |file| file.write_all_at(&[0xff], 4096 + 92).unwrap()),
        ("an absurd role table", |file| file.write_all_at(&[0xff; 4], 4096 + 220).unwrap()),
    ];
    for (what, damage) in damage {
        let copies = copy_into(&members, &broken);
        damage(&fs::OpenOptions::new().write(true).open(&copies[0]).unwrap());
        let words = ["superblock", "checksum", "short", "magic", "small"];
        println!("{what}");
        refused_unchanged(&mut serve(folder.path(), &copies), &copies, &words);
        refused_unchanged(uraid().arg("examine").arg(&copies[0]), &copies, &words);
        refused_unchanged(uraid().arg("detail").args(&copies[..1]), &copies, &words);
    }
}

#[test]
fn unsuited_shapes_are_refused() {
    let folder = scratch();
    let blanks = blank(folder.path(), 4);
    let wrong = |arguments: &[&str], count: usize, words: &[&str]| {
        let mut command = uraid();
        command.arg("create").args(arguments).args(&blanks[..count]);
        refused_unchanged(&mut command, &blanks, words);
    };
    for chunk in ["3000", "96K", "2K", "0", "1"] {
        wrong(&["--level", "5", "--chunk", chunk], 3, &["power of two", "chunk"]);
    }
    wrong(&["--level", "6"], 3, &["slot count"]);
    wrong(&["--level", "5", "--layout", "f2"], 3, &["layout"]);
    wrong(&["--level", "10", "--layout", "n5"], 4, &["layout"]);
    wrong(&["--level", "50", "--groups", "3"], 4, &["group"]);
    wrong(&["--level", "5", "--size", "1T"], 3, &["size", "room", "large", "bytes"]);
    let long = "n".repeat(33);
    wrong(&["--level", "5", "--name", &long], 3, &["name"]);
}

#[test]
fn somebodys_data_is_not_overwritten() {
    let folder = scratch();
    let blanks = blank(folder.path(), 3);
    let members = RAID5.create(folder.path(), "64K", MEMBER_BYTES);
    let mixed = [&blanks[..2], &members[..1]].concat();
    refused_unchanged(&mut create(&mixed), &mixed, &["md superblock", "force"]);
    // An ext4 file system, by its magic number.
    fs::OpenOptions::new()
        .write(true)
        .open(&blanks[1])
        .unwrap()
        .write_all_at(&[0x53, 0xef], 1080)
        .unwrap();
    refused_unchanged(&mut create(&blanks), &blanks, &["ext", "force"]);
    succeed(create(&blanks).arg("--force"));
}

#[test]
fn members_that_do_not_make_up_an_array_are_refused() {
    let folder = scratch();
    let first = RAID5.create(folder.path(), "64K", MEMBER_BYTES);
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    let second = RAID5.create(&other, "64K", MEMBER_BYTES);
    let mixed = [&first[..2], &second[2..]].concat();
    refused_unchanged(&mut serve(folder.path(), &mixed), &mixed, &["array", "uuid"]);
    refused_unchanged(
        &mut serve(folder.path(), &first[..1]),
        &first,
        &["missing", "members", "slots"],
    );
    let code = |arguments: &[PathBuf]| {
        run(uraid().args(["detail", "--test"]).args(arguments)).status.code()
    };
    assert_eq!(code(&first), Some(0));
    assert_eq!(code(&first[1..]), Some(1));
    assert_eq!(code(&first[2..]), Some(2));
    assert_eq!(code(&[folder.path().join("absent")]), Some(4));
}

#[test]
fn a_socket_in_use_is_refused() {
    let folder = scratch();
    let members = RAID5.create(folder.path(), "64K", MEMBER_BYTES);
    for name in ["bad.sock", "badc.sock"] {
        let listener = UnixListener::bind(folder.path().join(name)).unwrap();
        refused_unchanged(&mut serve(folder.path(), &members), &members, &["in use"]);
        drop(listener);
        // Left by a crash: no process listens, so it is replaced.
        let server = Server::start(folder.path(), &members);
        server.stop();
        fs::remove_file(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name), "a file").unwrap();
        refused_unchanged(&mut serve(folder.path(), &members), &members, &["socket"]);
        assert_eq!(fs::read(folder.path().join(name)).unwrap(), b"a file");
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = uraid();
    command.arg("serve").arg("--nbd").arg(format!("tcp:{}", taken.local_addr().unwrap()));
    command.arg("--control").arg(folder.path().join("c.sock")).args(&members);
    refused_unchanged(&mut command, &members, &["in use"]);
}

#[test]
fn two_processes_never_share_a_member() {
    let folder = scratch();
    let members = RAID5.create(folder.path(), "64K", MEMBER_BYTES);
    let server = Server::start(folder.path(), &members);
    let words = ["in use", "another process", "locked"];
    refused_unchanged(&mut serve(folder.path(), &members), &members, &words);
    refused_unchanged(create(&members).arg("--force"), &members, &words);
    server.stop();
    Server::start(folder.path(), &members).stop();
}

/// No room: the file system of one member is full.
#[test]
fn no_room_is_told() {
    let folder = scratch();
    let is_root = rustix::process::geteuid().is_root();
    if !peer::condition("root, for a small file system", is_root) {
        return;
    }
    let small = Small::mount(&folder.path().join("small"));
    fs::write(small.0.join("filler"), vec![1; 200 << 10]).unwrap_err();
    let blanks = blank(folder.path(), 2);
    let three = [&blanks[..], &[small.0.join("member")]].concat();
    let mut command = create(&three);
    command.args(["--member-size", "4M"]);
    let before = hashes(&blanks);
    refused(&mut command, 1, &["no space", "room"]);
    assert_eq!(hashes(&blanks), before, "a member changed though the array could not be made");
    assert!(!small.0.join("member").exists(), "the member that was made is left behind");
}

/// A file system of 128 KiB, unmounted with the test.
struct Small(PathBuf);

impl Small {
    fn mount(path: &Path) -> Self {
        fs::create_dir(path).unwrap();
        let options = ["-t", "tmpfs", "-o", "size=128k", "none"];
        succeed(peer::command("mount").args(options).arg(path));
        Self(path.to_owned())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = peer::command("umount").arg(&self.0).status();
    }
}

#[test]
fn wrong_usage_exits_with_2() {
    for arguments in [
        &["frobnicate"][..],
        &["create"],
        &["create", "--level", "5"],
        &["create", "--level", "7", "a", "b", "c"],
        &["create", "--level", "5", "--chunk", "12Q", "a", "b", "c"],
        &["create", "--level", "50", "--groups", "1", "a", "b", "c"],
        &["serve", "--nbd", "carrier-pigeon:3", "a"],
        &["cat"],
        &["cat", "--offset", "-1", "a"],
        &["detail"],
        &["status", "--json", "--mdstat"],
    ] {
        refused(uraid().args(arguments), 2, &["usage", "--help", "uraid: "]);
    }
    let folder = scratch();
    let mut command = uraid();
    command.arg("status").arg("--control").arg(folder.path().join("none.sock"));
    refused(&mut command, 1, &["nothing is served here"]);
}
