//! The driver for Kubernetes, as an orchestrator calls it: every call, with good and bad input,
//! against a real cluster and with real mounts; what dies comes back.

mod calls;
mod container;
mod deleting;
mod leaving;
mod manifests;
mod nodes;
mod plugin;
mod recovery;
