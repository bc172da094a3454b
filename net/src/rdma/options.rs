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
    /// How long a connection's task looks for what the card has done before it sleeps until the
    /// card wakes it, microseconds: what comes meanwhile is taken at once, for a core's time.
    pub busy_poll_us: u32,
    /// Servers that cannot be reached over RDMA cannot be reached.
    #[serde(skip)]
    pub required: bool,
}

impl RdmaOptions {
    pub(super) fn busy_poll(&self) -> Duration {
        Duration::from_micros(self.busy_poll_us.into())
    }
}
