//! The header of a new bitmap, with the numbers of mdadm.

use super::{BITMAP_BYTES_MAX, BitmapError, BitmapHead, CHUNK_BYTES_MIN, HEAD_BYTES};

/// Regions are not made smaller than this, as by mdadm.
const CHUNK_BYTES_LEAST: u64 = 4096;
/// The usual size of a region.
const CHUNK_BYTES_USUAL: u64 = 64 << 20;
/// Room that is used at most unless a size is asked for: 128 KiB.
const ROOM_BYTES_USUAL: u64 = 128 << 10;

/// What a new bitmap shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitmapWishes {
    /// Bytes of a region (mdadm `--bitmap-chunk`); `None` for the choice of mdadm: 64 MiB, or more
    /// where the bits would not have room.
    pub chunk_bytes: Option<u32>,
    /// Seconds between two rounds of clearing; mdadm has 5.
    pub daemon_sleep_seconds: u32,
    /// See [`BitmapHead::write_behind`].
    pub write_behind: u32,
}

impl Default for BitmapWishes {
    fn default() -> Self {
        Self { chunk_bytes: None, daemon_sleep_seconds: 5, write_behind: 0 }
    }
}

/// Makes the header of a new bitmap that has `room_bytes`.
///
/// # Errors
///
/// [`BitmapError::Chunk`] when the size asked for is no power of two of 512 at least,
/// [`BitmapError::TooLong`] when the bits would not fit.
pub fn choose(
    uuid_bytes: [u8; 16],
    sync_sectors: u64,
    room_bytes: u64,
    wishes: BitmapWishes,
) -> Result<BitmapHead, BitmapError> {
    let limit = if wishes.chunk_bytes.is_some() { BITMAP_BYTES_MAX } else { ROOM_BYTES_USUAL };
    let room_bytes = room_bytes.min(limit);
    let chunk_bytes = match wishes.chunk_bytes {
        Some(chunk_bytes) if !chunk_bytes.is_power_of_two() || chunk_bytes < CHUNK_BYTES_MIN => {
            return Err(BitmapError::Chunk { chunk_bytes });
        }
        Some(chunk_bytes) => chunk_bytes.into(),
        None => least_chunk_bytes(sync_sectors, room_bytes).max(CHUNK_BYTES_USUAL),
    };
    let too_long = |need_bytes| BitmapError::TooLong { need_bytes, room_bytes };
    // Beyond 2 GiB for a region there is no field for it (md once let it overflow).
    let chunk_bytes = u32::try_from(chunk_bytes).map_err(|_| too_long(u64::MAX))?;
    let head = BitmapHead {
        version: 4,
        uuid_bytes,
        events: 0,
        events_cleared: 0,
        sync_sectors,
        state: 0,
        chunk_bytes,
        daemon_sleep_seconds: wishes.daemon_sleep_seconds,
        write_behind: wishes.write_behind,
        sectors_reserved: 0,
        area: [0; HEAD_BYTES],
    };
    if head.file_bytes() > room_bytes {
        return Err(too_long(head.file_bytes()));
    }
    Ok(head)
}

/// The smallest size of regions with which the bits have room, counted as mdadm does: a bit more
/// than needed.
fn least_chunk_bytes(sync_sectors: u64, room_bytes: u64) -> u64 {
    let bits_max = room_bytes.saturating_sub(HEAD_BYTES as u64) * 8;
    let mut chunk_bytes = CHUNK_BYTES_LEAST;
    let mut bits = sync_sectors / (CHUNK_BYTES_LEAST / 512) + 1;
    while bits > bits_max && chunk_bytes < 1 << 32 {
        chunk_bytes *= 2;
        bits = bits.div_ceil(2);
    }
    chunk_bytes
}

#[cfg(test)]
mod tests {
    use super::{BitmapError, BitmapWishes, choose};

    fn chunk(sync_bytes: u64, room_bytes: u64) -> Result<u32, BitmapError> {
        choose([0; 16], sync_bytes / 512, room_bytes, BitmapWishes::default())
            .map(|head| head.chunk_bytes)
    }

    /// 64 MiB as long as the bits have room, then larger; too small a room is said.
    #[test]
    fn chunks() {
        assert_eq!(chunk(3 << 20, 4096), Ok(64 << 20));
        assert_eq!(chunk(1 << 40, 64 << 10), Ok(64 << 20));
        // (4096 - 256) * 8 bits of 64 MiB are 1920 GiB, and mdadm wants a bit more than needed.
        assert_eq!(chunk((1920 << 30) - 4096, 4096), Ok(64 << 20));
        assert_eq!(chunk(1920 << 30, 4096), Ok(128 << 20));
        assert!(matches!(chunk(1 << 60, 4096), Err(BitmapError::TooLong { .. })));
        assert!(matches!(chunk(1 << 60, 0), Err(BitmapError::TooLong { .. })));
        let wishes =
            |chunk_bytes| BitmapWishes { chunk_bytes: Some(chunk_bytes), ..Default::default() };
        assert_eq!(choose([0; 16], 6144, 4096, wishes(65536)).map(|h| h.bit_count()), Ok(48));
        assert!(choose([0; 16], 1 << 30, 4096, wishes(65536)).is_err());
        for bad in [0, 256, 65537, u32::MAX] {
            let error = choose([0; 16], 6144, 4096, wishes(bad)).unwrap_err();
            assert_eq!(error, BitmapError::Chunk { chunk_bytes: bad });
        }
    }
}
