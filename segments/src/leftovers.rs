//! Chunks that nothing refers to and that are to be deleted: those of segments that nobody wants
//! any more, and those of attempts to write one that failed.
//!
//! Invariant (I7): while its session lives, such a chunk is remembered here until its target has
//! said that it does not have it, also if the request that wrote it came late. What is forgotten is
//! found when the session ends.

use crate::segment::Writer;
use crate::target::TargetClient;
use crate::tickets::TicketBook;
use crate::watch::MapWatch;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};
use weft_net::Peers;
use weft_net::sync::Mutex;
use weft_proto::{ChunkId, Result, TargetId};

/// Most chunks that are remembered.
const MAX_LEFTOVERS: usize = 1 << 18;
/// Chunks in one request.
const TOGETHER: usize = 256;
/// A target that did not answer is asked again after so many times its deadline. By then it has
/// also carried out what it had taken in, or given that up.
const PATIENCE: u32 = 3;

/// A chunk, and when to delete it (again).
struct Leftover {
    target: TargetId,
    chunk: ChunkId,
    due: Instant,
}

pub(crate) struct Leftovers {
    peers: Arc<Peers>,
    map: Arc<MapWatch>,
    writer: Arc<dyn Writer>,
    /// How long a target may take for one request.
    timeout: Duration,
    tickets: Arc<TicketBook>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// In the order in which they are due.
    chunks: VecDeque<Leftover>,
    /// Somebody looks after them.
    watched: bool,
}

impl Leftovers {
    pub fn new(
        peers: Arc<Peers>,
        map: Arc<MapWatch>,
        writer: Arc<dyn Writer>,
        timeout: Duration,
        tickets: Arc<TicketBook>,
    ) -> Arc<Self> {
        Arc::new(Self { peers, map, writer, timeout, tickets, queue: Mutex::default() })
    }

    /// Deletes chunks behind the caller's back.
    pub fn discard(self: &Arc<Self>, chunks: Vec<(TargetId, ChunkId)>) {
        let leftovers = self.clone();
        tokio::spawn(async move { leftovers.delete_all(chunks).await });
    }

    /// Deletes chunks of targets that may write them yet: now, and once more later.
    pub fn discard_doubtful(self: &Arc<Self>, chunks: Vec<(TargetId, ChunkId)>) {
        chunks.iter().for_each(|&(target, chunk)| self.delete_later(target, chunk));
        self.discard(chunks);
    }

    async fn delete_all(self: &Arc<Self>, chunks: Vec<(TargetId, ChunkId)>) {
        let mut of_targets: BTreeMap<TargetId, Vec<ChunkId>> = BTreeMap::new();
        for (target, chunk) in chunks {
            of_targets.entry(target).or_default().push(chunk);
        }
        for (target, chunks) in of_targets {
            for some in chunks.chunks(TOGETHER) {
                if let Err(error) = self.delete(target, some).await {
                    debug!(%target, chunks = some.len(), %error, "chunks are left for later");
                    some.iter().for_each(|chunk| self.delete_later(target, *chunk));
                }
            }
        }
    }

    async fn delete(&self, target: TargetId, chunks: &[ChunkId]) -> Result<()> {
        let map = self.map.current();
        // What is not in the map is gone for good, with all that it holds.
        let Some(target) = map.target(target) else { return Ok(()) };
        let client = TargetClient::new(&self.peers, target.id, &target.address);
        let client = client.showing(&self.tickets);
        client.delete(chunks, Instant::now() + self.timeout).await
    }

    fn delete_later(self: &Arc<Self>, target: TargetId, chunk: ChunkId) {
        let queue = &mut *self.queue.lock();
        if queue.chunks.len() >= MAX_LEFTOVERS {
            warn!(%chunk, "too many chunks cannot be deleted; the session's end finds this one");
            return;
        }
        let due = Instant::now() + PATIENCE * self.timeout;
        queue.chunks.push_back(Leftover { target, chunk, due });
        if !std::mem::replace(&mut queue.watched, true) {
            let leftovers = self.clone();
            tokio::spawn(async move { leftovers.delete_leftovers().await });
        }
    }

    /// As long as there are any.
    async fn delete_leftovers(self: Arc<Self>) {
        while !self.writer.has_ended() {
            sleep(PATIENCE * self.timeout).await;
            let due = {
                let queue = &mut *self.queue.lock();
                // Those of sessions that have ended are looked after by the metadata group.
                let session = self.writer.session();
                queue.chunks.retain(|left| left.chunk.segment.session == session);
                if queue.chunks.is_empty() {
                    queue.watched = false;
                    return;
                }
                let now = Instant::now();
                let due = queue.chunks.partition_point(|left| left.due <= now);
                queue.chunks.drain(..due).map(|left| (left.target, left.chunk)).collect()
            };
            self.delete_all(due).await;
        }
    }
}
