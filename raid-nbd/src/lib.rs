//! An NBD server for arrays: codec and connection state are pure, the server is thin.
//!
//! - [`proto`]: bytes to messages and back.
//! - [`export`]: what is served.
//! - [`connection`]: one client's session as a state machine without sockets or clock.

pub mod connection;
pub mod export;
#[doc(hidden)]
pub mod fuzz;
pub mod proto;
