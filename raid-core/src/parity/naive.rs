//! The specification: one byte at a time, as the formulas say.
//!
//! Every other kernel is tested against this one, so nothing here is clever. For the byte at one
//! offset, with `d[i]` the byte of source `i`:
//!
//! ```text
//! P = d[0] + d[1] + ... + d[k-1]                   (+ is XOR)
//! Q = g^0 d[0] + g^1 d[1] + ... + g^(k-1) d[k-1]   (in GF(2^8), see gf.rs)
//! ```
//!
//! The arguments have been checked by [`Kernel`](super::Kernel); lost sources are skipped.

use super::gf::{invert, multiply, power};
use super::kernel::Table;

pub(super) static TABLE: Table = Table {
    name: "naive",
    is_available: || true,
    gen_p,
    gen_pq,
    update_p,
    update_q,
    update_pq,
    recover_data,
    recover_data_q,
    recover_data_p,
    recover_two_data,
    check_p,
    check_pq,
};

/// P of the byte at `at`, over all sources that are not in `lost`.
fn p_of(sources: &[&[u8]], at: usize, lost: &[usize]) -> u8 {
    let mut sum = 0;
    for (index, source) in sources.iter().enumerate() {
        if !lost.contains(&index) {
            sum ^= source[at];
        }
    }
    sum
}

/// Q of the byte at `at`, over all sources that are not in `lost`.
fn q_of(sources: &[&[u8]], at: usize, lost: &[usize]) -> u8 {
    let mut sum = 0;
    for (index, source) in sources.iter().enumerate() {
        if !lost.contains(&index) {
            sum ^= multiply(power(index), source[at]);
        }
    }
    sum
}

fn gen_p(sources: &[&[u8]], p: &mut [u8]) {
    for (at, p) in p.iter_mut().enumerate() {
        *p = p_of(sources, at, &[]);
    }
}

fn gen_pq(sources: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    for at in 0..p.len() {
        p[at] = p_of(sources, at, &[]);
        q[at] = q_of(sources, at, &[]);
    }
}

fn update_p(old: &[u8], new: &[u8], p: &mut [u8]) {
    for at in 0..p.len() {
        p[at] ^= old[at] ^ new[at];
    }
}

fn update_q(index: usize, old: &[u8], new: &[u8], q: &mut [u8]) {
    for at in 0..q.len() {
        q[at] ^= multiply(power(index), old[at] ^ new[at]);
    }
}

fn update_pq(index: usize, old: &[u8], new: &[u8], p: &mut [u8], q: &mut [u8]) {
    update_p(old, new, p);
    update_q(index, old, new, q);
}

fn recover_data(lost: usize, sources: &[&[u8]], p: &[u8], out: &mut [u8]) {
    for at in 0..out.len() {
        out[at] = p[at] ^ p_of(sources, at, &[lost]);
    }
}

fn recover_data_q(lost: usize, sources: &[&[u8]], q: &[u8], out: &mut [u8]) {
    let inverse = invert(power(lost));
    for at in 0..out.len() {
        out[at] = multiply(inverse, q[at] ^ q_of(sources, at, &[lost]));
    }
}

fn recover_data_p(lost: usize, sources: &[&[u8]], q: &[u8], out_data: &mut [u8], out_p: &mut [u8]) {
    recover_data_q(lost, sources, q, out_data);
    for at in 0..out_p.len() {
        out_p[at] = out_data[at] ^ p_of(sources, at, &[lost]);
    }
}

fn recover_two_data(
    a: usize,
    b: usize,
    sources: &[&[u8]],
    p: &[u8],
    q: &[u8],
    out_a: &mut [u8],
    out_b: &mut [u8],
) {
    // d[a] + d[b] = P' and g^a d[a] + g^b d[b] = Q', where P' and Q' are what the others leave;
    // g^b times the first added to the second leaves (g^a + g^b) d[a].
    let inverse = invert(power(a) ^ power(b));
    for at in 0..out_a.len() {
        let p_rest = p[at] ^ p_of(sources, at, &[a, b]);
        let q_rest = q[at] ^ q_of(sources, at, &[a, b]);
        out_a[at] = multiply(inverse, q_rest ^ multiply(power(b), p_rest));
        out_b[at] = p_rest ^ out_a[at];
    }
}

fn check_p(sources: &[&[u8]], p: &[u8]) -> Option<usize> {
    first_mismatch_p(sources, p, 0)
}

fn check_pq(sources: &[&[u8]], p: &[u8], q: &[u8]) -> Option<usize> {
    first_mismatch_pq(sources, p, q, 0)
}

/// Returns the first offset from `start` on where P is wrong.
pub(super) fn first_mismatch_p(sources: &[&[u8]], p: &[u8], start: usize) -> Option<usize> {
    (start..p.len()).find(|&at| p[at] != p_of(sources, at, &[]))
}

/// Returns the first offset from `start` on where P or Q is wrong.
pub(super) fn first_mismatch_pq(
    sources: &[&[u8]],
    p: &[u8],
    q: &[u8],
    start: usize,
) -> Option<usize> {
    (start..p.len()).find(|&at| p[at] != p_of(sources, at, &[]) || q[at] != q_of(sources, at, &[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values worked out by hand: weights 1, 2 and 4; and 0x80 doubled is 0x100, reduced to 0x1d.
    #[test]
    fn values_by_hand() {
        let sources: [&[u8]; 3] = [&[1, 0x00, 0x0f], &[1, 0x80, 0xf0], &[1, 0x00, 0x00]];
        let (mut p, mut q) = ([0; 3], [0; 3]);
        gen_pq(&sources, &mut p, &mut q);
        assert_eq!(p, [1, 0x80, 0xff]);
        assert_eq!(q, [7, 0x1d, 0x0f ^ 0xe0 ^ 0x1d]);
        assert_eq!(check_pq(&sources, &p, &q), None);

        let (mut a, mut b) = ([0; 3], [0; 3]);
        recover_two_data(1, 2, &[sources[0], &[], &[]], &p, &q, &mut a, &mut b);
        assert_eq!((&a[..], &b[..]), (sources[1], sources[2]));
        recover_data(0, &[&[], sources[1], sources[2]], &p, &mut a);
        assert_eq!(a, sources[0]);
        recover_data_p(1, &[sources[0], &[], sources[2]], &q, &mut a, &mut b);
        assert_eq!((&a[..], b), (sources[1], p));

        update_pq(2, sources[2], &[3, 4, 5], &mut p, &mut q);
        let changed: [&[u8]; 3] = [sources[0], sources[1], &[3, 4, 5]];
        assert_eq!(check_pq(&changed, &p, &q), None);
        p[2] ^= 1;
        assert_eq!(check_p(&changed, &p), Some(2));
        q[1] ^= 1;
        assert_eq!(check_pq(&changed, &p, &q), Some(1));
    }
}
