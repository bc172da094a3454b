//! Says which targets are up, down, given up and full.

use super::propose::{LOOK_INTERVAL, propose};
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
        let changes = targets.changes(Instant::now(), since, limits, &node.map());
        if changes.is_empty() {
            continue;
        }
        for change in &changes {
            tracing::info!(target = change.target, state = ?change.state(), full =
                change.full, "target changes");
        }
        let entry = v1::SetTargetStateEntry { changes };
        // The reply says whether it took effect; if not, the next look decides anew.
        let _ = propose(node, "change the state of targets", Body::SetTargetState(entry)).await;
    }
}
