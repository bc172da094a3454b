//! Memory of calls over cards in memory. In a process of its own: others would use up what is kept
//! for reuse.
#![cfg(feature = "sim")]

#[path = "suite/memory.rs"]
mod memory;
mod support;

use std::sync::{Arc, LazyLock};
use weft_net::{Fabric, Transport};

/// Whether the other side writes into memory that was given to a call.
const WRITES_LATE: bool = true;

/// Where servers are reached.
fn host() -> &'static str {
    "127.0.0.1"
}

/// What the suite runs over.
fn transport() -> Arc<dyn Transport> {
    static FABRIC: LazyLock<Arc<Fabric>> = LazyLock::new(Fabric::new);
    FABRIC.host("127.0.0.1")
}
