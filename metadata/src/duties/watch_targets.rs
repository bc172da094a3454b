//! Says which targets are up, down, given up and full.

use super::propose::propose_telling;
use super::stall::Looks;
use crate::events;
use crate::node::Node;
use crate::soft::targets::{Limits, Targets};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use v1::log_entry::Body;
use weft_proto::v1;

/// Changes the state of targets as heartbeats tell it, or are missing since `since`.
pub async fn watch_targets(node: &Arc<Node>, targets: &Targets, mut since: Instant) {
    let limits = Limits {
        down_after: node.config.target_down_after(),
        out_after: Duration::from_millis(node.config.target_out_ms),
        full_percent: node.config.full_percent,
    };
    let mut looks = Looks::begin();
    // At most one, which is not waited for: who waits does not notice that time stood still.
    let mut proposal = JoinSet::new();
    loop {
        let (now, stall) = looks.next().await;
        if !stall.is_zero() {
            targets.stalled(now, stall);
            since += stall;
        }
        while proposal.try_join_next().is_some() {}
        if !proposal.is_empty() {
            continue;
        }
        let map = node.map();
        let changes = targets.changes(now, since, limits, &map);
        if changes.is_empty() {
            continue;
        }
        for change in &changes {
            tracing::info!(target = change.target, state = ?change.state(), full =
                change.full, "target changes");
        }
        let events = events::of_changes(&map, &changes, targets, now, since);
        let entry = v1::SetTargetStateEntry { changes };
        let node = node.clone();
        proposal.spawn(async move {
            // The reply says whether it took effect; if not, the next look decides anew.
            let body = Body::SetTargetState(entry);
            let _ = propose_telling(&node, "change the state of targets", body, events).await;
        });
    }
}
