//! Why there is no result.

use std::io;
use std::path::PathBuf;

/// What ends a run, as one line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Parity(#[from] crate::parity::Failure),
    #[error(transparent)]
    Write(#[from] crate::output::WriteFailed),
    #[error("{0}")]
    Raid(#[from] raid_io::Error),
    #[error("NBD server: {0}")]
    Server(#[from] raid_nbd::ServerError),
    #[error("{action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("NBD: {0}")]
    Nbd(io::Error),
    #[error("{job}: {error}")]
    Job { job: String, error: raid_io::Error },
    #[error("{0}")]
    Impossible(String),
    #[error("JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl Failure {
    /// A failure of a call on a path.
    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }
}
