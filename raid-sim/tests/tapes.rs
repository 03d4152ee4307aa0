//! Stories told by tapes of bytes, as a fuzzer tells them: the committed ones, and mutations.

use std::fs;
use std::path::Path;

use raid_sim::run_tape;

/// Mutations of each tape; `URAID_FUZZ_ROUNDS` asks for more.
fn rounds() -> u64 {
    std::env::var("URAID_FUZZ_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(40)
}

#[test]
fn tapes_and_their_mutations_break_no_promise() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/stories");
    let mut paths: Vec<_> =
        fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut state = 1_u64;
    let mut random = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) as usize % bound
    };
    let (mut stories, mut crashes, mut losses) = (0, 0, 0);
    for path in paths {
        let tape = fs::read(&path).unwrap();
        for round in 0..=rounds() {
            let mut bytes = tape.clone();
            // The first round is the tape itself.
            for _ in 0..round.min(1) * (1 + random(6) as u64) {
                let at = random(bytes.len());
                match random(3) {
                    0 => bytes[at] ^= 1 << random(8),
                    1 => bytes[at] = random(256) as u8,
                    _ => bytes.truncate(at.max(8)),
                }
            }
            let verdict = run_tape(&bytes);
            let name = path.display();
            assert!(
                verdict.violation.is_none(),
                "{name} {round}: {:?} {bytes:?}",
                verdict.violation
            );
            stories += 1;
            crashes += verdict.counts.kills + verdict.counts.power_cuts;
            losses += verdict.counts.losses;
        }
    }
    println!("{stories} stories, {crashes} crashes, {losses} losses");
    assert!(crashes > stories / 2 && losses > stories / 20);
}

/// A tape decides: its story is the same each time, and another byte makes another one.
#[test]
fn a_tape_tells_one_story() {
    let tape: Vec<u8> = (0..400_u32).map(|at| (at * 37 % 251) as u8).collect();
    let first = run_tape(&tape);
    assert_eq!(run_tape(&tape).trace, first.trace);
    let mut other = tape.clone();
    other[3] ^= 0x40;
    other[1] ^= 0x11;
    assert_ne!(run_tape(&other).trace, first.trace);
    // No tape at all tells one too.
    assert!(run_tape(&[]).violation.is_none());
}
