//! Removes inodes without names.

use super::propose::{LOOK_INTERVAL, propose};
use crate::conflicts;
use crate::node::Node;
use std::sync::Arc;
use tokio::time::{Instant, sleep};
use v1::log_entry::Body;
use weft_proto::{InodeId, v1};

/// Inodes removed by one log entry.
const PURGE_BATCH: usize = 256;

/// Removes inodes that have no name and that nobody has open.
pub async fn purge_orphans(node: &Arc<Node>, term: u64) {
    let mut after = InodeId(0);
    // What was put on the list before this is gone.
    let mut done = None;
    // What is left of the first that was purged last.
    let mut last = None;
    loop {
        let put = node.state.orphaned();
        if done == Some(put) {
            sleep(LOOK_INTERVAL).await;
            continue;
        }
        let orphans = match node.state.orphans(after, PURGE_BATCH) {
            Ok(orphans) => orphans,
            Err(error) => {
                tracing::error!("cannot read the list of inodes without names: {error}");
                sleep(LOOK_INTERVAL).await;
                continue;
            }
        };
        if orphans.is_empty() && after == InodeId(0) {
            done = Some(put);
            continue;
        }
        // Creates and opens that the scan may have seen the end of are in the table only when the
        // event loop has dealt with their entries.
        if node.settled(node.state.applied()).await.is_err() {
            return;
        }
        // A session that opened one under a lease, without asking, says so when that is recalled.
        let closed = node.soft.with(|s| s.not_open(&orphans));
        // None is granted a lease until they are gone: under it, one could be opened without
        // asking.
        let patience = Instant::now() + node.config.session_ttl();
        let Ok(claim) = conflicts::claim_own(node, term, closed, patience).await else {
            sleep(LOOK_INTERVAL).await;
            continue;
        };
        let free = node.soft.with(|s| s.begin_purge(&claim.inos));
        if !free.is_empty() {
            let entry = v1::PurgeInodesEntry { inos: free.iter().map(|i| i.0).collect() };
            let purged = propose(node, "remove orphans", Body::PurgeInodes(entry)).await;
            node.soft.with(|s| s.end_purge(&free));
            let rest = node.state.attr(free[0]).ok().flatten().map(|attr| (attr.ino, attr.blocks));
            // One that does not get smaller waits for a check.
            let stuck = rest.is_some() && std::mem::replace(&mut last, rest) == rest;
            if purged.is_ok() && !stuck {
                // A large one is removed in bounded steps: look again at the same place, and not
                // from the start, where there is much that was removed.
                after = orphans.first().map_or(after, |first| InodeId(first.0.saturating_sub(1)));
                continue;
            }
        }
        drop(claim);
        after = match orphans.last() {
            Some(&last) if orphans.len() == PURGE_BATCH => last,
            _ => {
                sleep(LOOK_INTERVAL).await;
                InodeId(0)
            }
        };
    }
}
