//! Deletes the chunks of segments whose last byte was removed, and then lets the state forget them
//! (I7).
//!
//! While nothing may be deleted ([`super::hold`]) no turn begins, whenever that comes about: it is
//! asked before each.
//!
//! Invariant: a segment is forgotten only when every target that may hold a chunk of it has
//! acknowledged the deletion. What a target that is down holds waits for it and delays nothing
//! else.

use super::hold;
use super::propose::propose;
use crate::node::Node;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use v1::log_entry::Body;
use weft_net::Peers;
use weft_proto::{ChunkId, Error, ErrorKind, PgId, Result, SegmentId, TargetId, v1};
use weft_segments::TargetClient;

/// Segments taken up at a time.
const BATCH: usize = 4096;
/// Pause when there is nothing to do, and before a target that failed is tried again.
const IDLE_INTERVAL: Duration = Duration::from_millis(200);
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Most segments that cannot be deleted and are told of.
const MAX_TOLD: usize = 1024;
/// How long a storage daemon may take for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Deletes garbage segments for as long as this server leads.
pub async fn collect_garbage(node: &Arc<Node>, peers: &Arc<Peers>) {
    let (resting, untold) = (HashMap::new(), Untold::default());
    collect(Cluster { node, peers, resting, untold }).await;
}

/// What garbage is collected of.
trait World {
    /// Whether nothing may be deleted now.
    fn holds(&self) -> bool;
    /// Grows when something is put on the list.
    fn put(&self) -> u64;
    fn garbage(&self, after: Option<SegmentId>) -> Result<Vec<v1::SegmentInfo>>;
    /// Deletes the chunks of these segments. Answers those that are gone everywhere.
    fn delete(
        &mut self,
        garbage: &[v1::SegmentInfo],
    ) -> impl Future<Output = Vec<SegmentId>> + Send;
    fn forget(&self, freed: Vec<SegmentId>) -> impl Future<Output = Result<()>> + Send;
}

async fn collect(mut world: impl World) {
    let mut after = None;
    // What was put on the list before this is gone.
    let mut done = None;
    loop {
        let put = world.put();
        if done == Some(put) {
            sleep(IDLE_INTERVAL).await;
            continue;
        }
        // Nothing is waited for between this and the requests to delete.
        hold::over(|| world.holds()).await;
        let garbage = match world.garbage(after) {
            Ok(garbage) => garbage,
            Err(error) => {
                tracing::error!("cannot read the list of garbage: {error}");
                sleep(RETRY_INTERVAL).await;
                continue;
            }
        };
        if garbage.is_empty() && after.is_none() {
            done = Some(put);
            continue;
        }
        let last = garbage.last().and_then(|s| s.segment_id().ok());
        let freed = world.delete(&garbage).await;
        // All of it may wait for targets that are away: there may be very much of that.
        if freed.is_empty() || world.holds() || world.forget(freed).await.is_err() {
            sleep(IDLE_INTERVAL).await;
        }
        // What could not be deleted is passed by, and met again on the next round.
        if garbage.len() == BATCH {
            after = last;
        } else {
            after = None;
            sleep(IDLE_INTERVAL).await;
        }
    }
}

/// The targets, and the state.
struct Cluster<'a> {
    node: &'a Arc<Node>,
    peers: &'a Arc<Peers>,
    /// Targets that failed, and until when they are left alone.
    resting: HashMap<TargetId, Instant>,
    untold: Untold,
}

impl World for Cluster<'_> {
    fn holds(&self) -> bool {
        hold::holds(self.node)
    }

    fn put(&self) -> u64 {
        self.node.state.discarded()
    }

    fn garbage(&self, after: Option<SegmentId>) -> Result<Vec<v1::SegmentInfo>> {
        self.node.state.garbage(after, BATCH)
    }

    async fn delete(&mut self, garbage: &[v1::SegmentInfo]) -> Vec<SegmentId> {
        self.resting.retain(|_, until| *until > Instant::now());
        delete(self.node, self.peers, garbage, &mut self.resting, &mut self.untold).await
    }

    async fn forget(&self, freed: Vec<SegmentId>) -> Result<()> {
        let segments = freed.into_iter().map(Into::into).collect();
        let body = Body::SegmentsFreed(v1::SegmentsFreedEntry { segments });
        propose(self.node, "forget deleted segments", body).await.map(drop)
    }
}

/// Deletes the chunks of these segments. Answers those that are gone everywhere.
async fn delete(
    node: &Arc<Node>,
    peers: &Arc<Peers>,
    garbage: &[v1::SegmentInfo],
    resting: &mut HashMap<TargetId, Instant>,
    untold: &mut Untold,
) -> Vec<SegmentId> {
    if garbage.is_empty() {
        return Vec::new();
    }
    let map = node.map();
    let groups = groups(&map);
    let mut failed = BTreeSet::new();
    let mut per_target: BTreeMap<TargetId, Vec<(SegmentId, ChunkId)>> = BTreeMap::new();
    let mut all = Vec::new();
    for segment in garbage {
        let (id, chunks) = match chunks_of(segment, &groups) {
            Ok(found) => found,
            Err(e) => {
                untold.tell(segment, &e);
                continue;
            }
        };
        all.push(id);
        for (target, chunk) in chunks {
            per_target.entry(target).or_default().push((id, chunk));
        }
    }
    let addresses: BTreeMap<TargetId, &v1::TargetInfo> =
        map.targets.iter().map(|t| (TargetId(t.id), t)).collect();
    let mut requests = JoinSet::new();
    for (target, chunks) in per_target {
        let segments = chunks.iter().map(|(segment, _)| *segment);
        match addresses.get(&target) {
            // What was on a target that was given up is gone with it.
            Some(info) if info.state() == v1::TargetState::Out => {}
            Some(info) if info.state() == v1::TargetState::Up && !resting.contains_key(&target) => {
                let client = TargetClient::new(peers, target, &info.address);
                requests.spawn(async move {
                    let ids: Vec<_> = chunks.iter().map(|(_, chunk)| *chunk).collect();
                    let result = client.delete(&ids, Instant::now() + REQUEST_TIMEOUT).await;
                    (target, chunks, result)
                });
            }
            _ => failed.extend(segments),
        }
    }
    while let Some(done) = requests.join_next().await {
        let Ok((target, chunks, result)) = done else { return Vec::new() };
        if let Err(e) = result {
            tracing::warn!(target = target.0, "could not delete chunks: {e}");
            resting.insert(target, Instant::now() + RETRY_INTERVAL);
            failed.extend(chunks.iter().map(|(segment, _)| *segment));
        }
    }
    all.retain(|id| !failed.contains(id));
    all
}

/// Segments that cannot be deleted are met at every round, and told of once.
#[derive(Default)]
struct Untold(BTreeSet<SegmentId>);

impl Untold {
    fn tell(&mut self, segment: &v1::SegmentInfo, error: &Error) {
        let Ok(id) = segment.segment_id() else { return };
        if self.0.len() < MAX_TOLD && self.0.insert(id) {
            tracing::error!("garbage segment {id} cannot be deleted: {error}");
        }
    }
}

fn groups(map: &v1::ClusterMap) -> HashMap<PgId, &v1::PgInfo> {
    map.groups().map(|pg| (PgId(pg.id), pg)).collect()
}

/// Where the chunks of a segment lie.
fn chunks_of(
    segment: &v1::SegmentInfo,
    groups: &HashMap<PgId, &v1::PgInfo>,
) -> Result<(SegmentId, Vec<(TargetId, ChunkId)>)> {
    let id = segment.segment_id()?;
    let geometry = segment.geometry()?;
    let group = groups.get(&PgId(segment.pg)).ok_or_else(|| {
        Error::new(ErrorKind::Internal, format!("placement group {} is not in the map", segment.pg))
    })?;
    let mut chunks = Vec::with_capacity(segment.seats.len());
    for (shard, &seat) in (0u8..).zip(&segment.seats) {
        if usize::from(seat) >= group.targets.len() {
            return Err(Error::new(
                ErrorKind::Internal,
                format!("placement group {} has no seat {seat}", segment.pg),
            ));
        }
        // A data shard that the segment does not reach was never stored.
        if geometry.shard_len(shard) > 0 {
            let holders = group.holders(seat).map(TargetId);
            chunks.extend(holders.map(|at| (at, ChunkId { segment: id, shard })));
        }
    }
    Ok((id, chunks))
}

#[cfg(test)]
mod tests;
