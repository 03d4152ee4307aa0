//! The project's own rules about its files, as a test too.
//!
//! - Rust: lines of 100 columns at most, 600 lines outside tests at most, nothing left to do in
//!   code.
//! - Markdown: one title, on the first line.
//! - All text: no tab in Rust, no space at a line's end, a line end at the end.

use std::fs;
use std::path::{Path, PathBuf};

const COLUMNS_MAX: usize = 100;
const LINES_MAX: usize = 600;
/// Folders that hold no text of ours.
const SKIPPED: [&str; 5] = ["target", ".git", "uraid-data", "golden", "corpus"];
/// Split, so that this file may name them.
const UNFINISHED: [&str; 4] = [
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

/// The folder of the workspace.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Looks at every file; prints and counts what is against the rules.
pub(crate) fn run() -> Result<(), String> {
    let mut problems = Vec::new();
    walk(&root(), &mut problems)?;
    for problem in &problems {
        eprintln!("{problem}");
    }
    match problems.len() {
        0 => Ok(()),
        count => Err(format!("tidy: {count} problems")),
    }
}

fn walk(folder: &Path, problems: &mut Vec<String>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_symlink() || SKIPPED.contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            walk(&path, problems)?;
        } else if let Ok(text) = fs::read_to_string(&path) {
            let shown = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
            let found = match path.extension().and_then(|extension| extension.to_str()) {
                Some("rs") => rust(&text, is_test(&path)),
                Some("md") => markdown(&text),
                _ => continue,
            };
            problems.extend(found.into_iter().map(|problem| format!("{shown}{problem}")));
        }
    }
    Ok(())
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests")
        || path.file_stem().is_some_and(|stem| stem == "tests")
}

fn rust(text: &str, is_test: bool) -> Vec<String> {
    let mut problems = common(text);
    for (number, line) in (1..).zip(text.lines()) {
        let columns = line.chars().count();
        // A long string or link cannot be broken.
        if columns > COLUMNS_MAX && !line.contains("://") {
            problems.push(format!(":{number}: {columns} columns, more than {COLUMNS_MAX}"));
        }
        if line.contains('\t') {
            problems.push(format!(":{number}: a tab"));
        }
        for word in UNFINISHED.iter().filter(|word| line.contains(*word)) {
            problems.push(format!(":{number}: {word}"));
        }
    }
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..end].lines().count();
    if lines > LINES_MAX && !is_test {
        problems.push(format!(": {lines} lines, more than {LINES_MAX}"));
    }
    problems
}

fn markdown(text: &str) -> Vec<String> {
    let mut problems = common(text);
    let mut in_code = false;
    let mut titles = 0;
    for line in text.lines() {
        in_code ^= line.trim_start().starts_with("```");
        titles += usize::from(!in_code && line.starts_with("# "));
    }
    if titles != 1 || !text.starts_with("# ") {
        problems.push(format!(": {titles} titles, not one on the first line"));
    }
    problems
}

fn common(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.ends_with([' ', '\t']) {
            problems.push(format!(":{number}: a space at the end of the line"));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        problems.push(": no line end at the end".to_owned());
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules hold for every file of the workspace.
    #[test]
    fn the_workspace_is_tidy() {
        assert_eq!(run(), Ok(()));
    }

    #[test]
    fn broken_rules_are_found() {
        assert_eq!(rust("fn a() {}\n", false), [""; 0]);
        assert_eq!(rust(&format!("// {}\n", "x".repeat(98)), false).len(), 1);
        assert_eq!(rust(&format!("    {}\n", UNFINISHED[0]), false).len(), 1);
        assert_eq!(rust(&"\n".repeat(601), false).len(), 1);
        let tests =
            format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", "\n".repeat(10), "\n".repeat(700));
        assert_eq!(rust(&tests, false), [""; 0]);
        assert_eq!(markdown("# A\n\n```sh\n# a comment\n```\n"), [""; 0]);
        assert_eq!(markdown("# A\n\n# B\n").len(), 1);
        assert_eq!(markdown("text\n").len(), 1);
        assert_eq!(rust("fn a() {} \n", false).len(), 1);
        assert_eq!(rust("fn a() {}", false).len(), 1);
    }
}
