//! Deletes what ended sessions have left in the state.

use super::by_halves::is_refusal;
use super::propose::{LOOK_INTERVAL, propose};
use crate::node::Node;
use tokio::time::sleep;
use v1::log_entry::Body;
use weft_proto::{SessionId, v1};

/// Deletes what ended sessions have left, step by step. Where that is refused it keeps no
/// other: it is passed over until all others were looked at.
pub async fn clear_sessions(node: &Node) {
    let (mut done, mut after) = (None, SessionId(0));
    loop {
        let put = node.state.ended();
        if done == Some(put) {
            sleep(LOOK_INTERVAL).await;
            continue;
        }
        match node.state.ended_session(after) {
            Ok(None) if after == SessionId(0) => done = Some(put),
            Ok(None) => {
                after = SessionId(0);
                sleep(LOOK_INTERVAL).await;
            }
            Ok(Some(session)) => {
                let body = Body::ExpireSession(v1::ExpireSessionEntry { session: session.0 });
                let cleared = propose(node, "delete what a session left", body).await;
                if let Err(error) = cleared {
                    after = if is_refusal(&error) { session } else { after };
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
