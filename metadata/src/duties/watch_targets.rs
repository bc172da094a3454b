//! Says which targets are up, down and full.

use super::propose::{LOOK_INTERVAL, propose};
use crate::node::Node;
use crate::soft::targets::Targets;
use std::sync::Arc;
use tokio::time::{Instant, sleep};
use v1::log_entry::Body;
use weft_proto::v1;

/// Changes the state of targets as heartbeats tell it, or are missing since `since`.
pub async fn watch_targets(node: &Arc<Node>, targets: &Targets, since: Instant) {
    let settings = (node.config.target_down_after(), node.config.full_percent);
    loop {
        sleep(LOOK_INTERVAL).await;
        let changes = targets.changes(Instant::now(), since, settings.0, settings.1, &node.map());
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
