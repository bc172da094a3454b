//! The storage daemon: keeps chunks on its targets and serves them. It never asks the metadata
//! group anything in the data path; it registers its targets there and sends heartbeats.
//!
//! - [`engine`]: one target: format, allocator, journal, index, I/O.
//! - [`run`], [`Daemon`]: the process: targets behind the framed chunk service.
//! - [`Config`]: its file; [`Location`]: where a drive is.
//! - [`nvmeof`]: drives behind a fabric.

mod backpressure;
mod compact;
mod config;
mod daemon;
pub mod engine;
mod keeper;
mod latency;
mod lateness;
mod load;
mod location;
mod metrics;
pub mod nvmeof;
mod order_writer;
mod pace;
mod rebuild;
mod scrub;
mod service;
mod sharing;
mod tickets;

pub use config::{Clock, Config, Target};
pub use daemon::{Daemon, run};
pub use location::Location;
