//! Says which targets are up, down, given up and full.

use super::propose::{LOOK_INTERVAL, propose_telling};
use crate::events;
use crate::node::Node;
use crate::soft::targets::{Limits, Targets};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use v1::log_entry::Body;
use weft_proto::v1;

/// Changes the state of targets as heartbeats tell it, or are missing since `since`.
pub async fn watch_targets(node: &Arc<Node>, targets: &Targets, since: Instant) {
    let limits = Limits {
        down_after: node.config.target_down_after(),
        out_after: Duration::from_millis(node.config.target_out_ms),
        full_percent: node.config.full_percent,
    };
    loop {
        sleep(LOOK_INTERVAL).await;
        let (now, map) = (Instant::now(), node.map());
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
        // The reply says whether it took effect; if not, the next look decides anew.
        let body = Body::SetTargetState(entry);
        let _ = propose_telling(node, "change the state of targets", body, events).await;
    }
}
