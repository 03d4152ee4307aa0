//! Bodies of the fuzz targets: anything goes in, nothing may panic but on a broken promise.

use crate::md::assemble::{Access, AssembleOptions};
use crate::md::superblock::{self, Context, Minor};
use crate::md::update::{Change, apply};
use crate::md::{Candidate, MdTime, assemble, signature};

/// Decodes arbitrary bytes as each minor version. What is accepted must encode to the same bytes,
/// be assembled or refused, and still be accepted after an update.
///
/// # Panics
///
/// When a promise of the parser is broken: that is the finding.
pub fn fuzz_superblock(bytes: &[u8]) {
    const MEMBER_BYTES: u64 = 1 << 30;
    let _ = signature::probe(bytes.len() as u64, bytes, bytes);
    for minor in Minor::ALL {
        let context = Context { minor, member_bytes: MEMBER_BYTES };
        let Ok(decoded) = superblock::decode(bytes, context) else { continue };
        assert_eq!(decoded.encode()[..], bytes[..superblock::AREA_BYTES]);
        let candidate =
            Candidate { name: "", member_bytes: MEMBER_BYTES, superblock: Ok(&decoded) };
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let _ = assemble(&[candidate], AssembleOptions { access, force: true });
        }
        let mut next = decoded.clone();
        let events = apply(&mut [&mut next], &[Change::MarkDirty], MdTime(1));
        assert_eq!(events, Ok(decoded.events + 1));
        // The greatest event count that is accepted is the only one whose successor is not.
        let again = superblock::decode(&next.encode()[..], context);
        assert!(again.as_ref() == Ok(&next) || decoded.events == superblock::EVENTS_MAX);
    }
}
