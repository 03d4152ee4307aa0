//! The bytes that have arrived and are not understood yet.

/// A buffer that is filled at its end and consumed at its start. Its size follows what is asked of
/// it: a few kibibytes, or one option's data.
#[derive(Debug, Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// What has arrived.
    pub(crate) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The first `N` bytes, when they have arrived.
    pub(crate) fn first<const N: usize>(&self) -> Option<&[u8; N]> {
        self.filled().first_chunk::<N>()
    }

    /// Forget the first `len` bytes.
    pub(crate) fn consume(&mut self, len: usize) {
        assert!(len <= self.len(), "consumed {len} of {} bytes", self.len());
        self.start += len;
        if self.is_empty() {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Room for `len` more bytes behind what has arrived.
    pub(crate) fn space(&mut self, len: usize) -> &mut [u8] {
        if self.end + len > self.bytes.len() && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let need = self.end + len;
        if need > self.bytes.len() {
            self.bytes.resize(need, 0);
        }
        &mut self.bytes[self.end..need]
    }

    /// `len` bytes were written into the room that `space` gave.
    pub(crate) fn commit(&mut self, len: usize) {
        assert!(len <= self.bytes.len() - self.end, "committed {len} bytes beyond the room");
        self.end += len;
    }

    /// Give back memory that a large option took; the rest of the session needs little.
    pub(crate) fn shrink(&mut self, keep: usize) {
        if self.bytes.len() > keep && self.len() <= keep {
            let mut bytes = Vec::with_capacity(keep);
            bytes.extend_from_slice(self.filled());
            self.start = 0;
            self.end = bytes.len();
            self.bytes = bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_the_order_they_went_in() {
        let mut input = Input::default();
        let mut next_in = 0_u8;
        let mut next_out = 0_u8;
        for step in 0..200_usize {
            let len = step % 7;
            for byte in input.space(len + step % 3) {
                *byte = 0xee;
            }
            for byte in input.space(len) {
                *byte = next_in;
                next_in = next_in.wrapping_add(1);
            }
            input.commit(len);
            let out = (step * 5 % 9).min(input.len());
            for byte in &input.filled()[..out] {
                assert_eq!(*byte, next_out);
                next_out = next_out.wrapping_add(1);
            }
            input.consume(out);
            input.shrink(16);
        }
        assert_eq!(usize::from(next_in.wrapping_sub(next_out)), input.len());
    }
}
