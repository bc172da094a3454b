//! The driver for Kubernetes, as an orchestrator calls it: every call, with good and bad input,
//! against a real cluster and with real mounts; what dies comes back.

// Real processes live in real time: what must not happen is waited for a while.
#![allow(clippy::disallowed_methods)]

mod calls;
mod container;
mod deleting;
mod leaving;
mod manifests;
mod nodes;
mod plugin;
mod recovery;
mod restored;
