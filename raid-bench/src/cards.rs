//! What others have published about hardware cards and software RAID.
//!
//! None of it was run here, and none of it on this hardware: only ratios to a member of the same
//! array in the same test can stand beside ours.

use serde::{Deserialize, Serialize};

/// A system, as its author measured it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Card {
    pub(crate) id: String,
    pub(crate) system: String,
    /// "card", "software", or "member" for a disk alone.
    pub(crate) kind: String,
    pub(crate) level: String,
    pub(crate) members: u32,
    pub(crate) hardware: String,
    pub(crate) source: String,
    /// As far as it is stated.
    pub(crate) date: String,
    pub(crate) figures: Vec<Figure>,
    /// What to know before believing it.
    pub(crate) caveat: String,
    /// A run of ATTO, in its own unit, KB/s of 1024 bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) atto_kb_s: Vec<AttoFigure>,
}

/// One figure of it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Figure {
    /// The pattern, by our name where there is one.
    pub(crate) what: String,
    pub(crate) value: f64,
    /// "MB/s" (10^6) or "IOPS".
    pub(crate) unit: String,
    /// To one member, where the author measured or stated one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ratio: Option<f64>,
    /// What the ratio is to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_is: Option<String>,
    /// What so many members could give.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ideal: Option<f64>,
}

/// A line of an ATTO run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttoFigure {
    pub(crate) kib: f64,
    pub(crate) write: f64,
    pub(crate) read: f64,
}

/// All that is kept, as the data file has it.
///
/// # Errors
/// Returns an error if the data file is not what this module takes it for, which a test rules out.
pub(crate) fn all() -> Result<Vec<Card>, serde_json::Error> {
    serde_json::from_str(include_str!("../data/cards.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A figure without source is worth nothing; a ratio says what it is to.
    #[test]
    fn every_figure_has_a_source_and_every_ratio_a_base() {
        let cards = all().expect("the data file is read");
        assert!(cards.len() >= 20, "{}", cards.len());
        let mut ids: Vec<&str> = cards.iter().map(|card| card.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), cards.len(), "an id is there twice");
        for card in &cards {
            assert!(!card.source.is_empty() && !card.date.is_empty(), "{}", card.id);
            assert!(!card.hardware.is_empty() && !card.figures.is_empty(), "{}", card.id);
            assert!(["card", "software", "member"].contains(&card.kind.as_str()), "{}", card.id);
            for figure in &card.figures {
                assert!(["MB/s", "IOPS"].contains(&figure.unit.as_str()), "{}", card.id);
                assert!(figure.value > 0.0);
                assert_eq!(figure.ratio.is_some(), figure.ratio_is.is_some(), "{}", card.id);
                // What is above the ideal must be explained.
                if let (Some(ratio), Some(ideal)) = (figure.ratio, figure.ideal) {
                    assert!(ratio <= ideal || !card.caveat.is_empty(), "{}", card.id);
                }
            }
        }
    }

    #[test]
    fn the_three_tests_that_began_it_are_there() {
        let cards = all().expect("the data file is read");
        let find = |id: &str| cards.iter().find(|card| card.id == id).expect("there");
        let build = |id: &str| {
            let figures = &find(id).figures;
            figures.iter().find(|figure| figure.what == "build, a member").map(|f| f.value)
        };
        assert_eq!((build("lsi-9240-8i"), build("md-beside-9240")), (Some(15.0), Some(300.0)));
        assert_eq!(find("lsi-9260-8i").figures[2].value, 580.0);
        let atto = &find("perc-5i").atto_kb_s;
        assert_eq!((atto.len(), atto[0].write, atto[14].read), (15, 3295.0, 2_797_590.0));
    }
}
