//! How a command ends when it did not do what was asked: one clear line, and an exit code.

use std::fmt;

/// A failure as the user sees it.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code: 1 failed, 2 wrong usage; `detail --test` has its own.
    pub(crate) code: u8,
    message: String,
}

impl Failure {
    /// Something asked for could not be done.
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self { code: 1, message: message.to_string() }
    }

    /// What was typed makes no sense.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self { code: 2, message: message.to_string() }
    }

    /// The same failure under another exit code.
    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }
}

/// One line, whatever a library or a file name had in it.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |c: char| if c.is_control() { ' ' } else { c };
        f.write_str(&self.message.chars().map(line).collect::<String>())
    }
}

impl From<raid_io::Error> for Failure {
    fn from(error: raid_io::Error) -> Self {
        Self::new(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::new(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        assert_eq!(Failure::new("a\nb\tc").to_string(), "a b c");
    }
}
