//! Members that can be broken while they are in use: an image behind nbdkit, mounted as a file by
//! nbdfuse. Needs FUSE, but no privileges.
//!
//! ```text
//! uraid --> FILE --FUSE--> nbdfuse --unix socket--> nbdkit --error filter--> image
//!                             `- vanish: killed        `- EIO: while a file is there
//!                                                      `- hang: stopped by a signal
//! ```

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{peer, run};

/// How a member breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// Every request is answered with EIO.
    Errors,
    /// The device is gone, as a cable that was pulled.
    Vanishes,
    /// Requests are taken and never answered.
    Hangs,
}

/// A member that works until it is broken.
pub struct Breakable {
    /// The file to give to uraid.
    pub path: PathBuf,
    /// What it holds, readable whatever has happened to the file.
    pub image: PathBuf,
    trigger: PathBuf,
    kit: Child,
    fuse: Child,
}

/// Says whether such members can be made here.
pub fn is_possible() -> bool {
    peer::present(&["nbdkit", "nbdfuse", "fusermount3"])
        && peer::condition(
            "/dev/fuse",
            File::options().read(true).write(true).open("/dev/fuse").is_ok(),
        )
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

impl Breakable {
    /// Puts `image` behind a file of its own in the same folder.
    pub fn over(image: &Path) -> Self {
        let path = image.with_extension("member");
        let (socket, trigger) = (image.with_extension("s"), image.with_extension("break"));
        let mut kit = peer::command("nbdkit");
        kit.args(["-f", "--exit-with-parent", "-U"]).arg(&socket).args(["--filter=error", "file"]);
        kit.arg(image).args(["error=EIO", "error-rate=100%"]);
        kit.arg(format!("error-file={}", trigger.display()));
        let kit = kit.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("nbdkit listens", || UnixStream::connect(&socket).is_ok());
        // nbdfuse over a file that exists takes its place.
        File::create(&path).unwrap();
        let mut fuse = peer::command("nbdfuse");
        fuse.arg(&path).arg("--unix").arg(&socket);
        let fuse = fuse.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let size = std::fs::metadata(image).unwrap().len();
        let is_mounted = || std::fs::metadata(&path).is_ok_and(|file| file.size() == size);
        until("the file is mounted", is_mounted);
        Self { image: image.to_owned(), path, trigger, kit, fuse }
    }

    /// Breaks it.
    pub fn breaks(&mut self, how: Break) {
        match how {
            Break::Errors => drop(File::create(&self.trigger).unwrap()),
            Break::Vanishes => {
                let _ = self.fuse.kill();
                let _ = self.fuse.wait();
            }
            Break::Hangs => self.signal(Signal::STOP),
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.kit), signal).unwrap();
    }

    /// Answers what it was asked while it hung.
    pub fn resumes(&self) {
        self.signal(Signal::CONT);
    }

    /// Whether it answers with errors.
    pub fn is_broken(&self) -> bool {
        self.trigger.exists()
    }

    /// Ends the errors; a member that has vanished stays away.
    pub fn heal(&self) {
        std::fs::remove_file(&self.trigger).unwrap();
    }
}

impl Drop for Breakable {
    fn drop(&mut self) {
        // First who may have to answer the others.
        let _ = self.kit.kill();
        let _ = self.kit.wait();
        run(peer::command("fusermount3").args(["-u", "-z", "-q"]).arg(&self.path));
        let _ = self.fuse.kill();
        let _ = self.fuse.wait();
    }
}
