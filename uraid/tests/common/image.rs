//! Test content: random bytes from a seed, and files of them.

use std::path::{Path, PathBuf};

/// xorshift64*: enough to make every byte differ from its neighbours and from other seeds.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Random bytes that `seed` determines.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend(random.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Writes `content` to a file.
pub fn file(folder: &Path, name: &str, content: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    path
}

/// Panics with the first difference, not with megabytes, unless both are equal.
#[track_caller]
pub fn assert_same(actual: &[u8], right: &[u8], what: &str) {
    assert_eq!(actual.len(), right.len(), "{what}: length");
    if let Some(at) = actual.iter().zip(right).position(|(a, b)| a != b) {
        let wrong = actual.iter().zip(right).filter(|(a, b)| a != b).count();
        panic!("{what}: {wrong} bytes differ, the first at {at}");
    }
}
