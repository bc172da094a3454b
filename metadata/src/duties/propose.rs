//! How a duty changes the replicated state.

use crate::node::{Effect, Node};
use std::time::Duration;
use v1::log_entry::Body;
use weft_proto::{Result, SessionId, v1};

/// How often a duty looks whether there is anything to do, and how soon it tries again what failed.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Proposes a change of the leader's own. A failure is logged; the duty comes back to it.
pub async fn propose(node: &Node, what: &str, body: Body) -> Result<v1::MetaReply> {
    propose_telling(node, what, body, Vec::new()).await
}

/// As [`propose`], with what it is to admins.
pub async fn propose_telling(
    node: &Node,
    what: &str,
    body: Body,
    events: Vec<v1::Event>,
) -> Result<v1::MetaReply> {
    let effect = match &body {
        Body::ExpireSession(e) => Effect::SessionEnds(SessionId(e.session)),
        _ => Effect::Nothing,
    };
    let reply = node.propose_telling(body, effect, events).await;
    if let Err(e) = &reply {
        tracing::warn!("could not {what}: {e}");
    }
    reply
}
