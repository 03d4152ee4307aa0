//! The fuzz bodies over seeded random input: the same on every run, and quick.

use raid_nbd::fuzz;

/// xorshift64*: small, seeded, good enough to pick test input.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn bytes(&mut self, len_max: u64) -> Vec<u8> {
        let len = self.next() % len_max;
        (0..len).map(|_| (self.next() >> 32) as u8).collect()
    }
}

fn run(body: fn(&[u8]), rounds: u64, len_max: u64) {
    for seed in 1..=rounds {
        let input = Random(seed).bytes(len_max);
        if std::panic::catch_unwind(|| body(&input)).is_err() {
            panic!("seed {seed} fails with {} bytes", input.len());
        }
    }
}

#[test]
fn handshake_survives_random_input() {
    run(fuzz::handshake, 4000, 1500);
}

#[test]
fn stream_survives_random_input() {
    run(fuzz::stream, 4000, 2000);
}

#[test]
fn empty_input_is_input() {
    fuzz::handshake(&[]);
    fuzz::stream(&[]);
}
