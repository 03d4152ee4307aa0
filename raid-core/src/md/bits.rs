//! Runs of bits in bytes, lowest bit of a byte first: how md stores a bitmap.

use core::ops::Range;

/// Sets (or clears) the bits of `range`, which lie inside `bytes`. Returns the range of bytes that
/// have changed, empty when none has.
pub(super) fn fill(bytes: &mut [u8], range: Range<u64>, value: bool) -> Range<usize> {
    let mut changed: Option<Range<usize>> = None;
    let mut bit = range.start;
    while bit < range.end {
        let index = (bit / 8) as usize;
        let end = range.end.min((bit / 8 + 1) * 8);
        let mask = mask(bit % 8, end - bit);
        let Some(byte) = bytes.get_mut(index) else { break };
        let next = if value { *byte | mask } else { *byte & !mask };
        if *byte != next {
            *byte = next;
            changed = Some(changed.map_or(index, |changed| changed.start)..index + 1);
        }
        bit = end;
    }
    changed.unwrap_or(0..0)
}

/// The first bit in `range` that is `value`.
pub(super) fn find(bytes: &[u8], range: Range<u64>, value: bool) -> Option<u64> {
    let mut bit = range.start;
    while bit < range.end {
        let byte = *bytes.get((bit / 8) as usize)?;
        let wanted = if value { byte } else { !byte } >> (bit % 8);
        if wanted != 0 {
            let found = bit + u64::from(wanted.trailing_zeros());
            return (found < range.end).then_some(found);
        }
        bit = (bit / 8 + 1) * 8;
    }
    None
}

/// Counts the bits of `range` that are set.
pub(super) fn count(bytes: &[u8], range: Range<u64>) -> u64 {
    let mut sum = 0;
    let mut bit = range.start;
    while bit < range.end {
        let end = range.end.min((bit / 8 + 1) * 8);
        let Some(byte) = bytes.get((bit / 8) as usize) else { break };
        sum += u64::from((byte & mask(bit % 8, end - bit)).count_ones());
        bit = end;
    }
    sum
}

/// `count` bits (1..=8) from bit `first` (0..=7) on, which stay inside the byte.
fn mask(first: u64, count: u64) -> u8 {
    ((0xff_u16 >> (8 - count)) << first) as u8
}

#[cfg(test)]
mod tests {
    use super::{count, fill, find};

    /// Every range of three bytes, against bits one by one.
    #[test]
    fn against_single_bits() {
        for start in 0..24_u64 {
            for end in start..=24 {
                for value in [false, true] {
                    let mut bytes = [if value { 0 } else { 0xff }; 3];
                    let before = bytes;
                    let changed = fill(&mut bytes, start..end, value);
                    for bit in 0..24_u64 {
                        let is_set = bytes[bit as usize / 8] >> (bit % 8) & 1 == 1;
                        assert_eq!(is_set, (start..end).contains(&bit) == value);
                    }
                    let expected = if start == end {
                        0..0
                    } else {
                        start as usize / 8..end.div_ceil(8) as usize
                    };
                    assert_eq!(changed, expected);
                    assert_eq!(find(&bytes, 0..24, value), (start < end).then_some(start));
                    let set = if value { end - start } else { 24 - (end - start) };
                    assert_eq!(count(&bytes, 0..24), set);
                    assert_eq!(fill(&mut bytes, start..end, value), 0..0);
                    fill(&mut bytes, start..end, !value);
                    assert_eq!(bytes, before);
                }
            }
        }
        // Beyond the bytes there is nothing.
        assert_eq!((find(&[0], 0..99, true), count(&[0xff], 4..99)), (None, 4));
        assert_eq!(fill(&mut [0], 4..99, true), 0..1);
    }
}
