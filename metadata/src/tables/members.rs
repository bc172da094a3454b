//! Who belongs to the Raft group, and how that changes.
//!
//! The group's configuration is part of the replicated state: [`Membership::conf_state`] is what
//! Raft must have after the same entry. One change at a time, of one server; a server takes
//! another's place by joint consensus (Ongaro, *Consensus: Bridging Theory and Practice*, §4.3).
//!
//! Invariants: the number of a server that has left is never given again, so that nobody takes what
//! it says for that of another; a group has a voter.

use crate::operation::{Fault, refuse};
use crate::schema::Cluster;
use raft::eraftpb::{
    ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState,
};
use std::collections::BTreeSet;
use v1::MemberRole::{Incoming, Learner, Outgoing, Voter, Waiting};
use v1::set_server_entry::{Add, Change, Move};
use weft_proto::{ErrorKind, v1};

/// Most servers in a group, those that are about to join included.
const MAX_MEMBERS: usize = 16;

/// The servers of the group as of some entry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Membership {
    /// By id.
    pub members: Vec<v1::NodeInfo>,
    /// Those that the group began with: its log begins so.
    pub founders: Vec<u64>,
    /// Those that have left.
    pub removed: Vec<u64>,
}

impl Membership {
    /// What a cluster's record says; `None` if it names no servers.
    pub(crate) fn of(cluster: Cluster) -> Option<Self> {
        let Cluster { members, founders, removed, .. } = cluster;
        let founders = if founders.is_empty() { with(&members, &[Voter]) } else { founders };
        (!members.is_empty()).then_some(Self { members, founders, removed })
    }

    /// A group of which nothing is recorded yet.
    pub fn founded_by(members: Vec<v1::NodeInfo>) -> Self {
        let founders = with(&members, &[Voter]);
        Self { members, founders, removed: Vec::new() }
    }

    /// What Raft must have for its configuration.
    pub fn conf_state(&self) -> ConfState {
        let mut conf = ConfState::from((
            with(&self.members, &[Voter, Incoming]),
            with(&self.members, &[Learner]),
        ));
        if self.is_joint() {
            conf.voters_outgoing = with(&self.members, &[Voter, Outgoing]);
        }
        conf
    }

    /// Whether a server is about to take another's place: both groups must agree to everything.
    pub fn is_joint(&self) -> bool {
        self.members.iter().any(|m| matches!(m.role(), Incoming | Outgoing))
    }

    /// A member by its number.
    pub fn get(&self, id: u64) -> Option<&v1::NodeInfo> {
        self.members.iter().find(|m| m.id == id)
    }

    /// Members with a vote, in either of two joint groups.
    pub fn voters(&self) -> Vec<u64> {
        with(&self.members, &[Voter, Incoming, Outgoing])
    }
}

/// Ids of the members with one of these roles, ascending.
fn with(members: &[v1::NodeInfo], roles: &[v1::MemberRole]) -> Vec<u64> {
    let of_role = members.iter().filter(|m| roles.contains(&m.role()));
    let mut ids: Vec<u64> = of_role.map(|m| m.id).collect();
    ids.sort_unstable();
    ids
}

/// Whether two configurations are the same.
pub fn same(a: &ConfState, b: &ConfState) -> bool {
    let sets = |conf: &ConfState| {
        [&conf.voters, &conf.voters_outgoing, &conf.learners, &conf.learners_next]
            .map(|ids| ids.iter().copied().collect::<BTreeSet<u64>>())
    };
    sets(a) == sets(b) && a.auto_leave == b.auto_leave
}

/// What Raft is told of a change.
pub fn conf_change(entry: &v1::ChangeMembersEntry) -> ConfChangeV2 {
    use ConfChangeType::{AddLearnerNode, AddNode, RemoveNode};
    let all = [(entry.learn, AddLearnerNode), (entry.promote, AddNode), (entry.remove, RemoveNode)];
    let mut change = ConfChangeV2::default();
    for (node_id, kind) in all.into_iter().filter(|(id, _)| *id != 0) {
        let mut single = ConfChangeSingle { node_id, ..Default::default() };
        single.set_change_type(kind);
        change.changes.push(single);
    }
    // The leader ends joint groups by an entry of its own making: each change of the state has one.
    if change.changes.len() > 1 {
        change.set_transition(ConfChangeTransition::Explicit);
    }
    change
}

/// What an admin wants, in the cluster's record; nothing if it is so already.
pub(crate) fn set(cluster: &mut Cluster, change: &Change) -> Result<(), Fault> {
    note_founders(cluster);
    match change {
        Change::Add(add) => self::add(cluster, add),
        Change::Remove(id) => remove(cluster, *id),
        Change::Move(to) => move_to(cluster, to),
    }
}

/// Before the first change, those who are there are those that the group began with.
fn note_founders(cluster: &mut Cluster) {
    if cluster.founders.is_empty() {
        cluster.founders = with(&cluster.members, &[Voter]);
    }
}

fn add(cluster: &mut Cluster, add: &Add) -> Result<(), Fault> {
    let Add { id, address, replaces } = add;
    if let Some(known) = cluster.members.iter().find(|m| m.id == *id) {
        // Again, since the answer was lost.
        let replaced = known.replaces == 0 && cluster.removed.contains(replaces);
        let as_asked = known.replaces == *replaces || replaced;
        let same = known.address == *address && as_asked && !known.leaving;
        let what = format!("server {id} belongs to the group already, at {}", known.address);
        return if same { Ok(()) } else { refuse(ErrorKind::Exists, what) };
    }
    if *id == 0 {
        return refuse(ErrorKind::Invalid, "0 is not the number of a server");
    }
    if cluster.removed.contains(id) {
        let what = format!("server {id} has left the group for good: give this one another number");
        return refuse(ErrorKind::Exists, what);
    }
    if cluster.members.len() >= MAX_MEMBERS {
        let what = format!("the group has {MAX_MEMBERS} servers already: remove one before");
        return refuse(ErrorKind::Invalid, what);
    }
    free_address(cluster, *id, address)?;
    if *replaces != 0 {
        if cluster.members.iter().any(|m| m.replaces == *replaces) {
            let what = format!("server {replaces} is being replaced by another already");
            return refuse(ErrorKind::Busy, what);
        }
        if !cluster.members.iter().any(|m| m.id == *replaces && m.role() == Voter) {
            let what = format!("server {replaces}, to be replaced, has no vote in the group");
            return refuse(ErrorKind::NotFound, what);
        }
    }
    let member = v1::NodeInfo {
        id: *id,
        address: address.clone(),
        role: Waiting.into(),
        replaces: *replaces,
        leaving: false,
    };
    cluster.members.push(member);
    cluster.members.sort_by_key(|m| m.id);
    Ok(())
}

fn remove(cluster: &mut Cluster, id: u64) -> Result<(), Fault> {
    let stays = |m: &v1::NodeInfo| m.id != id && !m.leaving && m.role() == Voter;
    let stay = cluster.members.iter().filter(|m| stays(m)).count();
    let Some(at) = cluster.members.iter().position(|m| m.id == id) else {
        // Again, since the answer was lost.
        let what = format!("server {id} does not belong to the group");
        let gone = cluster.removed.contains(&id);
        return if gone { Ok(()) } else { refuse(ErrorKind::NotFound, what) };
    };
    match cluster.members[at].role() {
        // It never was part of the group.
        Waiting => drop(cluster.members.remove(at)),
        Voter if stay == 0 => {
            let what = format!("server {id} is the last with a vote that is to stay");
            return refuse(ErrorKind::Invalid, what);
        }
        Incoming => {
            let what = format!("server {id} is just getting its vote: try again");
            return refuse(ErrorKind::Busy, what);
        }
        Voter | Learner | Outgoing => cluster.members[at].leaving = true,
    }
    Ok(())
}

fn move_to(cluster: &mut Cluster, to: &Move) -> Result<(), Fault> {
    free_address(cluster, to.id, &to.address)?;
    let Some(member) = cluster.members.iter_mut().find(|m| m.id == to.id) else {
        let what = format!("server {} does not belong to the group", to.id);
        return refuse(ErrorKind::NotFound, what);
    };
    member.address = to.address.clone();
    Ok(())
}

/// Refuses an address that is none, or another member's.
fn free_address(cluster: &Cluster, id: u64, address: &str) -> Result<(), Fault> {
    if !crate::config::is_address(address) {
        return refuse(ErrorKind::Invalid, format!("{address:?} is not host:port"));
    }
    match cluster.members.iter().find(|m| m.address == address && m.id != id) {
        Some(other) => {
            refuse(ErrorKind::Exists, format!("server {} is at {address} already", other.id))
        }
        None => Ok(()),
    }
}

/// Carries out one change of the group, or refuses it: then Raft must not make it, either.
pub(crate) fn change(cluster: &mut Cluster, entry: &v1::ChangeMembersEntry) -> Result<(), Fault> {
    note_founders(cluster);
    let joint = cluster.members.iter().any(|m| matches!(m.role(), Incoming | Outgoing));
    let v1::ChangeMembersEntry { learn, promote, remove } = *entry;
    if (learn, promote, remove) == (0, 0, 0) {
        if !joint {
            return refuse(ErrorKind::Invalid, "there are no joint groups to be ended");
        }
        let gone = with(&cluster.members, &[Outgoing]);
        cluster.members.retain(|m| m.role() != Outgoing);
        for member in cluster.members.iter_mut().filter(|m| m.role() == Incoming) {
            member.set_role(Voter);
        }
        leave(cluster, gone);
        return Ok(());
    }
    let role = |id: u64| cluster.members.iter().find(|m| m.id == id).map(|m| m.role());
    let possible = !joint
        && (learn == 0 || (promote, remove) == (0, 0) && role(learn) == Some(Waiting))
        && (promote == 0 || role(promote) == Some(Learner))
        && (remove == 0
            || role(remove) == Some(Voter)
                && (promote != 0 || with(&cluster.members, &[Voter]).len() > 1)
            || role(remove) == Some(Learner) && promote == 0);
    if !possible {
        let what = "this change of the group does not follow from what it is now";
        return refuse(ErrorKind::Invalid, what);
    }
    let swap = promote != 0 && remove != 0;
    for member in &mut cluster.members {
        match member.id {
            id if id == learn => member.set_role(Learner),
            id if id == promote => member.set_role(if swap { Incoming } else { Voter }),
            id if id == remove && swap => member.set_role(Outgoing),
            _ => {}
        }
    }
    if remove != 0 && !swap {
        cluster.members.retain(|m| m.id != remove);
        leave(cluster, vec![remove]);
    }
    Ok(())
}

/// Notes servers that have left.
fn leave(cluster: &mut Cluster, gone: Vec<u64>) {
    for member in &mut cluster.members {
        if gone.contains(&member.replaces) {
            member.replaces = 0;
        }
    }
    cluster.removed.extend(gone);
}

#[cfg(test)]
mod tests;
