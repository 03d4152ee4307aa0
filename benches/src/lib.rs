//! Criterion benches of the workspace live in `benches/benches`; this crate has no code of its own.
