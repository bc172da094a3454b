//! The suite over real queue pairs, on the device of this machine: a card, or soft-RoCE or
//! soft-iWARP as in the guest of `tests/vm`, which runs this.

#[path = "suite/calls.rs"]
mod calls;
#[path = "suite/faults.rs"]
mod faults;
#[path = "suite/memory.rs"]
mod memory;
mod support;

use std::sync::Arc;
use weft_net::{RdmaOptions, Transport, rdma, tcp};

/// Whether the other side writes into memory that was given to a call.
const WRITES_LATE: bool = true;

/// Where servers are reached: an address of an interface that has an RDMA device.
fn host() -> String {
    std::env::var("WEFT_TEST_RDMA").expect("WEFT_TEST_RDMA is an address with an RDMA device")
}

/// What the suite runs over.
fn transport() -> Arc<dyn Transport> {
    let poll =
        std::env::var("WEFT_TEST_RDMA_BUSY_POLL").map(|us| us.parse().expect("microseconds"));
    let busy_poll_us = poll.unwrap_or_default();
    let options = RdmaOptions { required: true, busy_poll_us, ..RdmaOptions::default() };
    rdma(tcp(), options).expect("there is RDMA here")
}
