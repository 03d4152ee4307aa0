//! Option haggling: the fixed newstyle handshake.
//!
//! ```text
//! server  NBDMAGIC IHAVEOPT flags:16
//! client  flags:32
//! client  IHAVEOPT option:32 length:32 data[length]        repeated
//! server  OPTION_REPLY_MAGIC option:32 kind:32 length:32 data[length]
//! ```

use super::{
    Fields, GREETING_MAGIC, NAME_WIRE_BYTES_MAX, OPTION_MAGIC, OPTION_REPLY_MAGIC, QUERY_COUNT_MAX,
};

/// Server and client both speak the newstyle in which options can fail.
pub const FIXED_NEWSTYLE: u16 = 1 << 0;
/// The 124 zeroes after EXPORT_NAME are left out.
pub const NO_ZEROES: u16 = 1 << 1;

/// Bytes of an option before its data.
pub const OPTION_HEAD_BYTES: usize = 16;

/// What an option asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionCode {
    /// 1: choose an export and begin; cannot fail politely.
    ExportName,
    /// 2: end the session.
    Abort,
    /// 3: name the exports.
    List,
    /// 5: go on under TLS.
    StartTls,
    /// 6: describe an export.
    Info,
    /// 7: describe an export and begin.
    Go,
    /// 8: replies in chunks from now on.
    StructuredReply,
    /// 9: name the metadata contexts.
    ListMetaContext,
    /// 10: choose the metadata contexts.
    SetMetaContext,
    /// 11: 64-bit lengths, an experimental branch of the protocol.
    ExtendedHeaders,
    /// Anything else.
    Unknown,
}

impl From<u32> for OptionCode {
    fn from(code: u32) -> Self {
        match code {
            1 => Self::ExportName,
            2 => Self::Abort,
            3 => Self::List,
            5 => Self::StartTls,
            6 => Self::Info,
            7 => Self::Go,
            8 => Self::StructuredReply,
            9 => Self::ListMetaContext,
            10 => Self::SetMetaContext,
            11 => Self::ExtendedHeaders,
            _ => Self::Unknown,
        }
    }
}

/// The kinds of option reply.
pub mod reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export of LIST.
    pub const SERVER: u32 = 2;
    /// One item of INFO or GO.
    pub const INFO: u32 = 3;
    /// One context of LIST_META_CONTEXT or SET_META_CONTEXT.
    pub const META_CONTEXT: u32 = 4;
    /// Not understood, or not offered.
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    /// Malformed, or not at this point.
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    /// The server is stopping.
    pub const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
    /// More than the server cares to read.
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// The items of INFO and GO.
pub mod info {
    /// Size and transmission flags; always sent.
    pub const EXPORT: u16 = 0;
    /// The export's canonical name.
    pub const NAME: u16 = 1;
    /// A text for people.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum block size.
    pub const BLOCK_SIZE: u16 = 3;
}

/// The fixed part of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHead {
    /// As the client sent it; a reply repeats it.
    pub code: u32,
    /// Bytes of data that follow.
    pub len: u32,
}

impl OptionHead {
    /// Decode; `None` when the magic number is wrong.
    pub fn parse(bytes: &[u8; OPTION_HEAD_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u64()? != OPTION_MAGIC {
            return None;
        }
        Some(Self { code: fields.u32()?, len: fields.u32()? })
    }
}

/// Why the data of an option is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Answered with `ERR_INVALID`: the lengths inside contradict each other, or a string is too
    /// long.
    Invalid,
    /// Answered with `ERR_TOO_BIG`: well-formed, but more than [`QUERY_COUNT_MAX`] queries.
    TooBig,
}

impl Malformed {
    /// The reply kind that says so.
    pub fn reply(self) -> u32 {
        match self {
            Self::Invalid => reply::ERR_INVALID,
            Self::TooBig => reply::ERR_TOO_BIG,
        }
    }
}

/// The data of INFO and GO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// The export asked for.
    pub name: &'a [u8],
    items: &'a [u8],
}

impl<'a> InfoRequest<'a> {
    /// Decode `name length:32, name, item count:16, items:16 each`.
    ///
    /// # Errors
    /// [`Malformed::Invalid`] unless the lengths inside add up to exactly the data.
    pub fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(data);
        let name = string(&mut fields)?;
        let count = fields.u16().ok_or(Malformed::Invalid)?;
        let items = fields.bytes(u32::from(count) * 2).ok_or(Malformed::Invalid)?;
        if !fields.0.is_empty() {
            return Err(Malformed::Invalid);
        }
        Ok(Self { name, items })
    }

    /// Whether the client asked for this item. Unknown and repeated ones are of no consequence.
    pub fn wants(&self, item: u16) -> bool {
        self.items.chunks_exact(2).any(|wanted| *wanted == item.to_be_bytes())
    }
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaRequest<'a> {
    /// The export that the contexts are of.
    pub name: &'a [u8],
    /// How many queries follow.
    pub query_count: u32,
    queries: &'a [u8],
}

impl<'a> MetaRequest<'a> {
    /// Decode `name length:32, name, query count:32, (length:32, query) each`.
    ///
    /// # Errors
    /// [`Malformed::Invalid`] unless the lengths inside add up to exactly the data;
    /// [`Malformed::TooBig`] for more than [`QUERY_COUNT_MAX`] queries.
    pub fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(data);
        let name = string(&mut fields)?;
        let query_count = fields.u32().ok_or(Malformed::Invalid)?;
        if query_count > QUERY_COUNT_MAX {
            return Err(Malformed::TooBig);
        }
        let queries = fields.0;
        for _ in 0..query_count {
            string(&mut fields)?;
        }
        if !fields.0.is_empty() {
            return Err(Malformed::Invalid);
        }
        Ok(Self { name, query_count, queries })
    }

    /// The queries, in the client's order.
    pub fn queries(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut fields = Fields(self.queries);
        core::iter::from_fn(move || string(&mut fields).ok())
    }
}

/// A string with its length in front.
fn string<'a>(fields: &mut Fields<'a>) -> Result<&'a [u8], Malformed> {
    let len = fields.u32().ok_or(Malformed::Invalid)?;
    if len > NAME_WIRE_BYTES_MAX {
        return Err(Malformed::Invalid);
    }
    fields.bytes(len).ok_or(Malformed::Invalid)
}

/// The server's first words.
pub fn greeting() -> [u8; 18] {
    let mut bytes = [0; 18];
    bytes[..8].copy_from_slice(&GREETING_MAGIC.to_be_bytes());
    bytes[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
    bytes[16..].copy_from_slice(&(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    bytes
}

/// Append one option reply whose data is `parts` one after the other.
pub fn put_reply(target: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    target.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    target.extend_from_slice(&option.to_be_bytes());
    target.extend_from_slice(&kind.to_be_bytes());
    // Parts are our own names and messages, which are bounded by `proto`'s limits.
    target.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
    for part in parts {
        target.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info_data(name: &[u8], items: &[u16]) -> Vec<u8> {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend_from_slice(name);
        data.extend_from_slice(&(items.len() as u16).to_be_bytes());
        for item in items {
            data.extend_from_slice(&item.to_be_bytes());
        }
        data
    }

    #[test]
    fn info_request_reads_its_fields() {
        let data = info_data(b"disk", &[3, 1, 3, 999]);
        let request = InfoRequest::parse(&data).unwrap();
        assert_eq!(request.name, b"disk");
        assert!(request.wants(info::BLOCK_SIZE) && request.wants(info::NAME));
        assert!(!request.wants(info::DESCRIPTION));
    }

    /// Every truncation and every extension of a good message is refused, never misread.
    #[test]
    fn info_request_of_any_other_length_is_invalid() {
        let data = info_data(b"disk", &[3, 1]);
        for len in 0..data.len() {
            assert_eq!(InfoRequest::parse(&data[..len]), Err(Malformed::Invalid), "{len}");
        }
        let mut long = data;
        long.push(0);
        assert_eq!(InfoRequest::parse(&long), Err(Malformed::Invalid));
    }

    #[test]
    fn a_name_longer_than_its_option_is_invalid() {
        for len in [5_u32, 4097, 0x7fff_ffff, 0xffff_ffff] {
            let mut data = len.to_be_bytes().to_vec();
            data.extend_from_slice(b"disk");
            assert_eq!(InfoRequest::parse(&data), Err(Malformed::Invalid), "{len}");
            assert_eq!(MetaRequest::parse(&data), Err(Malformed::Invalid), "{len}");
        }
    }

    #[test]
    fn meta_request_counts_its_queries() {
        let mut data = 0_u32.to_be_bytes().to_vec();
        data.extend_from_slice(&65_u32.to_be_bytes());
        assert_eq!(MetaRequest::parse(&data), Err(Malformed::TooBig));
        data.truncate(4);
        data.extend_from_slice(&2_u32.to_be_bytes());
        data.extend_from_slice(b"\0\0\0\x03a:b\0\0\0\0");
        let request = MetaRequest::parse(&data).unwrap();
        assert_eq!(request.queries().collect::<Vec<_>>(), [&b"a:b"[..], b""]);
        for len in 0..data.len() {
            assert_eq!(MetaRequest::parse(&data[..len]), Err(Malformed::Invalid), "{len}");
        }
    }

    #[test]
    fn option_head_wants_its_magic() {
        let mut bytes = *b"IHAVEOPT\0\0\0\x07\0\0\x01\0";
        assert_eq!(OptionHead::parse(&bytes), Some(OptionHead { code: 7, len: 256 }));
        bytes[0] ^= 1;
        assert_eq!(OptionHead::parse(&bytes), None);
    }

    #[test]
    fn reply_has_the_layout_of_the_protocol_text() {
        let mut bytes = Vec::new();
        put_reply(&mut bytes, 7, reply::INFO, &[b"ab", b"c"]);
        assert_eq!(bytes, b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\0\0\0\x03abc");
        assert_eq!(&greeting(), b"NBDMAGICIHAVEOPT\0\x03");
    }
}
