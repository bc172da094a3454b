//! Garbage on the targets: segments whose last byte was removed, and chunks that a dead session
//! never committed (I7).
//!
//! [`collect`] deletes the chunks of segments that the state lists as garbage and then lets the
//! state forget them. [`sweep`] lists the targets for chunks of sessions that are dead: all of a target
//! once, when this server begins to lead or the target comes up or was opened anew, and then those of one session
//! at a time, when it has ended and some more times, since what it had sent may arrive late.
//! Invariants: a segment is forgotten only when every target that may hold a chunk of it has
//! acknowledged the deletion; a chunk is swept only if, at one moment after it was listed, its
//! session was dead and its segment unknown: a dead session commits nothing any more (I5), so that
//! stays true. What a target that is down holds waits for it and delays nothing else.

use crate::leader::propose;
use crate::node::Node;
use crate::state::StateMachine;
use crate::targets::Targets;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use v1::log_entry::Body;
use weft_net::Peers;
use weft_proto::{ChunkId, Error, ErrorKind, PgId, Result, SegmentId, SessionId, TargetId, op, v1};

/// Segments taken up at a time.
const BATCH: usize = 4096;
/// Chunks in one request.
const DELETE: usize = 2048;
/// Pause when there is nothing to do, and before a target that failed is tried again.
const IDLE: Duration = Duration::from_millis(200);
const RETRY: Duration = Duration::from_secs(2);
/// How long a storage daemon may take for one request.
const DEADLINE: Duration = Duration::from_secs(10);
/// Chunks listed at a time.
const PAGE: u32 = 4096;
/// How often what a session left is looked for, each time after four times the pause before.
const LOOKS: u32 = 6;
/// When all of a target is looked at once more.
const WHOLE: Duration = Duration::from_secs(24 * 3600);

/// Deletes garbage segments for as long as this server leads.
pub async fn collect(node: &Arc<Node>, peers: &Arc<Peers>) {
    let mut after = None;
    // Targets that failed, and until when they are left alone.
    let mut resting: HashMap<TargetId, Instant> = HashMap::new();
    // What was put on the list before this is gone.
    let mut done = None;
    loop {
        let put = node.state.discarded();
        if done == Some(put) {
            sleep(IDLE).await;
            continue;
        }
        let garbage = match node.state.garbage(after, BATCH) {
            Ok(garbage) => garbage,
            Err(error) => {
                tracing::error!("cannot read the list of garbage: {error}");
                sleep(RETRY).await;
                continue;
            }
        };
        if garbage.is_empty() && after.is_none() {
            done = Some(put);
            continue;
        }
        let last = garbage.last().and_then(|s| s.segment_id().ok());
        resting.retain(|_, until| *until > Instant::now());
        let freed = delete(node, peers, &garbage, &mut resting).await;
        if !freed.is_empty() {
            let segments = freed.into_iter().map(Into::into).collect();
            let entry = v1::SegmentsFreedEntry { segments };
            if propose(node, "forget deleted segments", Body::SegmentsFreed(entry)).await.is_err() {
                sleep(IDLE).await;
            }
        }
        // What could not be deleted is passed by, and met again on the next round.
        if garbage.len() == BATCH {
            after = last;
        } else {
            after = None;
            sleep(IDLE).await;
        }
    }
}

/// Deletes the chunks of these segments. Answers those that are gone everywhere.
async fn delete(
    node: &Arc<Node>,
    peers: &Arc<Peers>,
    garbage: &[v1::SegmentInfo],
    resting: &mut HashMap<TargetId, Instant>,
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
                tracing::error!("garbage segment {:?} cannot be deleted: {e}", segment.id);
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
                let peer = peers.peer(&info.address);
                requests.spawn(async move {
                    let result = delete_on(&peer, target, &chunks).await;
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
            resting.insert(target, Instant::now() + RETRY);
            failed.extend(chunks.iter().map(|(segment, _)| *segment));
        }
    }
    all.retain(|id| !failed.contains(id));
    all
}

async fn delete_on(
    peer: &weft_net::Peer,
    target: TargetId,
    chunks: &[(SegmentId, ChunkId)],
) -> Result<()> {
    for batch in chunks.chunks(DELETE) {
        let chunks = batch.iter().map(|(_, chunk)| (*chunk).into()).collect();
        let request = v1::DeleteRequest { target: target.0, chunks };
        let _: v1::DeleteReply = peer.call(op::DELETE, &request, Instant::now() + DEADLINE).await?;
    }
    Ok(())
}

fn groups(map: &v1::ClusterMap) -> HashMap<PgId, &v1::PgInfo> {
    map.pools.iter().flat_map(|p| &p.pgs).map(|pg| (PgId(pg.id), pg)).collect()
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
        let target = group.targets.get(usize::from(seat)).ok_or_else(|| {
            Error::new(
                ErrorKind::Internal,
                format!("placement group {} has no seat {seat}", segment.pg),
            )
        })?;
        // A data shard that the segment does not reach was never stored.
        if geometry.shard_len(shard) > 0 {
            chunks.push((TargetId(*target), ChunkId { segment: id, shard }));
        }
    }
    Ok((id, chunks))
}

/// A target that is up.
struct Up {
    address: String,
    /// The number that its daemon gave to opening it: with an index that was lost, chunks come back that were deleted.
    opened: u64,
}

/// What was looked at already, and what is to be.
#[derive(Default)]
struct Swept {
    /// Targets that were looked at as a whole, when, and as which opening of them; not those that have been away
    /// since.
    whole: BTreeMap<TargetId, (Instant, u64)>,
    /// Targets that failed, and until when they are left alone.
    resting: BTreeMap<TargetId, Instant>,
    /// Sessions that have ended: when they are looked for next, and how often they were.
    ended: BTreeMap<SessionId, (Instant, u32)>,
}

impl Swept {
    /// Targets to be looked at as a whole, of those that are up.
    fn whole_due(&mut self, now: Instant, up: &BTreeMap<TargetId, Up>) -> Vec<TargetId> {
        self.whole.retain(|target, (at, opened)| {
            up.get(target).is_some_and(|up| up.opened == *opened) && now - *at < WHOLE
        });
        self.resting.retain(|_, until| now < *until);
        let due = |t: &&TargetId| !self.whole.contains_key(t) && !self.resting.contains_key(t);
        up.keys().filter(due).copied().collect()
    }

    /// These have ended.
    fn note_ended(&mut self, now: Instant, sessions: impl Iterator<Item = SessionId>) {
        self.ended.extend(sessions.map(|session| (session, (now, 0))));
    }

    /// Sessions to be looked for now on the targets that were looked at as a whole before, each `period` and
    /// more after the last time.
    fn sessions_due(&mut self, now: Instant, period: Duration) -> Vec<SessionId> {
        let mut due = Vec::new();
        self.ended.retain(|&session, (at, looks)| {
            if *at <= now {
                due.push(session);
                *at = now + period * 4u32.pow(*looks);
                *looks += 1;
            }
            *looks < LOOKS
        });
        due
    }

    /// What is there is not known: later, and all of it.
    fn failed(&mut self, target: TargetId, until: Instant) {
        self.whole.remove(&target);
        self.resting.insert(target, until);
    }
}

/// Looks for what dead sessions left, for as long as this server leads.
pub async fn sweep(node: &Arc<Node>, targets: &Targets, peers: &Arc<Peers>) {
    let period = Duration::from_millis(node.config.sweep_ms);
    let mut swept = Swept::default();
    let (mut live, mut next) = sessions(node).unwrap_or((BTreeSet::new(), u64::MAX));
    loop {
        let up = up(&node.map(), &targets.stats());
        for target in swept.whole_due(Instant::now(), &up) {
            look(node, peers, &up, target, None, &mut swept).await;
        }
        // After those: who ended meanwhile may not have been seen there.
        match sessions(node) {
            Ok((now, following)) => {
                // Some may have come and gone since the last time.
                live.extend((next..following).map(SessionId));
                swept.note_ended(Instant::now(), live.difference(&now).copied());
                (live, next) = (now, following);
            }
            Err(error) => tracing::error!("cannot read the list of sessions: {error}"),
        }
        for session in swept.sessions_due(Instant::now(), period) {
            for target in swept.whole.keys().copied().collect::<Vec<_>>() {
                look(node, peers, &up, target, Some(session), &mut swept).await;
            }
        }
        sleep(IDLE).await;
    }
}

/// The targets that are up and that this leader has heard of.
fn up(map: &v1::ClusterMap, stats: &[v1::TargetStat]) -> BTreeMap<TargetId, Up> {
    let opened: BTreeMap<_, _> = stats.iter().map(|stat| (stat.target, stat.opened)).collect();
    let up = map.targets.iter().filter(|t| t.state() == v1::TargetState::Up).filter_map(|t| {
        let (address, opened) = (t.address.clone(), *opened.get(&t.id)?);
        Some((TargetId(t.id), Up { address, opened }))
    });
    up.collect()
}

/// Looks at all of a target, or for what one session left there.
async fn look(
    node: &Arc<Node>,
    peers: &Peers,
    up: &BTreeMap<TargetId, Up>,
    target: TargetId,
    session: Option<SessionId>,
    swept: &mut Swept,
) {
    let Some(Up { address, opened }) = up.get(&target) else { return };
    let begun = Instant::now();
    match sweep_target(node, &peers.peer(address), target, session).await {
        Ok(()) if session.is_none() => drop(swept.whole.insert(target, (begun, *opened))),
        Ok(()) => {}
        Err(e) => {
            tracing::warn!(target = target.0, "could not look for chunks of dead sessions: {e}");
            swept.failed(target, Instant::now() + RETRY);
        }
    }
}

/// The sessions that live, and the number of the next.
fn sessions(node: &Node) -> Result<(BTreeSet<SessionId>, u64)> {
    let next = node.state.next_session()?;
    Ok((node.state.sessions()?.into_iter().map(|(id, _)| id).collect(), next))
}

async fn sweep_target(
    node: &Arc<Node>,
    peer: &weft_net::Peer,
    target: TargetId,
    session: Option<SessionId>,
) -> Result<()> {
    let mut after: Option<v1::ChunkKey> = None;
    let of = session.map_or(0, |session| session.0);
    loop {
        let begun = Instant::now();
        let request =
            v1::ListRequest { target: target.0, after: after.take(), session: of, limit: PAGE };
        let listed: v1::ListReply =
            peer.call(op::LIST, &request, Instant::now() + DEADLINE).await?;
        let mut chunks = Vec::with_capacity(listed.items.len());
        for item in &listed.items {
            let key = item
                .chunk
                .ok_or_else(|| Error::new(ErrorKind::Protocol, "a listed chunk without a key"))?;
            chunks.push(ChunkId::try_from(key)?);
        }
        let Some(&last) = chunks.last() else { return Ok(()) };
        // The state must be at least as new as the list: a chunk in it whose session is dead now,
        // and whose segment is not known now, will never be.
        node.read_barrier().await?;
        // Thousands of reads: not on the thread that answers everybody.
        let state = node.state.clone();
        let dead = node.env.blocking(move || leftovers(&state, chunks)).await?;
        if !dead.is_empty() {
            tracing::info!(
                target = target.0,
                chunks = dead.len(),
                "deleting what dead sessions left"
            );
            delete_on(peer, target, &dead).await?;
        }
        if !listed.more {
            return Ok(());
        }
        after = Some(next_page(node, last)?.into());
        // Half of the time is for others.
        sleep(begun.elapsed()).await;
    }
}

/// Of these chunks, those that no live session owns and no segment needs.
fn leftovers(state: &StateMachine, chunks: Vec<ChunkId>) -> Result<Vec<(SegmentId, ChunkId)>> {
    let mut dead = Vec::new();
    // Chunks come in order, so neighbours share their segment and their session.
    let mut last: Option<(SegmentId, bool)> = None;
    for chunk in chunks {
        let segment = chunk.segment;
        let is_dead = match last {
            Some((same, answer)) if same == segment => answer,
            _ => !state.session_exists(segment.session)? && !state.segment_known(segment)?,
        };
        last = Some((segment, is_dead));
        if is_dead {
            dead.push((segment, chunk));
        }
    }
    Ok(dead)
}

/// Where to list on: the rest of a live session's chunks need no look.
fn next_page(node: &Node, last: ChunkId) -> Result<ChunkId> {
    if node.state.session_exists(last.segment.session)? {
        let end = SegmentId { session: last.segment.session, seq: u64::MAX };
        return Ok(ChunkId {
            segment: end,
            shard: weft_proto::layout::MAX_K + weft_proto::layout::MAX_M - 1,
        });
    }
    Ok(last)
}
