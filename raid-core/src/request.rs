//! What a front end asks for, and what it gets back.

use core::fmt;

/// A request of the front end. Offsets and lengths are bytes and need no alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The front end's number for it: below the queue's `request_count_max` and not in flight. The
    /// request's buffer is [`crate::memory::BufferName::Request`] of the same number.
    pub tag: u32,
    /// What to do.
    pub kind: RequestKind,
    /// First byte of the array concerned; ignored by [`RequestKind::Flush`].
    pub offset: u64,
    /// Length in bytes; ignored by [`RequestKind::Flush`].
    pub len: u64,
    /// Force unit access: the completion promises stable media. Only for writes and zeroes.
    pub fua: bool,
}

/// What a check may write where redundancy and data do not agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repair {
    /// Nothing: what is found is told.
    #[default]
    None,
    /// What can be proven to be wrong: one chunk that both parities name, one copy that all others
    /// disagree with, each seen twice.
    Proven,
    /// Besides, where nothing can be proven, the data is believed as it stands: parity is computed
    /// anew, the first copy is taken.
    TrustData,
}

/// The kinds of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Compare redundancy and data; what is found comes from
    /// [`Volume::poll_finding`](crate::volume::Volume::poll_finding). For the embedder's own scrub;
    /// `offset` and `len` as for [`RequestKind::Resync`].
    Check {
        /// The group.
        group: u32,
        /// What may be written.
        repair: Repair,
    },
    /// The range's content is no longer needed; whole units of it become zeroes, the rest is left.
    Discard,
    /// All writes that completed before it on any queue become stable.
    Flush,
    /// Fill the request's buffer.
    Read,
    /// Fill the members that joined a group while it ran (recovering slots and replacements) with
    /// what they lack here. Sectors that cannot be had any more are told by
    /// [`Volume::poll_loss`](crate::volume::Volume::poll_loss). For the embedder's own recovery;
    /// `offset` and `len` as for [`RequestKind::Resync`].
    Recover {
        /// The group.
        group: u32,
    },
    /// Make redundancy agree with the data again: parity is recomputed, copies are taken from the
    /// first readable one. For the embedder's own resync, not for front ends: `offset` and
    /// `len` count within the group, must cover whole lock
    /// units ([`crate::volume::Volume::resync_unit`]) or reach the group's end, and no buffer
    /// belongs to it.
    Resync {
        /// The group.
        group: u32,
    },
    /// Store the request's buffer.
    Write,
    /// Store zeroes.
    WriteZeroes {
        /// The members may free the space.
        unmap: bool,
    },
}

/// Why a request was not accepted; nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// The range leaves the array.
    #[error("offset {offset} + length {len} > array size {size}")]
    OutOfRange {
        /// Requested first byte.
        offset: u64,
        /// Requested length in bytes.
        len: u64,
        /// Size of the array in bytes.
        size: u64,
    },
    /// A modifying request on an array opened read-only.
    #[error("array is read-only")]
    ReadOnly,
    /// The tag is in flight or not below the queue's limit.
    #[error("tag {tag} is in flight or >= {limit}")]
    Tag {
        /// The tag.
        tag: u32,
        /// Tags are below this.
        limit: u32,
    },
    /// A read or write is longer than a request may be.
    #[error("length {len} > {max}")]
    TooLong {
        /// Requested length in bytes.
        len: u64,
        /// The limit in bytes.
        max: u64,
    },
}

/// The answer to one accepted [`Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's tag, free for reuse from now on.
    pub tag: u32,
    /// How it ended.
    pub result: Result<(), RequestError>,
}

/// Why an accepted request failed. Bytes of a failed write are old or new, sector by sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestError {
    /// The kind of failure.
    pub kind: RequestErrorKind,
    /// First array byte known to be concerned.
    pub offset: u64,
}

/// The kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestErrorKind {
    /// More was lost than the redundancy can bear, or the array had to stop writing.
    Io,
    /// A member has no room.
    NoSpace,
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            RequestErrorKind::Io => write!(f, "input/output error at array byte {}", self.offset),
            RequestErrorKind::NoSpace => {
                write!(f, "no space left on a member for array byte {}", self.offset)
            }
        }
    }
}

impl core::error::Error for RequestError {}
