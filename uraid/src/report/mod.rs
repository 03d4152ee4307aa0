//! Views of an array for people and scripts; all of them are functions of values.

pub(crate) mod bar;
pub(crate) mod detail;
pub(crate) mod examine;
pub(crate) mod mdstat;
pub(crate) mod metrics;
pub(crate) mod progress;
pub(crate) mod status;
pub(crate) mod story;

use serde::Serialize;

use crate::failure::Failure;

/// Renders a value as indented JSON with a line end.
///
/// # Errors
/// Fails if the value has no JSON form.
pub(crate) fn json(value: &impl Serialize) -> Result<String, Failure> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}
