//! Declares silent sessions dead.

use super::propose::{LOOK_INTERVAL, propose};
use crate::node::Node;
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use v1::log_entry::Body;
use weft_proto::v1;

/// A session that does not answer a recall for so many times its time to live is not renewed any
/// more: a flush may have to wait for storage, and others wait for it.
const RECALL_TIMEOUT_TTLS: u32 = 3;

/// Declares sessions dead that are silent, or that keep a recalled lease for too long.
pub async fn expire_sessions(node: &Arc<Node>) {
    let ttl = node.config.session_ttl();
    let mut looked = Instant::now();
    let mut expiries = JoinSet::new();
    loop {
        sleep(LOOK_INTERVAL).await;
        let now = Instant::now();
        // Whoever renewed meanwhile is heard only after this.
        let stall = now.duration_since(looked).saturating_sub(2 * LOOK_INTERVAL);
        looked = now;
        let dead = {
            if !stall.is_zero() {
                tracing::warn!(?stall, "this server stood still; sessions get that much longer");
            }
            node.soft.with(|s| {
                if !stall.is_zero() {
                    s.stalled(stall);
                }
                s.begin_expiry(now, ttl, RECALL_TIMEOUT_TTLS * ttl)
            })
        };
        for session in dead {
            tracing::info!(
                session = session.0,
                "session is silent or keeps a recalled lease for too long and is declared dead"
            );
            // Not waited for: time goes on for the others.
            let node = node.clone();
            expiries.spawn(async move {
                let entry = v1::ExpireSessionEntry { session: session.0 };
                let body = Body::ExpireSession(entry);
                if propose(&node, "declare a session dead", body).await.is_err() {
                    node.soft.with(|s| s.spare(session));
                }
            });
        }
        while expiries.try_join_next().is_some() {}
    }
}
