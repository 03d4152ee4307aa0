//! The arithmetic of figures: medians, spreads, ratios and units.
//!
//! Rates are kept in bytes (or operations) a second; units come in only where they are shown, and
//! are always named: MB is 10^6 bytes, MiB is 2^20.

use serde::Serialize;

/// Bytes of a megabyte, the unit that drives and benchmarks are sold in.
pub(crate) const MB: f64 = 1e6;
/// Bytes of a mebibyte, the unit that memory and partitions come in.
pub(crate) const MIB: f64 = 1_048_576.0;

/// What the samples of one figure come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// The middle sample, or the mean of the two middle ones.
    pub(crate) median: f64,
    /// The middle half of the samples as a part of the median: 0.1 means that half of them lie
    /// within a tenth of it.
    pub(crate) spread: f64,
    /// The least and the greatest sample.
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Summary {
    /// Sums samples up. Without samples all is zero.
    pub(crate) fn of(samples: impl IntoIterator<Item = f64>) -> Self {
        let mut samples: Vec<f64> = samples.into_iter().collect();
        samples.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (samples.first(), samples.last()) else {
            return Self::default();
        };
        let median = quantile(&samples, 0.5);
        let middle_half = quantile(&samples, 0.75) - quantile(&samples, 0.25);
        let spread = if median > 0.0 { middle_half / median } else { 0.0 };
        Self { median, spread, min, max }
    }
}

/// The value below which a part of sorted samples lies, between two of them in proportion.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    let share = place - place.floor();
    sorted[below] * (1.0 - share) + sorted[above] * share
}

/// The median of the ratios of samples that were taken in turns: what moved both in one round
/// cancels out.
pub(crate) fn paired_ratio(achieved: &[f64], limits: &[f64]) -> f64 {
    let ratios = achieved.iter().zip(limits).map(|(a, limit)| ratio(*a, *limit));
    Summary::of(ratios).median
}

/// How much of a limit was reached; zero where there is no limit.
pub(crate) fn ratio(achieved: f64, limit: f64) -> f64 {
    if limit > 0.0 { achieved / limit } else { 0.0 }
}

/// What a mean of times or rates of different weight would hide: total work over total time.
pub(crate) fn rate(amount: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { amount as f64 / seconds } else { 0.0 }
}

/// A size as it is typed: a number of bytes, or one with K, M, G or T (powers of 1024).
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size; 512, 64K, 256M and 1G are");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        _ => return Err(wrong()),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let bytes = number * (1_u64 << shift) as f64;
    let fits = number >= 0.0 && bytes.fract() == 0.0 && bytes < (1_u64 << 53) as f64;
    if fits { Ok(bytes as u64) } else { Err(wrong()) }
}

/// A size for people, in powers of 1024: 512, 64K, 1.5M.
pub(crate) fn short_size(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let Some((shift, unit)) = units.into_iter().find(|(shift, _)| bytes >> shift > 0) else {
        return bytes.to_string();
    };
    let number = bytes as f64 / (1_u64 << shift) as f64;
    if number.fract() == 0.0 { format!("{number}{unit}") } else { format!("{number:.1}{unit}") }
}

/// A number with three digits that count, and commas: 12,300, 123, 1.23.
pub(crate) fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        below if below >= 100.0 || below == 0.0 => 0,
        below if below >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), None), |(w, r)| (w, Some(r)));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("-", whole));
    let mut grouped = String::from(sign);
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if let Some(rest) = rest {
        grouped.push('.');
        grouped += rest;
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spreads_are_those_of_the_middle() {
        let summary = Summary::of([5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!(summary, Summary { median: 3.0, spread: 2.0 / 3.0, min: 1.0, max: 5.0 });
        // One sample that went wrong moves neither.
        let noisy = Summary::of([100.0, 101.0, 99.0, 100.0, 1.0]);
        assert_eq!(noisy.median, 100.0);
        assert!(noisy.spread < 0.011, "{noisy:?}");
        assert_eq!(Summary::of([2.0, 4.0]).median, 3.0);
        assert_eq!(Summary::of([7.0]), Summary { median: 7.0, spread: 0.0, min: 7.0, max: 7.0 });
        assert_eq!(Summary::of([]), Summary::default());
    }

    /// A machine that is slow in one round is slow for both.
    #[test]
    fn ratios_are_taken_within_a_round() {
        assert_eq!(paired_ratio(&[90.0, 45.0, 9.0], &[100.0, 50.0, 10.0]), 0.9);
        assert_eq!(ratio(1.0, 0.0), 0.0);
        assert_eq!(rate(10, 0.0), 0.0);
        assert_eq!(rate(10, 4.0), 2.5);
    }

    #[test]
    fn sizes_are_powers_of_1024_and_come_back() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("0.5K", 512),
            ("64K", 65536),
            ("1.5M", 1_572_864),
            ("2g", 2 << 30),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "-1", "1X", "0.3", "1e30", "NaN", "64 K"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        for (bytes, text) in
            [(0, "0"), (512, "512"), (1536, "1.5K"), (64 << 20, "64M"), (1 << 40, "1T")]
        {
            assert_eq!(short_size(bytes), text);
        }
    }

    #[test]
    fn figures_have_three_digits_and_commas() {
        for (value, text) in [
            (0.0, "0"),
            (0.931, "0.93"),
            (9.996, "10.00"),
            (12.34, "12.3"),
            (123.4, "123"),
            (1234.0, "1,234"),
            (1_234_567.0, "1,234,567"),
            (-1234.0, "-1,234"),
        ] {
            assert_eq!(figure(value), text);
        }
        assert!((MIB / MB - 1.048_576).abs() < 1e-12);
    }
}
