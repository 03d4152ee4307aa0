//! Where clients connect: addresses as they are typed, and the servers behind them.

use std::time::Duration;

use raid_io::Array;
use raid_nbd::{Listen, Server, ServerOptions};
use tracing::warn;

use crate::control;
use crate::failure::Failure;

/// Reads an address of `--nbd`: `unix:PATH` or `tcp:HOST:PORT`.
///
/// # Errors
/// Returns wrong usage for anything else.
pub(crate) fn parse(text: &str) -> Result<Listen, Failure> {
    text.parse().map_err(|error| Failure::usage(format!("--nbd {text}: {error}")))
}

/// Makes sure that nobody listens at `address`, before any member is touched; a socket file left
/// by a crash is removed.
///
/// # Errors
/// Fails if somebody does, or something else is in the way.
pub(crate) fn ensure_free(address: &Listen) -> Result<(), Failure> {
    match address {
        Listen::Unix(path) => control::ensure_free(path),
        _ => Ok(()),
    }
}

/// The running servers of one array.
pub(crate) struct Listeners {
    server: Server,
}

impl Listeners {
    /// Starts to serve `array` on every address; clients can connect when this returns.
    ///
    /// # Errors
    /// Fails if an address cannot be listened on.
    pub(crate) fn start(
        array: &Array,
        addresses: &[Listen],
        read_only: bool,
    ) -> Result<Self, Failure> {
        let options =
            ServerOptions { listeners: addresses.to_vec(), read_only, ..ServerOptions::default() };
        Ok(Self { server: Server::start(array.clone(), options).map_err(Failure::new)? })
    }

    /// One URI for each listener.
    pub(crate) fn uris(&self) -> &[String] {
        self.server.uris()
    }

    /// Takes no more clients, answers what is in flight for up to `patience`, and closes.
    pub(crate) fn stop(self, patience: Duration) {
        let stopped = self.server.stop(patience);
        if stopped.cut_off_count > 0 {
            warn!("{} clients were still busy after {patience:?}", stopped.cut_off_count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_address_is_wrong_usage() {
        for good in ["unix:/a:b.sock", "tcp:[::1]:10809", "tcp:localhost:0"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for bad in ["", "unix:", "tcp:", "vsock:1:2", "/a/path"] {
            assert_eq!(parse(bad).map_err(|failure| failure.code), Err(2), "{bad}");
        }
    }
}
