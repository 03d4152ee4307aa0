//! The NBD wire format: bytes to messages and messages to bytes, pure.
//!
//! Everything here works on byte slices that are complete; who collects the bytes is
//! [`crate::connection`]'s business. Numbers are big-endian on the wire. The protocol text is
//! `doc/proto.md` of NetworkBlockDevice/nbd; names follow it without the `NBD_` prefixes.
//!
//! - No function panics on any input, and none allocates more than a small multiple of its input.
//! - Every length that a client chooses is compared with a limit of this file before it is used.
//!
//! Option haggling is in [`option`], requests and replies are in [`transmission`].

pub mod option;
pub mod transmission;

/// First eight bytes of a server: the letters `NBDMAGIC`.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// The letters `IHAVEOPT`: the second half of the greeting and the start of each option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Starts each option reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Starts each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Starts each simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Starts each chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// The port that IANA gave to NBD.
pub const PORT: u16 = 10809;

/// Longest data of an option that is read into memory: room for the 64 queries below with long
/// names, and small enough that sixteen half-open clients cannot hold more than a mebibyte.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;
/// Longest data of an option that is skipped and answered with `ERR_TOO_BIG`; a client that
/// announces more is not talking NBD and is disconnected.
pub const OPTION_SKIP_BYTES_MAX: u32 = 1 << 20;
/// Options that one client may send; an honest one needs about eight (nbdkit draws the same line).
pub const OPTION_COUNT_MAX: u32 = 32;
/// Longest string of the protocol text; a longer one is malformed.
pub const NAME_WIRE_BYTES_MAX: u32 = 4096;
/// Longest export name that an export can have; the name of a file is not longer either.
pub const NAME_BYTES_MAX: usize = 255;
/// Metadata contexts that one connection may hold.
pub const CONTEXT_COUNT_MAX: usize = 16;
/// Queries in one `LIST_META_CONTEXT` or `SET_META_CONTEXT`.
pub const QUERY_COUNT_MAX: u32 = 64;
/// Longest payload of READ and WRITE: what the protocol text obliges a server to take when block
/// sizes were not negotiated.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// Longest payload of a refused WRITE that is read and thrown away, so that a client that is off by
/// a little gets an answer; beyond it the connection is closed.
pub const PAYLOAD_SKIP_BYTES_MAX: u32 = 2 * PAYLOAD_BYTES_MAX;
/// Most extents in one reply to BLOCK_STATUS; the protocol text's own limit.
pub const EXTENT_COUNT_MAX: usize = 1 << 20;
/// Longest message that goes with an error; the protocol text allows 4096.
pub const MESSAGE_BYTES_MAX: usize = 1024;

const _: () = assert!(OPTION_BYTES_MAX > NAME_WIRE_BYTES_MAX);
const _: () = assert!(OPTION_SKIP_BYTES_MAX > OPTION_BYTES_MAX);
const _: () = assert!(NAME_BYTES_MAX <= NAME_WIRE_BYTES_MAX as usize);
const _: () = assert!(MESSAGE_BYTES_MAX <= NAME_WIRE_BYTES_MAX as usize);
const _: () = assert!(PAYLOAD_BYTES_MAX >= 1 << 25);

/// What a connection says about the export: 16 bits sent with its size.
pub mod transmission_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes, trims and zeroes are answered with EPERM.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is understood.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA flag is understood, on every command.
    pub const SEND_FUA: u16 = 1 << 3;
    /// A member is a rotating disk.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// TRIM is understood.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES is understood, and its flag NO_HOLE.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF flag is understood; only with structured replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// FLUSH and FUA hold across all connections.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE is understood.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The FAST_ZERO flag of WRITE_ZEROES is understood.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// What a request asks for beyond its command.
pub mod command_flag {
    /// The data is stable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// WRITE_ZEROES leaves the range allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// READ is answered in one chunk.
    pub const DF: u16 = 1 << 2;
    /// BLOCK_STATUS is answered with one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// WRITE_ZEROES fails at once unless it is faster than writing.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Takes big-endian fields off the front of a slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn bytes(&mut self, len: u32) -> Option<&'a [u8]> {
        let len = usize::try_from(len).ok()?;
        if len > self.0.len() {
            return None;
        }
        let (field, rest) = self.0.split_at(len);
        self.0 = rest;
        Some(field)
    }
}
