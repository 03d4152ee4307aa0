//! The control socket: how the other commands talk to a process that serves an array.
//!
//! ```text
//! client: {"verb":"status"}\n        server: {"ok":true,"result":{...}}\n
//!                                            {"ok":false,"error":"unknown verb \"x\"; ..."}\n
//! client: {"verb":"events"}\n        server: {"ok":true,"result":null}\n
//!                                            {"time":...,"event":"Fail",...}\n   and so on
//! ```
//!
//! Invariants:
//! - One connection carries one request of one line, [`REQUEST_BYTES_MAX`] long at most.
//! - Only processes of the server's own user are answered (`SO_PEERCRED`).
//! - A slow or silent client costs one of [`CONNECTIONS_MAX`] threads for [`PATIENCE`] at most;
//!   one that waits or listens costs one of [`LASTING_MAX`] further threads until it leaves.
//! - A socket file that somebody listens on is never taken away; one left by a crash is replaced.

mod client;
mod request;

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::events::{Subscription, line_of};
use crate::failure::Failure;

pub(crate) use client::{ask, subscribe};
pub(crate) use request::Request;

/// Longest request; every verb fits with the longest paths.
const REQUEST_BYTES_MAX: u64 = 64 << 10;
/// Longest answer that a client reads: the status of the largest array is far below.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Clients answered at once, besides those that wait or listen.
const CONNECTIONS_MAX: usize = 16;
/// Clients that wait or listen at once.
const LASTING_MAX: usize = 8;
/// Between two looks at what lasting clients wait for, and at whether they are still there.
const LOOK: Duration = Duration::from_millis(100);
/// How long a client may take to say its line, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// One answer.
#[derive(Debug, Deserialize, Serialize)]
struct Answer {
    ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// What a request comes to.
pub(crate) enum Reply {
    /// An answer.
    Now(Result<Value, String>),
    /// An answer that comes later: asked for again and again until there is one.
    Later(Box<dyn FnMut() -> Option<Result<Value, String>> + Send>),
    /// Events, a line each, until one side has enough.
    Events(Subscription),
}

/// Answers requests.
pub(crate) type Handler = dyn Fn(Request) -> Reply + Send + Sync;

/// Who is there.
#[derive(Debug, Default)]
struct Clients {
    /// All of them.
    connected: AtomicUsize,
    /// Those that wait or listen.
    lasting: AtomicUsize,
    /// The array is being stopped: nobody may wait any longer.
    is_closing: AtomicBool,
}

/// A bound control socket. Dropping it removes the socket file, if that is still its own.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    path: PathBuf,
    inode: (u64, u64),
    listener: UnixListener,
    clients: Arc<Clients>,
}

impl ControlSocket {
    /// Binds `path`, for this user only.
    ///
    /// # Errors
    /// Fails if a process listens there already, or something else than a socket is in the way.
    pub(crate) fn bind(path: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            Failure::new(format!("{}: cannot make the control socket: {error}", path.display()))
        };
        ensure_free(path)?;
        // Nobody else may connect, not even between bind and a later chmod.
        let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
        let listener = UnixListener::bind(path);
        rustix::process::umask(before);
        let listener = listener.map_err(failed)?;
        let metadata = fs::symlink_metadata(path).map_err(failed)?;
        let inode = (metadata.dev(), metadata.ino());
        Ok(Self { path: path.to_owned(), inode, listener, clients: Arc::default() })
    }

    /// Answers clients from a thread of its own, for as long as the process lives.
    ///
    /// # Errors
    /// Fails if no thread can be made.
    pub(crate) fn serve(&self, handler: Arc<Handler>) -> Result<(), Failure> {
        let listener = self.listener.try_clone()?;
        let clients = Arc::clone(&self.clients);
        let accept = move || accept_all(&listener, &handler, &clients);
        thread::Builder::new().name("control".into()).spawn(accept)?;
        Ok(())
    }

    /// Tells clients that wait that there is nothing to wait for any more.
    pub(crate) fn close(&self) {
        self.clients.is_closing.store(true, Ordering::Release);
    }

    /// Removes the socket, after the clients that are being answered have their answers.
    pub(crate) fn finish(self) {
        self.close();
        let deadline = Instant::now() + PATIENCE;
        while self.clients.connected.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let ours = |metadata: fs::Metadata| (metadata.dev(), metadata.ino()) == self.inode;
        if fs::symlink_metadata(&self.path).is_ok_and(ours) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes sure that a socket can be bound at `path`: a socket file that nobody listens on any more
/// is removed.
///
/// # Errors
/// Fails if a process listens there, or something else than a socket is in the way.
pub(crate) fn ensure_free(path: &Path) -> Result<(), Failure> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(Failure::new(format!("{}: exists and is no socket", path.display())));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let failed =
                |error| Failure::new(format!("{}: cannot remove: {error}", path.display()));
            fs::remove_file(path).map_err(failed)
        }
        Err(error) => Err(Failure::new(format!("{}: {error}", path.display()))),
        Ok(_) => Err(Failure::new(format!(
            "{}: in use: another process listens on this socket",
            path.display()
        ))),
    }
}

fn accept_all(listener: &UnixListener, handler: &Arc<Handler>, clients: &Arc<Clients>) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Descriptors are short: let some be closed before the next try.
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        let busy = clients.connected.fetch_add(1, Ordering::Relaxed);
        let busy = busy.saturating_sub(clients.lasting.load(Ordering::Relaxed));
        if busy >= CONNECTIONS_MAX {
            clients.connected.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (handler, there) = (Arc::clone(handler), Arc::clone(clients));
        let answer = move || {
            let _ = answer_one(&stream, &*handler, &there);
            there.connected.fetch_sub(1, Ordering::Release);
        };
        if thread::Builder::new().name("control-client".into()).spawn(answer).is_err() {
            clients.connected.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn answer_one(stream: &UnixStream, handler: &Handler, clients: &Clients) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    let reply = if peer.uid == rustix::process::geteuid() {
        answer_line(stream, handler)?
    } else {
        let reason = "this socket answers the user of the serving process only".to_owned();
        Reply::Now(Err(reason))
    };
    if let Reply::Now(answer) = reply {
        return say(stream, answer);
    }
    if clients.lasting.fetch_add(1, Ordering::Relaxed) >= LASTING_MAX {
        clients.lasting.fetch_sub(1, Ordering::Relaxed);
        return say(stream, Err(format!("{LASTING_MAX} clients wait or listen already")));
    }
    let outcome = match reply {
        Reply::Now(answer) => say(stream, answer),
        Reply::Later(ask) => answer_later(stream, ask, clients),
        Reply::Events(events) => stream_events(stream, &events),
    };
    clients.lasting.fetch_sub(1, Ordering::Relaxed);
    outcome
}

fn say(mut stream: &UnixStream, answer: Result<Value, String>) -> io::Result<()> {
    let answer = match answer {
        Ok(result) => Answer { ok: true, result: Some(result), error: None },
        Err(error) => Answer { ok: false, result: None, error: Some(error) },
    };
    let mut line = serde_json::to_vec(&answer)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Says whether the client has closed its end; one that only will not say more is still there.
fn has_left(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::empty())];
    let polled = rustix::event::poll(&mut fds, Some(&Timespec::default()));
    polled.is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

fn answer_later(
    stream: &UnixStream,
    mut ask: Box<dyn FnMut() -> Option<Result<Value, String>> + Send>,
    clients: &Clients,
) -> io::Result<()> {
    while !has_left(stream) {
        if let Some(answer) = ask() {
            return say(stream, answer);
        }
        if clients.is_closing.load(Ordering::Acquire) {
            return say(stream, Err("the array is being stopped".to_owned()));
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Passes events on until the client leaves or the bus is closed. A client may be as slow as it
/// likes: its queue is what is bounded.
fn stream_events(mut stream: &UnixStream, events: &Subscription) -> io::Result<()> {
    say(stream, Ok(Value::Null))?;
    stream.set_write_timeout(Some(LOOK))?;
    while let Some(line) = line_of(&events.next(LOOK)) {
        let mut rest = &line[..];
        while !rest.is_empty() {
            match stream.write(rest) {
                Ok(len) => rest = &rest[len..],
                // Stopping does not wait for a client that does not read.
                Err(error) if is_slowness(&error) && !events.is_closed() => {}
                Err(error) => return Err(error),
            }
        }
        if has_left(stream) {
            break;
        }
    }
    Ok(())
}

fn is_slowness(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn answer_line(stream: &UnixStream, handler: &Handler) -> io::Result<Reply> {
    let mut line = Vec::new();
    BufReader::new(stream.take(REQUEST_BYTES_MAX)).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        let reason = format!("a request is one line of {REQUEST_BYTES_MAX} bytes at most");
        return Ok(Reply::Now(Err(reason)));
    }
    Ok(match Request::parse(&line) {
        Ok(request) => handler(request),
        Err(reason) => Reply::Now(Err(reason)),
    })
}

#[cfg(test)]
mod tests;
