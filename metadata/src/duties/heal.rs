//! Has damaged chunks made anew where they are, of the others of their segments, and those made
//! that are not where they should be: what readers and scrub have met, as the heartbeats of their
//! targets tell, and what was missing from a sample. What cannot be made now is tried again for as
//! long as it is told of.
//!
//! Invariant: of what was deleted meanwhile nothing is left behind (I7).

use super::hold;
use crate::node::Node;
use crate::soft::targets::Targets;
use futures_util::StreamExt;
use futures_util::stream::iter;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weft_net::Peers;
use weft_proto::{ChunkId, Error, ErrorKind, Result, SegmentId, TargetId};
use weft_segments::{Map, Segment, TargetClient};

const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// A chunk that could not be made anew is tried again after this.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// One that was is told of for a moment yet.
const TOLD_INTERVAL: Duration = Duration::from_secs(3);
/// Targets that are asked at a time.
const MAX_TARGETS: usize = 32;
/// How long a storage daemon may take for some chunks, and to look at one, or delete some.
const HEAL_TIMEOUT: Duration = Duration::from_secs(60);
const VERIFY_TIMEOUT: Duration = Duration::from_secs(2);
const DELETE_TIMEOUT: Duration = Duration::from_secs(10);

/// Orders what is damaged to be made anew, for as long as this server leads.
pub async fn heal(node: &Arc<Node>, targets: &Targets, peers: &Arc<Peers>) {
    let mut resting: HashMap<(TargetId, ChunkId), Instant> = HashMap::new();
    loop {
        sleep(LOOK_INTERVAL).await;
        let now = Instant::now();
        resting.retain(|_, until| *until > now);
        let mut due = Vec::new();
        for (target, mut chunks) in targets.damaged() {
            chunks.retain(|chunk| !resting.contains_key(&(target, *chunk)));
            if chunks.is_empty() {
                continue;
            }
            let until = now + RETRY_INTERVAL;
            resting.extend(chunks.iter().map(|chunk| ((target, *chunk), until)));
            due.push((target, chunks));
        }
        // One that hangs keeps no other waiting for its turn.
        let looks = due.into_iter().map(|(target, chunks)| async move {
            (target, heal_some(node, targets, peers, target, &chunks).await)
        });
        let mut healed = iter(looks).buffer_unordered(MAX_TARGETS);
        while let Some((target, healed)) = healed.next().await {
            match healed {
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

/// The segment with this id, if it is committed. An error if its record makes no sense.
fn segment_of(node: &Node, id: SegmentId) -> Result<Option<Segment>> {
    let segment = node.state.segment(id)?.map(Segment::try_from).transpose()?;
    let other = || Error::new(ErrorKind::Corrupt, format!("the record of {id} is another's"));
    segment.map(|found| if found.id == id { Ok(found) } else { Err(other()) }).transpose()
}

/// The segments of these chunks, as far as the target is to have them.
async fn find(
    node: &Node,
    targets: &Targets,
    map: &Map,
    client: &TargetClient,
    chunks: &[ChunkId],
) -> Result<Vec<(Segment, u8)>> {
    let mut found: Vec<(Segment, u8)> = Vec::new();
    for chunk in chunks {
        // One of which nothing is known keeps no other from being made.
        let Ok(segment) = segment_of(node, chunk.segment) else {
            node.repair.note_damaged(Instant::now(), [chunk.segment]);
            targets.note_in_vain(client.id(), *chunk);
            continue;
        };
        let seat = segment.as_ref().and_then(|s| s.seats.get(usize::from(chunk.shard)));
        match (&segment, seat) {
            (Some(segment), Some(&seat)) if map.is_for(client.id(), segment.pg, seat) => {
                found.push((segment.clone(), chunk.shard));
            }
            // It was deleted, is not committed yet, or is another's: who tells of it looks again.
            _ => {
                targets.forget_missing(client.id(), *chunk);
                let looked = client.verify(*chunk, Instant::now() + VERIFY_TIMEOUT).await;
                // One that is slow to read holds up no other.
                if let Err(error) = looked
                    && error.kind == ErrorKind::Unavailable
                {
                    return Err(error);
                }
            }
        }
    }
    Ok(found)
}

/// Answers those that were made anew.
async fn heal_some(
    node: &Node,
    targets: &Targets,
    peers: &Peers,
    target: TargetId,
    chunks: &[ChunkId],
) -> Result<Vec<ChunkId>> {
    let map = Map::new((*node.map()).clone());
    let Some(info) = map.target(target).filter(|info| info.up) else { return Ok(Vec::new()) };
    let client = TargetClient::new(peers, target, &info.address);
    let found = find(node, targets, &map, &client, chunks).await?;
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let items = found.iter().map(|(segment, shard)| (segment, *shard)).collect();
    let reply = client.rebuild(items, map.epoch, true, Instant::now() + HEAL_TIMEOUT).await;
    let gone = found.iter().map(|(segment, shard)| {
        Ok((!node.state.is_committed(segment.id)?).then(|| segment.chunk(*shard)))
    });
    let gone: Vec<_> = gone.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    if !gone.is_empty() && !hold::holds(node) {
        // They may have been made after they were deleted.
        let deleted = client.delete(&gone, Instant::now() + DELETE_TIMEOUT).await;
        deleted.inspect_err(|_| targets.suspect(target))?;
    }
    let reply = reply.inspect_err(|_| {
        targets.suspect(target);
        let chunks = found.iter().map(|(segment, shard)| segment.chunk(*shard));
        chunks.for_each(|chunk| targets.note_in_vain(target, chunk));
    })?;
    let mut healed = Vec::new();
    for ((segment, shard), outcome) in found.iter().zip(&reply.outcomes) {
        let chunk = segment.chunk(*shard);
        match outcome.error {
            0 => {
                tracing::info!(%target, %chunk, "a chunk that was damaged is whole");
                targets.forget_missing(target, chunk);
                healed.push(chunk);
            }
            _ if gone.contains(&chunk) => targets.forget_missing(target, chunk),
            _ => {
                targets.note_in_vain(target, chunk);
                tracing::error!(
                    %target, %chunk, "a damaged chunk cannot be made anew: {}", outcome.message
                );
            }
        }
    }
    Ok(healed)
}
