//! State changes on standard error, one line each: with the time for people, with a priority for
//! the journal, which has its own time.
//!
//! `URAID_LOG` (error, warn, info, debug, trace) sets how much.

use std::fmt;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Begins to log.
pub(crate) fn start() {
    let level = std::env::var("URAID_LOG").ok().and_then(|level| level.parse().ok());
    let log = tracing_subscriber::fmt()
        .with_max_level(level.unwrap_or(Level::INFO))
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false);
    if is_journal(std::env::var("JOURNAL_STREAM").ok().as_deref()) {
        log.event_format(Priorities).init();
    } else {
        log.init();
    }
}

/// Says whether standard error goes to the journal. The variable is inherited by processes whose
/// standard error goes elsewhere, so systemd gives device and inode to compare (systemd.exec(5)).
fn is_journal(variable: Option<&str>) -> bool {
    let numbers = |text: &str| {
        let (device, inode) = text.split_once(':')?;
        Some((device.parse::<u64>().ok()?, inode.parse::<u64>().ok()?))
    };
    let own = rustix::fs::fstat(io::stderr().as_fd()).map(|stat| (stat.st_dev, stat.st_ino));
    variable.and_then(numbers).is_some_and(|journal| own == Ok(journal))
}

/// syslog's number of a level, as sd-daemon(3) puts it before a line.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

struct Priorities;

impl<S, N> FormatEvent<S, N> for Priorities
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_known_by_its_numbers() {
        let own = rustix::fs::fstat(io::stderr().as_fd()).unwrap();
        assert!(is_journal(Some(&format!("{}:{}", own.st_dev, own.st_ino))));
        assert!(!is_journal(Some(&format!("{}:{}", own.st_dev, own.st_ino + 1))));
        for other in [None, Some(""), Some("1"), Some("a:b")] {
            assert!(!is_journal(other), "{other:?}");
        }
    }
}
