//! What the event loop keeps of the group: the ways to the other servers, and a lead that is being
//! handed over.
//!
//! Invariant: there is one way to each member, at its last address, and few to others.

use crate::config::Member;
use crate::replication::Link;
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;
use weft_proto::{NodeId, v1};

/// Makes the way on which messages to a server go.
pub type Connect = Box<dyn Fn(&Member) -> Link + Send>;

/// Most servers that this one answers without having heard of them.
const MAX_GUESTS: usize = 16;
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
    /// Who belongs to the group now, as last heard.
    pub members: Vec<v1::NodeInfo>,
    /// Who of them has said so.
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
    /// Servers that could not be reached when that was last tried.
    pub lost: BTreeSet<u64>,
    /// Servers that answer, and know no changes of the group.
    pub old_versions: BTreeSet<u64>,
}

/// The ways to the other servers.
pub struct Links {
    connect: Connect,
    /// Where the configuration says that others are: more recent than what was recorded if all were
    /// moved while nobody could note it.
    configured: BTreeMap<NodeId, String>,
    /// Where members are by the replicated state.
    recorded: BTreeMap<NodeId, String>,
    /// Where members said last that they are.
    said: BTreeMap<NodeId, String>,
    members: BTreeMap<NodeId, (String, Link)>,
    /// Servers that wrote to this one and that it has not heard of yet: its log lacks that.
    guests: BTreeMap<NodeId, (String, Link, Instant)>,
}

impl Links {
    /// No ways yet; each is made by `connect` when it is needed. `configured`: where servers are as
    /// long as nothing else is heard of them.
    pub fn new(configured: &[Member], connect: Connect) -> Self {
        let configured = configured.iter().map(|m| (m.id, m.address.clone())).collect();
        let (recorded, said) = (BTreeMap::new(), BTreeMap::new());
        let (members, guests) = (BTreeMap::new(), BTreeMap::new());
        Self { connect, configured, recorded, said, members, guests }
    }

    pub fn get(&self, id: u64) -> Option<&Link> {
        let id = NodeId(id);
        let guest = || self.guests.get(&id).map(|(_, link, _)| link);
        self.members.get(&id).map(|(_, link)| link).or_else(guest)
    }

    /// The others are these, and none but these.
    pub fn set(&mut self, others: impl Iterator<Item = Member>) {
        let before = std::mem::take(&mut self.recorded);
        for Member { id, address } in others {
            if before.get(&id).is_some_and(|known| *known != address) {
                // An admin has moved it.
                self.said.remove(&id);
                self.configured.remove(&id);
            }
            self.recorded.insert(id, address);
        }
        self.said.retain(|id, _| self.recorded.contains_key(id));
        self.members.retain(|id, _| self.recorded.contains_key(id));
        for id in self.recorded.keys().copied().collect::<Vec<_>>() {
            self.guests.remove(&id);
            self.connect(id);
        }
    }

    /// Has a way to a member where it is.
    fn connect(&mut self, id: NodeId) {
        let known = self.said.get(&id).or_else(|| self.configured.get(&id));
        let Some(address) = known.or_else(|| self.recorded.get(&id)).cloned() else { return };
        if self.members.get(&id).is_none_or(|(at, _)| *at != address) {
            let link = (self.connect)(&Member { id, address: address.clone() });
            self.members.insert(id, (address, link));
        }
    }

    /// A server said where it is reached. That counts for a member only if it cannot be reached
    /// (`lost`) where it was.
    pub fn hear(&mut self, from: Member, lost: bool) {
        let Member { id, address } = from;
        if address.is_empty() {
            return;
        }
        if let Some((at, _)) = self.members.get(&id) {
            if lost && *at != address {
                self.said.insert(id, address);
                self.connect(id);
            }
            return;
        }
        let now = Instant::now();
        if let Some((at, _, heard)) = self.guests.get_mut(&id)
            && *at == address
        {
            *heard = now;
            return;
        }
        let silent = self.guests.iter().min_by_key(|(_, (.., heard))| *heard).map(|(id, _)| *id);
        if let Some(silent) = silent.filter(|_| self.guests.len() >= MAX_GUESTS) {
            self.guests.remove(&silent);
        }
        let link = (self.connect)(&Member { id, address: address.clone() });
        self.guests.insert(id, (address, link, now));
    }
}
