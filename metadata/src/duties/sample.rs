//! Has the targets read one segment that is drawn at random, all of its shards, now and then:
//! damage that spreads is heard of long before all data has been scrubbed.

use crate::node::Node;
use rand::Rng;
use rand::rngs::StdRng;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weft_net::Peers;
use weft_proto::{ErrorKind, Result, SegmentId, SessionId, v1};
use weft_segments::{Map, Segment, TargetClient};

/// How long a storage daemon may take to read a chunk.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(60);

/// Verifies a segment in every interval, for as long as this server leads.
pub async fn sample(node: &Arc<Node>, peers: &Arc<Peers>) {
    let mut rng = node.env.rng(0x7361_6d70_6c65_0000 ^ node.config.id.0);
    loop {
        sleep(Duration::from_millis(node.config.sample_interval_ms)).await;
        match draw(node, &mut rng) {
            Ok(Some(segment)) => verify(node, peers, &segment).await,
            Ok(None) => {}
            Err(error) => tracing::error!("cannot draw a segment to be verified: {error}"),
        }
    }
}

/// A committed segment: of a session that is drawn, or of one that came later if that has none.
fn draw(node: &Node, rng: &mut StdRng) -> Result<Option<Segment>> {
    let first = |session, seq| {
        let id = SegmentId { session: SessionId(session), seq };
        node.state.segment_from(id)
    };
    let drawn = rng.random_range(0..node.state.next_session()?);
    let found = match first(drawn, 0)? {
        None => first(0, 0)?,
        found => found,
    };
    let Some(found) = found else { return Ok(None) };
    let session = found.segment_id()?.session.0;
    let in_session = |info: &Option<v1::SegmentInfo>| {
        info.as_ref().and_then(|info| info.id).is_some_and(|id| id.session == session)
    };
    // The last number of the session, by halves.
    let (mut last, mut beyond) = (0, u64::MAX);
    while beyond - last > 1 {
        let middle = last + (beyond - last) / 2;
        match in_session(&first(session, middle)?) {
            true => last = middle,
            false => beyond = middle,
        }
    }
    let chosen = first(session, rng.random_range(0..=last))?;
    chosen.map(Segment::try_from).transpose()
}

async fn verify(node: &Node, peers: &Peers, segment: &Segment) {
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
            Ok(Some(off)) => tracing::error!(
                %chunk, target = %client, off,
                "a chunk is damaged: scrub that target (weft target scrub), and look at its drive"
            ),
            // It may have been deleted since it was drawn.
            Err(e) if e.kind == ErrorKind::NotFound => match node.state.is_committed(segment.id) {
                Ok(false) => return,
                _ => tracing::error!(%chunk, target = %client, "a chunk is missing: run weft fsck"),
            },
            Err(e) => tracing::warn!(%chunk, "cannot be verified: {e}"),
        }
    }
}
