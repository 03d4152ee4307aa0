//! Sizes as people type and read them.
//!
//! Typed sizes take the suffixes K, M, G and T, powers of 1024. Shown sizes follow mdadm.

const SUFFIXES: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

/// Reads a size: a whole number, with an optional K, M, G or T (powers of 1024).
///
/// # Errors
/// Returns a sentence about what is wrong with the text.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let upper = text.trim().to_ascii_uppercase();
    let split = |(letter, shift)| Some((upper.strip_suffix(letter)?, shift));
    let (digits, shift) = SUFFIXES.into_iter().find_map(split).unwrap_or((&upper, 0));
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("not a size: a whole number, with K, M, G or T if wanted".into());
    }
    let number: u64 = digits.parse().map_err(|_| "this size is too large".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "this size is too large".to_owned())
}

/// Reads a chunk size: a size that is a power of two and fits the engine's 32 bits.
///
/// # Errors
/// Returns a sentence about what is wrong with the text.
pub(crate) fn parse_chunk(text: &str) -> Result<u32, String> {
    let bytes = parse(text)?;
    u32::try_from(bytes).map_err(|_| format!("chunk size {bytes} is larger than 2G"))
}

/// Shows a size with the largest suffix that divides it: `64K`, `1M`, `1000`.
pub(crate) fn short(bytes: u64) -> String {
    let fits = |(_, shift): &&(char, u32)| bytes != 0 && bytes.trailing_zeros() >= *shift;
    match SUFFIXES.iter().rev().find(fits) {
        Some((letter, shift)) => format!("{}{letter}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// Shows a size in the two units that mdadm puts behind a count of blocks: ` (9.00 MiB 9.44 MB)`.
/// Empty for sizes so small that the count says enough.
pub(crate) fn human(bytes: u64) -> String {
    let (binary, decimal, shift) = match bytes {
        0..5_120_000 => return String::new(),
        5_120_000..0x8000_0000 => ("MiB", "MB", 20),
        0x8000_0000..0x200_0000_0000 => ("GiB", "GB", 30),
        _ => ("TiB", "TB", 40),
    };
    let decimal_unit = 1000_u128.pow(shift / 10);
    let hundredths = |unit: u128| (u128::from(bytes) * 200 / unit).div_ceil(2);
    let (b, d) = (hundredths(1 << shift), hundredths(decimal_unit));
    format!(" ({}.{:02} {binary} {}.{:02} {decimal})", b / 100, b % 100, d / 100, d % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_powers_of_1024() {
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse("512"), Ok(512));
        assert_eq!(parse("64K"), Ok(65536));
        assert_eq!(parse("64k"), Ok(65536));
        assert_eq!(parse("256M"), Ok(256 << 20));
        assert_eq!(parse("3G"), Ok(3 << 30));
        assert_eq!(parse("2T"), Ok(2 << 40));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "K", "-1", "1.5G", "64KK", "64KB", "0x10", "16777216T", "1 K"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_as_mdadm_does() {
        assert_eq!(human(9216 << 10), " (9.00 MiB 9.44 MB)");
        assert_eq!(human(6144 << 10), " (6.00 MiB 6.29 MB)");
        assert_eq!(human(4096 << 10), "");
        assert_eq!(human(5 << 30), " (5.00 GiB 5.37 GB)");
        assert_eq!(human(3 << 40), " (3.00 TiB 3.30 TB)");
    }

    #[test]
    fn short_sizes_can_be_read_back() {
        for bytes in [0, 1, 1000, 1024, 65536, 1 << 20, 5 << 30, 7 << 40, (1 << 20) + 512] {
            assert_eq!(parse(&short(bytes)), Ok(bytes));
        }
        assert_eq!(short(524_288), "512K");
    }
}
