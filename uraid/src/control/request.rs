//! What can be asked over the control socket: one JSON object in one line.
//!
//! ```text
//! {"verb":"status"}   {"verb":"fail","member":"/data/b.img"}   {"verb":"set-speed","max":4096}
//! ```
//!
//! A field that the verb does not have is refused, not ignored: a request is done wholly or not at
//! all.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Every verb, as it is written.
pub(crate) const VERBS: [&str; 16] = [
    "status",
    "detail",
    "metrics",
    "stop",
    "events",
    "test-message",
    "wait",
    "fail",
    "remove",
    "add",
    "re-add",
    "replace",
    "check",
    "repair",
    "stop-check",
    "set-speed",
];

/// One request. Member paths are as the serving process sees them; clients send absolute ones.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Request {
    /// [`raid_io::Status`].
    Status {},
    /// [`raid_io::Detail`].
    Detail {},
    /// Prometheus text.
    Metrics {},
    /// Drain, flush, mark clean, end.
    Stop {},
    /// Events from now on, a line each, until one side closes.
    Events {},
    /// Sends the event `TestMessage` down every path that events take.
    TestMessage {},
    /// Answered when no resync, recovery or check goes on.
    Wait {},
    /// Takes a member for broken.
    Fail {
        /// The member.
        member: PathBuf,
    },
    /// Lets go of a member that is faulty or a spare.
    Remove {
        /// The member.
        member: PathBuf,
    },
    /// Takes a device in: as what it was if it can catch up, else as a new spare.
    Add {
        /// The device.
        member: PathBuf,
        /// Even if it looks like somebody's data.
        #[serde(default, skip_serializing_if = "is_false")]
        force: bool,
    },
    /// Takes a member back that can catch up; refused where it would have to be filled anew.
    ReAdd {
        /// The device.
        member: PathBuf,
    },
    /// Copies a member in use to another one, which then takes its slot.
    Replace {
        /// The member to be replaced.
        member: PathBuf,
        /// Its successor; a spare when not given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        with: Option<PathBuf>,
    },
    /// Compares copies and parity with the data.
    Check {},
    /// As check, and makes right what can be proved; where nothing can, redundancy is made to agree
    /// with the data if that is to be trusted.
    Repair {
        /// It is.
        #[serde(default, skip_serializing_if = "is_false")]
        trust_data: bool,
    },
    /// Ends a check or repair.
    #[serde(alias = "idle")]
    StopCheck {},
    /// Limits background work, in bytes of each member in a second; what is not given stays.
    SetSpeed {
        /// At least this, whatever clients do.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        min: Option<u64>,
        /// At most this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max: Option<u64>,
    },
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    /// Returns a sentence about what is wrong with the line.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, String> {
        let object: Map<String, Value> =
            serde_json::from_slice(line).map_err(|error| format!("not a request: {error}"))?;
        let Some(verb) = object.get("verb").and_then(Value::as_str) else {
            return Err("not a request: it has no text \"verb\"".to_owned());
        };
        if !VERBS.contains(&verb) && verb != "idle" {
            return Err(format!("unknown verb {verb:?}; known are {}", VERBS.join(", ")));
        }
        let verb = verb.to_owned();
        serde_json::from_value(Value::Object(object)).map_err(|error| format!("{verb}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Request, String> {
        Request::parse(text.as_bytes())
    }

    #[test]
    fn requests_are_read_with_their_fields() {
        assert_eq!(parse(r#"{"verb":"status"}"#), Ok(Request::Status {}));
        assert_eq!(parse(r#"{"verb":"idle"}"#), Ok(Request::StopCheck {}));
        assert_eq!(
            parse(r#"{"verb":"re-add","member":"/a"}"#),
            Ok(Request::ReAdd { member: "/a".into() })
        );
        assert_eq!(
            parse(r#"{"member":"/a","with":"/b","verb":"replace"}"#),
            Ok(Request::Replace { member: "/a".into(), with: Some("/b".into()) })
        );
        assert_eq!(
            parse(r#"{"verb":"add","member":"/a","force":true}"#),
            Ok(Request::Add { member: "/a".into(), force: true })
        );
        assert_eq!(parse(r#"{"verb":"repair"}"#), Ok(Request::Repair { trust_data: false }));
        assert_eq!(
            parse(r#"{"verb":"set-speed","max":1024}"#),
            Ok(Request::SetSpeed { min: None, max: Some(1024) })
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, word) in [
            (r#"{"verb":"explode"}"#, "unknown verb \"explode\"; known are status, "),
            (r#"{"verb":"status","member":"/a"}"#, "status: unknown field `member`"),
            (r#"{"verb":"fail"}"#, "fail: missing field `member`"),
            (r#"{"verb":"fail","member":7}"#, "fail: invalid type"),
            (r#"{"verb":"fail","member":"/a","force":true}"#, "fail: unknown field `force`"),
            (r#"{"verb":"set-speed","max":-1}"#, "set-speed: invalid value"),
            (r#"{"verb":7}"#, "it has no text \"verb\""),
            ("{}", "it has no text \"verb\""),
            ("[]", "not a request: invalid type"),
            ("{", "not a request: EOF"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }

    /// A verb of the list that the type does not know would answer "unknown variant".
    #[test]
    fn the_list_of_verbs_is_the_types() {
        for verb in VERBS {
            let line = format!("{{\"verb\":\"{verb}\"}}");
            match parse(&line) {
                Ok(request) => {
                    let text = serde_json::to_string(&request).unwrap();
                    assert_eq!(text, line);
                }
                Err(error) => assert!(error.contains("missing field"), "{verb}: {error}"),
            }
        }
    }
}
