//! After a group was begun anew from a backup, nothing is deleted from targets for a while: what
//! its state does not know, or counts as garbage, a newer backup may want.

use crate::node::Node;
use std::time::Duration;
use tokio::time::sleep;

const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Whether that is so now. A state that cannot be read deletes nothing either.
pub(crate) fn holds(node: &Node) -> bool {
    node.state.held_until().map_or(true, |until| node.env.clock.now_ns() < until)
}

/// Waits until it is over.
pub(super) async fn over(node: &Node) {
    let mut told = false;
    while holds(node) {
        if !std::mem::replace(&mut told, true) {
            tracing::warn!("begun anew from a backup: nothing is deleted from targets for now");
        }
        sleep(LOOK_INTERVAL).await;
    }
}
