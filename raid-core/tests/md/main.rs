//! The metadata part against what Linux md wrote, against bytes that nobody should write, and
//! against hand-made stories.

mod assemble;
mod create;
mod examine;
mod images;
mod malformed;
mod peer;
mod update;
