//! Has the targets read one segment that is drawn at random, all of its shards, now and then:
//! damage that spreads is heard of long before all data has been scrubbed.

use crate::node::Node;
use crate::soft::targets::Targets;
use crate::state::StateMachine;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weft_net::Peers;
use weft_proto::{ErrorKind, Result, SegmentId, SessionId};
use weft_segments::{Map, Segment, TargetClient};

/// How long a storage daemon may take to read a chunk.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(60);

/// Verifies a segment in every interval, for as long as this server leads.
pub async fn sample(node: &Arc<Node>, targets: &Targets, peers: &Arc<Peers>) {
    let mut rng = node.env.rng(0x7361_6d70_6c65_0000 ^ node.config.id.0);
    loop {
        sleep(Duration::from_millis(node.config.sample_interval_ms)).await;
        let (state, seed) = (node.state.clone(), rng.random());
        // Beside the event loop: it may pass over very much that was deleted.
        match node.env.blocking(move || draw(&state, seed)).await {
            Ok(Some(segment)) => verify(node, targets, peers, &segment).await,
            Ok(None) => {}
            Err(error) => tracing::error!("cannot draw a segment to be verified: {error}"),
        }
    }
}

/// A committed segment: of a session that is drawn, or of one that came later if that has none.
fn draw(state: &StateMachine, seed: u64) -> Result<Option<Segment>> {
    let mut rng = StdRng::seed_from_u64(seed);
    // Of those that were ever given out.
    let gaps = state.session_gaps()?;
    let skipped: u64 = gaps.iter().map(|(from, to)| to.saturating_sub(*from)).sum();
    let mut drawn = rng.random_range(0..state.next_session()?.saturating_sub(skipped).max(1));
    for (from, to) in gaps {
        if drawn >= from {
            drawn += to.saturating_sub(from);
        }
    }
    let drawn = SessionId(drawn);
    let found = match state.segment_from(SegmentId { session: drawn, seq: 0 })? {
        None => state.segment_from(SegmentId::default())?,
        found => found,
    };
    let Some(mut found) = found else { return Ok(None) };
    let SegmentId { session, seq } = found.segment_id()?;
    // About where the session's numbers end, in steps that grow until they are past it.
    let (mut last, mut step) = (seq, 1u64);
    while let Some(from) = last.checked_add(step)
        && let Some(further) = state.segment_of(session, from)?
    {
        last = further.segment_id()?.seq;
        step = step.saturating_mul(2);
    }
    if let Some(chosen) = state.segment_of(session, rng.random_range(seq..=last))? {
        found = chosen;
    }
    Segment::try_from(found).map(Some)
}

async fn verify(node: &Node, targets: &Targets, peers: &Peers, segment: &Segment) {
    let map = Map::new((*node.map()).clone());
    for (shard, &seat) in (0u8..).zip(&segment.seats) {
        let target = map.seat(segment.pg, seat).filter(|target| target.up);
        let Some(target) = target.filter(|_| segment.geometry.shard_len(shard) > 0) else {
            continue;
        };
        let (chunk, client) =
            (segment.chunk(shard), TargetClient::new(peers, target.id, &target.address));
        match client.verify(chunk, Instant::now() + VERIFY_TIMEOUT).await {
            Ok(None) => {}
            // What the drive cannot read is as good as damaged.
            Err(e) if e.kind == ErrorKind::Io => tracing::error!(
                %chunk, target = %client,
                "a chunk cannot be read: scrub that target (weft target scrub), and look at its \
                 drive: {e}"
            ),
            Ok(Some(off)) => tracing::error!(
                %chunk, target = %client, off,
                "a chunk is damaged: scrub that target (weft target scrub), and look at its drive"
            ),
            // It may have been deleted since it was drawn.
            Err(e) if e.kind == ErrorKind::NotFound => match node.state.is_committed(segment.id) {
                Ok(false) => return,
                _ => {
                    tracing::error!(%chunk, target = %client, "a chunk is missing, and made anew");
                    targets.note_missing(client.id(), chunk);
                }
            },
            Err(e) => tracing::warn!(%chunk, target = %client, "cannot be verified: {e}"),
        }
    }
}
