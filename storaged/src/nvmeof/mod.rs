//! Drives behind NVMe over Fabrics: finding, connecting and keeping them, through the kernel's own
//! initiator.
//!
//! - [`Remote`]: which namespace of which subsystem behind which addresses, as an admin writes it.
//! - [`Options`]: how to connect: timeouts, queues, identity of this host, secrets.
//! - [`discover`]: what a discovery controller offers.
//! - [`connect`], [`disconnect`]: one path, by `/dev/nvme-fabrics`.
//! - [`controllers`], [`namespaces`]: what the kernel shows in sysfs.
//! - [`attach`], [`connect_all`], [`is_live`]: all paths of one namespace, and its block device.
//!
//! Invariants: a namespace is known by the NQN of its subsystem and its own UUID, NGUID or EUI-64,
//! never by `/dev/nvmeXnY`, whose numbers change with every connection; where the kernel has native
//! multipath, the device is the multipath head and the choice of the path is the kernel's; secrets
//! appear in no message.

mod admin;
mod attach;
mod connect;
mod discovery;
mod host;
mod options;
mod remote;
mod sysfs;

pub use attach::{attach, connect_all, is_live, lost_paths};
pub use connect::{connect, disconnect};
pub use discovery::{DISCOVERY_NQN, Found, Log, discover};
pub use host::Host;
pub use options::Options;
pub use remote::{Address, DEFAULT_PORT, DISCOVERY_PORT, NamespaceId, Remote, Transport};
pub use sysfs::{Controller, Namespace, Roots, controllers, namespaces};
