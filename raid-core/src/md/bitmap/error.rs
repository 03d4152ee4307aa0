//! Why a bitmap cannot be used.

/// The comparison that failed, with its numbers. Whatever it is, everything has to be taken for
/// dirty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BitmapError {
    /// The superblock has no bitmap.
    #[error("there is no bitmap")]
    None,
    /// The bitmap could not be read from the member.
    #[error("the bitmap could not be read")]
    Unreadable,
    /// The caller gave too few bytes.
    #[error("{len} bytes given, the bitmap has {need}")]
    TooShort {
        /// Bytes given.
        len: usize,
        /// Bytes needed.
        need: u64,
    },
    /// Not a bitmap.
    #[error("no bitmap: magic 0x{magic:08x} is not 0x6d746962")]
    Magic {
        /// What is there instead.
        magic: u32,
    },
    /// A version that is not known.
    #[error("bitmap version {version} is not 3 or 4")]
    Version {
        /// What it says.
        version: u32,
    },
    /// A clustered bitmap: other machines may write to the array.
    #[error("the bitmap belongs to a clustered array")]
    Cluster,
    /// The bitmap of another array.
    #[error("the bitmap belongs to another array")]
    OtherArray,
    /// A size of regions that cannot be.
    #[error("bitmap chunk of {chunk_bytes} bytes is not a power of two of at least 512")]
    Chunk {
        /// What it says.
        chunk_bytes: u32,
    },
    /// Event counts that cannot be.
    #[error("bitmap events {events}, cleared {events_cleared}")]
    Events {
        /// What it says.
        events: u64,
        /// What it says.
        events_cleared: u64,
    },
    /// Another field out of its range.
    #[error("bitmap {field} is out of range: {value}")]
    Field {
        /// Which.
        field: &'static str,
        /// Its value.
        value: u32,
    },
    /// It was made for an array of another size.
    #[error("the bitmap covers {stored} sectors, the array has {expected}")]
    SyncSize {
        /// What it says.
        stored: u64,
        /// The array's.
        expected: u64,
    },
    /// It would reach into something else.
    #[error("a bitmap of {need_bytes} bytes has room for {room_bytes} only")]
    TooLong {
        /// Header and bits, and what must be written with them.
        need_bytes: u64,
        /// Up to the next thing on the member.
        room_bytes: u64,
    },
    /// It cannot be written in whole blocks.
    #[error("a bitmap at byte {offset} cannot be written in blocks of {block_bytes} bytes")]
    Unaligned {
        /// Where it starts on the member.
        offset: u64,
        /// The blocks asked for.
        block_bytes: u64,
    },
}
