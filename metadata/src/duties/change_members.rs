//! Brings the group to what an admin wants of it: a new server becomes a learner, gets its vote
//! when it has caught up, and the one that it replaces leaves in the same step.
//!
//! Invariants: one step at a time; none that would leave the group with too few servers that
//! answer; a leader that is to leave hands its lead over before.

use super::propose::{LOOK_INTERVAL, propose_telling};
use crate::events;
use crate::node::Node;
use crate::tables::members::Membership;
use std::collections::BTreeSet;
use tokio::time::{Instant, sleep};
use v1::MemberRole::{Incoming, Learner, Outgoing, Voter, Waiting};
use v1::log_entry::Body;
use weft_proto::{NodeId, v1};

/// Entries that a learner may lack when it gets its vote.
const CAUGHT_UP: u64 = 512;

/// What comes next.
#[derive(Debug, PartialEq)]
enum Next {
    Change(v1::ChangeMembersEntry),
    /// This server hands its lead to another one.
    HandOver(NodeId),
    /// Nothing can be done now; why, for people.
    Wait(String),
    Nothing,
}

/// Looks whether the group is as it is wanted, and takes the next step, until the term ends.
pub async fn change_members(node: &Node) {
    let patience = node.config.election_timeout() * 2;
    // The change that takes a vote away, and since when it could be made.
    let mut possible: Option<(v1::ChangeMembersEntry, Instant)> = None;
    loop {
        let group = node.membership();
        let next = next(&group, node.config.id.0, node.commit_index(), &node.followers());
        let mut waits = String::new();
        match next {
            Next::Nothing => {}
            Next::Wait(why) => waits = why,
            // One that died a moment ago is not known to be silent yet: it may be needed.
            Next::Change(entry)
                if entry.remove != 0
                    && possible
                        .is_none_or(|(e, since)| e != entry || since.elapsed() < patience) =>
            {
                possible = possible.filter(|(e, _)| *e == entry).or(Some((entry, Instant::now())));
                node.say_waits("whether those that stay go on answering".into());
                sleep(LOOK_INTERVAL).await;
                continue;
            }
            Next::Change(entry) => {
                tracing::info!(?entry, "the group changes");
                let events = vec![events::of_group(&entry)];
                let body = Body::ChangeMembers(entry);
                let _ = propose_telling(node, "change the group", body, events).await;
            }
            Next::HandOver(to) => {
                if let Err(e) = node.abdicate(Some(to)).await {
                    waits = format!("server {to} does not take the lead: {e}");
                }
            }
        }
        possible = None;
        node.say_waits(waits);
        sleep(LOOK_INTERVAL).await;
    }
}

/// The next step of the leader `me`, which has committed up to `commit`.
fn next(group: &Membership, me: u64, commit: u64, others: &[v1::MemberStat]) -> Next {
    let change = |entry| Next::Change(entry);
    let of = |id: u64| others.iter().find(|other| other.id == id && other.active);
    let whole = |id: u64| id == me || of(id).is_some_and(|o| o.matched_index + CAUGHT_UP >= commit);
    // Whether those with a vote go on when one leaves and one comes.
    let goes_on = |leaves: u64, comes: u64| {
        let voters = group.voters().into_iter().chain([comes]);
        let voters: BTreeSet<u64> = voters.filter(|&id| id != leaves && id != 0).collect();
        2 * voters.iter().filter(|&&id| whole(id)).count() > voters.len()
    };
    let heir = |leaves: u64| {
        let fit = |m: &&v1::NodeInfo| {
            let replaced = group.members.iter().any(|other| other.replaces == m.id);
            let has_vote = matches!(m.role(), Voter | Incoming);
            let failed = of(m.id).is_some_and(|o| o.failed_heir);
            let old = of(m.id).is_some_and(|o| o.old_version);
            has_vote && !failed && !old && m.id != leaves && !m.leaving && !replaced && whole(m.id)
        };
        let fit = group.members.iter().filter(|m| m.id != me).filter(fit);
        fit.max_by_key(|m| of(m.id).map(|o| o.matched_index)).map(|m| NodeId(m.id))
    };
    if group.is_joint() {
        let leaves = group.get(me).is_some_and(|m| m.role() == Outgoing);
        return match heir(me).filter(|_| leaves) {
            Some(heir) => Next::HandOver(heir),
            None if leaves => Next::Wait(format!("server {me} leads, and no other could")),
            None => change(v1::ChangeMembersEntry::default()),
        };
    }
    let leave = |leaves: u64, comes: u64| match (leaves == me, heir(me)) {
        (true, Some(heir)) => Next::HandOver(heir),
        (true, None) => Next::Wait(format!("server {me} leads, and no other could")),
        (false, _) if !goes_on(leaves, comes) => {
            Next::Wait(format!("without server {leaves} too few of the servers would answer"))
        }
        (false, _) => change(v1::ChangeMembersEntry { promote: comes, remove: leaves, learn: 0 }),
    };
    let mut waits = Vec::new();
    for member in &group.members {
        let id = member.id;
        let replaces = Some(member.replaces).filter(|&r| group.get(r).is_some());
        let step = match (member.role(), replaces) {
            (Waiting, _) => change(v1::ChangeMembersEntry { learn: id, ..Default::default() }),
            (Learner, _) if member.leaving => {
                change(v1::ChangeMembersEntry { remove: id, ..Default::default() })
            }
            (Learner, _) if of(id).is_some_and(|o| o.old_version) => {
                Next::Wait(format!("server {id} is of an older version than the others know"))
            }
            (Learner, _) if !whole(id) => {
                let has = others.iter().find(|other| other.id == id).map_or(0, |o| o.matched_index);
                let silent = if of(id).is_none() { ", which does not answer," } else { "" };
                Next::Wait(format!("server {id}{silent} has {has} of {commit} entries"))
            }
            // Alone, a leader cannot hand its lead over before the other has a vote.
            (Learner, Some(leaves)) if group.voters() != [me] => leave(leaves, id),
            (Learner, _) => change(v1::ChangeMembersEntry { promote: id, ..Default::default() }),
            (Voter, _) if member.leaving => leave(id, 0),
            (Voter, Some(leaves)) => leave(leaves, 0),
            _ => continue,
        };
        match step {
            Next::Wait(why) => waits.push(why),
            step => return step,
        }
    }
    if waits.is_empty() { Next::Nothing } else { Next::Wait(waits.join("; ")) }
}

#[cfg(test)]
mod tests;
