//! The fuzz bodies over seeded random input: the same on every run, and quick.
//! `FUZZ_ROUNDS=1000000` makes it a long one.

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

/// Runs a body on many inputs and adds up what it returns.
fn run(
    body: impl Fn(&[u8]) -> usize + std::panic::RefUnwindSafe,
    rounds: u64,
    len_max: u64,
) -> usize {
    let rounds =
        std::env::var("FUZZ_ROUNDS").map_or(rounds, |text| text.parse().expect("a number"));
    let mut total = 0;
    for seed in 1..=rounds {
        let input = Random(seed).bytes(len_max);
        match std::panic::catch_unwind(|| body(&input)) {
            Ok(count) => total += count,
            Err(_) => panic!("seed {seed} fails with {} bytes", input.len()),
        }
    }
    total
}

/// The counts show that the bodies get somewhere: handshakes succeed, requests are answered.
#[test]
fn handshake_survives_random_input() {
    let begun = run(|input| usize::from(fuzz::handshake(input)), 4000, 1500);
    assert!(begun > 250, "only {begun} handshakes succeeded");
}

#[test]
fn stream_survives_random_input() {
    let replies = run(fuzz::stream, 4000, 2000);
    assert!(replies > 20_000, "only {replies} replies");
}

#[test]
fn empty_input_is_input() {
    fuzz::handshake(&[]);
    fuzz::stream(&[]);
}
