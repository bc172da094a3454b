//! The suite over a network in memory that moves payloads as RDMA does.
#![cfg(feature = "sim")]

#[path = "suite/calls.rs"]
mod calls;
#[path = "suite/faults.rs"]
mod faults;
mod support;

use std::sync::{Arc, LazyLock};
use weft_net::{Fabric, Transport};

/// Where servers are reached.
fn host() -> &'static str {
    "127.0.0.1"
}

/// What the suite runs over.
fn transport() -> Arc<dyn Transport> {
    static FABRIC: LazyLock<Arc<Fabric>> = LazyLock::new(Fabric::new);
    FABRIC.host("127.0.0.1")
}
