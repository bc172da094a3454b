//! Tests of the storage daemon through its public API.

mod daemon;
mod encryption;
mod engine;
mod failing;
mod forgotten;
mod kill;
mod late;
mod losses;
mod metadata;
mod moves;
mod power;
mod support;
mod tenants;
