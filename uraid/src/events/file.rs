//! `--events FILE`: one line of JSON for each event.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::json;
use tracing::warn;

use super::{Bus, Next};
use crate::failure::Failure;

/// The thread that writes; it ends with the bus.
pub(crate) struct EventFile(JoinHandle<()>);

impl EventFile {
    /// Appends events to `path`, or to standard output for `-`.
    ///
    /// # Errors
    /// Fails if the file cannot be opened, or no thread can be made.
    pub(crate) fn start(path: &Path, bus: &Bus) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let mut target = Target::open(path)
            .map_err(|error| Failure::new(format!("{name}: cannot write events: {error}")))?;
        let events = bus.subscribe();
        let write = move || {
            let mut is_failing = false;
            while let Some(line) = line_of(&events.next(Duration::from_secs(3600))) {
                if line.is_empty() {
                    continue;
                }
                let outcome = target.write(&line);
                // Once for each row of failures: a full disk is not told with every event.
                if let Err(error) = outcome.as_ref().map_err(|e| e.to_string())
                    && !is_failing
                {
                    warn!("{name}: cannot write events: {error}");
                }
                is_failing = outcome.is_err();
            }
        };
        Ok(Self(thread::Builder::new().name("event-file".into()).spawn(write)?))
    }

    /// Waits until the last event is written, for a closed bus; `patience` at most.
    pub(crate) fn finish(self, patience: Duration) {
        super::hook::join(self.0, patience);
    }
}

enum Target {
    Output,
    File(File),
}

impl Target {
    fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Output);
        }
        Ok(Self::File(OpenOptions::new().create(true).append(true).open(path)?))
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Output => io::stdout().lock().write_all(line).and_then(|()| io::stdout().flush()),
            Self::File(file) => file.write_all(line),
        }
    }
}

/// The line for what a listener got: empty for silence, `None` at the end.
pub(crate) fn line_of(next: &Next) -> Option<Vec<u8>> {
    let value = match next {
        Next::Event(event) => serde_json::to_vec(&**event),
        Next::Dropped(count) => serde_json::to_vec(&json!({ "dropped": count })),
        Next::Quiet => return Some(Vec::new()),
        Next::Closed => return None,
    };
    // Strings and numbers always have a JSON form.
    let mut line = value.unwrap_or_default();
    line.push(b'\n');
    Some(line)
}
