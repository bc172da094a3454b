//! A group of three metadata servers in one process, over real TCP and real disk.

mod support;

mod faults;
mod leases;
mod liveness;
mod members;
mod orphans;
mod replication;
mod room;
mod stops;
mod targets;
