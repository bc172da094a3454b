//! Where the answer to one request goes: the way that the request came.

use super::device::Device;
use super::ring_entry::RingEntry;
use crate::abi::{Answer, Encoded};
use std::sync::Arc;

/// Where the answer to one request goes.
#[derive(Clone)]
pub enum Route {
    Device(Arc<Device>),
    Ring(Arc<RingEntry>),
}

impl Route {
    /// Sends the answer, from any thread. The kernel may not want it any more: the caller is gone.
    pub fn answer(&self, unique: u64, answer: &Answer) {
        let encoded = Encoded::new(unique, answer);
        match self {
            Self::Device(device) => device.answer(&encoded),
            Self::Ring(entry) => entry.answer(&encoded),
        }
    }
}
