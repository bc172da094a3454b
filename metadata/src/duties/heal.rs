//! Has damaged chunks made anew where they are, of the others of their segments: those that readers
//! and scrub have met, as the heartbeats of their targets tell. What cannot be made now is tried
//! again for as long as the target tells of it.

use crate::node::Node;
use crate::soft::targets::Targets;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weft_net::Peers;
use weft_proto::{ChunkId, Result, TargetId};
use weft_segments::{Map, Segment, TargetClient};

const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// A chunk that could not be made anew is tried again after this.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// One that was is told of for a moment yet.
const TOLD_INTERVAL: Duration = Duration::from_secs(3);
/// How long a storage daemon may take for some chunks.
const HEAL_TIMEOUT: Duration = Duration::from_secs(60);

/// Orders what is damaged to be made anew, for as long as this server leads.
pub async fn heal(node: &Arc<Node>, targets: &Targets, peers: &Arc<Peers>) {
    let mut resting: HashMap<(TargetId, ChunkId), Instant> = HashMap::new();
    loop {
        sleep(LOOK_INTERVAL).await;
        let now = Instant::now();
        resting.retain(|_, until| *until > now);
        for (target, mut chunks) in targets.damaged() {
            chunks.retain(|chunk| !resting.contains_key(&(target, *chunk)));
            if chunks.is_empty() {
                continue;
            }
            let until = Instant::now() + RETRY_INTERVAL;
            resting.extend(chunks.iter().map(|chunk| ((target, *chunk), until)));
            match heal_some(node, peers, target, &chunks).await {
                Ok(healed) => {
                    let until = Instant::now() + TOLD_INTERVAL;
                    resting.extend(healed.into_iter().map(|chunk| ((target, chunk), until)));
                }
                Err(error) => {
                    tracing::warn!(%target, "damaged chunks cannot be made anew yet: {error}");
                }
            }
        }
    }
}

/// Answers those that were made anew.
async fn heal_some(
    node: &Node,
    peers: &Peers,
    target: TargetId,
    chunks: &[ChunkId],
) -> Result<Vec<ChunkId>> {
    let map = Map::new((*node.map()).clone());
    let Some(info) = map.target(target).filter(|info| info.up) else { return Ok(Vec::new()) };
    let mut found: Vec<(Segment, u8)> = Vec::new();
    for chunk in chunks {
        // What is deleted meanwhile needs nothing.
        let Some(record) = node.state.segment(chunk.segment)? else { continue };
        let segment = Segment::try_from(record)?;
        let seat = segment.seats.get(usize::from(chunk.shard));
        if seat.is_some_and(|&seat| map.is_for(target, segment.pg, seat)) {
            found.push((segment, chunk.shard));
        }
    }
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let items = found.iter().map(|(segment, shard)| (segment, *shard)).collect();
    let client = TargetClient::new(peers, target, &info.address);
    let reply = client.rebuild(items, map.epoch, true, Instant::now() + HEAL_TIMEOUT).await?;
    let mut healed = Vec::new();
    for ((segment, shard), outcome) in found.iter().zip(&reply.outcomes) {
        let chunk = segment.chunk(*shard);
        match outcome.error {
            0 => {
                tracing::info!(%target, %chunk, "a chunk that was damaged is whole");
                healed.push(chunk);
            }
            _ => tracing::error!(
                %target, %chunk, "a damaged chunk cannot be made anew: {}", outcome.message
            ),
        }
    }
    Ok(healed)
}
