//! Deletes what ended sessions have left in the state.

use super::propose::{LOOK_INTERVAL, propose};
use crate::node::Node;
use tokio::time::sleep;
use v1::log_entry::Body;
use weft_proto::v1;

/// Deletes what ended sessions have left, step by step.
pub async fn clear_sessions(node: &Node) {
    let mut done = None;
    loop {
        let put = node.state.ended();
        if done == Some(put) {
            sleep(LOOK_INTERVAL).await;
            continue;
        }
        match node.state.ended_session() {
            Ok(None) => done = Some(put),
            Ok(Some(session)) => {
                let body = Body::ExpireSession(v1::ExpireSessionEntry { session: session.0 });
                if propose(node, "delete what a session left", body).await.is_err() {
                    sleep(LOOK_INTERVAL).await;
                }
            }
            Err(error) => {
                tracing::error!("cannot read the list of ended sessions: {error}");
                sleep(LOOK_INTERVAL).await;
            }
        }
    }
}
