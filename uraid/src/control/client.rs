//! The asking side of the control socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;

use super::{ANSWER_BYTES_MAX, Answer, Request};
use crate::failure::Failure;

/// Sends one request to the process behind `path` and returns its answer.
///
/// # Errors
/// Fails if nobody listens there, or the process refused.
pub(crate) fn ask(path: &Path, request: &Request) -> Result<Value, Failure> {
    begin(path, request).map(|(answer, _)| answer)
}

/// Asks for events.
///
/// # Errors
/// Fails if nobody listens there, or the process refused.
pub(crate) fn subscribe(path: &Path) -> Result<Stream, Failure> {
    begin(path, &Request::Events {}).map(|(_, stream)| stream)
}

/// Lines that follow an answer.
#[derive(Debug)]
pub(crate) struct Stream(BufReader<UnixStream>);

impl Stream {
    /// Waits for the next line; `None` when the server has ended.
    ///
    /// # Errors
    /// Fails if the connection does, or a line is longer than an answer may be.
    pub(crate) fn next_line(&mut self) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        self.0.by_ref().take(ANSWER_BYTES_MAX).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(None);
        }
        if line.last() != Some(&b'\n') {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is not complete"));
        }
        String::from_utf8(line).map(Some).map_err(|error| io::Error::other(error.to_string()))
    }
}

fn begin(path: &Path, request: &Request) -> Result<(Value, Stream), Failure> {
    let failed = |error: io::Error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => " (nothing is served here; see --control)",
            io::ErrorKind::ConnectionRefused => " (no process listens on this socket)",
            _ => "",
        };
        Failure::new(format!("{}: {error}{hint}", path.display()))
    };
    let mut connection = UnixStream::connect(path).map_err(failed)?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    connection.write_all(&line).map_err(failed)?;
    let mut stream = Stream(BufReader::new(connection));
    let line = stream.next_line().map_err(failed)?.unwrap_or_default();
    let unclear = |error| Failure::new(format!("{}: unclear answer: {error}", path.display()));
    match serde_json::from_str(&line).map_err(unclear)? {
        Answer { ok: true, result, .. } => Ok((result.unwrap_or_default(), stream)),
        Answer { error, .. } => {
            let reason = error.unwrap_or_else(|| "refused without a reason".to_owned());
            Err(Failure::new(format!("{}: {reason}", path.display())))
        }
    }
}
