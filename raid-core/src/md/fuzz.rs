//! Bodies of the fuzz targets: anything goes in, nothing may panic.

use crate::md::superblock::{self, Context, Minor};

/// Decodes arbitrary bytes as each minor version; what is accepted must encode to the same bytes.
///
/// # Panics
///
/// When a rule of the parser is broken: that is the finding.
pub fn fuzz_superblock(bytes: &[u8]) {
    for minor in Minor::ALL {
        let context = Context { minor, member_bytes: 1 << 30 };
        if let Ok(decoded) = superblock::decode(bytes, context) {
            assert_eq!(decoded.encode()[..], bytes[..superblock::AREA_BYTES]);
        }
    }
}
