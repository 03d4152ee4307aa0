//! What is flagged, and what is not.

#![allow(clippy::unwrap_used, reason = "a test fails where its helper does")]

use super::*;
use crate::machine::CpuTime;

fn sample() -> Sample {
    Sample {
        reads: crate::job::Count { ops: 1000, bytes: 4_096_000, ..Default::default() },
        writes: Default::default(),
        seconds: 0.5,
        seconds_wanted: 0.5,
        durable: (0, 0.0),
        depth: 8,
        depth_achieved: 7.9,
        cpu: CpuTime::default(),
        looked: 100,
        zero: 0,
        compressible: 0,
        region_bytes: 1 << 30,
        passes: 0.1,
    }
}

const FILES: Circumstances =
    Circumstances { kind: MemberKind::File, direct: true, cache_bytes: 32 << 20 };

#[test]
fn an_honest_sample_has_no_flag() {
    assert_eq!(flags(&[sample(), sample()], 0.05, FILES), Vec::<String>::new());
}

#[test]
fn what_makes_a_row_worthless_is_flagged() {
    let cases: [(&str, Sample, f64, Circumstances); 8] = [
        ("unwritten", Sample { zero: 50, ..sample() }, 0.0, FILES),
        ("compressible", Sample { compressible: 2, ..sample() }, 0.0, FILES),
        ("cached", sample(), 0.0, Circumstances { direct: false, ..FILES }),
        ("short working set", Sample { passes: 3.0, ..sample() }, 0.0, FILES),
        (
            "short working set",
            Sample { region_bytes: 32 << 20, ..sample() },
            0.0,
            Circumstances { kind: MemberKind::Memory, ..FILES },
        ),
        ("short: ", Sample { seconds: 0.1, ..sample() }, 0.0, FILES),
        ("depth 3.0 of 8", Sample { depth_achieved: 3.0, ..sample() }, 0.0, FILES),
        ("noisy", sample(), 0.3, FILES),
    ];
    for (flag, sample, spread, from) in cases {
        let flags = flags(&[sample], spread, from);
        assert_eq!(flags.len(), 1, "{flag}: {flags:?}");
        assert!(flags[0].starts_with(flag), "{flags:?}");
    }
    // Members that keep nothing cannot give back what was written.
    let null = Circumstances { kind: MemberKind::Null, ..FILES };
    assert_eq!(flags(&[Sample { zero: 100, ..sample() }], 0.0, null), Vec::<String>::new());
}

#[test]
fn a_figure_above_its_limit_is_flagged() {
    let mut flags = Vec::new();
    flag_ratio(&mut flags, 1.04);
    assert_eq!(flags.len(), 0);
    flag_ratio(&mut flags, 1.06);
    assert!(flags[0].starts_with("above the limit"), "{flags:?}");
}

#[test]
fn figures_of_samples_are_their_medians() {
    let one = |micros: u64| {
        let mut sample = sample();
        sample.reads.latency.record(micros * 1000).unwrap();
        sample
    };
    let figures = Figures::of(&[one(10), one(20), one(90)]);
    assert!((figures.p50_us / 20.0 - 1.0).abs() < 0.01, "{figures:?}");
    assert_eq!(figures.depth_achieved, 7.9);
    assert_eq!(Unit::Bytes.of(&sample()), 8_192_000.0);
    assert_eq!(Unit::Operations.of(&sample()), 2000.0);
}
