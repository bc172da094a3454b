//! Faults, drawn from a seed, one or two at a time.
//!
//! Invariant: what acknowledged data may not survive does not happen: no more than m storage
//! daemons or a minority of metadata servers lose what is on their disks at once (I2). More than
//! that may be dead, or stand still, or be cut off, or lose their power.

use crate::cluster::{Cluster, Daemon};
use crate::network::Cut;
use anyhow::Result;
use rand::seq::IndexedRandom;
use rand::{Rng, rngs::SmallRng};

/// A kind of faults.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Nemesis {
    /// SIGKILL of daemons.
    Kill,
    /// SIGKILL of a mount, which is mounted again.
    KillMount,
    /// Daemons or a mount stand still.
    Pause,
    /// Hosts are cut off in both directions.
    Cut,
    /// In one direction.
    CutOneWay,
    /// Three packets in ten are lost.
    Lossy,
    /// A drain, and data that is given up and made elsewhere.
    Drain,
    /// The power of all servers goes, and what was not flushed.
    Power,
    /// Disks do not answer.
    DiskHang,
    /// Disks err, and lose what was not flushed.
    DiskError,
    /// Disks are full.
    DiskFull,
    /// The clock of a host steps.
    Clock,
}

impl Nemesis {
    pub const ALL: &[Self] = &[
        Self::Kill,
        Self::KillMount,
        Self::Pause,
        Self::Cut,
        Self::CutOneWay,
        Self::Lossy,
        Self::Drain,
        Self::Power,
        Self::DiskHang,
        Self::DiskError,
        Self::DiskFull,
        Self::Clock,
    ];

    /// Whether the servers' files have to lie on disks that can fail.
    pub fn needs_disks(self) -> bool {
        matches!(self, Self::Power | Self::DiskHang | Self::DiskError | Self::DiskFull)
    }
}

/// Who suffers.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Who {
    Metadata(Vec<usize>),
    Storage(Vec<usize>),
    Client(usize),
    Servers,
}

impl Who {
    fn meets(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Metadata(some), Self::Metadata(others))
            | (Self::Storage(some), Self::Storage(others)) => {
                some.iter().any(|one| others.contains(one))
            }
            (Self::Client(one), Self::Client(other)) => one == other,
            (Self::Servers, other) | (other, Self::Servers) => !matches!(other, Self::Client(_)),
            _ => false,
        }
    }
}

/// A fault that is brought about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    nemesis: Nemesis,
    who: Who,
}

/// Draws a fault of these kinds that goes with those under way.
pub fn draw(
    rng: &mut SmallRng,
    of: &[Nemesis],
    cluster: &Cluster,
    under_way: &[Fault],
) -> Option<Fault> {
    let nemesis = *of.choose(rng)?;
    let leader = cluster.leader();
    let some = |rng: &mut SmallRng, of: usize, most: usize| {
        let mut all: Vec<_> = (0..of).collect();
        let (some, _) = rand::seq::SliceRandom::partial_shuffle(&mut all[..], rng, most);
        some[..rng.random_range(1..=most)].to_vec()
    };
    let (metadata, storage) = (cluster.metadata.len(), cluster.storage.len());
    let servers = |rng: &mut SmallRng, patient: bool| match rng.random_range(0..4) {
        // A minority, and the leader half the time; or all, where they only wait.
        0 if patient => Who::Metadata(some(rng, metadata, metadata)),
        0 | 1 => match leader.filter(|_| rng.random_ratio(1, 2)) {
            Some(leader) => Who::Metadata(vec![leader]),
            None => Who::Metadata(some(rng, metadata, 1)),
        },
        _ => Who::Storage(some(rng, storage, if patient { storage } else { 2 })),
    };
    let clients = cluster.clients.len();
    let who = match nemesis {
        Nemesis::Kill => servers(rng, true),
        Nemesis::KillMount => Who::Client(rng.random_range(0..clients)),
        Nemesis::Pause | Nemesis::Cut | Nemesis::CutOneWay | Nemesis::Lossy | Nemesis::Clock => {
            match rng.random_ratio(1, 3) {
                true => Who::Client(rng.random_range(0..clients)),
                false => servers(rng, true),
            }
        }
        Nemesis::Drain => Who::Storage(some(rng, storage, 1)),
        Nemesis::Power => Who::Servers,
        Nemesis::DiskHang => servers(rng, true),
        Nemesis::DiskError | Nemesis::DiskFull => servers(rng, false),
    };
    // Disks that err beside others that do: who has lost what is not told apart.
    let errs = |nemesis: Nemesis| nemesis.needs_disks();
    let alone = errs(nemesis) && under_way.iter().any(|fault| errs(fault.nemesis));
    // It takes servers that answer; what strikes next, strikes while it goes on.
    let too_late = nemesis == Nemesis::Drain && !under_way.is_empty();
    // Who is dead does not suffer once more.
    let same = under_way.iter().any(|fault| fault.who.meets(&who) || fault.nemesis == nemesis);
    (!alone && !same && !too_late).then_some(Fault { nemesis, who })
}

impl Fault {
    pub fn nemesis(&self) -> Nemesis {
        self.nemesis
    }

    /// Brings it about.
    pub fn inject(&self, cluster: &mut Cluster, rng: &mut SmallRng) -> Result<()> {
        if self.nemesis == Nemesis::Power {
            return cluster.cut_power(rng.random());
        }
        if self.nemesis == Nemesis::Drain {
            let Who::Storage(of) = &self.who else { return Ok(()) };
            let how = if rng.random_ratio(1, 2) { "drain" } else { "out" };
            return of.iter().try_for_each(|i| cluster.give_up(*i, how));
        }
        let (into, ahead) = (rng.random_ratio(1, 2), rng.random_ratio(1, 2));
        // Shorter ones may be over before they are seen.
        let step = rng.random_range(2..7200) * if ahead { 1 } else { -1 };
        let lost = rng.random();
        let one = |daemon: &mut Daemon| match self.nemesis {
            Nemesis::Kill | Nemesis::KillMount => daemon.kill(),
            Nemesis::Pause => daemon.pause(),
            Nemesis::Cut => daemon.host.cut(Cut::Both),
            Nemesis::CutOneWay => daemon.host.cut(if into { Cut::In } else { Cut::Out }),
            Nemesis::Lossy => daemon.host.cut(Cut::Lossy),
            Nemesis::DiskHang => daemon.disk()?.hang(),
            Nemesis::DiskError => daemon.fail_disk(lost),
            Nemesis::DiskFull => daemon.fill_disk(),
            Nemesis::Clock => daemon.step_clock(step),
            Nemesis::Power | Nemesis::Drain => Ok(()),
        };
        match &self.who {
            Who::Metadata(of) => of.iter().try_for_each(|i| one(&mut cluster.metadata[*i])),
            Who::Storage(of) => of.iter().try_for_each(|i| one(&mut cluster.storage[*i])),
            Who::Client(i) => one(&mut cluster.clients[*i]),
            Who::Servers => {
                cluster.metadata.iter_mut().chain(&mut cluster.storage).try_for_each(one)
            }
        }
    }
}
