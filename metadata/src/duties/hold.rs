//! After a group was begun anew from a backup, nothing is deleted from targets for a while: what
//! its state does not know, or counts as garbage, a newer backup may want.
//!
//! Also when that is over, a chunk may be where the state does not look for it: its seat was given
//! to another target after the backup was made. It is deleted only where it is surely held by who
//! has the seat by now.

use crate::node::Node;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weft_net::Peers;
use weft_proto::{ChunkId, Result, TargetId, v1};
use weft_segments::TargetClient;

const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a target may take to read a chunk, and all those of one page of a list. What is passed
/// over is met again at the next look at the target.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(2);
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether that is so now. A state that cannot be read deletes nothing either.
pub(crate) fn holds(node: &Node) -> bool {
    until(node).is_none_or(|until| until != 0)
}

/// Until when that is so, in nanoseconds since 1970; 0: not now. `None` if the state cannot be
/// read.
pub(crate) fn until(node: &Node) -> Option<i64> {
    let until = node.state.held_until().ok()?;
    Some(if node.env.clock.now_ns() < until { until } else { 0 })
}

/// Waits until it is over.
pub(super) async fn over(holds: impl Fn() -> bool) {
    let mut told = false;
    while holds() {
        if !std::mem::replace(&mut told, true) {
            tracing::warn!("begun anew from a backup: nothing is deleted from targets for now");
        }
        sleep(LOOK_INTERVAL).await;
    }
}

/// Of chunks whose seats are others' by the state, with these, those that may be deleted.
pub(super) async fn held_elsewhere(
    node: &Node,
    peers: &Peers,
    misplaced: Vec<(ChunkId, Vec<u32>)>,
) -> Result<Vec<ChunkId>> {
    if node.state.incarnation()? == 0 {
        return Ok(misplaced.into_iter().map(|(chunk, _)| chunk).collect());
    }
    let map = node.map();
    let (mut held, until) = (Vec::new(), Instant::now() + PAGE_TIMEOUT);
    let is_up = |t: &v1::TargetInfo| t.state() == v1::TargetState::Up;
    let up: BTreeMap<u32, _> = map.targets.iter().filter(|t| is_up(t)).map(|t| (t.id, t)).collect();
    for (chunk, holders) in misplaced {
        if Instant::now() > until {
            break;
        }
        for holder in holders.iter().filter_map(|id| up.get(id)) {
            let target = TargetClient::new(peers, TargetId(holder.id), &holder.address);
            if matches!(target.verify(chunk, Instant::now() + VERIFY_TIMEOUT).await, Ok(None)) {
                held.push(chunk);
                break;
            }
        }
    }
    Ok(held)
}
