//! What a front end may ask of an array: sizes, granules, and what it can do.

/// Sizes and abilities of an array, as a block server shows them to its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The array's size.
    pub size_bytes: u64,
    /// The granule that needs no read before a write: 512 or 4096. Requests may be finer than that.
    pub block_bytes: u32,
    /// The size at which a write needs no read at all: a full stripe.
    pub optimal_bytes: u32,
    /// The chunk size, or the optimal size for levels without chunks.
    pub chunk_bytes: u32,
    /// The longest read or write. Flush, discard and write-zeroes have no such limit.
    pub request_bytes_max: u32,
    /// Discards that are finer than this give no room back.
    pub discard_granularity_bytes: u32,
    /// Some member has moving heads.
    pub rotational: bool,
    /// Every write is refused.
    pub read_only: bool,
    /// [`Operation::Discard`](crate::Operation::Discard) gives room back to the members.
    pub can_unmap: bool,
}

/// A run of an array's address space with one allocation state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The length in bytes; extents follow each other without gaps.
    pub len: u64,
    /// Nothing is stored here, and it reads as zeroes. `false` promises nothing.
    pub hole_and_zero: bool,
}
