//! Numbers from a seed (splitmix64, Steele et al. 2014): the only source of chance. Or first from a
//! tape: then every number of a story's beginning is in the hands of who wrote it, a fuzzer.

/// Bytes of a tape that one number takes, little-endian.
const TAPE_BYTES: usize = 4;

/// A generator. Two of one seed give the same numbers on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
    /// What is left of a tape, which comes first.
    tape: Vec<u8>,
    at: usize,
}

/// Mixes a number: neighbouring ones become unlike.
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: mix(seed), tape: Vec::new(), at: 0 }
    }

    /// Reads a tape first, and goes on as with `seed` behind its end.
    pub(crate) fn with_tape(seed: u64, tape: &[u8]) -> Self {
        Self { tape: tape.to_vec(), ..Self::new(seed) }
    }

    pub(crate) fn next(&mut self) -> u64 {
        if let Some(word) =
            self.tape.get(self.at..).and_then(|rest| rest.first_chunk::<TAPE_BYTES>())
        {
            self.at += TAPE_BYTES;
            return u64::from(u32::from_le_bytes(*word));
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number below `limit`, which is above 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in `percent` of all cases.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}
