//! The metadata part against what Linux md wrote, against bytes that nobody should write, and
//! against hand-made stories.

mod assemble;
mod bad_blocks;
mod bitmap;
mod corpus;
mod create;
mod examine;
mod images;
mod journal;
mod malformed;
mod old;
mod peer;
mod ppl;
mod update;
