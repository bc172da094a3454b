//! What reads and writes of segments share: the way to the targets, what is known of them, and
//! counters.

use crate::health::{Health, Use};
use crate::leftovers::Leftovers;
use crate::map::{Map, Target};
use crate::outage::Outage;
use crate::rng::Rng;
use crate::segment::{Segment, Writer};
use crate::target::TargetClient;
use crate::tickets::TicketBook;
use crate::watch::MapWatch;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, warn};
use weft_net::Peers;
use weft_proto::{ChunkId, ErrorKind, Result, TargetId};

/// What became of reads and writes, for people and tests.
#[derive(Default, Debug)]
pub struct Counters {
    /// Chunks that did not match their checksums.
    pub corrupt: AtomicU64,
    /// Reads that rebuilt bytes from other shards.
    pub rebuilt: AtomicU64,
    /// Bytes of chunks that came from targets.
    pub fetched_bytes: AtomicU64,
    /// Segments that had to be written again elsewhere.
    pub rewritten: AtomicU64,
}

/// How long targets are waited for, and by whom.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// One request to one target may take this long before the target is passed over.
    pub target: Duration,
    /// A read is hedged no earlier than this.
    pub hedge_floor: Duration,
    /// Nobody waits for what is read: targets need not hold others back for it.
    pub background: bool,
}

/// The way to the segments on storage targets.
pub struct Segments {
    pub(crate) peers: Arc<Peers>,
    pub(crate) map: Arc<MapWatch>,
    pub(crate) health: Health,
    pub(crate) rng: Arc<Rng>,
    pub(crate) writer: Arc<dyn Writer>,
    pub(crate) leftovers: Arc<Leftovers>,
    tickets: Arc<TicketBook>,
    /// Data waits for targets that take it.
    pub(crate) outage: Outage,
    /// Reads wait for shards.
    pub(crate) missing: Outage,
    pub(crate) timeouts: Timeouts,
    counters: Counters,
}

impl Segments {
    /// Reads and writes on the targets of this map; new segments are those of `writer`.
    pub fn new(
        timeouts: Timeouts,
        peers: Arc<Peers>,
        map: Arc<MapWatch>,
        rng: Arc<Rng>,
        writer: Arc<dyn Writer>,
    ) -> Arc<Self> {
        let tickets: Arc<TicketBook> = Arc::default();
        let leftovers = Leftovers::new(
            peers.clone(),
            map.clone(),
            writer.clone(),
            timeouts.target,
            tickets.clone(),
        );
        Arc::new(Self {
            peers,
            map,
            health: Health::default(),
            rng,
            writer,
            leftovers,
            tickets,
            outage: Outage::default(),
            missing: Outage::default(),
            timeouts,
            counters: Counters::default(),
        })
    }

    /// The cluster map that it goes by.
    pub fn map(&self) -> &Arc<MapWatch> {
        &self.map
    }

    /// What became of reads and writes so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What targets are shown.
    pub fn tickets(&self) -> &Arc<TicketBook> {
        &self.tickets
    }

    /// The way to one target.
    pub fn target(&self, target: &Target) -> TargetClient {
        let client = TargetClient::new(&self.peers, target.id, &target.address);
        client.in_background(self.timeouts.background).showing(&self.tickets)
    }

    /// Deletes chunks that nothing refers to, as soon as that can be (I7). Where their placement
    /// group is no more, they are found when the session ends.
    pub fn discard(&self, segment: Segment) {
        self.discard_in(&self.map.current(), segment);
    }

    /// [`Self::discard`] of what was written by this map.
    pub fn discard_in(&self, map: &Map, segment: Segment) {
        let seats = (0..).zip(&segment.seats);
        let at = |(shard, &seat)| Some((map.seat(segment.pg, seat)?.id, segment.chunk(shard)));
        self.leftovers.discard(seats.filter_map(at).collect());
    }

    /// When a request to one target that starts now has failed.
    pub(crate) fn request_deadline(&self, deadline: Instant) -> Instant {
        deadline.min(Instant::now() + self.timeouts.target)
    }

    /// Bytes from a target did not match: counts, logs, and lets the target look for itself.
    pub(crate) fn report_corrupt(&self, target: &Target, chunk: ChunkId, off: u64, len: u64) {
        self.counters.corrupt.fetch_add(1, Ordering::Relaxed);
        warn!(target = %target.id, address = target.address, %chunk, off, len,
              "bytes do not match their checksums; reading them from other shards");
        self.report(target, chunk, off, len);
    }

    /// A target does not have a chunk of a segment that is there: logs, and lets it tell.
    pub(crate) fn report_missing(&self, target: &Target, chunk: ChunkId) {
        warn!(target = %target.id, address = target.address, %chunk,
              "a chunk is not where it should be; reading it from other shards");
        self.report(target, chunk, 0, 0);
    }

    fn report(&self, target: &Target, chunk: ChunkId, off: u64, len: u64) {
        let (client, id) = (self.target(target), target.id);
        let deadline = Instant::now() + self.timeouts.target;
        tokio::spawn(async move {
            if let Err(error) = client.report_corrupt(chunk, off, len, 0, deadline).await {
                debug!(target = %id, %error, "cannot report a damaged chunk");
            }
        });
    }

    /// Notes how a request to a target ended.
    pub(crate) fn note<T>(&self, target: TargetId, at: Use, result: &Result<T>) {
        match result.as_ref().map_err(|e| e.kind) {
            Ok(_) => self.health.succeeded(target, at),
            // A put notes for how long a chunk there was none. A session that is fenced off is no
            // fault of the target.
            Err(ErrorKind::NotFound | ErrorKind::NoSpace | ErrorKind::SessionExpired) => {}
            Err(ErrorKind::NoTicket) => self.health.took_no_ticket(target, at),
            Err(_) => self.health.failed(target, at),
        }
    }
}
