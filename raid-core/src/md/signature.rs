//! Whose data a device may hold: asked before anything is overwritten.

use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

/// Bytes at the start of a device that [`probe`] looks at.
pub const HEAD_BYTES: u64 = (1 << 20) + (64 << 10);
/// Bytes at the end of a device that [`probe`] looks at.
pub const TAIL_BYTES: u64 = 1 << 20;

/// The byte ranges that the caller must read for [`probe`]: head and tail. They overlap on a small device.
#[must_use]
pub fn ranges(member_bytes: u64) -> (Range<u64>, Range<u64>) {
    (0..HEAD_BYTES.min(member_bytes), member_bytes.saturating_sub(TAIL_BYTES)..member_bytes)
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whose.
    pub kind: Kind,
    /// Where the signature lies, in bytes from the start of the device.
    pub offset: u64,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.kind, self.offset)
    }
}

/// Whose data it looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// An md superblock, any version.
    Md,
    /// Something that is not zero; the weakest finding.
    NonZero,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Md => "md superblock",
            Self::NonZero => "data that is not zero",
        })
    }
}

/// Looks for signatures in the bytes of [`ranges`]; strongest findings first, empty when all is zero.
///
/// `head` starts at byte 0, `tail` ends at byte `member_bytes`; shorter slices are looked at as far as
/// they go.
#[must_use]
pub fn probe(member_bytes: u64, head: &[u8], tail: &[u8]) -> Vec<Finding> {
    let _ = (member_bytes, head, tail);
    unimplemented!()
}
