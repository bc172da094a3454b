//! One move of a seat, from its beginning to its end.

use super::seat::{Page, page};
use crate::duties::hold;
use crate::duties::propose::propose;
use crate::node::Node;
use crate::soft::targets::Targets;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use v1::log_entry::Body;
use v1::move_seats_entry::{Change, Step};
use weft_net::Peers;
use weft_proto::{Error, ErrorKind, MapEpoch, PgId, Result, TargetId, v1};
use weft_segments::{Segment, TargetClient};

/// How long a storage daemon may take for the chunks of one request.
const REBUILD_TIMEOUT: Duration = Duration::from_secs(60);
const DELETE_TIMEOUT: Duration = Duration::from_secs(10);
const DISOWN_TIMEOUT: Duration = Duration::from_secs(30);
/// Most chunks in one request, and about how many bytes.
const BATCH: usize = 32;
const BATCH_BYTES: u64 = 32 << 20;

/// What keeps a move from its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Obstacle {
    /// The target has no room for a chunk.
    NoRoom,
    /// The target could not store a chunk.
    CannotStore,
    /// It waits until what is lost is made.
    Waits,
    Other,
}

struct Stopped {
    error: Error,
    obstacle: Obstacle,
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self { error, obstacle: Obstacle::Other }
    }
}

/// Where something is left that belongs elsewhere now, until it is deleted: who stops before that
/// leaves it to a look at all that lies there.
struct Leftovers<'a> {
    targets: &'a Targets,
    at: Option<TargetId>,
}

impl Drop for Leftovers<'_> {
    fn drop(&mut self) {
        if let Some(target) = self.at {
            self.targets.suspect(target);
        }
    }
}

pub(super) struct Job {
    node: Arc<Node>,
    targets: Arc<Targets>,
    peers: Arc<Peers>,
    pg: PgId,
    seat: u32,
    to: TargetId,
    /// Who had the seat when the move was taken up.
    former: Option<TargetId>,
    /// Chunks of the seat, and how many of them are there.
    total: u64,
    there: AtomicU64,
    /// It is to make no more for now.
    waits: Arc<AtomicBool>,
}

impl Job {
    pub fn new(
        node: &Arc<Node>,
        targets: &Arc<Targets>,
        peers: &Arc<Peers>,
        pg: PgId,
        seat: u32,
        to: TargetId,
        total: u64,
    ) -> Self {
        let (node, targets, peers) = (node.clone(), targets.clone(), peers.clone());
        let map = node.map();
        let group = map.groups().find(|group| group.id == pg.0);
        let former = group.and_then(|group| group.targets.get(seat as usize).copied());
        let (former, there) = (former.map(TargetId), AtomicU64::new(0));
        Self { node, targets, peers, pg, seat, to, former, total, there, waits: Arc::default() }
    }

    /// It makes no more chunks while this is so.
    pub fn while_not(self, waits: Arc<AtomicBool>) -> Self {
        Self { waits, ..self }
    }

    /// Answers why the move is not at its end, if it is not.
    pub async fn run(self) -> Option<Obstacle> {
        let (pg, seat, to) = (self.pg, self.seat, self.to);
        let at = (pg, seat as u8);
        match self.make_all().await {
            Ok(true) => {
                self.node.repair.set_problem(at, None);
                let r#move = Some(v1::SeatMove { seat, to: to.0, ..Default::default() });
                let change = Change { pg: pg.0, r#move, step: Step::Finish.into() };
                let entry = v1::MoveSeatsEntry { changes: vec![change] };
                let mut leftovers = Leftovers { targets: &self.targets, at: self.former };
                // If the map has changed meanwhile, the next look starts over.
                let finished = propose(&self.node, "finish a move", Body::MoveSeats(entry)).await;
                if let (Ok(_), Some(former)) = (&finished, self.former) {
                    match self.clear(former).await {
                        Ok(()) => leftovers.at = None,
                        Err(error) => {
                            tracing::info!(%pg, seat, %former, "not all could be deleted: {error}");
                        }
                    }
                }
                tracing::info!(%pg, seat, %to, ok = finished.is_ok(), "a seat has moved");
                finished.err().map(|_| Obstacle::Other)
            }
            Ok(false) => {
                // Of an order that comes late something may be left.
                self.targets.suspect(to);
                None
            }
            Err(Stopped { obstacle: Obstacle::Waits, .. }) => Some(Obstacle::Waits),
            Err(Stopped { error, obstacle }) => {
                tracing::warn!(%pg, seat, %to, "a seat cannot be moved yet: {error}");
                self.node.repair.set_problem(at, Some(error.to_string()));
                Some(obstacle)
            }
        }
    }

    /// Makes every chunk of the seat. Answers false if the move is no more; an error if any chunk
    /// could not be made.
    async fn make_all(&self) -> Result<bool, Stopped> {
        let (mut after, mut failed) = (None, None);
        loop {
            let (state, at) = (self.node.state.clone(), (self.pg.0, self.seat));
            let Page { found, next } =
                self.node.env.blocking(move || page(&state, at, false, after)).await?;
            let mut rest = &found[..];
            while !rest.is_empty() {
                let (batch, others) = rest.split_at(first_batch(rest));
                rest = others;
                let mut batch = batch.to_vec();
                while !batch.is_empty() {
                    if self.waits.load(Ordering::Relaxed) {
                        let error = Error::new(ErrorKind::Unavailable, "what is lost comes first");
                        return Err(Stopped { error, obstacle: Obstacle::Waits });
                    }
                    let Some((address, epoch)) = self.destination() else { return Ok(false) };
                    let target = TargetClient::new(&self.peers, self.to, &address);
                    match self.make(&target, &batch, epoch).await {
                        // It goes on, slowly.
                        Ok(left) => batch = left,
                        // One segment that cannot be read holds up no other.
                        Err(stopped) if stopped.error.kind == ErrorKind::Io => {
                            failed = Some(stopped);
                            break;
                        }
                        Err(stopped) => return Err(stopped),
                    }
                }
            }
            match next {
                Some(_) => after = next,
                None => return failed.map_or(Ok(true), Err),
            }
        }
    }

    /// Has the target that had the seat delete what lies there: at once, so that what is deleted
    /// by others from now on is not left behind. Its daemon asks first which of it is its business.
    async fn clear(&self, former: TargetId) -> Result<()> {
        let map = self.node.map();
        let serves = |t: &&v1::TargetInfo| t.id == former.0 && t.state() == v1::TargetState::Up;
        let target = map.targets.iter().find(serves);
        let away = || Error::new(ErrorKind::Unavailable, "it does not serve");
        let target = TargetClient::new(&self.peers, former, &target.ok_or_else(away)?.address);
        let mut after = None;
        loop {
            let map = self.node.map();
            let mut groups = map.groups().filter(|pg| pg.id == self.pg.0);
            if groups.any(|pg| pg.moves.iter().any(|m| m.seat == self.seat)) {
                return Err(Error::new(ErrorKind::Busy, "the seat moves again"));
            }
            let (state, at) = (self.node.state.clone(), (self.pg.0, self.seat));
            let Page { found, next } =
                self.node.env.blocking(move || page(&state, at, true, after)).await?;
            let chunks: Vec<_> =
                found.iter().map(|(segment, shard)| segment.chunk(*shard)).collect();
            if !chunks.is_empty() {
                target.disown(&chunks, Instant::now() + DISOWN_TIMEOUT).await?;
            }
            match next {
                Some(_) => after = next,
                None => return Ok(()),
            }
        }
    }

    /// Where the target is, and the epoch of the map that says so; `None` if the move is no more.
    fn destination(&self) -> Option<(String, MapEpoch)> {
        let map = self.node.map();
        let pg = map.groups().find(|pg| pg.id == self.pg.0)?;
        pg.moves.iter().find(|m| m.seat == self.seat && m.to == self.to.0)?;
        let target = map.targets.iter().find(|t| t.id == self.to.0)?;
        Some((target.address.clone(), MapEpoch(map.epoch)))
    }

    /// Answers those for which the time of the request was too short, if any was made.
    async fn make(
        &self,
        target: &TargetClient,
        batch: &[(Segment, u8)],
        epoch: MapEpoch,
    ) -> Result<Vec<(Segment, u8)>, Stopped> {
        let items = batch.iter().map(|(segment, shard)| (segment, *shard)).collect();
        let begun = Instant::now();
        let reply = target.rebuild(items, epoch, false, begun + REBUILD_TIMEOUT).await;
        // What went meanwhile may have been made after its chunks were deleted.
        let gone = self.gone(batch)?;
        if !gone.is_empty() && !hold::holds(&self.node) {
            let deleted = target.delete(&gone, Instant::now() + DELETE_TIMEOUT).await;
            deleted.inspect_err(|_| self.targets.suspect(self.to))?;
        }
        let reply = reply.inspect_err(|_| self.targets.suspect(self.to))?;
        let (mut there, mut failed, mut left) = (0, None, Vec::new());
        for ((segment, shard), outcome) in batch.iter().zip(&reply.outcomes) {
            if outcome.error == 0 {
                there += 1;
            } else if !gone.contains(&segment.chunk(*shard)) {
                let kind = ErrorKind::from_code(outcome.error);
                if kind == ErrorKind::TimedOut && reply.made > 0 {
                    left.push((segment.clone(), *shard));
                    continue;
                }
                let obstacle = match kind {
                    ErrorKind::NoSpace => Obstacle::NoRoom,
                    // The others of the segment are good, or it would be `Io`.
                    ErrorKind::Unavailable => Obstacle::CannotStore,
                    _ => Obstacle::Other,
                };
                let error = Error::new(kind, outcome.message.clone());
                failed = Some(Stopped { error, obstacle });
            }
        }
        let at = (self.pg, self.seat as u8);
        let there = there + gone.len() as u64;
        let there = self.there.fetch_add(there, Ordering::Relaxed) + there;
        self.node.repair.note(begun, at, self.total.saturating_sub(there), &reply);
        failed.map_or(Ok(left), Err)
    }

    /// The chunks of segments that are not committed any more.
    fn gone(&self, batch: &[(Segment, u8)]) -> Result<Vec<weft_proto::ChunkId>> {
        let mut gone = Vec::new();
        for (segment, shard) in batch {
            if !self.node.state.is_committed(segment.id)? {
                gone.push(segment.chunk(*shard));
            }
        }
        Ok(gone)
    }
}

/// How many of these go in one request.
fn first_batch(found: &[(Segment, u8)]) -> usize {
    let mut bytes = 0;
    let fits = |(segment, shard): &&(Segment, u8)| {
        bytes += segment.geometry.shard_len(*shard);
        bytes <= BATCH_BYTES
    };
    found.iter().take(BATCH).take_while(fits).count().max(1)
}
