//! Sectors that describe themselves: stamp, address and checksum, so that any 512 bytes read can be
//! attributed to one write of one sector, or are known to be nobody's.
//!
//! ```text
//!   0       8        16                                         504        512
//!   | stamp | sector | words that follow from both              | checksum |
//! ```

use crate::random::mix;

/// Bytes in a sector.
pub(crate) const SECTOR: usize = 512;

/// The value of a sector that is all zeroes.
pub(crate) const ZERO: u64 = 0;

/// Marks the values of contents that no write made.
const FOREIGN: u64 = 1 << 63;

/// What fills request buffers before a read: a read that leaves a byte alone shows it.
pub(crate) const POISON_BUFFER: u8 = 0xb6;
/// What fills scratch memory at first.
pub(crate) const POISON_SCRATCH: u8 = 0xa5;

/// Fills a sector with what the write `stamp` stores at `sector`.
pub(crate) fn fill(bytes: &mut [u8], stamp: u64, sector: u64) {
    assert!(stamp != ZERO && stamp & FOREIGN == 0, "stamp {stamp:#x} is reserved");
    let mut word = mix(stamp ^ sector.rotate_left(40));
    let mut sum = stamp ^ sector;
    for (index, target) in bytes.chunks_exact_mut(8).enumerate() {
        let value = match index {
            0 => stamp,
            1 => sector,
            63 => mix(sum),
            _ => {
                word = word.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(stamp);
                sum = sum.rotate_left(7) ^ word;
                word
            }
        };
        target.copy_from_slice(&value.to_le_bytes());
    }
}

/// The value of a sector found at `sector`: 0 for zeroes, the stamp of the write that made all of
/// it, or a number with the highest bit set for anything else.
pub(crate) fn value_of(bytes: &[u8], sector: u64) -> u64 {
    let word = |at: usize| {
        let mut raw = [0; 8];
        raw.copy_from_slice(&bytes[at * 8..at * 8 + 8]);
        u64::from_le_bytes(raw)
    };
    let (stamp, address) = (word(0), word(1));
    if stamp == 0 && bytes.iter().all(|&byte| byte == 0) {
        return ZERO;
    }
    if stamp != 0 && stamp & FOREIGN == 0 && address == sector {
        let mut expected = [0; SECTOR];
        fill(&mut expected, stamp, sector);
        if expected[..] == bytes[..SECTOR] {
            return stamp;
        }
    }
    let hash = (0..SECTOR / 8).fold(0xcbf2_9ce4_8422_2325, |hash, at| mix(hash ^ word(at)));
    hash | FOREIGN
}

/// Says in words what a value is.
pub(crate) fn describe(value: u64) -> String {
    match value {
        ZERO => "zeroes".to_owned(),
        value if value & FOREIGN != 0 => format!("bytes of no write ({value:#018x})"),
        stamp => format!("write {stamp}"),
    }
}
