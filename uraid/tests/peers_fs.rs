//! Goal: a real file system lives on the array. Method: nbdfuse shows the export as a file, a loop
//! device over it carries ext4 of this kernel; files written, synced and read back after a remount
//! are right, and fsck finds nothing.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::image::{assert_same, bytes};
use common::rawcheck::RawSet;
use common::server::Server;
use common::shape::Shape;
use common::{peer, scratch, succeed, succeed_text};

/// Things to undo in reverse order, also when the test panics.
#[derive(Default)]
struct Undo {
    steps: Vec<Vec<String>>,
    fuse: Option<Child>,
}

impl Undo {
    fn push(&mut self, step: &[&str]) {
        self.steps.push(step.iter().map(|&word| word.to_owned()).collect());
    }

    fn all(&mut self) {
        while let Some(step) = self.steps.pop() {
            let _ = peer::command(&step[0]).args(&step[1..]).stderr(Stdio::null()).status();
        }
        if let Some(mut fuse) = self.fuse.take() {
            let deadline = Instant::now() + Duration::from_secs(10);
            while fuse.try_wait().unwrap().is_none() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = fuse.kill();
            let _ = fuse.wait();
        }
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        self.all();
    }
}

/// Shows the export as a file and returns its path.
fn mount_export(folder: &Path, uri: &str, undo: &mut Undo) -> PathBuf {
    let export = folder.join("export");
    fs::write(&export, "").unwrap();
    let command = &mut peer::command("nbdfuse");
    undo.fuse = Some(command.arg(&export).arg(uri).spawn().unwrap());
    undo.push(&["umount", export.to_str().unwrap()]);
    let deadline = Instant::now() + Duration::from_secs(10);
    while fs::metadata(&export).unwrap().len() == 0 {
        assert!(Instant::now() < deadline, "nbdfuse shows nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
    export
}

fn use_file_system(device: &str, mountpoint: &Path) {
    let mount = |undo: &mut Undo| {
        succeed(peer::command("mount").arg(device).arg(mountpoint));
        undo.push(&["umount", mountpoint.to_str().unwrap()]);
    };
    let content = |index: u64| bytes(index, 100_000 + index as usize * 777);
    let mut undo = Undo::default();
    mount(&mut undo);
    for index in 0..60 {
        fs::write(mountpoint.join(format!("file{index}")), content(index)).unwrap();
        if index % 3 == 0 {
            fs::remove_file(mountpoint.join(format!("file{index}"))).unwrap();
        }
    }
    succeed(peer::command("sync").arg("-f").arg(mountpoint));
    undo.all();
    mount(&mut undo);
    for index in (0..60).filter(|index| index % 3 != 0) {
        let name = format!("file{index}");
        assert_same(&fs::read(mountpoint.join(&name)).unwrap(), &content(index), &name);
    }
}

#[test]
fn ext4_is_clean() {
    let programs = ["nbdfuse", "mkfs.ext4", "e2fsck", "losetup", "mount", "umount"];
    let can_mount = rustix::process::geteuid().is_root()
        && Path::new("/dev/fuse").exists()
        && Path::new("/dev/loop-control").exists();
    if !peer::present(&programs) || !peer::condition("root, /dev/fuse and loop devices", can_mount)
    {
        return;
    }
    let folder = scratch();
    let shape = Shape { level: "5", layout: None, members: 4 };
    let members = shape.create(folder.path(), "64K", 24 << 20);
    let server = Server::start(folder.path(), &members);
    let mut undo = Undo::default();
    let export = mount_export(folder.path(), &server.uri, &mut undo);
    succeed(peer::command("mkfs.ext4").args(["-q", "-F"]).arg(&export));
    let device = succeed_text(peer::command("losetup").args(["-f", "--show"]).arg(&export));
    let device = device.trim();
    undo.push(&["losetup", "-d", device]);
    let mountpoint = folder.path().join("mnt");
    fs::create_dir(&mountpoint).unwrap();
    use_file_system(device, &mountpoint);
    succeed(peer::command("e2fsck").args(["-f", "-n"]).arg(device));
    undo.all();
    server.stop();
    assert_eq!(RawSet::open(&members).mismatches(), []);
}
