//! Concurrent histories on a real cluster under real faults, and a checker that judges them.
//!
//! [`workload`] runs clients that append to files and fsync, [`nemesis`] kills and partitions
//! meanwhile, [`history`] records what was called and answered in the format of Jepsen's
//! list-append histories (one EDN map a line, readable by Elle), [`checker`] proves that no
//! acknowledged append is lost, doubled or reordered within a client. [`network`] gives each daemon
//! and each client a network namespace of its own.
//!
//! Invariant: a run is decided by its seed as far as real processes allow; the seed is printed.

// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

pub mod checker;
pub mod cluster;
pub mod history;
pub mod nemesis;
pub mod network;
pub mod workload;
