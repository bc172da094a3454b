//! What the event loop keeps of the group: the ways to the other servers, and what is under way of
//! a change.
//!
//! Invariants: there is one way to each member, where it is recorded as long as it answers there;
//! and few to others.

use super::announced::Pause;
use crate::config::Member;
use crate::replication::Link;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use weft_proto::{NodeId, v1};

/// Makes the way on which messages to a server go.
pub type Connect = Box<dyn Fn(&Member) -> Link + Send>;

/// Most servers that this one answers without having heard of them.
const MAX_GUESTS: usize = 16;
/// A member is looked for in each place for so long at least.
const TURN_INTERVAL: Duration = Duration::from_millis(500);
/// Most groups that a server which has left asks.
pub const MAX_GROUPS: usize = 16;

/// A lead that is being handed over.
pub struct HandOver {
    pub term: u64,
    pub to: NodeId,
    /// When the other is told to lead.
    pub begins: Instant,
    pub ordered: bool,
}

/// A server that has left the group. It goes on, since others may not have heard of it yet and need
/// its vote, until a majority of those that stay has said that it is needed no more.
pub struct Farewell {
    /// Groups that have followed, as this server and others know them: one is enough.
    pub groups: Vec<Vec<v1::NodeInfo>>,
    /// Who has said so.
    pub told: BTreeSet<u64>,
    /// When they are asked again.
    pub next: Instant,
}

/// What is under way of a change of the group.
#[derive(Default)]
pub struct Changing {
    pub hands_over: Option<HandOver>,
    /// This server has left the group, as far as it knows.
    pub farewell: Option<Farewell>,
    /// Servers that did not take the lead when they were offered it.
    pub failed_heirs: BTreeMap<u64, Instant>,
    /// Servers that answer, and know no changes of the group.
    pub old_versions: BTreeSet<u64>,
    /// Of these, those of which it was said that they are sent nothing.
    pub withheld: BTreeSet<u64>,
    pub orphaned: Option<Orphaned>,
    pub leaving: Leaving,
    /// What the others said of [`least_silence`](crate::config::Config::least_silence); 0: they
    /// know of none.
    pub least_silences: BTreeMap<u64, Duration>,
}

/// A leader that could not read what a follower needs, and is to lead no more.
#[derive(Default)]
pub struct Leaving {
    pub wanted: bool,
    /// Between two times that it hands its lead over.
    pub pause: Pause,
    /// Other servers that are damaged, too.
    pub damaged: BTreeSet<u64>,
}

/// The connection to the leader has ended.
pub struct Orphaned {
    pub leader: u64,
    pub term: u64,
    pub since: Instant,
    /// Not before this does this server stand for election.
    pub next: Instant,
}

/// The ways to the other servers.
pub struct Links {
    connect: Connect,
    /// Where members are by the replicated state.
    recorded: BTreeMap<NodeId, String>,
    /// Where members said last that they are, and where the configuration says so: for those that
    /// were moved while nobody could note it.
    said: BTreeMap<NodeId, String>,
    configured: BTreeMap<NodeId, String>,
    members: BTreeMap<NodeId, Way>,
    /// Servers that wrote to this one and that it has not heard of yet: its log lacks that.
    guests: BTreeMap<NodeId, Way>,
}

struct Way {
    address: String,
    link: Link,
    /// When it was begun, or last heard of.
    since: Instant,
}

impl Links {
    /// No ways yet; each is made by `connect` when it is needed. `configured`: where servers may be
    /// that are not where they should.
    pub fn new(configured: &[Member], connect: Connect) -> Self {
        let configured = configured.iter().map(|m| (m.id, m.address.clone())).collect();
        let (recorded, said) = (BTreeMap::new(), BTreeMap::new());
        let (members, guests) = (BTreeMap::new(), BTreeMap::new());
        Self { connect, recorded, said, configured, members, guests }
    }

    pub fn get(&self, id: u64) -> Option<&Link> {
        let id = NodeId(id);
        self.members.get(&id).or_else(|| self.guests.get(&id)).map(|way| &way.link)
    }

    fn way(&self, id: NodeId, address: String) -> Way {
        let link = (self.connect)(&Member { id, address: address.clone() });
        Way { address, link, since: Instant::now() }
    }

    /// The others are these, and none but these.
    pub fn set(&mut self, others: impl Iterator<Item = Member>) {
        let before = std::mem::take(&mut self.recorded);
        for Member { id, address } in others {
            if before.get(&id) != Some(&address) {
                let way = self.way(id, address.clone());
                self.members.insert(id, way);
            }
            self.guests.remove(&id);
            self.recorded.insert(id, address);
        }
        self.said.retain(|id, _| self.recorded.contains_key(id));
        self.members.retain(|id, _| self.recorded.contains_key(id));
    }

    /// A member was not reached: the next place is tried where it may be.
    pub fn lost(&mut self, id: NodeId) {
        let Some(way) = self.members.get(&id) else { return };
        if way.since.elapsed() < TURN_INTERVAL {
            return;
        }
        let all = [&self.recorded, &self.said, &self.configured];
        let mut places: Vec<&String> = all.iter().filter_map(|places| places.get(&id)).collect();
        places.dedup();
        let at = places.iter().position(|place| **place == way.address).map_or(0, |at| at + 1);
        let next = places[at % places.len()].clone();
        if next != way.address {
            let way = self.way(id, next);
            self.members.insert(id, way);
        }
    }

    /// A server said where it is reached.
    pub fn hear(&mut self, from: Member) {
        let Member { id, address } = from;
        if address.is_empty() {
            return;
        }
        if self.members.contains_key(&id) {
            self.said.insert(id, address);
            return;
        }
        if let Some(way) = self.guests.get_mut(&id)
            && way.address == address
        {
            way.since = Instant::now();
            return;
        }
        let silent = self.guests.iter().min_by_key(|(_, way)| way.since).map(|(id, _)| *id);
        if let Some(silent) = silent.filter(|_| self.guests.len() >= MAX_GUESTS) {
            self.guests.remove(&silent);
        }
        let way = self.way(id, address);
        self.guests.insert(id, way);
    }
}
