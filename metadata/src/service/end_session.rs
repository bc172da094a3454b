//! Ends the session of a client that is dead for certain, before its time is over: its successor on
//! the same machine says so.

use super::context::{RequestContext, empty};
use crate::events;
use crate::node::Effect;
use v1::log_entry::Body;
use weft_net::trace::carried;
use weft_proto::{Error, ErrorKind, Result, v1};

pub(super) async fn end_session(
    cx: &RequestContext<'_>,
    op: &v1::EndSessionOp,
) -> Result<v1::MetaReply> {
    cx.lead().await?;
    cx.node.read_barrier().await?;
    let Some(session) = cx.node.state.session_of(&op.nonce)? else { return Ok(empty()) };
    // From here on it is not renewed: whoever sends for it still is not heard.
    let (term, begun) = cx.node.soft.with(|s| (s.term(), s.begin_end(session)));
    if !begun {
        let what = format!("session {session} is about to end already, or is not known here yet");
        return Err(Error::new(ErrorKind::Unavailable, what));
    }
    let client = cx.node.soft.with(|s| s.client_of(session)).unwrap_or_default();
    let what = format!(
        "session {session} is over: its client has died, and another was started in its place; \
         its locks are given up, and what it had not flushed is lost: {client:?}"
    );
    let events = vec![events::warning("session-dead", what)];
    let body = Body::ExpireSession(v1::ExpireSessionEntry { session: session.0 });
    let node = cx.node.clone();
    // Whether or not somebody still waits for it.
    let ending = tokio::spawn(carried(async move {
        let ended = node.propose_telling(body, Effect::SessionEnds(session), events).await;
        if ended.is_err() {
            node.soft.with(|s| s.spare(term, session));
        }
        ended
    }));
    let gone = |error| Error::new(ErrorKind::Unavailable, format!("the end of a session: {error}"));
    ending.await.map_err(gone)?.map(|_| empty())
}
