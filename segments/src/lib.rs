//! Segments on storage targets: [`Segments::put`] makes one durable somewhere, [`Segments::get`]
//! reads verified bytes of one, [`Segments::rebuild`] makes a chunk of the others. For whoever
//! moves data: a client's files, and what the cluster does by itself.
//!
//! Top first: [`Segments`] with `put` and `get` (which asks as many shards as it needs by `gather`,
//! and rebuilds); `place` chooses targets by the [`Map`] and what is known of their `health`;
//! `leftovers` are chunks to be deleted; [`TargetClient`] asks one target, and shows it
//! `tickets`.
//!
//! What holds here:
//! - A segment is answered only when every shard was acknowledged durable, m parity shards always
//!   among them (I1).
//! - Every byte that a read answers was checked against its checksum here (I3).
//! - What an attempt left behind is deleted, or belongs to a session that ends (I7).

#![warn(missing_docs)]

mod coalesce;
mod gather;
mod get;
mod health;
mod leftovers;
mod map;
mod outage;
mod place;
mod put;
mod rebuild;
mod rng;
mod segment;
mod segments;
mod target;
mod tickets;
mod watch;

pub use coalesce::coalesce;
pub use map::{Map, Pg, Target};
pub use outage::Outage;
pub use rng::Rng;
pub use segment::{Segment, Writer};
pub use segments::{Counters, Segments, Timeouts};
pub use target::{ListPage, TargetClient};
pub use tickets::{Allowed, TicketBook, TicketKey};
pub use watch::MapWatch;
