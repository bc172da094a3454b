//! Faults, one after the other, drawn from a seed: kill and restart of daemons and of the leader,
//! partition of one host from all others.
//!
//! Invariant: at most m storage daemons and a minority of metadata servers are gone at once, so
//! that acknowledged data must survive (I2); every fault is undone before the next.

use crate::cluster::Cluster;
use anyhow::Result;
use rand::{Rng, rngs::SmallRng};
use std::time::Duration;
use weft_tests::eventually;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    KillLeader,
    KillMetadata(usize),
    KillStorage(usize, usize),
    CutLeader,
    CutMetadata(usize),
    CutStorage(usize, usize),
    CutClient(usize),
}

impl Fault {
    /// Draws one.
    pub fn draw(rng: &mut SmallRng, clients: usize) -> Self {
        let pair = |rng: &mut SmallRng| {
            let a = rng.random_range(0..6);
            (a, (a + rng.random_range(1..6)) % 6)
        };
        match rng.random_range(0..7) {
            0 => Self::KillLeader,
            1 => Self::KillMetadata(rng.random_range(0..3)),
            2 => {
                let (a, b) = pair(rng);
                Self::KillStorage(a, b)
            }
            3 => Self::CutLeader,
            4 => Self::CutMetadata(rng.random_range(0..3)),
            5 => {
                let (a, b) = pair(rng);
                Self::CutStorage(a, b)
            }
            _ => Self::CutClient(rng.random_range(0..clients)),
        }
    }

    /// Brings it about.
    pub fn inject(self, cluster: &mut Cluster) -> Result<()> {
        match self {
            Self::KillLeader => {
                let leader = find_leader(cluster)?;
                cluster.metadata[leader].kill()
            }
            Self::KillMetadata(i) => cluster.metadata[i].kill(),
            Self::KillStorage(a, b) => {
                cluster.storage[a].kill()?;
                cluster.storage[b].kill()
            }
            Self::CutLeader => {
                let leader = find_leader(cluster)?;
                cluster.metadata[leader].host.cut()
            }
            Self::CutMetadata(i) => cluster.metadata[i].host.cut(),
            Self::CutStorage(a, b) => {
                cluster.storage[a].host.cut()?;
                cluster.storage[b].host.cut()
            }
            Self::CutClient(i) => cluster.clients[i].host.cut(),
        }
    }
}

fn find_leader(cluster: &Cluster) -> Result<usize> {
    eventually(Duration::from_secs(30), "a metadata leader", || cluster.leader())
}
