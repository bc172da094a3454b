//! Counts what was there before a quota was set: has what lies below its directory marked, or all
//! inodes counted for their owners, a piece an entry.

use super::propose::{LOOK_INTERVAL, propose};
use crate::conflicts;
use crate::node::Node;
use std::sync::Arc;
use tokio::time::{Instant, sleep};

/// Counts what is to be counted, step by step.
pub async fn count_usage(node: &Arc<Node>, term: u64) {
    let mut done = None;
    loop {
        let put = node.state.to_count();
        if done == Some(put) {
            sleep(LOOK_INTERVAL).await;
            continue;
        }
        let (body, inos) = match node.state.next_count() {
            Ok(Some(next)) => next,
            Ok(None) => {
                done = Some(put);
                continue;
            }
            Err(error) => {
                tracing::error!("cannot read what is to be counted for quotas: {error}");
                sleep(LOOK_INTERVAL).await;
                continue;
            }
        };
        // Who does things there on its own does not know of the quota: its leases are taken back.
        let patience = Instant::now() + node.config.session_ttl();
        let Ok(claim) = conflicts::claim_own(node, term, inos, patience).await else {
            sleep(LOOK_INTERVAL).await;
            continue;
        };
        if propose(node, "count usage", body).await.is_err() {
            sleep(LOOK_INTERVAL).await;
        }
        drop(claim);
    }
}
