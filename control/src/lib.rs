//! The way to the control plane: the metadata servers' gRPC service.
//!
//! - [`dial()`]: a connection to one server, over the transport of the process.
//! - [`Group`]: calls that only the leader answers, wherever it is.
//! - [`status_of`], [`statuses`], [`leader_of`]: what servers say of themselves and of the cluster.
//! - [`problems`]: what is wrong, the worst first; [`Overview`]: all of it at a glance.
//! - [`serve_pages`]: pages over HTTP/1, on the port of a daemon.
//! - [`watch_map`]: the cluster map and its changes, from one server.
//! - [`to_status`], [`from_status`]: errors as they cross gRPC.
//!
//! Invariant: no wait is without an end but that for the next change of the map, whose connection
//! is kept alive by pings.
#![warn(missing_docs)]

mod backup;
mod dial;
mod group;
mod map;
mod overview;
mod pages;
mod problems;
mod status;
mod wire;

pub use backup::{Backup, backup};
pub use dial::{Client, dial};
pub use group::{Group, Question, members_first};
pub use map::{News, watch_map};
pub use overview::{Capacity, Daemon, Directory, Happened, Load, Overview, Repair, Scrub};
pub use overview::{Server, Session, TargetLine, Tenant};
pub use pages::{Answer, Page, Pages, Reader, Values, metrics, serve as serve_pages};
pub use problems::{Problem, Severity, headline, health, problems};
pub use status::{Answers, leader_of, leader_status, status_of, statuses};
pub use wire::{from_status, to_status};
