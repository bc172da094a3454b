//! The suite over a network in memory that moves payloads as RDMA does, by connections that look
//! for what their card has done instead of sleeping.
#![cfg(feature = "sim")]

#[path = "suite/calls.rs"]
mod calls;
#[path = "suite/faults.rs"]
mod faults;
mod support;

use std::sync::{Arc, LazyLock};
use std::time::Duration;
use weft_net::{Fabric, Transport};

/// Where servers are reached.
fn host() -> &'static str {
    "127.0.0.1"
}

/// What the suite runs over.
fn transport() -> Arc<dyn Transport> {
    static FABRIC: LazyLock<Arc<Fabric>> =
        LazyLock::new(|| Fabric::with_busy_poll(Duration::from_millis(1)));
    FABRIC.host("127.0.0.1")
}
