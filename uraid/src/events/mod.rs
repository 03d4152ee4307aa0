//! What happens to the array, under mdadm's names, and who is told.
//!
//! ```text
//! looks at the status --watch--> Bus --+--> log (standard error, the journal)
//!                                      +--> --hook PROGRAM
//!                                      +--> --events FILE
//!                                      '--> clients of the control socket
//! ```
//!
//! Nobody on the right can hold up anybody on the left.

mod bus;
mod file;
mod hook;
mod watch;

use std::fmt;

use jiff::Timestamp;
use raid_io::Status;
use serde::{Serialize, Serializer};
use tracing::{error, info, warn};

pub(crate) use bus::{Bus, Next, Subscription};
pub(crate) use file::{EventFile, line_of};
pub(crate) use hook::Hook;
pub(crate) use watch::Watch;

/// An event, under mdadm's name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The array is not there any more: it has been stopped.
    DeviceDisappeared,
    /// A resync, recovery, check or repair has begun.
    RebuildStarted,
    /// It has passed this many percent.
    Rebuild(u8),
    /// It has ended, or was ended.
    RebuildFinished,
    /// A member in use has failed.
    Fail,
    /// A spare has failed, perhaps while it was being filled.
    FailSpare,
    /// A spare has been filled and is in use.
    SpareActive,
    /// The array is there.
    NewArray,
    /// The array was found degraded.
    DegradedArray,
    /// Asked for, to see whether events arrive.
    TestMessage,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Two digits, as mdadm: Rebuild20.
            Self::Rebuild(percent) => write!(f, "Rebuild{percent:02}"),
            other => fmt::Debug::fmt(other, f),
        }
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Something that happened: one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Event {
    /// When, in UTC: `2026-12-01T08:00:00.123Z`.
    #[serde(serialize_with = "as_text")]
    pub(crate) time: Timestamp,
    /// mdadm's name.
    pub(crate) event: Kind,
    /// The array's name, or its identity when it has none.
    pub(crate) array: String,
    /// The member concerned, if one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) member: Option<String>,
    /// The same for people.
    pub(crate) text: String,
}

fn as_text<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{time:.3}"))
}

impl Event {
    /// An event of this moment.
    pub(crate) fn new(kind: Kind, array: &str, member: Option<&str>, text: String) -> Self {
        let (array, member) = (array.to_owned(), member.map(str::to_owned));
        Self { time: Timestamp::now(), event: kind, array, member, text }
    }

    /// Writes it to the log, as loud as it is bad.
    pub(crate) fn log(&self) {
        let Self { event, text, .. } = self;
        match event {
            Kind::Fail => error!("{event}: {text}"),
            Kind::FailSpare | Kind::DegradedArray => warn!("{event}: {text}"),
            _ => info!("{event}: {text}"),
        }
    }
}

/// What an array is called in events and metrics: its name, or its identity when it has none.
pub(crate) fn array_name(status: &Status) -> &str {
    if status.name.is_empty() { &status.uuid } else { &status.name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_of_json() {
        let mut event = Event::new(Kind::Rebuild(20), "a", Some("/m"), "x\ny".to_owned());
        event.time = Timestamp::from_millisecond(1_796_080_770_123).unwrap();
        assert_eq!(
            serde_json::to_string(&event).unwrap(),
            "{\"time\":\"2026-11-30T23:19:30.123Z\",\"event\":\"Rebuild20\",\"array\":\"a\",\
             \"member\":\"/m\",\"text\":\"x\\ny\"}"
        );
    }

    #[test]
    fn names_are_mdadms() {
        let names = [Kind::DeviceDisappeared, Kind::Rebuild(5), Kind::FailSpare]
            .map(|kind| kind.to_string());
        assert_eq!(names, ["DeviceDisappeared", "Rebuild05", "FailSpare"]);
    }
}
