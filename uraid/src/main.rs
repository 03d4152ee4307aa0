//! The `uraid` command.
fn main() {}
