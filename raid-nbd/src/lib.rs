//! An NBD server for arrays: codec and connection state are pure, the server is thin.
//!
//! ```text
//! socket -> server::peer -> connection (pure) -> server::worker -> backend::Queue -> the engine
//! ```
//!
//! - [`proto`]: bytes to messages and back.
//! - [`export`]: what is served.
//! - [`connection`]: one client's session as a state machine without sockets or clock.
//! - [`backend`]: what the server needs of an array.
//! - [`server`]: sockets, threads, limits.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod backend;
pub mod connection;
pub mod export;
#[doc(hidden)]
pub mod fuzz;
pub mod proto;
pub mod server;

pub use server::{Listen, Server, ServerError, ServerOptions, Stopped};
