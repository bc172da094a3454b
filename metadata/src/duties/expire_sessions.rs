//! Declares silent sessions dead.

use super::propose::propose_telling;
use super::stall::Looks;
use crate::events;
use crate::node::Node;
use std::sync::Arc;
use tokio::task::JoinSet;
use v1::log_entry::Body;
use weft_proto::{SessionId, v1};

/// A session that for so many times its time to live does not answer a recall, or does not declare
/// what it holds, is not renewed any more: a flush may have to wait for storage, and others wait
/// for it.
const ANSWER_TIMEOUT_TTLS: u32 = 3;

/// Most sessions of one look that are told by name.
const MAX_TOLD: usize = 10;

/// Declares sessions dead that are silent, or that owe an answer for too long.
pub async fn expire_sessions(node: &Arc<Node>, term: u64) {
    let ttl = node.config.session_ttl();
    let mut looks = Looks::begin();
    let mut expiries = JoinSet::new();
    loop {
        // Whoever renewed while this server stood still is heard only after this.
        let (now, stall) = looks.next().await;
        let dead = {
            if !stall.is_zero() {
                tracing::warn!(?stall, "this server stood still; sessions get that much longer");
            }
            node.soft.with(|s| {
                // Those of another term are for who leads in that.
                if s.term() != term {
                    return Vec::new();
                }
                if !stall.is_zero() {
                    s.stalled(now, stall);
                }
                s.begin_expiry(now, ttl, ANSWER_TIMEOUT_TTLS * ttl)
            })
        };
        let count = dead.len();
        for (at, session) in dead.into_iter().enumerate() {
            tracing::info!(
                session = session.0,
                "session is silent, or keeps a recalled lease or what it holds to itself for too \
                 long, and is declared dead"
            );
            // Not waited for: time goes on for the others.
            let node = node.clone();
            expiries.spawn(async move {
                let entry = v1::ExpireSessionEntry { session: session.0 };
                let body = Body::ExpireSession(entry);
                let events = match at {
                    0..MAX_TOLD => vec![ended(&node, session)],
                    MAX_TOLD => vec![others(count - MAX_TOLD)],
                    _ => Vec::new(),
                };
                let what = "declare a session dead";
                if propose_telling(&node, what, body, events).await.is_err() {
                    node.soft.with(|s| s.spare(term, session));
                }
            });
        }
        while expiries.try_join_next().is_some() {}
    }
}

fn ended(node: &Node, session: SessionId) -> v1::Event {
    let client = node.soft.with(|s| s.client_of(session)).unwrap_or_default();
    let what = format!(
        "session {session} is over: it was silent, or kept what another needs, or what it holds to \
         itself, for too long; its locks are given up, and what it had not flushed is not known \
         here: {client:?}"
    );
    events::warning("session-dead", what)
}

fn others(count: usize) -> v1::Event {
    events::warning("session-dead", format!("{count} more sessions are over at the same time"))
}
