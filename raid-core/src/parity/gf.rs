//! Arithmetic in GF(2^8), the field that Q lives in.
//!
//! Bytes are polynomials over GF(2) modulo `x^8 + x^4 + x^3 + x^2 + 1` (0x11d), the polynomial of
//! Linux md; `g = 2` generates all 255 values but zero. Everything here is a `const fn` or a table
//! made by one at compile time, so that no table can be used before it is filled.
//!
//! | table | bytes | what | used by |
//! |---|---|---|---|
//! | [`POWERS`] | 255 | `g^i` | all kernels |
//! | [`INVERSES`] | 256 | `1 / c` | recovery of two data, all kernels |
//! | [`NIBBLES`] | 8,192 | products with each low and each high nibble | byte-shuffle kernels |
//! | [`MATRICES`] | 2,048 | multiplication as an 8 x 8 bit matrix | GFNI kernels |
//! | [`POWER_MATRICES`] | 2,048 | multiplication by `g^i`, likewise | GFNI kernels |

/// The low byte of the field's polynomial: what a bit shifted out of a byte comes back as.
pub(super) const POLYNOMIAL: u8 = 0x1d;

/// `POWERS[i]` is `g^i`, the coefficient of source `i` in Q.
pub(super) static POWERS: [u8; 255] = powers();

/// `INVERSES[c]` is `1 / c`, and 0 for 0. Working one out takes as long as a recovery of 4 KiB.
pub(super) static INVERSES: [u8; 256] = inverses();

/// `NIBBLES[c]` holds `c * n` for `n` in 0..16, then `c * (n << 4)` for `n` in 0..16.
pub(super) static NIBBLES: [[u8; 32]; 256] = nibbles();

/// `MATRICES[c]` is multiplication by `c` in the form that `gf2p8affineqb` takes: byte `7 - i`
/// holds the input bits whose parity is output bit `i`.
#[allow(dead_code, reason = "GFNI exists on x86-64 alone")]
pub(super) static MATRICES: [u64; 256] = matrices();

/// `POWER_MATRICES[i]` is `MATRICES[POWERS[i]]`; the last repeats the first, for the sake of a size
/// that an index cannot exceed unnoticed.
#[allow(dead_code, reason = "GFNI exists on x86-64 alone")]
pub(super) static POWER_MATRICES: [u64; 256] = power_matrices();

/// Multiplies by `g`.
pub(super) const fn double(a: u8) -> u8 {
    (a << 1) ^ if a & 0x80 != 0 { POLYNOMIAL } else { 0 }
}

/// Multiplies two field elements, bit by bit: the definition, not the fast way.
pub(super) const fn multiply(a: u8, b: u8) -> u8 {
    let mut product = 0;
    let mut shifted = a;
    let mut bit = 0;
    while bit < 8 {
        if b >> bit & 1 == 1 {
            product ^= shifted;
        }
        shifted = double(shifted);
        bit += 1;
    }
    product
}

/// Multiplies two field elements by table.
pub(super) fn product(a: u8, b: u8) -> u8 {
    let table = &NIBBLES[usize::from(a)];
    table[usize::from(b & 15)] ^ table[16 + usize::from(b >> 4)]
}

/// Returns `g^exponent` for any exponent; the powers repeat after 255.
pub(super) const fn power(exponent: usize) -> u8 {
    POWERS[exponent % 255]
}

/// Returns `g^-exponent` for an exponent up to 255.
pub(super) const fn inverse_power(exponent: usize) -> u8 {
    power(255 - exponent)
}

/// Returns the inverse of `a` as `a^254`, since `a^255 = 1` for all but zero.
pub(super) const fn invert(a: u8) -> u8 {
    debug_assert!(a != 0, "zero has no inverse");
    let mut result = 1;
    let mut square = a;
    let mut bit = 1;
    while bit < 8 {
        square = multiply(square, square);
        result = multiply(result, square);
        bit += 1;
    }
    result
}

const fn powers() -> [u8; 255] {
    let mut table = [1; 255];
    let mut i = 1;
    while i < 255 {
        table[i] = double(table[i - 1]);
        i += 1;
    }
    table
}

const fn inverses() -> [u8; 256] {
    let mut table = [0; 256];
    let mut c = 1;
    while c < 256 {
        table[c] = invert(c as u8);
        c += 1;
    }
    table
}

const fn nibbles() -> [[u8; 32]; 256] {
    let mut table = [[0; 32]; 256];
    let mut c = 0;
    while c < 256 {
        let mut n = 0;
        while n < 16 {
            table[c][n] = multiply(c as u8, n as u8);
            table[c][16 + n] = multiply(c as u8, (n << 4) as u8);
            n += 1;
        }
        c += 1;
    }
    table
}

const fn matrices() -> [u64; 256] {
    let mut table = [0; 256];
    let mut c = 0;
    while c < 256 {
        let mut input = 0;
        while input < 8 {
            let image = multiply(c as u8, 1 << input);
            let mut output = 0;
            while output < 8 {
                let bit = (image >> output & 1) as u64;
                table[c] |= bit << ((7 - output) * 8 + input);
                output += 1;
            }
            input += 1;
        }
        c += 1;
    }
    table
}

const fn power_matrices() -> [u64; 256] {
    let all = matrices();
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        table[i] = all[power(i) as usize];
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The textbook way, independent of [`multiply`]: the whole product first, then long division.
    fn multiply_by_division(a: u8, b: u8) -> u8 {
        let mut product = 0u16;
        for bit in 0..8 {
            if b >> bit & 1 == 1 {
                product ^= u16::from(a) << bit;
            }
        }
        for bit in (8..16).rev() {
            if product >> bit & 1 == 1 {
                product ^= 0x11d << (bit - 8);
            }
        }
        product as u8
    }

    /// All 65,536 products by four ways: bits, long division, nibble tables and bit matrices.
    #[test]
    fn all_products_agree() {
        for c in 0..=255u8 {
            for x in 0..=255u8 {
                let want = multiply_by_division(c, x);
                assert_eq!(multiply(c, x), want, "{c} * {x}");
                let table = &NIBBLES[usize::from(c)];
                let by_nibbles = table[usize::from(x & 15)] ^ table[16 + usize::from(x >> 4)];
                assert_eq!(by_nibbles, want, "{c} * {x} by nibbles");
                assert_eq!(product(c, x), want, "{c} * {x} by table");
                let rows = MATRICES[usize::from(c)].to_be_bytes();
                let by_matrix =
                    (0..8).fold(0, |byte, i| byte | ((rows[i] & x).count_ones() as u8 & 1) << i);
                assert_eq!(by_matrix, want, "{c} * {x} by matrix");
            }
        }
    }

    #[test]
    fn powers_are_all_values_but_zero() {
        let mut seen = [false; 256];
        for (i, &value) in POWERS.iter().enumerate() {
            assert!(!seen[usize::from(value)], "g^{i} = {value} is there already");
            seen[usize::from(value)] = true;
        }
        assert!(!seen[0]);
        assert_eq!(power(255), 1);
        assert_eq!(power(8), POLYNOMIAL);
    }

    #[test]
    fn inverse_times_value_is_one() {
        for a in 1..=255 {
            assert_eq!(multiply(a, invert(a)), 1, "{a}");
            assert_eq!(multiply(a, INVERSES[usize::from(a)]), 1, "{a}");
        }
        for exponent in 0..=255 {
            assert_eq!(multiply(power(exponent), inverse_power(exponent)), 1, "{exponent}");
        }
    }
}
