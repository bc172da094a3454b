//! Removes inodes without names.
//!
//! An entry removes 256 of them, or 2048 of their extents and attributes, whichever comes first,
//! and one is under way at a time. Before it whoever holds leases on them, mostly the mount that
//! took the names away, is asked for all of these at once. So a batch costs a round trip to that
//! mount and a commit: where that is 5 ms in all, 51,200 files or 409,600 extents a second. A
//! holder that does not answer costs half a second a batch, 512 files a second, until its session
//! is over: a time to live after it fell silent, or four if it only does not answer. Looks are a
//! fifth of a second apart, and each goes on to the end of the list, so that this bounds nothing.

use super::by_halves;
use super::propose::{LOOK_INTERVAL, propose};
use crate::conflicts::{self, Claim};
use crate::node::{Looks, Node};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use v1::log_entry::Body;
use weft_proto::{ErrorKind, InodeId, Result, v1};

/// Inodes removed by one log entry.
const PURGE_BATCH: usize = 256;
/// An inode stays so long without a name, unless somebody waits for what it takes: who has looked a
/// name up opens what it led to, as on any local filesystem, though others take the name away
/// meanwhile. A kernel that is told twice that what it opens is gone fails with ESTALE.
const GRACE: Duration = Duration::from_secs(1);
/// Who holds a lease on one of them gives it back within this, or that one waits for another look.
const PATIENCE: Duration = Duration::from_millis(500);

/// What passes by itself: another leads, or somebody has not said yet what he holds.
const PASSING: [ErrorKind; 3] = [ErrorKind::NotLeader, ErrorKind::Unavailable, ErrorKind::TimedOut];

/// Removes inodes that have no name and that nobody has open: goes through the list of them, again
/// and again. Those whose numbers are given out after a look has begun are left to the next, so
/// that each comes to its end.
pub async fn purge_orphans(node: &Arc<Node>, term: u64) {
    // What was put on the list before this is gone.
    let mut done = None;
    let (mut looks, mut nameless) = (Looks::default(), Nameless::new(Instant::now()));
    // Those on which leases have not come back yet.
    let mut held = Vec::new();
    loop {
        let put = node.state.orphaned();
        if done == Some(put) {
            node.purged.sleep(LOOK_INTERVAL).await;
            continue;
        }
        let begun = Instant::now();
        nameless.begin(begun, node.purged.is_waited_for());
        match look(node, term, &mut held, &mut nameless).await {
            // Those that have their time are not known to be open.
            Ok(_) if nameless.end() > 0 => done = None,
            Ok(left) => {
                looks.ended(&node.purged, (put, begun), left);
                done = (left == 0).then_some(put);
            }
            Err(error) if PASSING.contains(&error.kind) => done = None,
            Err(error) => {
                tracing::error!("cannot remove inodes without names: {error}");
                done = None;
            }
        }
        if done.is_none() {
            node.purged.sleep(LOOK_INTERVAL).await;
        }
    }
}

/// Goes through the list once. Answers how many are left, which somebody has open or holds.
async fn look(
    node: &Arc<Node>,
    term: u64,
    held: &mut Vec<Claim>,
    nameless: &mut Nameless,
) -> Result<usize> {
    // They are claimed once more before this ends: none is granted a lease between.
    let _before = std::mem::take(held);
    let end = node.state.next_inode()?;
    let (mut after, mut left) = (InodeId(0), 0);
    // What is left of those that were purged last.
    let mut last = Vec::new();
    loop {
        let orphans = node.state.orphans(after, PURGE_BATCH)?;
        let whole = orphans.len() == PURGE_BATCH;
        let orphans: Vec<_> = orphans.into_iter().filter(|ino| ino.number() < end).collect();
        let Some(&to) = orphans.last() else { return Ok(left) };
        let orphans: Vec<_> = orphans.into_iter().filter(|ino| nameless.is_due(*ino)).collect();
        if orphans.is_empty() {
            after = to;
            if whole {
                // There may be very many.
                tokio::task::yield_now().await;
                continue;
            }
            return Ok(left);
        }
        // Creates and opens that the scan may have seen the end of are in the table only when the
        // event loop has dealt with their entries.
        node.settled(node.state.applied()).await?;
        // A session that opened one under a lease, without asking, says so when that is recalled.
        let closed = node.soft.with(|s| s.not_open(&orphans));
        // None is granted a lease until they are gone: under it, one could be opened without
        // asking.
        let patience = Instant::now() + PATIENCE;
        let (claim, late) = conflicts::claim_free(node, term, closed, patience).await?;
        held.push(late);
        let free = node.soft.with(|s| s.begin_purge(&claim.inos));
        if !free.is_empty() {
            let purged = purge(node, free.clone()).await;
            node.soft.with(|s| s.end_purge(&free));
            purged?;
            let mut rest = Vec::new();
            for ino in free {
                rest.extend(node.state.attr(ino)?.map(|attr| (attr.ino, attr.blocks)));
            }
            // A large one is removed in bounded steps: look again at the same place. Those that do
            // not get smaller wait for a check.
            if !rest.is_empty() && rest != last {
                last = rest;
                continue;
            }
        }
        drop(claim);
        for ino in orphans {
            left += usize::from(node.state.attr(ino)?.is_some());
        }
        after = to;
        if !whole {
            return Ok(left);
        }
    }
}

/// Has an entry remove inodes. One that is refused keeps no other.
async fn purge(node: &Node, inos: Vec<InodeId>) -> Result<()> {
    let purge = |some: Vec<InodeId>| {
        let entry = v1::PurgeInodesEntry { inos: some.iter().map(|i| i.0).collect() };
        async { propose(node, "remove orphans", Body::PurgeInodes(entry)).await.map(drop) }
    };
    let outcome = by_halves::change(inos, purge).await;
    for (ino, error) in outcome.refused {
        tracing::error!(%ino, "an inode without a name cannot be removed: {error}");
    }
    outcome.failed.map_or(Ok(()), Err)
}

/// Since when inodes are known to have no name.
struct Nameless {
    since: HashMap<InodeId, Instant>,
    /// As the look before saw them.
    before: HashMap<InodeId, Instant>,
    /// When the look began.
    now: Instant,
    /// Somebody waits.
    at_once: bool,
    /// Those that still have their time.
    young: usize,
}

impl Nameless {
    fn new(now: Instant) -> Self {
        let (since, before) = (HashMap::new(), HashMap::new());
        Self { since, before, now, at_once: false, young: 0 }
    }

    /// A look begins.
    fn begin(&mut self, now: Instant, at_once: bool) {
        // What is not seen again is gone.
        self.before = std::mem::take(&mut self.since);
        (self.now, self.at_once, self.young) = (now, at_once, 0);
    }

    /// Whether an inode on the list has had its time.
    fn is_due(&mut self, ino: InodeId) -> bool {
        let since = self.before.get(&ino).copied().unwrap_or(self.now);
        self.since.insert(ino, since);
        let due = self.at_once || since + GRACE <= self.now;
        self.young += usize::from(!due);
        due
    }

    /// A look has ended. Answers how many it left their time.
    fn end(&mut self) -> usize {
        self.before = HashMap::new();
        self.young
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_lost_its_name_has_its_time() {
        let (begun, a, b) = (Instant::now(), InodeId(7), InodeId(8));
        let mut nameless = Nameless::new(begun);
        let mut look = |at, at_once, inos: &[InodeId]| {
            nameless.begin(begun + at, at_once);
            let due = inos.iter().map(|ino| nameless.is_due(*ino)).collect::<Vec<_>>();
            (due, nameless.end())
        };
        assert_eq!(look(GRACE / 2, false, &[a]), (vec![false], 1));
        assert_eq!(look(GRACE, false, &[a, b]), (vec![false, false], 2));
        assert_eq!(look(GRACE, true, &[a, b]), (vec![true, true], 0), "somebody waits");
        assert_eq!(look(GRACE * 3 / 2, false, &[a, b]), (vec![true, false], 1));
        // It has got a name again, and lost it.
        assert_eq!(look(GRACE * 2, false, &[b]), (vec![true], 0));
        assert_eq!(look(GRACE * 2, false, &[a]), (vec![false], 1));
    }
}
