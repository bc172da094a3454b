//! How many sessions one owner may have at a time: each takes memory of the leader and a place in
//! the state of every server, and a client that opens them in a loop and keeps them would take all
//! there is.
//!
//! Only the leader counts, before an entry is made, so that it is the same to all replicas whatever
//! their version. What is on its way at the same moment may come on top.

use crate::node::Node;
use crate::soft::sessions::Client;
use weft_proto::{Error, ErrorKind, Result, v1};

/// An owner may have so many for each connection that the server takes: a session that lives has at
/// least one, and those of clients that have died are there for a while.
const EACH_CONNECTION: usize = 2;
/// And so many in any case.
const LEAST: usize = 4096;

/// Error: `Busy`, the owner has as many as he may.
pub(super) fn may_open(node: &Node, op: &v1::OpenSessionOp) -> Result<()> {
    let client = Client { name: op.client.clone(), owner: op.owner.clone() };
    let connections = usize::try_from(node.config.max_connections).unwrap_or(usize::MAX);
    let most = connections.saturating_mul(EACH_CONNECTION).max(LEAST);
    let count = node.soft.with(|s| s.count_of(&client));
    // One that was opened before is answered again.
    if count < most || node.state.session_of(&op.nonce)?.is_some() {
        return Ok(());
    }
    let what = format!(
        "{:?} has {count} sessions of {most} that one may have: unmount what is not used, end what \
         opens them again and again (`weft status` shows the names of the sessions), or raise \
         max_connections of the metadata servers. Those of clients that are dead are over {} s \
         after they were heard of last",
        client.whose(),
        node.config.session_ttl_ms.div_ceil(1000),
    );
    // It may ask in a loop, too.
    tracing::debug!("refused: {what}");
    Err(Error::new(ErrorKind::Busy, what))
}
