//! Removes inodes without names.
//!
//! An entry removes 256 of them, or 2048 of their extents and attributes, whichever comes first,
//! and one is under way at a time. Before it whoever holds leases on them, mostly the mount that
//! took the names away, is asked for all of these at once. So a batch costs a round trip to that
//! mount and a commit: where that is 5 ms in all, 51,200 files or 409,600 extents a second. A
//! holder that does not answer costs half a second a batch, 512 files a second, until its session
//! is over: a time to live after it fell silent, or four if it only does not answer. Rounds are a
//! fifth of a second apart, and each goes on to the end of the list, so that this bounds nothing.
//! One that meets very many which somebody has open leaves time to others on its way ([`STEP`]).

mod nameless;

use super::by_halves;
use super::propose::{LOOK_INTERVAL, propose};
use crate::conflicts::{self, Claim};
use crate::node::{Looks, Node};
use nameless::Nameless;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use v1::log_entry::Body;
use weft_proto::{ErrorKind, InodeId, Result, v1};

/// Inodes removed by one log entry.
const PURGE_BATCH: usize = 256;
/// Who holds a lease on one of them gives it back within this, or that one waits for another look.
const PATIENCE: Duration = Duration::from_millis(500);

/// So many that stay are looked at in one go, and so long others have their turn then: of a million
/// that somebody has open, each is looked at every ten seconds, unless somebody waits.
const STEP: usize = 1024;
const PAUSE: Duration = Duration::from_millis(10);
/// What was claimed in a long round, and is held, may be opened again after this.
const LONGEST_HELD: Duration = Duration::from_secs(2);

/// What passes by itself: another leads, or somebody has not said yet what he holds.
const PASSING: [ErrorKind; 3] = [ErrorKind::NotLeader, ErrorKind::Unavailable, ErrorKind::TimedOut];

/// Removes inodes that have no name and that nobody has open: goes through the list of them, again
/// and again.
pub async fn purge_orphans(node: &Arc<Node>, term: u64) {
    // What was put on the list before this is gone.
    let mut done = None;
    let (mut looks, mut nameless) = (Looks::default(), Nameless::new(Instant::now()));
    // A round that something has interrupted which passes.
    let mut goes_on = None;
    // Those on which leases have not come back yet.
    let mut held = Vec::new();
    loop {
        let put = node.state.orphaned();
        if goes_on.is_none() && done == Some(put) {
            node.purged.sleep(LOOK_INTERVAL).await;
            continue;
        }
        let mut round = goes_on.take().unwrap_or_else(|| {
            let round = Round::new(put, std::mem::take(&mut held));
            nameless.begin(round.begun, put, node.purged.is_waited_for());
            round
        });
        done = None;
        match round.go_on(node, term, &mut held, &mut nameless).await {
            // Those that have their time are not known to be open.
            Ok(left) if nameless.end(left) => {}
            Ok(left) => {
                looks.ended(&node.purged, (round.put, round.begun), left);
                done = (left == 0).then_some(round.put);
            }
            Err(error) if PASSING.contains(&error.kind) => goes_on = Some(round),
            Err(error) => tracing::error!("cannot remove inodes without names: {error}"),
        }
        if done.is_none() {
            node.purged.sleep(LOOK_INTERVAL).await;
        }
    }
}

/// Inodes that were claimed, and when that was.
type Held = (Instant, Claim);

/// One way through the list, in bounded steps: there may be millions that somebody has open.
struct Round {
    /// When it began, and how many had been put on the list by then.
    begun: Instant,
    put: u64,
    /// Inodes with numbers from this one on, which are given out after it has begun, are left to
    /// the next, so that each comes to its end.
    end: Option<u64>,
    /// It has come so far.
    after: InodeId,
    /// So many of those before that are left, which somebody has open or holds.
    left: usize,
    /// As many of them as it has met since others had their turn.
    met: usize,
    /// What is left of those that were purged last.
    last: Vec<(u64, u64)>,
    /// What the round before did not get, which is claimed once more before this one ends: no lease
    /// on it is granted between.
    held_before: Vec<Held>,
}

impl Round {
    fn new(put: u64, held_before: Vec<Held>) -> Self {
        let (begun, end, after, last) = (Instant::now(), None, InodeId(0), Vec::new());
        Self { begun, put, end, after, left: 0, met: 0, last, held_before }
    }

    /// Who has opened one meanwhile is not to wait for the rest of a long round.
    fn let_go(&mut self, held: &mut Vec<Held>) {
        for held in [held, &mut self.held_before] {
            held.retain(|(since, _)| since.elapsed() < LONGEST_HELD);
        }
    }

    /// Goes on to the end of the list. Answers how many are left. After an error it can go on where
    /// it was.
    async fn go_on(
        &mut self,
        node: &Arc<Node>,
        term: u64,
        held: &mut Vec<Held>,
        nameless: &mut Nameless,
    ) -> Result<usize> {
        let end = match self.end {
            Some(end) => end,
            None => *self.end.insert(node.state.next_inode()?),
        };
        self.let_go(held);
        loop {
            let orphans = node.state.orphans(self.after, PURGE_BATCH)?;
            let whole = orphans.len() == PURGE_BATCH;
            let orphans: Vec<_> = orphans.into_iter().filter(|ino| ino.number() < end).collect();
            let Some(&to) = orphans.last() else { return Ok(self.left) };
            // Of those that are known to be open nothing more is looked at.
            let (now, closed) = (Instant::now(), node.soft.with(|s| s.not_open(&orphans)));
            let mut closed = closed.into_iter().peekable();
            let mut is_open = |ino: &InodeId| closed.next_if_eq(ino).is_none();
            let is_due = |ino: &InodeId| nameless.is_due(now, *ino, is_open(ino));
            let due = orphans.iter().copied().filter(is_due).collect();
            let Some(gone) = self.remove(node, term, due, held).await? else { continue };
            self.after = to;
            let stay = orphans.len().saturating_sub(gone);
            (self.left, self.met) = (self.left + stay, self.met + stay);
            if !whole {
                return Ok(self.left);
            }
            if self.met >= STEP && !node.purged.is_waited_for() {
                self.met = 0;
                self.let_go(held);
                sleep(PAUSE).await;
            } else {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Removes those of some inodes that nobody has open or holds. Answers how many are gone;
    /// `None`: there is more to remove of one of them.
    async fn remove(
        &mut self,
        node: &Arc<Node>,
        term: u64,
        due: Vec<InodeId>,
        held: &mut Vec<Held>,
    ) -> Result<Option<usize>> {
        if due.is_empty() {
            return Ok(Some(0));
        }
        // Creates and opens that the scan may have seen the end of are in the table only when the
        // event loop has dealt with their entries.
        node.settled(node.state.applied()).await?;
        // A session that opened one under a lease, without asking, says so when that is recalled.
        let closed = node.soft.with(|s| s.not_open(&due));
        // None is granted a lease until they are gone: under it, one could be opened without
        // asking.
        let patience = Instant::now() + PATIENCE;
        let (claim, late) = conflicts::claim_free(node, term, closed, patience).await?;
        held.push((Instant::now(), late));
        let free = node.soft.with(|s| s.begin_purge(&claim.inos));
        if free.is_empty() {
            return Ok(Some(0));
        }
        let purged = purge(node, free.clone()).await;
        node.soft.with(|s| s.end_purge(&free));
        purged?;
        let mut rest = Vec::new();
        for ino in &free {
            match node.state.attr(*ino) {
                Ok(attr) => rest.extend(attr.map(|attr| (attr.ino, attr.blocks))),
                // It keeps no other.
                Err(_) => rest.push((ino.0, u64::MAX)),
            }
        }
        // A large one is removed in bounded steps: look again at the same place. Those that do not
        // get smaller wait for a check.
        if !rest.is_empty() && rest != self.last {
            self.last = rest;
            return Ok(None);
        }
        Ok(Some(free.len() - rest.len()))
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
