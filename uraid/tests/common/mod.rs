//! What the tests of the command share.
#![allow(dead_code, unreachable_pub, reason = "every test binary uses its own part of this module")]

pub mod rawcheck;
