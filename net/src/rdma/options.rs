//! What is set of RDMA.

use std::net::IpAddr;
use std::time::Duration;

/// How RDMA is used.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RdmaOptions {
    /// Where a server is reached over RDMA. Empty: at the address that it listens at.
    pub addresses: Vec<IpAddr>,
    /// The traffic class of RoCE, which switches may treat as lossless.
    pub traffic_class: Option<u8>,
    /// How long the completion queue of a connection is polled before its task waits for an event,
    /// microseconds, [`Self::MAX_BUSY_POLL_US`] at most: what comes meanwhile is taken at once, for
    /// the time of a core or two.
    pub busy_poll_us: u32,
    /// Servers that cannot be reached over RDMA cannot be reached.
    #[serde(skip)]
    pub required: bool,
}

impl RdmaOptions {
    /// Whoever takes it for nanoseconds is not to lose all processors.
    pub const MAX_BUSY_POLL_US: u32 = 10_000;

    /// These, and of others what is not set here.
    pub fn or(self, others: &Self) -> Self {
        let busy_poll_us = match self.busy_poll_us {
            0 => others.busy_poll_us,
            own => own,
        };
        let traffic_class = self.traffic_class.or(others.traffic_class);
        let addresses = match self.addresses.is_empty() {
            true => others.addresses.clone(),
            false => self.addresses,
        };
        Self { addresses, busy_poll_us, traffic_class, ..self }
    }

    pub(super) fn busy_poll(&self) -> Duration {
        Duration::from_micros(self.busy_poll_us.min(Self::MAX_BUSY_POLL_US).into())
    }
}
