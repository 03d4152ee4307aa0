//! What is served: the description of an export that a handshake gives to a client.

use crate::proto::{NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, transmission_flag as flag};

/// Preferred block size while nothing better is known; the protocol's own default.
const PREFERRED_BYTES_DEFAULT: u32 = 4096;
/// Largest preferred block size that is advertised: clients allocate buffers of it, and beyond 1
/// MiB no stripe gains anything from it.
const PREFERRED_BYTES_MAX: u64 = 1 << 20;

/// An export: its name, size and abilities. Immutable while it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name; the empty name always means this export as well.
    pub name: String,
    /// A text for people, such as `raid6 8 x 64K`.
    pub description: Option<String>,
    /// Bytes that can be addressed.
    pub size_bytes: u64,
    /// Answer commands that write with EPERM.
    pub read_only: bool,
    /// A member is a rotating disk.
    pub rotational: bool,
    /// TRIM reaches the members.
    pub can_trim: bool,
    /// WRITE_ZEROES is so much cheaper than writing that FAST_ZERO may succeed.
    pub fast_zero: bool,
    /// Preferred block size, a power of two of at least 512.
    pub preferred_bytes: u32,
}

impl Export {
    /// An export of `size_bytes` that can be written, with nothing else known about it.
    pub fn new(name: impl Into<String>, size_bytes: u64) -> Self {
        Self {
            name: name.into(),
            description: None,
            size_bytes,
            read_only: false,
            rotational: false,
            can_trim: true,
            fast_zero: false,
            preferred_bytes: PREFERRED_BYTES_DEFAULT,
        }
    }

    /// The preferred block size for an array that likes `optimal_bytes`: the largest power of two
    /// that divides it, at most 1 MiB and at least 4096.
    pub fn preferred_for(optimal_bytes: u64) -> u32 {
        let power = 1_u64.checked_shl(optimal_bytes.trailing_zeros()).unwrap_or(0);
        let bounded = power.clamp(u64::from(PREFERRED_BYTES_DEFAULT), PREFERRED_BYTES_MAX);
        u32::try_from(bounded).unwrap_or(PREFERRED_BYTES_DEFAULT)
    }

    /// Whether a client that asks for `name` means this export.
    pub fn answers_to(&self, name: &[u8]) -> bool {
        name.is_empty() || (name.len() <= NAME_BYTES_MAX && name == self.name.as_bytes())
    }

    /// Minimum, preferred and maximum block size. The minimum is 1: the engine reads, modifies and
    /// writes whatever does not fit a sector.
    pub fn block_sizes(&self) -> [u32; 3] {
        [1, self.preferred_bytes, PAYLOAD_BYTES_MAX]
    }

    /// The transmission flags, each set only when it is true of this export and this connection.
    pub fn transmission_flags(&self, structured: bool) -> u16 {
        // One engine serves all connections, and its flush covers what was completed on any of
        // them.
        let mut flags = flag::HAS_FLAGS
            | flag::SEND_FLUSH
            | flag::SEND_FUA
            | flag::CAN_MULTI_CONN
            | flag::SEND_CACHE;
        if self.read_only {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
            if self.can_trim {
                flags |= flag::SEND_TRIM;
            }
        }
        if self.rotational {
            flags |= flag::ROTATIONAL;
        }
        if structured {
            flags |= flag::SEND_DF;
        }
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferred_size_is_the_power_of_two_in_the_stripe() {
        let cases =
            [(0, 4096), (1, 4096), (3 << 16, 1 << 16), (1 << 16, 1 << 16), (5 << 22, 1 << 20)];
        for (optimal, preferred) in cases {
            assert_eq!(Export::preferred_for(optimal), preferred, "{optimal}");
        }
    }

    #[test]
    fn a_read_only_export_promises_no_writes() {
        let mut export = Export::new("disk", 1 << 20);
        assert_eq!(export.transmission_flags(true) & flag::READ_ONLY, 0);
        assert_ne!(export.transmission_flags(true) & flag::SEND_TRIM, 0);
        export.read_only = true;
        let flags = export.transmission_flags(false);
        assert_eq!(flags & (flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO), 0);
        assert_ne!(flags & flag::READ_ONLY, 0);
        assert_eq!(flags & flag::SEND_DF, 0);
    }
}
