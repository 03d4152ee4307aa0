//! Why a connection ended.

use thiserror::Error;

/// Why a connection ended, for the log.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Ended {
    /// The client said goodbye during the handshake.
    #[error("the client aborted the handshake")]
    Abort,
    /// The client said goodbye.
    #[error("the client disconnected")]
    Disconnect,
    /// The client hung up between two messages.
    #[error("the client hung up")]
    Hangup,
    /// The client hung up in the middle of a message.
    #[error("the client hung up in the middle of a message")]
    Torn,
    /// The server stops.
    #[error("the server is stopping")]
    Shutdown,
    /// The client took too long.
    #[error("the handshake took too long")]
    HandshakeTimeout,
    /// Nothing moved for too long.
    #[error("the client stopped in the middle of a message")]
    Stalled,
    /// Half-open connections were too many, and this was the oldest.
    #[error("too many clients in the handshake")]
    Crowded,
    /// A flag of the handshake that the server did not offer.
    #[error("unknown client flags {0:#x}")]
    ClientFlags(u32),
    /// A client without the fixed newstyle may only send EXPORT_NAME.
    #[error("option {0} from a client that does not know the fixed newstyle")]
    NotFixed(u32),
    /// An option without its magic number.
    #[error("an option does not start with IHAVEOPT")]
    OptionMagic,
    /// More options than anybody needs.
    #[error("more than {} options", crate::proto::OPTION_COUNT_MAX)]
    TooManyOptions,
    /// An option of an absurd length.
    #[error("option {code} of {len} bytes")]
    OptionTooLong {
        /// The option's code.
        code: u32,
        /// Its length.
        len: u32,
    },
    /// EXPORT_NAME has no other way to say no.
    #[error("EXPORT_NAME of an unknown export")]
    UnknownExport,
    /// A request without its magic number.
    #[error("a request does not start with its magic number")]
    RequestMagic,
    /// A WRITE so long that not even throwing it away is worth it.
    #[error("a write of {0} bytes")]
    PayloadTooLong(u32),
    /// The socket failed; the errno.
    #[error("the socket failed (errno {0})")]
    Socket(i32),
}
