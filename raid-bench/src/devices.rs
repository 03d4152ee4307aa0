//! Members in memory, and members that are nothing.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{PoisonError, RwLock};

use raid_io::MemberDevice;

/// A member that completes at once and keeps nothing: what is left is the engine's own work.
pub(crate) struct NullDevice {
    pub(crate) size: u64,
}

impl MemberDevice for NullDevice {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    /// Leaves the memory as it is: what is read means nothing.
    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], _: u64) -> io::Result<usize> {
        Ok(buffers.iter().map(|buffer| buffer.len()).sum())
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], _: u64) -> io::Result<usize> {
        Ok(buffers.iter().map(|buffer| buffer.len()).sum())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_instant(&self) -> bool {
        true
    }
}

/// Bytes under one lock: threads that work at different places do not meet.
const PIECE_BYTES: u64 = 1 << 20;

/// A member in this process's memory, allocated from the start.
pub(crate) struct FlatDevice {
    size: u64,
    pieces: Vec<RwLock<Vec<u8>>>,
}

impl FlatDevice {
    pub(crate) fn new(size: u64) -> Self {
        let piece = |index| PIECE_BYTES.min(size - index * PIECE_BYTES) as usize;
        let count = size.div_ceil(PIECE_BYTES);
        let pieces = (0..count).map(|index| RwLock::new(vec![0; piece(index)])).collect();
        Self { size, pieces }
    }

    /// Cuts a range at the borders of pieces: piece, place in it and length of each.
    fn parts(&self, offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let (mut at, end) = (offset, offset.saturating_add(len as u64).min(self.size));
        std::iter::from_fn(move || {
            let within = at % PIECE_BYTES;
            let count = end.checked_sub(at)?.min(PIECE_BYTES - within);
            let part = ((at / PIECE_BYTES) as usize, within as usize, count as usize);
            at += count;
            (count > 0).then_some(part)
        })
    }
}

impl MemberDevice for FlatDevice {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let mut total = 0;
        for buffer in buffers {
            let mut done = 0;
            for (piece, start, count) in self.parts(offset + total as u64, buffer.len()) {
                let bytes = self.pieces[piece].read().unwrap_or_else(PoisonError::into_inner);
                buffer[done..done + count].copy_from_slice(&bytes[start..start + count]);
                done += count;
            }
            total += done;
        }
        Ok(total)
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let mut total = 0;
        for buffer in buffers {
            let mut done = 0;
            for (piece, start, count) in self.parts(offset + total as u64, buffer.len()) {
                let mut bytes = self.pieces[piece].write().unwrap_or_else(PoisonError::into_inner);
                bytes[start..start + count].copy_from_slice(&buffer[done..done + count]);
                done += count;
            }
            total += done;
        }
        Ok(total)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_instant(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_across_pieces_comes_back() {
        let device = FlatDevice::new(2 * PIECE_BYTES + 4096);
        let bytes: Vec<u8> = (0..8192).map(|n| (n % 251) as u8).collect();
        let slices = [IoSlice::new(&bytes[..100]), IoSlice::new(&bytes[100..])];
        assert_eq!(device.write_at(&slices, PIECE_BYTES - 4096).unwrap(), 8192);
        let (mut a, mut b) = (vec![0; 5000], vec![0; 3192]);
        let mut slices = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
        assert_eq!(device.read_at(&mut slices, PIECE_BYTES - 4096).unwrap(), 8192);
        assert_eq!([a, b].concat(), bytes);
        // Short at the end, as a file is.
        let mut end = [0; 8192];
        let offset = 2 * PIECE_BYTES;
        assert_eq!(device.read_at(&mut [IoSliceMut::new(&mut end)], offset).unwrap(), 4096);
    }
}
