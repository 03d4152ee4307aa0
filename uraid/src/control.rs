//! The control socket: how `status`, `detail` and `stop` talk to a process that serves an array.
//!
//! ```text
//! client: {"verb":"status"}\n        server: {"ok":true,"result":{...}}\n
//!                                            {"ok":false,"error":"unknown verb \"x\"; ..."}\n
//! ```
//!
//! Invariants:
//! - One connection carries one request of one line, [`REQUEST_BYTES_MAX`] long at most.
//! - Only processes of the server's own user are answered (`SO_PEERCRED`).
//! - A slow or silent client costs one of [`CONNECTIONS_MAX`] threads for [`PATIENCE`] at most.
//! - A socket file that somebody listens on is never taken away; one left by a crash is replaced.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::failure::Failure;

/// Longest request; every verb fits a hundred times.
const REQUEST_BYTES_MAX: u64 = 64 << 10;
/// Longest answer that a client reads: the status of the largest array is far below.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Clients served at once.
const CONNECTIONS_MAX: usize = 16;
/// How long a client may take to say its line, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// One request.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    /// What to do.
    pub(crate) verb: String,
    /// To which member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) member: Option<PathBuf>,
    /// Whatever it looks like.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) force: bool,
}

impl Request {
    /// A request that is a verb alone.
    pub(crate) fn verb(verb: &str) -> Self {
        Self { verb: verb.to_owned(), ..Self::default() }
    }
}

/// One answer.
#[derive(Debug, Deserialize, Serialize)]
struct Answer {
    ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Answers requests; `None` for a verb that it does not know.
pub(crate) type Handler = dyn Fn(&Request) -> Option<Result<Value, String>> + Send + Sync;

/// A bound control socket. Dropping it removes the socket file, if that is still its own.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    path: PathBuf,
    inode: (u64, u64),
    listener: UnixListener,
    /// Clients being answered.
    connections: Arc<AtomicUsize>,
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
        let connections = Arc::default();
        Ok(Self { path: path.to_owned(), inode, listener, connections })
    }

    /// Answers clients from a thread of its own, for as long as the process lives.
    ///
    /// # Errors
    /// Fails if no thread can be made.
    pub(crate) fn serve(&self, handler: Arc<Handler>) -> Result<(), Failure> {
        let listener = self.listener.try_clone()?;
        let connections = Arc::clone(&self.connections);
        let accept = move || accept_all(&listener, &handler, &connections);
        thread::Builder::new().name("control".into()).spawn(accept)?;
        Ok(())
    }

    /// Removes the socket, after the clients that are being answered have their answers.
    pub(crate) fn finish(self) {
        let deadline = Instant::now() + PATIENCE;
        while self.connections.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
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

fn accept_all(listener: &UnixListener, handler: &Arc<Handler>, connections: &Arc<AtomicUsize>) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Descriptors are short: let some be closed before the next try.
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        if connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            connections.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (handler, counter) = (Arc::clone(handler), Arc::clone(connections));
        let answer = move || {
            let _ = answer_one(&stream, &*handler);
            counter.fetch_sub(1, Ordering::Release);
        };
        if thread::Builder::new().name("control-client".into()).spawn(answer).is_err() {
            connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn answer_one(stream: &UnixStream, handler: &Handler) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    let answer = if peer.uid == rustix::process::geteuid() {
        answer_line(stream, handler)?
    } else {
        Err("this socket answers the user of the serving process only".to_owned())
    };
    let answer = match answer {
        Ok(result) => Answer { ok: true, result: Some(result), error: None },
        Err(error) => Answer { ok: false, result: None, error: Some(error) },
    };
    let mut line = serde_json::to_vec(&answer)?;
    line.push(b'\n');
    (&*stream).write_all(&line)
}

fn answer_line(stream: &UnixStream, handler: &Handler) -> io::Result<Result<Value, String>> {
    let mut line = Vec::new();
    BufReader::new(stream.take(REQUEST_BYTES_MAX)).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        let reason = format!("a request is one line of {REQUEST_BYTES_MAX} bytes at most");
        return Ok(Err(reason));
    }
    Ok(answer_request(&line, handler))
}

fn answer_request(line: &[u8], handler: &Handler) -> Result<Value, String> {
    let request: Request =
        serde_json::from_slice(line).map_err(|error| format!("not a request: {error}"))?;
    match handler(&request) {
        Some(result) => result,
        None => Err(format!(
            "unknown verb {:?}; known are add, check, detail, \
             fail, remove, repair, status, stop",
            request.verb
        )),
    }
}

/// Sends one verb to the process behind `path` and returns its answer.
///
/// # Errors
/// Fails if nobody listens there, or the process refused.
pub(crate) fn ask(path: &Path, verb: &str) -> Result<Value, Failure> {
    send(path, &Request::verb(verb))
}

/// Sends a request to the process behind `path` and returns its answer.
///
/// # Errors
/// Fails if nobody listens there, or the process refused.
pub(crate) fn send(path: &Path, request: &Request) -> Result<Value, Failure> {
    let failed = |error: io::Error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => " (nothing is served here; see --control)",
            io::ErrorKind::ConnectionRefused => " (no process listens on this socket)",
            _ => "",
        };
        Failure::new(format!("{}: {error}{hint}", path.display()))
    };
    let stream = UnixStream::connect(path).map_err(failed)?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    (&stream).write_all(&line).map_err(failed)?;
    let mut line = Vec::new();
    BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_until(b'\n', &mut line).map_err(failed)?;
    let unclear = |error| Failure::new(format!("{}: unclear answer: {error}", path.display()));
    let answer: Answer = serde_json::from_slice(&line).map_err(unclear)?;
    match answer {
        Answer { ok: true, result, .. } => Ok(result.unwrap_or_default()),
        Answer { error, .. } => {
            let reason = error.unwrap_or_else(|| "refused without a reason".to_owned());
            Err(Failure::new(format!("{}: {reason}", path.display())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(folder: &tempfile::TempDir) -> PathBuf {
        folder.path().join("control.sock")
    }

    fn serving(path: &Path) -> ControlSocket {
        let socket = ControlSocket::bind(path).unwrap();
        let handler = |request: &Request| (request.verb == "status").then(|| Ok(Value::from(42)));
        socket.serve(Arc::new(handler)).unwrap();
        socket
    }

    fn say(path: &Path, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(path).unwrap();
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn a_verb_is_answered() {
        let folder = tempfile::tempdir().unwrap();
        let _socket = serving(&socket(&folder));
        assert_eq!(ask(&socket(&folder), "status").unwrap(), Value::from(42));
    }

    #[test]
    fn an_unknown_verb_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let _socket = serving(&socket(&folder));
        let failure = ask(&socket(&folder), "explode").unwrap_err();
        assert!(failure.to_string().contains("unknown verb \"explode\""), "{failure}");
    }

    #[test]
    fn hostile_requests_are_answered_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let _socket = serving(&socket(&folder));
        let long = vec![b'x'; REQUEST_BYTES_MAX as usize + 1];
        for bytes in [&b"no json\n"[..], b"{}\n", b"{\"verb\":7}\n", b"no line end", b"", b"\xff\n"]
        {
            let answer = say(&socket(&folder), bytes);
            assert!(answer.starts_with("{\"ok\":false,\"error\":"), "{answer}");
            assert_eq!(answer.lines().count(), 1);
        }
        // The answer to an endless line may be lost with the bytes nobody read; the server lives
        // on.
        say(&socket(&folder), &long);
        assert_eq!(ask(&socket(&folder), "status").unwrap(), Value::from(42));
    }

    #[test]
    fn the_socket_is_for_its_user_only_and_goes_with_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let bound = serving(&socket(&folder));
        let mode = fs::symlink_metadata(socket(&folder)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(bound);
        assert!(!socket(&folder).exists());
    }

    #[test]
    fn a_socket_in_use_is_refused_and_a_stale_one_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = socket(&folder);
        let first = UnixListener::bind(&path).unwrap();
        let failure = ControlSocket::bind(&path).unwrap_err();
        assert!(failure.to_string().contains("in use"), "{failure}");
        drop(first);
        ControlSocket::bind(&path).unwrap();
        fs::write(&path, "a file").unwrap();
        let failure = ControlSocket::bind(&path).unwrap_err();
        assert!(failure.to_string().contains("no socket"), "{failure}");
        assert_eq!(fs::read(&path).unwrap(), b"a file");
    }
}
