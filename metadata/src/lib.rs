//! The metadata server: a Raft node, the replicated state machine, and what the leader does beside.
//!
//! | module | what it holds |
//! |---|---|
//! | [`state`], `ops`, `tables`, `schema`, `store` | the state machine, top first |
//! | `operation`, `read_locked` | what an operation of the state machine is, and is told |
//! | `upgrade` | takes over the state of an older version |
//! | `raftlog`, `node` | the log on disk and the event loop that owns Raft |
//! | `replication`, `snapshot` | Raft messages and state snapshots between servers |
//! | `service`, `control` | the framed service of clients; gRPC for daemons and people |
//! | [`soft`] | soft state of the leader: sessions, opens, leases, who waits for locks, targets |
//! | `conflicts` | what a request waits for before it may be answered or proposed |
//! | `map_changes` | what led to the newest cluster map, for those who have one of the last |
//! | `compaction` | which parts of files are worth being put together in new segments |
//! | `console` | the page for browsers, and what it shows |
//! | `counted` | what a status says that has to be counted in the state |
//! | `registration` | what a daemon may say of a target |
//! | `sharing` | what tenants may have of the leader, and what they were given |
//! | `duties`, `placement` | what the leader does besides, one duty a file |
//! | [`config`], [`env`], `folder`, `identity` | settings, seams to the world, the data folder |
//! | `serving`, `run`, `join` | start and stop; how a server that lost its disk comes back |
//!
//! [`run()`] is the whole server; [`run_in`] runs it on a simulated network, clock and seed.

mod backup;
mod callers;
mod check;
mod compaction;
pub mod config;
mod conflicts;
mod console;
mod control;
mod counted;
mod duties;
pub mod env;
mod events;
mod folder;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod identity;
mod join;
mod known;
mod map_changes;
mod metrics;
mod node;
mod operation;
mod ops;
pub mod placement;
mod raftlog;
mod read_locked;
mod registration;
mod replication;
mod restore;
mod run;
mod salvage;
mod schema;
mod service;
mod serving;
mod sharing;
mod snapshot;
#[doc(hidden)] // For the example that measures it.
pub mod soft;
pub mod state;
mod store;
mod tables;
mod upgrade;
mod worker;

pub use backup::{MANIFEST, Manifest};
pub use config::{Config, Member};
pub use env::{Clock, Env, SystemClock};
pub use restore::{Restored, restore};
pub use run::{bootstrap, run, run_in};
pub use salvage::salvage;
pub use state::StateMachine;
