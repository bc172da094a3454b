//! Makes chunks for the targets of this daemon, of the other shards of their segments, as the
//! leader orders; and deletes those that have no business here any more. Other orders of it are
//! carried out beside ([`Rebuilder::compact`]).
//!
//! Invariant: no chunk is deleted that a target is to hold. Whether it is, may change: a seat is
//! given away, and may be given back. So the metadata group is asked while no chunk is made here,
//! or said to be here, and what it names is deleted before that goes on: an answer, or an order to
//! make chunks, that comes late does no harm.

use crate::engine::Engine;
use crate::order_writer::OrderWriter;
use crate::pace::Pace;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::iter;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, RwLock, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use weft_control::Group;
use weft_net::{Identity, Peers, Transport};
use weft_proto::{ChunkId, Error, ErrorKind, MapEpoch, Result, TargetId, Uuid, v1};
use weft_segments::{MapWatch, Rng, Segment, Segments, Timeouts, Writer};

/// A map that does not come in this time is asked of another server.
const MAP_TIMEOUT: Duration = Duration::from_secs(2);
/// An order is answered so long before its time is over.
pub(super) const MARGIN: Duration = Duration::from_secs(2);
/// Longest wait for chunks that are being stored.
const DISOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// A drive that has not stored a chunk after this is not waited for by other drives.
const HANGS_AFTER: Duration = Duration::from_secs(1);
/// Chunks that are made at a time: most of the time of each is waiting, for other targets and for a
/// drive. A large one counts as one for each so many bytes that it is made of.
pub(super) const MAX_MAKING: u32 = 8;
const MAKING_BYTES: u64 = 32 << 20;
/// What is damaged is read, made and read again, whoever else is at work: this many at a time.
const MAX_HEALING: usize = 4;
/// Most chunks in one order.
const MAX_ITEMS: usize = 1024;
/// One request to one other target may take this long.
const TARGET_TIMEOUT: Duration = Duration::from_secs(10);
/// Slow targets are waited for: what is read besides them is read from somebody who is in use.
const HEDGE_FLOOR: Duration = Duration::from_secs(3);

pub(crate) struct Rebuilder {
    map: Arc<MapWatch>,
    pub(super) segments: Arc<Segments>,
    /// Who writes segments here, which orders to compact do, one at a time.
    pub(super) writer: Arc<OrderWriter>,
    pub(super) compacting: Mutex<()>,
    peers: Arc<Peers>,
    /// The way to the metadata group's leader.
    group: Mutex<Group>,
    /// Of each target: taken by who makes chunks or says that they are here, and whole by who
    /// deletes. A drive that hangs keeps its own.
    placing: parking_lot::Mutex<BTreeMap<TargetId, Arc<RwLock<()>>>>,
    pub(super) making: Semaphore,
    pub pace: Pace,
    /// How many of the bytes that were read from other targets were told.
    told_bytes: AtomicU64,
    following: AbortHandle,
}

impl Drop for Rebuilder {
    fn drop(&mut self) {
        self.following.abort();
    }
}

impl Rebuilder {
    /// `share`: percent of the time that it gets at least, however much others suffer.
    pub fn new(
        name: &str,
        transport: &Arc<dyn Transport>,
        metadata: &[String],
        share: u32,
    ) -> Arc<Self> {
        let identity = Identity { name: format!("weft:rebuild:{name}"), cluster: None };
        let peers = Peers::new(transport.clone(), identity);
        let map = MapWatch::new();
        // Spreads attempts only; the same each time, so that a simulation can be run again.
        let mut seed = DefaultHasher::new();
        name.hash(&mut seed);
        let rng = Arc::new(Rng::new(Some(seed.finish())));
        let writer = Arc::new(OrderWriter::default());
        let timeouts =
            Timeouts { target: TARGET_TIMEOUT, hedge_floor: HEDGE_FLOOR, background: true };
        let segments =
            Segments::new(timeouts, peers.clone(), map.clone(), rng.clone(), writer.clone());
        let following = map.clone().follow(metadata.to_vec(), transport.clone(), rng);
        let following = tokio::spawn(following).abort_handle();
        Arc::new(Self {
            map,
            segments,
            writer,
            compacting: Mutex::default(),
            peers,
            group: Mutex::new(Group::new(transport.clone(), metadata.to_vec())),
            placing: parking_lot::Mutex::default(),
            making: Semaphore::new(MAX_MAKING as usize),
            pace: Pace::new(share),
            told_bytes: AtomicU64::new(0),
            following,
        })
    }

    /// Nothing more is begun: who holds a target lets go of it.
    pub fn end(&self) {
        self.writer.end();
        self.making.close();
    }

    fn placing(&self, target: TargetId) -> Arc<RwLock<()>> {
        self.placing.lock().entry(target).or_default().clone()
    }

    /// Waits for a map that is at least so new.
    pub(super) async fn await_map(&self, epoch: MapEpoch, deadline: Instant) -> Result<()> {
        self.come_to(epoch, deadline).await?;
        if let Some(cluster) = Uuid::from_slice(&self.map.current().wire.cluster) {
            self.peers.set_cluster(cluster);
        }
        Ok(())
    }

    /// The cluster that its map is of.
    pub(super) fn cluster(&self) -> Bytes {
        self.map.current().wire.cluster.clone()
    }

    async fn come_to(&self, epoch: MapEpoch, deadline: Instant) -> Result<()> {
        let behind = MapEpoch(epoch.0.saturating_sub(1));
        let soon = deadline.min(Instant::now() + MAP_TIMEOUT);
        if self.map.current().epoch >= epoch || self.map.newer(behind, soon).await {
            return Ok(());
        }
        // The server that is watched may be cut off from the others.
        self.map.follow_another();
        if self.map.newer(behind, deadline.min(Instant::now() + 2 * MAP_TIMEOUT)).await {
            return Ok(());
        }
        let what = format!("the map of epoch {epoch} has not come here");
        Err(Error::new(ErrorKind::Unavailable, what))
    }

    /// Makes each of these chunks that is not here.
    pub async fn rebuild(
        self: &Arc<Self>,
        engine: &Engine,
        q: v1::RebuildRequest,
        deadline: Instant,
    ) -> Result<v1::RebuildReply> {
        if q.items.len() > MAX_ITEMS {
            let what = format!("{} chunks in one order, over {MAX_ITEMS}", q.items.len());
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        self.await_map(MapEpoch(q.epoch), deadline).await?;
        let at_a_time = if q.heal { MAX_HEALING } else { MAX_MAKING as usize };
        let how = (q.heal, q.knows_busy);
        let made = iter(q.items).map(|item| {
            let (rebuilder, engine) = (self.clone(), engine.clone());
            let target = TargetId(q.target);
            async move { rebuilder.make(engine, target, item, how, deadline).await }
        });
        let made: Vec<Result<u64>> = made.buffered(at_a_time).collect().await;
        let bytes = self.segments.counters().fetched_bytes.load(Ordering::Relaxed);
        let told = self.told_bytes.swap(bytes, Ordering::Relaxed);
        let mut reply =
            v1::RebuildReply { read_bytes: bytes.saturating_sub(told), ..Default::default() };
        for made in made {
            let outcome = match made {
                Ok(bytes) => {
                    reply.made += u64::from(bytes > 0);
                    reply.written_bytes += bytes;
                    v1::rebuild_reply::Outcome::default()
                }
                Err(e) => v1::rebuild_reply::Outcome { error: e.kind.code(), message: e.message },
            };
            reply.outcomes.push(outcome);
        }
        Ok(reply)
    }

    /// Makes one chunk. Answers its bytes; 0 if it was here.
    async fn make(
        self: Arc<Self>,
        engine: Engine,
        target: TargetId,
        item: v1::rebuild_request::Item,
        (heal, knows_busy): (bool, bool),
        deadline: Instant,
    ) -> Result<u64> {
        let what = || Error::new(ErrorKind::Protocol, "an order to make a chunk of no segment");
        let segment = Segment::try_from(item.segment.ok_or_else(what)?)?;
        let shard = u8::try_from(item.shard).map_err(|_| what())?;
        self.check(&engine, deadline)?;
        let is_here = self.is_here(&engine, target, &segment, shard).await?;
        let length = segment.geometry.shard_len(shard);
        let is_another = is_here && engine.length(segment.chunk(shard)).await? != Some(length);
        if is_here
            && !(heal && (is_another || self.is_damaged(&engine, segment.chunk(shard)).await?))
        {
            return Ok(0);
        }
        // What others of this order, or others, make takes its time: what is not begun by then is
        // asked for again.
        let begin_by = deadline.checked_sub(MARGIN).unwrap_or(deadline);
        // What is damaged is little, and comes now.
        let turn = match heal {
            true => None,
            false => self.pace.turn_to_make(target, begin_by).await.map_err(|_| late())?,
        };
        let size = length.saturating_mul(u64::from(segment.geometry.profile.k()) + 1);
        let size = size.div_ceil(MAKING_BYTES).clamp(1, MAX_MAKING.into()) as u32;
        let permit = self.making.acquire_many(size);
        let permit = timeout_at(begin_by, permit).await.map_err(|_| late())?;
        let permit = permit.map_err(|_| ending())?;
        self.check(&engine, deadline)?;
        let data = self.segments.rebuild(&segment, shard, is_another, deadline).await;
        let data = data.map_err(|e| of_others(e, knows_busy))?;
        self.check(&engine, deadline)?;
        // What those take that are read from is theirs to pause for.
        let (begun, making, rebuilder) = (Instant::now(), self.pace.making(), self.clone());
        let (bytes, chunk) = (data.len() as u64, segment.chunk(shard));
        let checksums = weft_erasure::checksum_blocks(std::iter::once(&data[..]));
        // To its end, also if nobody waits any more: until it is stored, nothing is deleted.
        let mut stored = tokio::spawn(async move {
            let placing = rebuilder.placing(target);
            let _placing = placing.read().await;
            rebuilder.check_seat(target, &segment, shard)?;
            let stored = match (is_here, is_another) {
                (true, true) => engine.supersede(chunk, data.into(), checksums).await,
                (true, false) => engine.heal(chunk, data.into(), checksums).await.map(drop),
                // Nobody else is to make it: it may have the room that a damaged one may.
                (false, _) if heal && rebuilder.has_seat(target, &segment, shard) => {
                    engine.put_back(chunk, data.into(), checksums).await
                }
                (false, _) => engine.restore(chunk, data.into(), checksums).await,
            };
            stored.map_err(of_drive)
        });
        let soon = timeout(HANGS_AFTER, &mut stored).await;
        drop(permit);
        let done = match soon {
            Ok(done) => done,
            Err(_) => stored.await,
        };
        done.map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))??;
        drop(making);
        let pause = self.pace.pause(begun.elapsed());
        sleep_until((Instant::now() + pause).min(begin_by)).await;
        drop(turn);
        Ok(bytes)
    }

    /// Refuses what would be in vain: nothing can be stored, or nobody waits any more by then.
    fn check(&self, engine: &Engine, deadline: Instant) -> Result<()> {
        if self.writer.has_ended() {
            return Err(ending());
        }
        if let Some(why) = engine.failure() {
            return Err(Error::new(ErrorKind::Unavailable, why));
        }
        if Instant::now() + MARGIN >= deadline {
            return Err(late());
        }
        Ok(())
    }

    async fn is_here(
        &self,
        engine: &Engine,
        target: TargetId,
        segment: &Segment,
        shard: u8,
    ) -> Result<bool> {
        let placing = self.placing(target);
        let _placing = placing.read().await;
        self.check_seat(target, segment, shard)?;
        engine.has(segment.chunk(shard)).await
    }

    /// Whether any block of a chunk does not read, or match its checksum.
    async fn is_damaged(&self, engine: &Engine, chunk: ChunkId) -> Result<bool> {
        let _reading = self.pace.making();
        match engine.verify(chunk, 0, 0).await {
            Ok(bad) => Ok(bad.is_some()),
            Err(e) if e.kind == ErrorKind::Io => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Whether a seat is the target's by now: it is not merely being given to it.
    fn has_seat(&self, target: TargetId, segment: &Segment, shard: u8) -> bool {
        let map = self.map.current();
        let seat = segment.seats.get(usize::from(shard));
        seat.and_then(|&seat| map.seat(segment.pg, seat)).is_some_and(|holder| holder.id == target)
    }

    /// Refuses a chunk of a seat that is not, and will not be, the target's.
    fn check_seat(&self, target: TargetId, segment: &Segment, shard: u8) -> Result<()> {
        let map = self.map.current();
        let seat = segment.seats.get(usize::from(shard));
        match seat.is_some_and(|&seat| map.is_for(target, segment.pg, seat)) {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::StaleMap,
                format!("shard {shard} of segment {} is not for target {target}", segment.id),
            )),
        }
    }

    /// Deletes those of these chunks that the metadata group does not want here. Answers how many
    /// there were, and which are not here now.
    pub async fn disown(
        self: &Arc<Self>,
        engine: Engine,
        q: v1::DisownRequest,
    ) -> Result<(v1::DisownReply, Vec<ChunkId>)> {
        let rebuilder = self.clone();
        // To its end, also if nobody waits any more: nothing is made here before.
        let ask = async move {
            let placing = rebuilder.placing(TargetId(q.target));
            // A drive that hangs holds up whoever asks, and not more and more of them.
            let _placing = timeout(DISOWN_TIMEOUT, placing.write())
                .await
                .map_err(|_| Error::new(ErrorKind::Busy, "chunks are being made at this target"))?;
            let cluster = engine.cluster().map(|c| c.0.to_vec()).unwrap_or_default();
            let (target, chunks) = (q.target, q.chunks.clone());
            let question = v1::CheckChunksRequest { cluster: cluster.into(), target, chunks };
            let members = rebuilder.map.current();
            let members = members.wire.members.iter().map(|m| m.address.clone());
            let mut group = rebuilder.group.lock().await;
            group.learn(members);
            let answer = group.call(question).await?;
            drop(group);
            let unwanted: BTreeSet<u32> = answer.unwanted.into_iter().collect();
            let named = (0u32..).zip(q.chunks).filter(|(at, _)| unwanted.contains(at));
            let named: Vec<ChunkId> =
                named.map(|(_, chunk)| ChunkId::try_from(chunk)).collect::<Result<_>>()?;
            let deleted = engine.delete(named.clone()).await?;
            Ok((v1::DisownReply { deleted }, named))
        };
        let asked = tokio::spawn(ask).await;
        asked.unwrap_or_else(|e| Err(Error::new(ErrorKind::Internal, e.to_string())))
    }
}

/// To who ordered a chunk, `Unavailable` is what this target itself cannot do: that the others of
/// the segment cannot be read now is `Busy`, that they never can be stays `Io`. A leader of before
/// that does not know it: to it, both are `Io`, behind which it goes on.
fn of_others(e: Error, knows_busy: bool) -> Error {
    match e.kind {
        ErrorKind::Unavailable if knows_busy => Error { kind: ErrorKind::Busy, ..e },
        ErrorKind::Unavailable => Error { kind: ErrorKind::Io, ..e },
        _ => e,
    }
}

/// What the drive here could not store: the others of the segment are as good as they were.
fn of_drive(e: Error) -> Error {
    match e.kind {
        ErrorKind::Io => Error { kind: ErrorKind::Unavailable, ..e },
        _ => e,
    }
}

pub(super) fn late() -> Error {
    Error::new(ErrorKind::TimedOut, "the time for this order is over; what was made stays")
}

pub(super) fn ending() -> Error {
    Error::new(ErrorKind::Unavailable, "the daemon ends")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_of_before_is_not_told_that_others_are_busy() {
        let told = |kind, knows_busy| of_others(Error::new(kind, "some"), knows_busy).kind;
        assert_eq!(told(ErrorKind::Unavailable, true), ErrorKind::Busy);
        assert_eq!(told(ErrorKind::Unavailable, false), ErrorKind::Io);
        for knows_busy in [false, true] {
            assert_eq!(told(ErrorKind::Io, knows_busy), ErrorKind::Io);
            assert_eq!(told(ErrorKind::TimedOut, knows_busy), ErrorKind::TimedOut);
        }
    }
}
