//! Concurrent histories on a real cluster, through real mounts, under real faults, and a checker
//! that judges them.
//!
//! A [`run`] has the [`workload`]s work on all mounts while a [`nemesis`] strikes; [`history`]
//! records what was called and answered, in Jepsen's format (one EDN map a line); [`check`] proves
//! that nothing acknowledged is lost, and that all of it could have happened in one order that
//! respects real time. [`network`] gives each daemon and each client a network namespace of its
//! own. A [`soak`] does that for hours, with an account of what each process takes.
//!
//! Invariant: a run is decided by its seed as far as real processes allow; the seed is printed.

// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

pub mod check;
pub mod cluster;
pub mod history;
pub mod nemesis;
pub mod network;
pub mod run;
pub mod soak;
pub mod workload;
