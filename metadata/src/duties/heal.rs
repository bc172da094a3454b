//! Has damaged chunks made anew where they are, of the others of their segments, and those made
//! that are not where they should be: what readers and scrub have met, as the heartbeats of their
//! targets tell, and what was missing from a sample. What cannot be made now is tried again for as
//! long as it is told of.
//!
//! Invariant: of what was deleted meanwhile nothing is left behind (I7).

use super::hold;
use crate::node::Node;
use crate::soft::targets::Targets;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};
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
    let heal = |target, chunks: Vec<ChunkId>| async move {
        heal_some(node, targets, peers, target, &chunks).await
    };
    order(|| targets.damaged(), heal).await
}

/// Has `heal` heal what is `damaged`, again and again. One target that hangs keeps no other waiting
/// for its turn, or its next one.
async fn order<F>(
    damaged: impl Fn() -> BTreeMap<TargetId, Vec<ChunkId>>,
    heal: impl Fn(TargetId, Vec<ChunkId>) -> F,
) where
    F: Future<Output = Result<Vec<ChunkId>>>,
{
    let (mut ordered, turns) = (Ordered::default(), Semaphore::new(MAX_TARGETS));
    let mut under_way = FuturesUnordered::new();
    let mut look = Instant::now() + LOOK_INTERVAL;
    loop {
        tokio::select! {
            () = sleep_until(look) => {
                let now = Instant::now();
                look = now + LOOK_INTERVAL;
                for (target, chunks) in ordered.take(now, damaged()) {
                    let (heal, turns) = (&heal, &turns);
                    under_way.push(async move {
                        let _turn = turns.acquire().await;
                        (target, heal(target, chunks).await)
                    });
                }
            }
            Some((target, healed)) = under_way.next() => {
                if let Err(error) = &healed {
                    tracing::warn!(%target, "damaged chunks cannot be made anew yet: {error}");
                }
                ordered.ended(Instant::now(), target, healed.unwrap_or_default());
            }
        }
    }
}

/// What is not to be ordered now.
#[derive(Default)]
struct Ordered {
    /// Targets that have not answered yet.
    under_way: HashSet<TargetId>,
    /// Chunks that were ordered a moment ago, and until when they are left alone.
    resting: HashMap<(TargetId, ChunkId), Instant>,
}

impl Ordered {
    /// What is to be ordered of what is damaged.
    fn take(
        &mut self,
        now: Instant,
        damaged: BTreeMap<TargetId, Vec<ChunkId>>,
    ) -> Vec<(TargetId, Vec<ChunkId>)> {
        self.resting.retain(|_, until| *until > now);
        let mut due = Vec::new();
        for (target, mut chunks) in damaged {
            chunks.retain(|chunk| !self.resting.contains_key(&(target, *chunk)));
            if chunks.is_empty() || !self.under_way.insert(target) {
                continue;
            }
            let until = now + RETRY_INTERVAL;
            self.resting.extend(chunks.iter().map(|chunk| ((target, *chunk), until)));
            due.push((target, chunks));
        }
        due
    }

    /// A target has answered, and these were made anew.
    fn ended(&mut self, now: Instant, target: TargetId, healed: Vec<ChunkId>) {
        self.under_way.remove(&target);
        let until = now + TOLD_INTERVAL;
        self.resting.extend(healed.into_iter().map(|chunk| ((target, chunk), until)));
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::future::pending;
    use tokio::time::timeout;
    use weft_proto::SessionId;

    fn chunk(seq: u64) -> ChunkId {
        ChunkId { segment: SegmentId { session: SessionId(1), seq }, shard: 0 }
    }

    /// A target tells of few chunks at a time: it has to be asked again and again.
    #[tokio::test(start_paused = true)]
    async fn a_target_that_hangs_keeps_no_other_from_the_next_round() {
        let (hangs, serves) = (TargetId(1), TargetId(2));
        let asked: RefCell<Vec<(TargetId, Vec<ChunkId>)>> = RefCell::default();
        // Each has another chunk each time.
        let damaged = || {
            let next = chunk(asked.borrow().len() as u64);
            [(hangs, vec![next]), (serves, vec![next])].into()
        };
        let heal = |target, chunks: Vec<ChunkId>| {
            asked.borrow_mut().push((target, chunks.clone()));
            async move {
                if target == hangs {
                    pending::<()>().await;
                }
                Ok(chunks)
            }
        };
        let rounds = 10;
        timeout(rounds * LOOK_INTERVAL + LOOK_INTERVAL / 2, order(damaged, heal))
            .await
            .unwrap_err();
        let asked = asked.into_inner();
        let of = |id| asked.iter().filter(|(target, _)| *target == id).count();
        assert_eq!((of(hangs), of(serves)), (1, rounds as usize));
    }

    #[test]
    fn what_was_ordered_rests_and_one_target_has_one_order() {
        let (mut ordered, start, target) = (Ordered::default(), Instant::now(), TargetId(1));
        let take = |after: Duration, ordered: &mut Ordered, seqs: &[u64]| {
            let chunks = seqs.iter().copied().map(chunk).collect();
            let due = ordered.take(start + after, [(target, chunks)].into());
            due.into_iter()
                .flat_map(|(_, chunks)| chunks)
                .map(|c| c.segment.seq)
                .collect::<Vec<_>>()
        };
        let s = Duration::from_secs;
        assert_eq!(take(s(0), &mut ordered, &[1, 2]), [1, 2]);
        assert!(take(s(1), &mut ordered, &[1, 2, 3]).is_empty(), "it has not answered");
        ordered.ended(start + s(2), target, vec![chunk(1)]);
        assert_eq!(take(s(2), &mut ordered, &[1, 2, 3]), [3]);
        ordered.ended(start + s(2), target, vec![chunk(3)]);
        // The healed are told of for a moment yet; the other is tried again later.
        assert!(take(s(4), &mut ordered, &[1, 2, 3]).is_empty());
        assert_eq!(take(s(6), &mut ordered, &[1, 2, 3]), [1, 3]);
        ordered.ended(start + s(6), target, vec![]);
        assert_eq!(take(s(61), &mut ordered, &[1, 2, 3]), [2]);
    }
}
