//! One move of a seat, from its beginning to its end.

use super::seat::{Page, page};
use crate::duties::hold;
use crate::duties::propose::propose;
use crate::node::Node;
use crate::soft::targets::Targets;
use futures_util::future::join_all;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use v1::log_entry::Body;
use v1::move_seats_entry::{Change, Step};
use weft_net::Peers;
use weft_proto::{Error, ErrorKind, MapEpoch, PgId, Result, SegmentId, TargetId, v1};
use weft_segments::{Map, Segment, TargetClient};

/// How long a storage daemon may take for the chunks of one request.
const REBUILD_TIMEOUT: Duration = Duration::from_secs(60);
const DELETE_TIMEOUT: Duration = Duration::from_secs(10);
const DISOWN_TIMEOUT: Duration = Duration::from_secs(30);
/// And to read a chunk of a segment that another daemon cannot read.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// So many of the segments of one request that it cannot read are looked at.
const MAX_LOOKED_AT: usize = 4;
/// After so many requests in turn of which it could read nothing, the others of the seat are not
/// asked for: it would not read them either, and another target waits.
const MAX_IN_VAIN: usize = 8;
/// Most chunks in one request, and about how many bytes.
const BATCH: usize = 32;
const BATCH_BYTES: u64 = 32 << 20;

/// What keeps a move from its end; of several, the last of these counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Obstacle {
    /// It waits until what is lost is made.
    Waits,
    Other,
    /// The target could not read what others hold.
    CannotRead,
    /// The target could not store a chunk.
    CannotStore,
    /// The target has no room for a chunk.
    NoRoom,
}

struct Stopped {
    error: Error,
    obstacle: Obstacle,
}

impl Stopped {
    /// Whether it is for segments that cannot be read, or not by the target now: others may be.
    fn is_unread(&self) -> bool {
        self.error.kind == ErrorKind::Io || self.obstacle == Obstacle::CannotRead
    }

    /// The same where the target has made something: it has read others, and what it made is not
    /// left for those that it could not.
    fn after(mut self, made: bool) -> Self {
        if made && self.obstacle == Obstacle::CannotRead {
            self.obstacle = Obstacle::Other;
        }
        self
    }
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

/// What has become of a job.
pub(super) struct Ended {
    /// Why the move is not at its end, if it is not.
    pub failed: Option<Obstacle>,
    /// Whether it has made any chunk.
    pub made: bool,
    /// Whether it has met anything of the seat at the target, of whenever.
    pub any_there: bool,
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
    /// It has made some of them.
    made: AtomicBool,
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
        let (made, waits) = (AtomicBool::new(false), Arc::default());
        Self { node, targets, peers, pg, seat, to, former, total, there, made, waits }
    }

    /// It makes no more chunks while this is so.
    pub fn while_not(self, waits: Arc<AtomicBool>) -> Self {
        Self { waits, ..self }
    }

    /// Takes the move up, and to its end if it can.
    pub async fn run(self) -> Ended {
        let failed = self.try_all().await;
        let any_there = self.there.load(Ordering::Relaxed) > 0;
        Ended { failed, made: self.has_made(), any_there }
    }

    fn has_made(&self) -> bool {
        self.made.load(Ordering::Relaxed)
    }

    /// Answers why the move is not at its end, if it is not.
    async fn try_all(&self) -> Option<Obstacle> {
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
        let (mut walk, mut failed, mut in_vain) = (Walk::default(), None::<Stopped>, 0);
        loop {
            let (state, at, after) = (self.node.state.clone(), (self.pg.0, self.seat), walk.after);
            let page = self.node.env.blocking(move || page(&state, at, false, after)).await?;
            self.node.repair.note_damaged(Instant::now(), page.damaged.iter().map(|d| d.id));
            let found = walk.take(page);
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
                    let there = self.there.load(Ordering::Relaxed);
                    match self.make(&target, &batch, epoch).await {
                        // It goes on, slowly.
                        Ok(left) => (batch, in_vain) = (left, 0),
                        // One segment that cannot be read holds up no other.
                        Err(stopped) if stopped.is_unread() => {
                            let unread = stopped.obstacle == Obstacle::CannotRead;
                            let met = self.there.load(Ordering::Relaxed) > there;
                            in_vain = if met { 0 } else { in_vain + usize::from(unread) };
                            if in_vain >= MAX_IN_VAIN {
                                return Err(stopped);
                            }
                            let weighs = |f: &Stopped| f.obstacle <= stopped.obstacle;
                            if failed.as_ref().is_none_or(weighs) {
                                failed = Some(stopped);
                            }
                            break;
                        }
                        Err(stopped) => return Err(stopped),
                    }
                }
            }
            if walk.after.is_none() {
                let voters = self.node.membership().voters().len();
                let left = failed.or_else(|| walk.left_to_others(voters));
                return left.map_or(Ok(true), |stopped| Err(stopped.after(self.has_made())));
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
            // A newer backup may look for it there.
            if hold::holds(&self.node) {
                return Err(Error::new(ErrorKind::Unavailable, "nothing may be deleted now"));
            }
            let (state, at) = (self.node.state.clone(), (self.pg.0, self.seat));
            let Page { found, next, .. } =
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
        self.made.fetch_or(reply.made > 0, Ordering::Relaxed);
        let (mut there, mut left, mut unread) = (0, Vec::new(), Vec::new());
        let mut failed: Option<Stopped> = None;
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
                    // The others of the segment are good, or it would be one of those below.
                    ErrorKind::Unavailable => Obstacle::CannotStore,
                    // They may be good, and did not answer it.
                    ErrorKind::Busy => Obstacle::CannotRead,
                    _ => Obstacle::Other,
                };
                if obstacle == Obstacle::CannotRead {
                    unread.push((segment, *shard));
                }
                if failed.as_ref().is_none_or(|before| before.obstacle <= obstacle) {
                    let error = Error::new(kind, outcome.message.clone());
                    failed = Some(Stopped { error, obstacle });
                }
            }
        }
        let at = (self.pg, self.seat as u8);
        let there = there + gone.len() as u64;
        let there = self.there.fetch_add(there, Ordering::Relaxed) + there;
        self.node.repair.note(begun, at, self.total.saturating_sub(there), &reply);
        let Some(mut stopped) = failed else { return Ok(left) };
        // When it has made any it stays, whoever could make these.
        let cut_off = stopped.obstacle == Obstacle::CannotRead && !self.has_made();
        if cut_off && !self.is_any_held(&unread).await {
            // Nobody could make them now: as any that cannot be read.
            (stopped.error.kind, stopped.obstacle) = (ErrorKind::Io, Obstacle::Other);
        }
        Err(stopped)
    }

    /// Whether any of these chunks, which could not be made there, could be made elsewhere now.
    async fn is_any_held(&self, chunks: &[(&Segment, u8)]) -> bool {
        let map = Map::new((*self.node.map()).clone());
        for (segment, shard) in chunks.iter().take(MAX_LOOKED_AT) {
            if self.is_held(&map, segment, *shard).await {
                return true;
            }
        }
        false
    }

    /// Whether the target that has the seat holds the chunk, or others hold as many others of the
    /// segment as it can be made of.
    async fn is_held(&self, map: &Map, segment: &Segment, shard: u8) -> bool {
        let seats = (0u8..).zip(segment.seats.iter().copied());
        let looks: Vec<_> = seats.map(|at| self.holds(map, segment, at)).collect();
        let held = join_all(looks).await;
        let all = held.iter().filter(|held| **held).count();
        let own = held.get(usize::from(shard)).copied().unwrap_or(false);
        own || all >= usize::from(segment.geometry.profile.k())
    }

    /// Whether the chunk of a shard is where it should be, and whole.
    async fn holds(&self, map: &Map, segment: &Segment, (shard, seat): (u8, u8)) -> bool {
        // Of which there is nothing.
        if segment.geometry.shard_len(shard) == 0 {
            return true;
        }
        let target = map.seat(segment.pg, seat).filter(|target| target.up);
        let Some(target) = target else { return false };
        let target = TargetClient::new(&self.peers, target.id, &target.address);
        let until = Instant::now() + VERIFY_TIMEOUT;
        matches!(target.verify(segment.chunk(shard), until).await, Ok(None))
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

/// How far the pages of a seat were gone through.
#[derive(Default)]
struct Walk {
    /// There may be more after this.
    after: Option<SegmentId>,
    /// The first whose record does not read on this server.
    unread: Option<SegmentId>,
}

impl Walk {
    /// Goes on over the next page. Answers what lies there.
    fn take(&mut self, Page { found, damaged, next }: Page) -> Vec<(Segment, u8)> {
        let unread = damaged.iter().find(|d| d.is_unread);
        self.unread = self.unread.or(unread.map(|d| d.id));
        self.after = next;
        found
    }

    /// The record of a segment does not read here. Other servers that vote have it whole: one of
    /// them makes what is to be made of it, and the seat stays where it is until then.
    fn left_to_others(&self, voters: usize) -> Option<Stopped> {
        let what = format!("the record of segment {} does not read on this server", self.unread?);
        (voters > 1).then(|| Error::new(ErrorKind::Io, what).into())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Damaged;
    use weft_proto::SessionId;

    /// It is not finished: what others can read is not given up.
    #[test]
    fn a_move_waits_for_who_can_read_a_record() {
        let id = |seq| SegmentId { session: SessionId(7), seq };
        let mut walk = Walk::default();
        let mut take = |seq, is_unread| {
            let damaged = vec![Damaged { id: id(seq), is_unread }];
            walk.take(Page { found: vec![], damaged, next: Some(id(seq)) });
            assert_eq!(walk.after, Some(id(seq)));
            [1, 2, 3].map(|voters| walk.left_to_others(voters))
        };
        assert!(take(8, false).iter().all(Option::is_none), "no server makes sense of it");
        take(9, true);
        // Whatever comes behind it.
        for [alone, two, three] in [take(10, false), take(11, true)] {
            assert!(alone.is_none(), "nobody else knows it");
            for left in [two, three] {
                let left = left.unwrap();
                assert_eq!((left.error.kind, left.obstacle), (ErrorKind::Io, Obstacle::Other));
                // No other target is asked for the seat: it is not for this one.
                assert!(left.is_unread() && left.error.message.contains(&id(9).to_string()));
            }
        }
    }

    #[test]
    fn who_has_made_something_is_not_left_for_what_it_cannot_read() {
        let stopped = |obstacle| Stopped { error: Error::new(ErrorKind::Io, "away"), obstacle };
        let after = |obstacle, made| stopped(obstacle).after(made).obstacle;
        assert_eq!(after(Obstacle::CannotRead, true), Obstacle::Other);
        assert_eq!(after(Obstacle::CannotRead, false), Obstacle::CannotRead);
        assert_eq!(after(Obstacle::NoRoom, true), Obstacle::NoRoom);
    }
}
