//! Fair sharing of a server among tenants: who waits for whom, how fast each may be, and what each
//! was given.
//!
//! - [`Tenants`] and [`Tenant`]: who uses a server, with the weight and the rates that a [`Policy`]
//!   gives them.
//! - [`Gate`]: what a server can do at once is given to tenants by their weights, and costs nothing
//!   to wait for while there is room.
//!
//! Invariants: no request is refused here, it only waits; whoever is dropped while it waits, or
//! while it is served, gives its place back; memory grows with the tenants that are at work, up to
//! a bound.

mod bucket;
mod gate;
mod queue;
mod tenants;

pub use gate::{Class, Gate, Pass, Window};
pub use tenants::{Limits, Policy, Served, Tenant, Tenants};
