//! Which of a stripe's chunks is wrong, when parity and data do not agree.
//!
//! With P and Q, one wrong chunk can be told: if data chunk i is off by e, then P is off by e and Q
//! by g^i e, so that i is the logarithm of the quotient; a wrong P leaves Q right, and the other
//! way round (H. Peter Anvin, "The mathematics of RAID-6", section 4). Two wrong chunks look like
//! a third one in one byte out of 255 for each chunk that there is, which is why evidence is
//! counted and not believed when there is little of it. With P alone nothing can be told.

use super::gf;

/// Who is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspect {
    /// The source of this index in syndrome order.
    Source(usize),
    /// P.
    P,
    /// Q.
    Q,
    /// It cannot be told: there is one parity, or more than one chunk is wrong.
    Unknown,
}

/// Compares parity with the sources it belongs to, which are in syndrome order. Returns who is
/// wrong and at how many bytes something is, or `None` if all agree. Slow: for the rare case, after
/// a kernel has found a mismatch.
///
/// # Panics
/// If the slices differ in length, or there are more than 255 sources.
///
/// ```
/// use raid_core::parity::{Suspect, locate};
/// let (a, mut b) = ([1, 2, 3], [4, 5, 6]);
/// let p = [1 ^ 4, 2 ^ 5, 3 ^ 6];
/// let q = [1 ^ 8, 2 ^ 10, 3 ^ 12]; // a + 2 b
/// assert_eq!(locate(&[&a, &b], Some(&p), Some(&q)), None);
/// b[1] = 77;
/// assert_eq!(locate(&[&a, &b], Some(&p), Some(&q)), Some((Suspect::Source(1), 1)));
/// assert_eq!(locate(&[&a, &b], Some(&p), None), Some((Suspect::Unknown, 1)));
/// ```
#[must_use]
pub fn locate(sources: &[&[u8]], p: Option<&[u8]>, q: Option<&[u8]>) -> Option<(Suspect, u32)> {
    assert!(sources.len() <= gf::POWERS.len(), "{} sources > 255", sources.len());
    let len = p.or(q).map_or(0, <[u8]>::len);
    assert!(sources.iter().all(|source| source.len() == len), "sources of one length");
    let (mut suspect, mut count) = (None, 0);
    for at in 0..len {
        let off_p = p.map(|p| sources.iter().fold(p[at], |sum, source| sum ^ source[at]));
        let off_q = q.map(|q| {
            let terms = sources.iter().zip(&gf::POWERS);
            terms.fold(q[at], |sum, (source, power)| sum ^ gf::product(*power, source[at]))
        });
        let found = match (off_p, off_q) {
            (Some(0) | None, Some(0) | None) => continue,
            (Some(0), Some(_)) => Suspect::Q,
            (Some(_), Some(0)) => Suspect::P,
            (Some(off_p), Some(off_q)) => {
                let fits = |power: &u8| gf::product(*power, off_p) == off_q;
                let index = gf::POWERS[..sources.len()].iter().position(fits);
                index.map_or(Suspect::Unknown, Suspect::Source)
            }
            _ => Suspect::Unknown,
        };
        count += 1;
        suspect = match suspect {
            None => Some(found),
            Some(before) if before == found => suspect,
            Some(_) => Some(Suspect::Unknown),
        };
    }
    suspect.map(|suspect| (suspect, count))
}
