//! Segments on storage targets: [`put`](Store::put) makes one durable somewhere, [`get`](Store::get)
//! reads verified bytes of one.

mod gather;
mod get;
mod leftovers;
mod put;

use crate::Options;
use crate::chance::Chance;
use crate::health::Health;
use crate::map::{Map, MapWatch, Target};
use crate::outage::Outage;
use crate::session::Sessions;
use leftovers::Leftovers;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;
use tracing::{debug, warn};
use weft_net::Peers;
use weft_proto::{ChunkId, Error, ErrorKind, Geometry, PgId, Result, SegmentId, TargetId, v1};

/// A segment as its record says: what a reader needs to find its chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    pub id: SegmentId,
    pub geometry: Geometry,
    pub pg: PgId,
    /// Shard i lies on the target in seat `seats[i]`.
    pub seats: Vec<u8>,
}

impl Segment {
    pub fn chunk(&self, shard: u8) -> ChunkId {
        ChunkId { segment: self.id, shard }
    }

    pub fn to_wire(&self) -> v1::SegmentInfo {
        v1::SegmentInfo {
            id: Some(self.id.into()),
            profile: Some(self.geometry.profile.into()),
            unit: self.geometry.unit,
            length: self.geometry.length,
            pg: self.pg.0,
            seats: self.seats.clone().into(),
        }
    }
}

impl TryFrom<v1::SegmentInfo> for Segment {
    type Error = Error;
    fn try_from(info: v1::SegmentInfo) -> Result<Self> {
        Ok(Self {
            id: info.segment_id()?,
            geometry: info.geometry()?,
            pg: PgId(info.pg),
            seats: info.seats.to_vec(),
        })
    }
}

/// What became of reads and writes, for people and tests.
#[derive(Default, Debug)]
pub(crate) struct Counters {
    /// Chunks that did not match their checksums.
    pub corrupt: AtomicU64,
    /// Reads that rebuilt bytes from other shards.
    pub rebuilt: AtomicU64,
    /// Segments that had to be written again elsewhere.
    pub rewritten: AtomicU64,
}

/// The way to the storage targets.
pub(crate) struct Store {
    pub peers: Arc<Peers>,
    pub map: Arc<MapWatch>,
    pub health: Health,
    pub chance: Arc<Chance>,
    pub sessions: Arc<Sessions>,
    pub counters: Counters,
    leftovers: Leftovers,
    /// Data waits for targets that take it.
    outage: Outage,
    /// Reads wait for shards.
    missing: Outage,
    target_deadline: std::time::Duration,
    hedge_floor: std::time::Duration,
}

impl Store {
    pub fn new(
        options: &Options,
        peers: Arc<Peers>,
        map: Arc<MapWatch>,
        chance: Arc<Chance>,
        sessions: Arc<Sessions>,
    ) -> Arc<Self> {
        Arc::new(Self {
            peers,
            map,
            health: Health::default(),
            chance,
            sessions,
            counters: Counters::default(),
            leftovers: Leftovers::default(),
            outage: Outage::default(),
            missing: Outage::default(),
            target_deadline: options.target_deadline,
            hedge_floor: options.hedge_floor,
        })
    }

    /// When a request to one target that starts now has failed.
    fn request_deadline(&self, deadline: Instant) -> Instant {
        deadline.min(Instant::now() + self.target_deadline)
    }

    /// Deletes chunks that nothing refers to, as soon as that can be (I7). Where their placement group is no more,
    /// they are found when the session ends.
    pub fn discard(self: &Arc<Self>, segment: Segment) {
        self.discard_in(&self.map.current(), segment);
    }

    /// [`Self::discard`] of what was written by this map.
    pub fn discard_in(self: &Arc<Self>, map: &Map, segment: Segment) {
        let seats = (0..).zip(&segment.seats);
        let at = |(shard, &seat)| Some((map.seat(segment.pg, seat)?.id, segment.chunk(shard)));
        self.discard_chunks(seats.filter_map(at).collect());
    }

    /// Bytes from a target did not match: counts, logs, and lets the target look for itself.
    fn report_corrupt(self: &Arc<Self>, target: &Target, chunk: ChunkId, off: u64, len: u64) {
        self.counters.corrupt.fetch_add(1, Ordering::Relaxed);
        warn!(target = %target.id, address = target.address, %chunk, off, len,
              "bytes do not match their checksums; reading them from other shards");
        let (store, target) = (self.clone(), target.clone());
        let request =
            v1::ReportCorruptRequest { target: target.id.0, chunk: Some(chunk.into()), off, len };
        tokio::spawn(async move {
            let peer = store.peers.peer(&target.address);
            let deadline = Instant::now() + store.target_deadline;
            let sent: Result<v1::ReportCorruptReply> = peer.call(&request, deadline).await;
            if let Err(error) = sent {
                debug!(target = %target.id, %error, "cannot report corrupt bytes");
            }
        });
    }

    /// Notes how a request to a target ended.
    fn note<T>(&self, target: TargetId, result: &Result<T>) {
        match result {
            Ok(_) => self.health.succeeded(target),
            // A put notes for how long a chunk there was none. A session that is fenced off is no fault of the target.
            Err(e)
                if matches!(
                    e.kind,
                    ErrorKind::NotFound | ErrorKind::NoSpace | ErrorKind::SessionExpired
                ) => {}
            Err(_) => self.health.failed(target),
        }
    }
}
