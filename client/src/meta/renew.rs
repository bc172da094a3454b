//! Signs of life of a session.

use super::group::{Group, unexpected};
use std::time::Duration;
use tokio::time::Instant;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Result, SessionId, v1};

/// Between two of a session, unless it lives for less than four of them.
pub(crate) const RENEWAL_INTERVAL: Duration = Duration::from_secs(1);
/// One server gets at least this long to answer before another is asked.
const MIN_ATTEMPT_TIMEOUT: Duration = Duration::from_millis(200);

/// Renews a session, which lives for `ttl`, and the leases held in it. Errors: `SessionExpired`;
/// `TimedOut` if no leader answers for so long.
pub(crate) async fn renew(
    group: &Group,
    session: SessionId,
    op: v1::RenewOp,
    ttl: Duration,
) -> Result<v1::RenewReply> {
    let op = Some(Op::Renew(op));
    let request = v1::MetaRequest { session: session.0, op, ..Default::default() };
    let attempt = (ttl / 4).max(MIN_ATTEMPT_TIMEOUT);
    let sent = Instant::now();
    match group.send(&request, attempt, sent + ttl).await?.result()? {
        Reply::Renew(reply) => {
            group.leases.renewed(sent, Duration::from_millis(reply.ttl_ms));
            Ok(reply)
        }
        _ => Err(unexpected("a renewal")),
    }
}
