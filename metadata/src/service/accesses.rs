//! Access times as the group keeps them: by the rule that Linux calls relatime, over all mounts.
//!
//! Each mount follows it by what it knows, under a lease for as long as nobody changes the inode;
//! so what one has told, others tell again. And clocks of mounts may be wrong.

use super::context::RequestContext;
use crate::node::Node;
use crate::ops::MAX_ACCESSES;
use v1::meta_request::Op;
use weft_proto::{InodeId, Result, v1};

/// An access time is renewed once a day; a mount's day may end a little earlier than the leader's.
const RENEWAL_INTERVAL_NS: i64 = 23 * 3600 * 1_000_000_000;

/// Leaves of a request what is to be kept, and no time that has not come yet. Answers whether
/// anything is left.
pub(super) async fn keep_due(cx: &mut RequestContext<'_>) -> Result<bool> {
    cx.lead().await?;
    let Some(Op::Accessed(op)) = &mut cx.request.op else { return Ok(true) };
    if op.accesses.len() <= MAX_ACCESSES {
        op.accesses = due(cx.node, &op.accesses)?;
    }
    Ok(!op.accesses.is_empty())
}

fn due(node: &Node, accesses: &[v1::Access]) -> Result<Vec<v1::Access>> {
    let now = node.env.clock.now_ns();
    let mut due = Vec::with_capacity(accesses.len());
    for access in accesses {
        let Some(attr) = node.state.attr(InodeId(access.ino))? else { continue };
        let changed = attr.ctime_ns.max(attr.mtime_ns);
        let atime_ns = access.atime_ns.min(now.max(changed));
        let is_old = atime_ns.saturating_sub(attr.atime_ns) >= RENEWAL_INTERVAL_NS;
        if attr.atime_ns <= changed || is_old {
            due.push(v1::Access { atime_ns, ..*access });
        }
    }
    Ok(due)
}
