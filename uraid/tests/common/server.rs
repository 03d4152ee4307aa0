//! A running `uraid serve`, ended with the test whatever happens.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{run, succeed_text, uraid};

/// How long a server may take to be ready, or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A served array.
pub struct Server {
    child: Child,
    lines: Receiver<String>,
    pub uri: String,
    pub control: PathBuf,
    log: PathBuf,
}

impl Server {
    /// Serves `members` on sockets in `folder`.
    pub fn start(folder: &Path, members: &[PathBuf]) -> Self {
        Self::start_with(folder, members, &[])
    }

    /// As [`Server::start`]; stays marked dirty from the first write to the stop, so that what a
    /// kill leaves does not depend on how long a test takes.
    pub fn start_dirty(folder: &Path, members: &[PathBuf]) -> Self {
        Self::start_with(folder, members, &["--safe-mode-delay", "0"])
    }

    /// As [`Server::start`], with further arguments.
    pub fn start_with(folder: &Path, members: &[PathBuf], arguments: &[&str]) -> Self {
        let socket = folder.join("nbd.sock");
        let control = folder.join("control.sock");
        let log = folder.join("serve.log");
        let mut command = uraid();
        command.arg("serve").arg("--nbd").arg(format!("unix:{}", socket.display()));
        command.arg("--control").arg(&control).args(arguments).args(members);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
        let mut child = command.spawn().unwrap();
        let lines = read_lines(&mut child);
        let mut server = Self { child, lines, uri: String::new(), control, log };
        server.uri = server.wait_until_ready();
        server
    }

    /// Runs `uraid` without arguments in `folder`.
    pub fn start_default(folder: &Path) -> Self {
        let log = folder.join("serve.log");
        let mut command = uraid();
        command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
        let lines = read_lines(&mut child);
        let control = folder.join("uraid-data/control.sock");
        let mut server = Self { child, lines, uri: String::new(), control, log };
        server.uri = server.wait_until_ready();
        server
    }

    /// The next line of standard output.
    pub fn next_line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap()
    }

    /// Standard output up to the first line that contains `word`.
    pub fn lines_until(&mut self, word: &str) -> String {
        let mut text = String::new();
        loop {
            let line = self.next_line();
            text += &(line.clone() + "\n");
            if line.contains(word) {
                return text;
            }
        }
    }

    fn wait_until_ready(&mut self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => match line.strip_prefix("ready ") {
                Some(uri) => uri.to_owned(),
                None => panic!("not ready but: {line}"),
            },
            Err(error) => {
                let _ = self.child.kill();
                panic!("no `ready` line ({error}):\n{}", self.log());
            }
        }
    }

    /// What the server has said on standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Stops the server with `uraid stop`; it must end with 0.
    pub fn stop(self) {
        self.stop_and(|| {});
    }

    /// As [`Server::stop`], with something between the answer and the end of the process.
    pub fn stop_and(mut self, between: impl FnOnce()) {
        let output = run(uraid().arg("stop").arg("--control").arg(&self.control));
        between();
        let status = self.wait();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && status.success(), "{status}: {said}\n{}", self.log());
    }

    /// Stops the process for a while, as somebody who suspends a machine.
    pub fn pause(&self, time: Duration) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        thread::sleep(time);
        kill_process(pid, Signal::CONT).unwrap();
    }

    /// Sends a signal and waits for the end.
    pub fn signal(mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.wait()
    }

    /// Waits for the end that something else has brought about.
    pub fn ended(mut self) -> ExitStatus {
        self.wait()
    }

    fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the server does not end:\n{}", self.log());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// `uraid status --json`.
    pub fn status(&self) -> serde_json::Value {
        let mut command = uraid();
        command.args(["status", "--json", "--control"]).arg(&self.control);
        serde_json::from_str(&succeed_text(&mut command)).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Hands the lines of standard output over, so that waiting for one can end.
fn read_lines(child: &mut Child) -> Receiver<String> {
    let output = BufReader::new(child.stdout.take().unwrap());
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    lines
}
