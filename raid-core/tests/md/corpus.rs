//! The fuzz bodies over the committed corpora, and over mutations of them.

use std::fs;
use std::path::Path;

use raid_core::md::fuzz;

type Body = fn(&[u8]);

const BODIES: [(&str, Body); 6] = [
    ("superblock", fuzz::fuzz_superblock),
    ("members", fuzz::fuzz_members),
    ("bitmap", fuzz::fuzz_bitmap),
    ("bad_blocks", fuzz::fuzz_bad_blocks),
    ("ppl", fuzz::fuzz_ppl),
    ("journal", fuzz::fuzz_journal),
];

/// Rounds of mutation for each seed; `URAID_FUZZ_ROUNDS` asks for more.
fn rounds() -> u64 {
    std::env::var("URAID_FUZZ_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(300)
}

#[test]
fn bodies() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut state = 1_u64;
    let mut random = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) as usize % bound
    };
    for (name, body) in BODIES {
        let entries = fs::read_dir(corpus.join(name)).unwrap();
        let mut seeds: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        seeds.sort();
        assert!(!seeds.is_empty(), "{name}");
        for path in seeds {
            let packed = fs::File::open(&path).unwrap();
            let seed = zstd::decode_all(packed).unwrap();
            body(&seed);
            for _ in 0..rounds() {
                let mut bytes = seed.clone();
                for _ in 0..=random(3) {
                    // Where the fields are, as a rule.
                    let end = if random(4) == 0 { bytes.len() } else { bytes.len().min(640) };
                    let at = random(end);
                    match random(4) {
                        0 => bytes[at] ^= 1 << random(8),
                        1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random(5)],
                        2 => {
                            let len = 4.min(bytes.len() - at);
                            bytes[at..at + len].fill([0, 0xff][random(2)]);
                        }
                        _ => bytes[at] = random(256) as u8,
                    }
                }
                if random(16) == 0 {
                    bytes.truncate(random(bytes.len()));
                }
                body(&bytes);
            }
        }
    }
}
