//! Data that no device can make smaller, and a look at data that came back.

/// A fast generator of numbers (splitmix64): every seed gives another sequence, always the same.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; zero when `bound` is.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // The bias is below 2^-20 for every bound that a device has.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Fills memory with noise.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<8>();
        for word in words {
            *word = self.next().to_le_bytes();
        }
        let last = self.next().to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// Bytes between two stamps: no two blocks of this size that are written are the same.
const STAMP_STRIDE: usize = 4096;

/// Makes every block of noise that was written before another one, for little.
pub(crate) fn stamp(bytes: &mut [u8], random: &mut Random) {
    for block in bytes.chunks_mut(STAMP_STRIDE) {
        if let Some(head) = block.first_chunk_mut::<8>() {
            *head = random.next().to_le_bytes();
        }
    }
}

/// What data looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing but zero bytes: most likely never written.
    Zero,
    /// Few different bytes, or bytes that repeat: a device may have stored less than it was given.
    Compressible,
    /// Noise, as far as can be seen.
    Noise,
}

/// Bytes that are looked at.
const LOOK_BYTES: usize = 4096;

/// Looks at the beginning of a block.
pub(crate) fn look(bytes: &[u8]) -> Look {
    let bytes = &bytes[..bytes.len().min(LOOK_BYTES)];
    if bytes.iter().all(|byte| *byte == 0) {
        return Look::Zero;
    }
    // Noise of 512 bytes has 221 different ones on average, of 4096 all 256; text and counters stay
    // far below.
    let mut seen = [false; 256];
    bytes.iter().for_each(|byte| seen[usize::from(*byte)] = true);
    let different = seen.iter().filter(|seen| **seen).count();
    let expected = 256.0 * (1.0 - (255.0_f64 / 256.0).powf(bytes.len() as f64));
    let (words, _) = bytes.as_chunks::<8>();
    let repeats = words.len() > 1 && words[1..].iter().all(|word| *word == words[0]);
    if repeats || (different as f64) < 0.7 * expected { Look::Compressible } else { Look::Noise }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_told_from_zeroes_and_text() {
        let mut random = Random::new(7);
        for len in [512, 4096, 1 << 20] {
            let mut bytes = vec![0; len];
            assert_eq!(look(&bytes), Look::Zero);
            random.fill(&mut bytes);
            assert_eq!(look(&bytes), Look::Noise, "{len}");
            bytes.fill(0xaa);
            assert_eq!(look(&bytes), Look::Compressible);
            let text = b"all work and no play makes jack a dull boy\n".iter().cycle();
            let text: Vec<u8> = text.copied().take(len).collect();
            assert_eq!(look(&text), Look::Compressible);
        }
        let mut one = [0; 4096];
        one[4095] = 1;
        assert_eq!(look(&one), Look::Compressible);
    }

    #[test]
    fn stamped_blocks_differ_from_what_was_written_before() {
        let mut random = Random::new(1);
        let mut bytes = vec![0; 3 * STAMP_STRIDE + 100];
        random.fill(&mut bytes);
        let before = bytes.clone();
        stamp(&mut bytes, &mut random);
        for (new, old) in bytes.chunks(STAMP_STRIDE).zip(before.chunks(STAMP_STRIDE)) {
            assert_ne!(new, old);
            assert_eq!(look(new), look(old));
        }
    }

    #[test]
    fn numbers_stay_below_their_bound_and_reach_all_of_it() {
        let mut random = Random::new(3);
        let mut seen = [0; 10];
        (0..1000).for_each(|_| seen[random.below(10) as usize] += 1);
        assert!(seen.iter().all(|count| (50..200).contains(count)), "{seen:?}");
        assert_eq!(random.below(0), 0);
    }
}
