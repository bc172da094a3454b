//! What the event loop keeps of the group: the ways to the other servers, and a lead that is being
//! handed over.
//!
//! Invariant: there is one way to each member, at its last address, and few to others.

use crate::config::Member;
use crate::replication::Link;
use std::collections::BTreeMap;
use tokio::time::Instant;
use weft_proto::NodeId;

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

/// The ways to the other servers.
pub struct Links {
    connect: Connect,
    members: BTreeMap<NodeId, (String, Link)>,
    /// Servers that wrote to this one and that it has not heard of yet: its log lacks that.
    guests: BTreeMap<NodeId, (String, Link)>,
}

impl Links {
    /// No ways yet; each is made by `connect` when it is needed.
    pub fn new(connect: Connect) -> Self {
        Self { connect, members: BTreeMap::new(), guests: BTreeMap::new() }
    }

    pub fn get(&self, id: u64) -> Option<&Link> {
        let id = NodeId(id);
        self.members.get(&id).or_else(|| self.guests.get(&id)).map(|(_, link)| link)
    }

    /// The others are these, and none but these.
    pub fn set(&mut self, others: impl Iterator<Item = Member>) {
        let mut before = std::mem::take(&mut self.members);
        for member in others {
            let Member { id, address } = member.clone();
            let known = before.remove(&id).filter(|(known, _)| *known == address);
            let link = known.unwrap_or_else(|| (address, (self.connect)(&member)));
            self.guests.remove(&id);
            self.members.insert(id, link);
        }
    }

    /// A server said where it is reached.
    pub fn hear(&mut self, from: Member) {
        let known = self.guests.get(&from.id).is_some_and(|(address, _)| *address == from.address);
        let full = self.guests.len() >= MAX_GUESTS && !self.guests.contains_key(&from.id);
        if known || full || from.address.is_empty() || self.members.contains_key(&from.id) {
            return;
        }
        let link = (self.connect)(&from);
        self.guests.insert(from.id, (from.address, link));
    }
}
