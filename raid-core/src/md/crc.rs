//! CRC-32C as md's logs use it.

use crc::{CRC_32_ISCSI, Crc, Table};

/// Sixteen tables: the logs of a busy array are megabytes.
static CRC32C: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

/// The usual CRC-32C (initial value and result inverted) of the pieces, one after the other.
pub(super) fn crc32c(pieces: &[&[u8]]) -> u32 {
    let mut digest = CRC32C.digest();
    pieces.iter().for_each(|piece| digest.update(piece));
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    /// The check value of the CRC catalogue, whole and in pieces.
    #[test]
    fn check_value() {
        assert_eq!(crc32c(&[b"123456789"]), 0xe306_9283);
        assert_eq!(crc32c(&[b"1234", b"", b"56789"]), 0xe306_9283);
        assert_eq!(crc32c(&[]), 0);
    }
}
