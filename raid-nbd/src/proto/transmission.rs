//! Requests and replies.
//!
//! ```text
//! request       REQUEST_MAGIC:32 flags:16 command:16 cookie:64 offset:64 length:32 [payload]
//! simple reply  SIMPLE_REPLY_MAGIC:32 error:32 cookie:64 [data of READ]
//! chunk         CHUNK_MAGIC:32 flags:16 kind:16 cookie:64 length:32 payload[length]
//! ```

use super::{CHUNK_MAGIC, Fields, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC};

/// Bytes of a request before its payload.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a simple reply before its data.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of a chunk before its payload.
pub const CHUNK_HEAD_BYTES: usize = 20;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandCode {
    /// 0
    Read,
    /// 1
    Write,
    /// 2: disconnect; has no reply.
    Disc,
    /// 3
    Flush,
    /// 4
    Trim,
    /// 5
    Cache,
    /// 6
    WriteZeroes,
    /// 7
    BlockStatus,
    /// Anything else.
    Unknown,
}

impl From<u16> for CommandCode {
    fn from(code: u16) -> Self {
        match code {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disc,
            3 => Self::Flush,
            4 => Self::Trim,
            5 => Self::Cache,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            _ => Self::Unknown,
        }
    }
}

/// The kinds of chunk.
pub mod chunk {
    /// Flag: the last chunk of its reply.
    pub const DONE: u16 = 1 << 0;
    /// Nothing more to say.
    pub const NONE: u16 = 0;
    /// An offset and at least one byte of data.
    pub const OFFSET_DATA: u16 = 1;
    /// A context id and extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error and a message.
    pub const ERROR: u16 = (1 << 15) + 1;
    /// An error, a message and the offset where it happened.
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// The errors that the protocol knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errno {
    /// EPERM: the export is read-only.
    Permission,
    /// EIO
    Io,
    /// EINVAL
    Invalid,
    /// ENOSPC: past the end of the export, for commands that write.
    NoSpace,
    /// ENOTSUP: FAST_ZERO would not be fast.
    NotSupported,
    /// ESHUTDOWN: the server is stopping.
    Shutdown,
}

impl Errno {
    /// The number on the wire.
    pub fn number(self) -> u32 {
        match self {
            Self::Permission => 1,
            Self::Io => 5,
            Self::Invalid => 22,
            Self::NoSpace => 28,
            Self::NotSupported => 95,
            Self::Shutdown => 108,
        }
    }

    /// The nearest one to an errno of this operating system. What NBD has no number for becomes
    /// EIO: it is the one that no client takes for its own mistake.
    pub fn from_system(errno: i32) -> Self {
        use rustix::io::Errno as System;
        match System::from_raw_os_error(errno) {
            System::PERM | System::ACCESS | System::ROFS => Self::Permission,
            System::INVAL => Self::Invalid,
            System::NOSPC | System::DQUOT | System::FBIG => Self::NoSpace,
            System::OPNOTSUPP => Self::NotSupported,
            System::SHUTDOWN => Self::Shutdown,
            _ => Self::Io,
        }
    }
}

/// The fixed part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// [`super::command_flag`]s.
    pub flags: u16,
    /// As the client sent it; see [`CommandCode`].
    pub command: u16,
    /// The client's name for the request; the reply repeats it.
    pub cookie: u64,
    /// First byte of the export.
    pub offset: u64,
    /// Bytes of the export.
    pub length: u32,
}

impl Request {
    /// Decode; `None` when the magic number is wrong.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u32()? != REQUEST_MAGIC {
            return None;
        }
        Some(Self {
            flags: fields.u16()?,
            command: fields.u16()?,
            cookie: fields.u64()?,
            offset: fields.u64()?,
            length: fields.u32()?,
        })
    }

    /// Encode, as a client would.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

/// A simple reply; `None` is success.
pub fn simple_reply(cookie: u64, error: Option<Errno>) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut bytes = [0; SIMPLE_REPLY_BYTES];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.map_or(0, Errno::number).to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// The head of a chunk with `len` bytes of payload.
pub fn chunk_head(cookie: u64, flags: u16, kind: u16, len: u32) -> [u8; CHUNK_HEAD_BYTES] {
    let mut bytes = [0; CHUNK_HEAD_BYTES];
    bytes[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..].copy_from_slice(&len.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_decodes_what_it_encodes() {
        let request =
            Request { flags: 1, command: 6, cookie: 7 << 60, offset: 1 << 40, length: !0 };
        let mut bytes = request.encode();
        assert_eq!(Request::parse(&bytes), Some(request));
        bytes[3] ^= 0x80;
        assert_eq!(Request::parse(&bytes), None);
    }

    #[test]
    fn replies_have_the_layout_of_the_protocol_text() {
        assert_eq!(&simple_reply(9, Some(Errno::NoSpace)), b"gDf\x98\0\0\0\x1c\0\0\0\0\0\0\0\x09");
        assert_eq!(
            &chunk_head(9, chunk::DONE, chunk::ERROR_OFFSET, 14),
            b"\x66\x8e\x33\xef\0\x01\x80\x02\0\0\0\0\0\0\0\x09\0\0\0\x0e"
        );
    }

    #[test]
    fn errors_of_the_system_become_errors_of_the_protocol() {
        use rustix::io::Errno as System;
        let cases = [
            (System::ROFS, Errno::Permission),
            (System::IO, Errno::Io),
            (System::NOMEM, Errno::Io),
            (System::FBIG, Errno::NoSpace),
            (System::TIMEDOUT, Errno::Io),
            (System::INVAL, Errno::Invalid),
        ];
        for (system, errno) in cases {
            assert_eq!(Errno::from_system(system.raw_os_error()), errno, "{system:?}");
        }
    }
}
