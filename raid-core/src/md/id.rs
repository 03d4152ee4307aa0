//! Identities and times the way md stores and prints them.

use core::fmt;
use core::str::FromStr;

/// A 16-byte identity of an array or a member, printed as mdadm prints it
/// (`62f693b1:8dff9239:f6ab7a70:323bb629`).
///
/// For version-1 superblocks the text is the stored bytes in order, on every machine.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MdUuid(pub [u8; 16]);

impl fmt::Display for MdUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if index > 0 && index % 4 == 0 {
                f.write_str(":")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for MdUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<uuid::Uuid> for MdUuid {
    fn from(uuid: uuid::Uuid) -> Self {
        Self(uuid.into_bytes())
    }
}

/// The text is not 32 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a uuid has 32 hexadecimal digits, separated by ':', '-', '.' or nothing")]
pub struct ParseUuidError;

impl FromStr for MdUuid {
    type Err = ParseUuidError;

    /// Reads 32 hexadecimal digits; `:`, `-`, `.` and spaces between them do not matter, as for
    /// mdadm.
    fn from_str(text: &str) -> Result<Self, ParseUuidError> {
        let mut bytes = [0_u8; 16];
        let mut digit_count = 0;
        for character in text.chars() {
            if matches!(character, ':' | '-' | '.' | ' ') {
                continue;
            }
            let digit = character.to_digit(16).ok_or(ParseUuidError)? as u8;
            let byte = bytes.get_mut(digit_count / 2).ok_or(ParseUuidError)?;
            *byte = *byte << 4 | digit;
            digit_count += 1;
        }
        if digit_count == 32 { Ok(Self(bytes)) } else { Err(ParseUuidError) }
    }
}

/// A time as a version-1 superblock stores it: 40 bits of seconds since 1970 and 24 bits of
/// microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MdTime(pub u64);

impl MdTime {
    const SECONDS_MASK: u64 = (1 << 40) - 1;

    /// Makes the stored form; seconds beyond 40 bits and microseconds beyond a second are cut off.
    #[must_use]
    pub fn new(unix_seconds: u64, microseconds: u32) -> Self {
        let microseconds = u64::from(microseconds % 1_000_000);
        Self(unix_seconds & Self::SECONDS_MASK | microseconds << 40)
    }

    /// Seconds since 1970, UTC.
    #[must_use]
    pub fn unix_seconds(self) -> u64 {
        self.0 & Self::SECONDS_MASK
    }

    /// Microseconds of the second; mdadm writes 0 here for the creation time.
    #[must_use]
    pub fn microseconds(self) -> u32 {
        (self.0 >> 40) as u32
    }
}
