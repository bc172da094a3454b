//! Makes chunks for the targets of this daemon, of the other shards of their segments, as the
//! leader orders; and deletes those that have no business here any more.
//!
//! Invariant: no chunk is deleted that a target is to hold. Whether it is, may change: a seat is
//! given away, and may be given back. So the metadata group is asked while no chunk is made here,
//! or said to be here, and what it names is deleted before that goes on: an answer, or an order to
//! make chunks, that comes late does no harm.

use crate::engine::Engine;
use crate::pace::Pace;
use futures_util::StreamExt;
use futures_util::stream::iter;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, RwLock, Semaphore};
use tokio::time::{Instant, sleep};
use weft_control::Group;
use weft_net::{Identity, Peers, Transport};
use weft_proto::{
    ChunkId, Error, ErrorKind, MapEpoch, Result, SegmentId, SessionId, TargetId, Uuid, v1,
};
use weft_segments::{MapWatch, Rng, Segment, Segments, Timeouts, Writer};

/// Chunks that are made at a time.
const MAX_MAKING: usize = 4;
/// Most chunks in one order.
const MAX_ITEMS: usize = 1024;
/// One request to one other target may take this long.
const TARGET_TIMEOUT: Duration = Duration::from_secs(10);
/// Slow targets are waited for: what is read besides them is read from somebody who is in use.
const HEDGE_FLOOR: Duration = Duration::from_secs(3);

pub(crate) struct Rebuilder {
    map: Arc<MapWatch>,
    segments: Arc<Segments>,
    peers: Arc<Peers>,
    /// The way to the metadata group's leader.
    group: Mutex<Group>,
    /// Taken by who makes chunks or says that they are here, and whole by who deletes.
    placing: RwLock<()>,
    making: Semaphore,
    pub pace: Pace,
    /// Bytes that were read from other targets, and how many of them were told.
    told_bytes: AtomicU64,
}

impl Rebuilder {
    pub fn new(name: &str, transport: &Arc<dyn Transport>, metadata: &[String]) -> Arc<Self> {
        let identity = Identity { name: name.to_owned(), cluster: None };
        let peers = Peers::new(transport.clone(), identity);
        let map = MapWatch::new();
        // Spreads attempts only; the same each time, so that a simulation can be run again.
        let mut seed = DefaultHasher::new();
        name.hash(&mut seed);
        let rng = Arc::new(Rng::new(Some(seed.finish())));
        let timeouts =
            Timeouts { target: TARGET_TIMEOUT, hedge_floor: HEDGE_FLOOR, background: true };
        let segments =
            Segments::new(timeouts, peers.clone(), map.clone(), rng.clone(), Arc::new(NoWriter));
        tokio::spawn(map.clone().follow(metadata.to_vec(), transport.clone(), rng));
        Arc::new(Self {
            map,
            segments,
            peers,
            group: Mutex::new(Group::new(transport.clone(), metadata.to_vec())),
            placing: RwLock::default(),
            making: Semaphore::new(MAX_MAKING),
            pace: Pace::default(),
            told_bytes: AtomicU64::new(0),
        })
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
        let needed = MapEpoch(q.epoch);
        let behind = MapEpoch(q.epoch.saturating_sub(1));
        if self.map.current().epoch < needed && !self.map.newer(behind, deadline).await {
            let what = format!("the map of epoch {needed} has not come here");
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        if let Some(cluster) = Uuid::from_slice(&self.map.current().wire.cluster) {
            self.peers.set_cluster(cluster);
        }
        let made = iter(q.items).map(|item| {
            let (rebuilder, engine) = (self.clone(), engine.clone());
            async move { rebuilder.make(engine, TargetId(q.target), item, deadline).await }
        });
        let made: Vec<Result<u64>> = made.buffered(MAX_MAKING).collect().await;
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
        deadline: Instant,
    ) -> Result<u64> {
        let what = || Error::new(ErrorKind::Protocol, "an order to make a chunk of no segment");
        let segment = Segment::try_from(item.segment.ok_or_else(what)?)?;
        let shard = u8::try_from(item.shard).map_err(|_| what())?;
        if self.is_here(&engine, target, &segment, shard).await? {
            return Ok(0);
        }
        let ended = || Error::new(ErrorKind::Unavailable, "the daemon ends");
        let _permit = self.making.acquire().await.map_err(|_| ended())?;
        let (begun, making) = (Instant::now(), self.pace.making());
        let data = self.segments.rebuild(&segment, shard, deadline).await?;
        let (bytes, chunk) = (data.len() as u64, segment.chunk(shard));
        let checksums = weft_erasure::checksum_blocks(std::iter::once(&data[..]));
        let rebuilder = self.clone();
        // To its end, also if nobody waits any more: until it is stored, nothing is deleted.
        let stored = tokio::spawn(async move {
            let _placing = rebuilder.placing.read().await;
            rebuilder.check_seat(target, &segment, shard)?;
            engine.restore(chunk, data.into(), checksums).await
        });
        stored.await.map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))??;
        drop(making);
        sleep(self.pace.pause(begun.elapsed())).await;
        Ok(bytes)
    }

    async fn is_here(
        &self,
        engine: &Engine,
        target: TargetId,
        segment: &Segment,
        shard: u8,
    ) -> Result<bool> {
        let _placing = self.placing.read().await;
        self.check_seat(target, segment, shard)?;
        engine.has(segment.chunk(shard)).await
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

    /// Deletes those of these chunks that the metadata group does not want here. Answers how many.
    pub async fn disown(
        self: &Arc<Self>,
        engine: Engine,
        q: v1::DisownRequest,
    ) -> Result<v1::DisownReply> {
        let rebuilder = self.clone();
        // To its end, also if nobody waits any more: nothing is made here before.
        let ask = async move {
            let _placing = rebuilder.placing.write().await;
            let cluster = engine.cluster().map(|c| c.0.to_vec()).unwrap_or_default();
            let (target, chunks) = (q.target, q.chunks.clone());
            let question = v1::CheckChunksRequest { cluster: cluster.into(), target, chunks };
            let answer = rebuilder.group.lock().await.call(question).await?;
            let unwanted: BTreeSet<u32> = answer.unwanted.into_iter().collect();
            let named = (0u32..).zip(q.chunks).filter(|(at, _)| unwanted.contains(at));
            let named: Vec<ChunkId> =
                named.map(|(_, chunk)| ChunkId::try_from(chunk)).collect::<Result<_>>()?;
            Ok(v1::DisownReply { deleted: engine.delete(named).await? })
        };
        let asked = tokio::spawn(ask).await;
        asked.unwrap_or_else(|e| Err(Error::new(ErrorKind::Internal, e.to_string())))
    }
}

/// Who makes chunks of segments that are there makes no segments.
struct NoWriter;

impl Writer for NoWriter {
    fn next_segment(&self) -> SegmentId {
        SegmentId::default()
    }

    fn session(&self) -> SessionId {
        SessionId(0)
    }

    fn has_ended(&self) -> bool {
        false
    }
}
