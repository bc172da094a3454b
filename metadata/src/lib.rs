//! The metadata server: a Raft node, the replicated state machine, and what the leader does beside.
//!
//! | module | what it holds |
//! |---|---|
//! | [`state`], `ops`, `schema`, `store` | the state machine: deterministic, no clock, no socket |
//! | `upgrade` | takes over the state of an older version |
//! | `raftlog`, `node` | the log on disk and the event loop that owns Raft |
//! | `replication`, `snapshot` | Raft messages and state snapshots between servers |
//! | `server`, `control` | the framed service of clients; gRPC for daemons and people |
//! | `sessions`, `targets` | soft state of the leader: who lives, what is open |
//! | `map_changes` | what led to the newest cluster map, for those who have one of the last |
//! | `lock_waits` | whose turn it is to take a lock; the locks are replicated (`ops/locks`) |
//! | `leader`, `gc`, `placement` | the leader's duties |
//! | [`config`], [`env`], `identity`, `run` | settings, seams to the world, start and stop |
//! | `join` | how a server that lost its disk comes back |
//!
//! [`run()`] is the whole server; [`run_in`] runs it on a simulated network, clock and seed.

pub mod config;
mod conflicts;
mod control;
pub mod env;
mod gc;
mod identity;
mod join;
mod leader;
#[doc(hidden)] // For the example that measures it.
pub mod leases;
mod lock_waits;
mod map_changes;
mod node;
mod ops;
mod placement;
mod raftlog;
mod replication;
mod run;
mod schema;
mod server;
mod sessions;
mod snapshot;
pub mod state;
mod store;
mod targets;
mod upgrade;
mod worker;

pub use config::{Config, Member};
pub use env::{Clock, Env, SystemClock};
pub use run::{bootstrap, run, run_in};
pub use state::StateMachine;
