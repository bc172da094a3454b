//! The chunk service: framed requests to the targets of this daemon.

mod reads;
mod wanted;

use crate::backpressure::Backpressure;
use crate::engine::Engine;
use crate::latency::SERVED;
use crate::load::{Asked, Load};
use crate::pace::Pace;
use crate::rebuild::Rebuilder;
use crate::sharing::{self, Sharing};
use crate::tickets::{Tickets, Use};
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout_at};
use wanted::{MAX_HEAD, Wanted, asks, is_read};
use weft_net::slow::{self, Slow, Watch};
use weft_net::trace::Span;
use weft_net::{Class, Gate, Incoming, Outgoing, Pass, PeerInfo, Service, Tenant};
use weft_proto::layout::MAX_CHUNK;
use weft_proto::{ChunkId, Error, ErrorKind, Result, Role, SessionId, TargetId, op, v1};

/// A drive that has not answered its oldest request for this long counts as failed until it does,
/// and is given no more.
pub(crate) const STALL: Duration = Duration::from_secs(10);

/// An order to make chunks, of who does not say how long it waits.
const REBUILD_TIMEOUT: Duration = Duration::from_secs(60);

/// An answer that was held back leaves so long before who asked gives up.
const SLACK: Duration = Duration::from_secs(1);

/// Most damaged chunks that are remembered, and told at once.
const MAX_DAMAGED: usize = 65_536;
const MAX_TOLD: usize = 64;

const LIST_DEFAULT: u32 = 1000;
const LIST_MAX: u32 = 10_000;
/// Bytes of a chunk in an answer to [`op::LIST`], at most.
const LISTED: usize = 48;

/// The targets that can be asked.
#[derive(Default)]
pub(crate) struct Targets {
    by_id: RwLock<BTreeMap<TargetId, Slot>>,
    /// Targets whose start has not ended: a request for an unknown one may be for one of them.
    pub opening: AtomicUsize,
    /// Makes chunks for them.
    pub rebuilder: OnceLock<Arc<Rebuilder>>,
    damaged: Mutex<Damaged>,
    /// Of who stores chunks here.
    pub backpressure: Backpressure,
    /// Told by the daemon; without, nobody has to show anything.
    pub tickets: OnceLock<Tickets>,
    pub sharing: Sharing,
    pub load: Load,
}

/// Chunks that were found damaged, or were looked for and are not here, until they are made anew,
/// deleted or found whole.
#[derive(Default)]
struct Damaged {
    chunks: BTreeSet<(u32, ChunkId)>,
    /// The last that was told of: the next time it is the turn of those behind.
    told: Option<(u32, ChunkId)>,
}

struct Slot {
    /// `None` while it is closed.
    engine: Option<Engine>,
    /// Why it cannot be used now.
    away: Option<String>,
    /// Before the drive.
    gate: Gate,
}

impl Targets {
    /// Serves a target from now on, under the id it has. What it lost when it was opened is told.
    pub fn insert(&self, id: TargetId, engine: Engine) {
        engine.take_dropped().into_iter().for_each(|chunk| self.note_damaged((id.0, chunk)));
        self.by_id
            .write()
            .insert(id, Slot { engine: Some(engine), away: None, gate: sharing::gate() });
    }

    /// Refuses requests to a target that stays open, for this reason, or takes them again.
    pub fn set_away(&self, id: TargetId, why: Option<String>) {
        if let Some(slot) = self.by_id.write().get_mut(&id) {
            slot.away = why;
        }
    }

    /// Refuses requests to a target that is being closed.
    pub fn remove(&self, id: TargetId, why: String) {
        self.by_id
            .write()
            .insert(id, Slot { engine: None, away: Some(why), gate: sharing::gate() });
    }

    /// Targets that cannot be used now.
    pub fn away(&self) -> Vec<u32> {
        self.by_id.read().iter().filter(|(_, s)| s.away.is_some()).map(|(id, _)| id.0).collect()
    }

    /// The targets that can be used now.
    pub fn engines(&self) -> Vec<(TargetId, Engine)> {
        let slots = self.by_id.read();
        let usable = slots.iter().filter(|(_, slot)| slot.away.is_none());
        usable.filter_map(|(id, slot)| Some((*id, slot.engine.clone()?))).collect()
    }

    /// Some of the chunks that are damaged, others each time.
    pub fn damaged(&self) -> Vec<v1::DamagedChunk> {
        let mut damaged = self.damaged.lock();
        let after = damaged.told.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = damaged.chunks.range((after, Bound::Unbounded));
        let before = damaged.told.into_iter().flat_map(|told| damaged.chunks.range(..=told));
        let some: Vec<_> = behind.chain(before).take(MAX_TOLD).copied().collect();
        damaged.told = some.last().copied();
        let tell = |(target, chunk): (u32, ChunkId)| {
            let chunk = Some(chunk.into());
            v1::DamagedChunk { target, chunk }
        };
        some.into_iter().map(tell).collect()
    }

    /// The chunks of a target that are damaged.
    pub fn damaged_of(&self, target: u32) -> Vec<ChunkId> {
        let damaged = self.damaged.lock();
        let from = damaged.chunks.range((target, ChunkId::default())..);
        from.take_while(|(of, _)| *of == target).map(|(_, chunk)| *chunk).collect()
    }

    fn note_damaged(&self, at: (u32, ChunkId)) {
        let mut damaged = self.damaged.lock();
        if damaged.chunks.len() < MAX_DAMAGED {
            damaged.chunks.insert(at);
        }
    }

    /// These are deleted, made anew or found whole.
    fn forget_damaged(&self, target: u32, chunks: impl IntoIterator<Item = ChunkId>) {
        let mut damaged = self.damaged.lock();
        for chunk in chunks {
            damaged.chunks.remove(&(target, chunk));
        }
    }

    /// Reads a part of a chunk, or all of it ([`Engine::verify`]), and notes whether it is damaged.
    pub async fn look_at(
        &self,
        engine: &Engine,
        at: (u32, ChunkId),
        off: u64,
        len: u64,
    ) -> Result<Option<u64>> {
        let found = engine.verify(at.1, off, len).await;
        match &found {
            Ok(Some(_)) => self.note_damaged(at),
            // Some blocks of a drive that is there otherwise.
            Err(e) if e.kind == ErrorKind::Io && engine.failure().is_none() => {
                self.note_damaged(at);
            }
            Ok(None) if (off, len) == (0, 0) => self.forget_damaged(at.0, [at.1]),
            Err(e) if e.kind == ErrorKind::NotFound && (off, len) == (0, 0) => {
                self.forget_damaged(at.0, [at.1]);
            }
            _ => {}
        }
        found
    }

    /// The target, if it is of the cluster that who asks belongs to, as far as both know: ids are
    /// counted in each.
    fn find(&self, id: u32, peer: &PeerInfo) -> Result<Engine> {
        let engine = self.served(id)?;
        match (engine.cluster(), peer.cluster) {
            (Some(ours), Some(theirs)) if ours != theirs => Err(Error::new(
                ErrorKind::WrongCluster,
                format!(
                    "target {id} belongs to cluster {ours}, {} to cluster {theirs}: mount it anew",
                    peer.name
                ),
            )),
            _ => Ok(engine),
        }
    }

    /// A target that can be used now. Errors: `Unavailable`, `StaleMap`.
    pub fn served(&self, id: u32) -> Result<Engine> {
        let found =
            self.by_id.read().get(&TargetId(id)).map(|s| (s.engine.clone(), s.away.clone()));
        if let Some((_, Some(why))) = found {
            let what = format!("target {id} is away: {why}");
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        if let Some((Some(engine), None)) = found {
            let stalled = engine.stalled();
            if stalled < STALL {
                return Ok(engine);
            }
            let seconds = stalled.as_secs();
            let what = format!("the drive of target {id} has not answered for {seconds} s");
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        Err(if self.opening.load(Ordering::Acquire) > 0 {
            Error::new(ErrorKind::Unavailable, format!("target {id} may still be starting"))
        } else {
            // It may have moved to another daemon, as the next map will say: no chunk is missing.
            Error::new(ErrorKind::StaleMap, format!("target {id} is not served here"))
        })
    }
}

#[async_trait::async_trait]
impl Service for Targets {
    /// Answers no later than the caller waits: what a drive that hangs has not done by then must
    /// not hold up the connection. A put or delete that began goes on all the same.
    async fn call(&self, request: Incoming) -> Result<Outgoing> {
        let op = request.op;
        if (op == op::PUT || is_read(op)) && self.sharing.paces() {
            Span::part("pace").around(self.keep_pace(&request)).await;
        }
        let Some(deadline) = request.deadline else { return self.answer(request).await };
        if deadline <= Instant::now() {
            let what = format!("operation {op}: who asked has given up before its turn came");
            return Err(Error::new(ErrorKind::TimedOut, what));
        }
        if op == op::PUT && self.backpressure.slows() {
            // Half of the time is for storing it. None of this wait is the drive's.
            let left = deadline.saturating_duration_since(Instant::now());
            self.slow_down(&request, Instant::now() + left / 2).await;
        }
        let pace = self.rebuilder.get().map(|rebuilder| &rebuilder.pace);
        let read_for = (op == op::GET).then(|| self.background_of(&request)).flatten();
        let prompt = deadline.checked_sub(SLACK).unwrap_or_else(Instant::now);
        let turn = match (pace, read_for) {
            (Some(pace), Some(target)) => pace.turn_to_read(target, prompt).await,
            _ => None,
        };
        let begun = Instant::now();
        let making = pace.filter(|_| read_for.is_some()).map(Pace::making);
        let answer = timeout_at(deadline, self.answer(request)).await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::TimedOut, format!("operation {op}: the drive was too slow")))
        });
        drop(making);
        if let Some(name) = (read_for.is_none() && (op == op::PUT || is_read(op)))
            .then(|| op::name_of(op))
            .flatten()
        {
            SERVED.with_label_values(&[name]).observe(begun.elapsed().as_secs_f64());
        }
        match pace {
            // Who makes chunks asks for the next when this is answered.
            Some(pace) if read_for.is_some() => {
                sleep_until(prompt.min(Instant::now() + pace.pause(begun.elapsed()))).await;
            }
            // What is refused says nothing of how busy the targets are.
            Some(pace) if (op == op::PUT || is_read(op)) && was_served(&answer) => {
                pace.note_request(begun.elapsed());
            }
            _ => {}
        }
        drop(turn);
        answer
    }

    fn weigh(&self, op: u16, head: &Bytes) -> usize {
        match op {
            op::LIST if head.len() <= MAX_HEAD => {
                let asked = v1::ListRequest::decode(head.clone()).map_or(0, |q| q.limit);
                listed(asked) * LISTED
            }
            op => Wanted::of(op, head).map_or(0, |wanted| wanted.bytes as usize),
        }
    }
}

/// What is done with the drive of a target.
fn of_target(what: &'static str, target: u32) -> Span {
    let mut span = Span::part(what);
    span.note("weft.target", u64::from(target));
    span
}

/// Has the log tell of a request if it is slow.
fn watched(op: &'static str, target: u32, chunk: ChunkId, peer: &PeerInfo) -> Watch<impl Fn(Slow)> {
    slow::watch(op, move |Slow { ms, untold }| {
        tracing::warn!(op, target, %chunk, client = ?peer.name, ms, untold, "a slow request");
    })
}

impl Targets {
    async fn answer(&self, request: Incoming) -> Result<Outgoing> {
        let peer = &*request.peer;
        match request.op {
            op if asks(op) && request.head.len() > MAX_HEAD => {
                let what = format!("a head of {} bytes, over {MAX_HEAD}", request.head.len());
                Err(Error::new(ErrorKind::Invalid, what))
            }
            op::PUT => request.answer(|q| self.put(q, request.payload.clone(), peer)).await,
            op::GET => request.answer_with_payload(|q| self.get(q, peer)).await,
            op::GET_MANY => request.answer_with_payload(|q| self.get_many(q, peer)).await,
            op::DELETE => request.answer(|q| self.delete(q, peer)).await,
            op::LIST => request.answer(|q| self.list(q, peer)).await,
            op::FENCE => request.answer(|q| self.fence(q, peer)).await,
            op::TARGET_STAT => request.answer(|q| self.stat(q, peer)).await,
            op::VERIFY => request.answer(|q| self.verify(q, peer)).await,
            op::REBUILD => {
                let until = request.deadline.unwrap_or_else(|| Instant::now() + REBUILD_TIMEOUT);
                request.answer(|q| self.rebuild(q, peer, until)).await
            }
            op::COMPACT => {
                let until = request.deadline.unwrap_or_else(|| Instant::now() + REBUILD_TIMEOUT);
                request.answer(|q| async move { self.rebuilder()?.compact(q, until).await }).await
            }
            op::DISOWN => request.answer(|q| self.disown(q, peer)).await,
            op::REPORT_CORRUPT => request.answer(|q| self.report_corrupt(q, peer)).await,
            // Once a metadata server had this address: there are others to ask.
            op::META => {
                let what = "here is a storage daemon, and no metadata server";
                Err(Error::new(ErrorKind::NotLeader, what))
            }
            other => Err(Error::new(
                ErrorKind::Protocol,
                format!("a storage daemon does not know operation {other}"),
            )),
        }
    }

    /// Has who asks keep its rates.
    async fn keep_pace(&self, request: &Incoming) {
        let (requests, bytes, background) = if is_read(request.op) {
            match Wanted::of(request.op, &request.head) {
                Some(wanted) if wanted.bytes <= MAX_CHUNK => {
                    (wanted.parts, wanted.bytes, wanted.is_background(&request.peer))
                }
                // It is going to be refused.
                _ => return,
            }
        } else {
            (1, request.payload.len() as u64, false)
        };
        let tenant = self.sharing.tenant(request.peer.tenant(), background);
        self.sharing.keep_pace(&tenant, requests, bytes).await;
    }

    /// Waits for a tenant's turn at a target.
    async fn enter(&self, target: u32, tenant: &Tenant, class: Class, bytes: u64) -> Option<Pass> {
        let gate = self.by_id.read().get(&TargetId(target)).map(|slot| slot.gate.clone())?;
        Some(sharing::enter(&gate, tenant, class, bytes).await)
    }

    /// The target here that is read from by somebody who makes chunks.
    fn background_of(&self, request: &Incoming) -> Option<TargetId> {
        let wanted = Wanted::of(request.op, &request.head)?;
        let of = wanted.is_background(&request.peer).then_some(TargetId(wanted.target));
        of.filter(|id| self.by_id.read().contains_key(id))
    }

    async fn stat(&self, q: v1::TargetStatRequest, peer: &PeerInfo) -> Result<v1::TargetStat> {
        Ok(self.find(q.target, peer)?.stat())
    }

    /// Has who stores something on a target that is almost full wait.
    async fn slow_down(&self, request: &Incoming, until: Instant) {
        let Ok(q) = v1::PutRequest::decode(request.head.clone()) else { return };
        if let Ok(engine) = self.find(q.target, &request.peer) {
            let bytes = request.payload.len() as u64;
            self.backpressure.wait(q.target, engine.space(), bytes, until).await;
        }
    }

    async fn report_corrupt(
        &self,
        q: v1::ReportCorruptRequest,
        peer: &PeerInfo,
    ) -> Result<v1::ReportCorruptReply> {
        if peer.confinement().is_any() {
            let what = "reports are not taken from clients that are confined to a part";
            return Err(Error::new(ErrorKind::NotPermitted, what));
        }
        let chunk = chunk(q.chunk)?;
        let (target_id, name) = (q.target, &peer.name);
        let v1::ReportCorruptRequest { off, len, length, .. } = q;
        tracing::warn!(target_id, %chunk, off, len, peer = name, "reported as corrupt");
        let engine = self.find(q.target, peer)?;
        if length > 0 && engine.length(chunk).await?.is_some_and(|here| here != length) {
            self.note_damaged((q.target, chunk));
            return Ok(v1::ReportCorruptReply {});
        }
        let tenant = self.sharing.tenant(peer.tenant(), false);
        let _turn = self.enter(q.target, &tenant, Class::Read, MAX_CHUNK).await;
        match self.look_at(&engine, (q.target, chunk), q.off, q.len).await {
            // Whether it is to be here, the metadata servers know.
            Err(e) if e.kind == ErrorKind::NotFound => self.note_damaged((q.target, chunk)),
            looked => drop(looked?),
        }
        Ok(v1::ReportCorruptReply {})
    }

    async fn verify(&self, q: v1::VerifyRequest, peer: &PeerInfo) -> Result<v1::VerifyReply> {
        let (engine, chunk) = (self.find(q.target, peer)?, chunk(q.chunk)?);
        let found = self.look_at(&engine, (q.target, chunk), 0, 0).await;
        Ok(v1::VerifyReply { bad_off: found? })
    }

    async fn put(
        &self,
        q: v1::PutRequest,
        payload: Bytes,
        peer: &PeerInfo,
    ) -> Result<v1::PutReply> {
        let (engine, chunk) = (self.find(q.target, peer)?, chunk(q.chunk)?);
        self.check_ticket(peer, &q.ticket, Use::Write, [chunk])?;
        let (tenant, bytes) = (self.sharing.tenant(peer.tenant(), false), payload.len() as u64);
        let serving = self.load.begin(q.target, Asked::Write, 1);
        let _slow = watched("PUT", q.target, chunk, peer);
        let turn = self.enter(q.target, &tenant, Class::Write, bytes);
        let turn = Span::part("turn").around(turn).await;
        let stored = engine.put_in_turn(chunk, payload, q.checksums, turn);
        of_target("store", q.target).around(stored).await?;
        serving.done(bytes);
        tenant.note_served(1, 0, bytes);
        Ok(v1::PutReply {})
    }

    async fn delete(&self, q: v1::DeleteRequest, peer: &PeerInfo) -> Result<v1::DeleteReply> {
        let ids = q.chunks.into_iter().map(ChunkId::try_from).collect::<Result<Vec<_>>>()?;
        let engine = self.find(q.target, peer)?;
        self.check_ticket(peer, &q.ticket, Use::Write, ids.iter().copied())?;
        // What its session has left others may share by now.
        if peer.subject.as_ref().is_some_and(|subject| subject.role == Role::Client) {
            ids.iter().try_for_each(|id| engine.check_fence(*id))?;
        }
        let deleted = engine.delete(ids.clone()).await?;
        self.forget_damaged(q.target, ids);
        Ok(v1::DeleteReply { deleted })
    }

    fn check_ticket(
        &self,
        peer: &PeerInfo,
        ticket: &[u8],
        use_: Use,
        chunks: impl IntoIterator<Item = ChunkId>,
    ) -> Result<()> {
        self.tickets.get().map_or(Ok(()), |tickets| tickets.check(peer, ticket, use_, chunks))
    }

    async fn fence(&self, q: v1::FenceRequest, peer: &PeerInfo) -> Result<v1::FenceReply> {
        let ended = q.ended.iter().map(|range| range.first..=range.last).collect::<Vec<_>>();
        if let Some(range) = ended.iter().find(|range| range.is_empty()) {
            let what = format!("no sessions are from {} to {}", range.start(), range.end());
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        self.find(q.target, peer)?.fence(ended).await?;
        Ok(v1::FenceReply {})
    }

    async fn rebuild(
        &self,
        q: v1::RebuildRequest,
        peer: &PeerInfo,
        deadline: Instant,
    ) -> Result<v1::RebuildReply> {
        let engine = self.find(q.target, peer)?;
        let (target, heals) = (q.target, q.heal);
        let chunks = q.items.iter().map(|item| {
            let key = item.segment.as_ref().and_then(|segment| segment.id);
            let shard = item.shard;
            ChunkId::try_from(v1::ChunkKey { segment: key, shard }).ok()
        });
        let chunks: Vec<_> = chunks.collect();
        let reply = self.rebuilder()?.rebuild(&engine, q, deadline).await?;
        if heals {
            let outcomes = chunks.into_iter().zip(&reply.outcomes);
            let made = outcomes.filter(|(_, outcome)| outcome.error == 0);
            self.forget_damaged(target, made.filter_map(|(chunk, _)| chunk));
        }
        Ok(reply)
    }

    async fn disown(&self, q: v1::DisownRequest, peer: &PeerInfo) -> Result<v1::DisownReply> {
        let (engine, target) = (self.find(q.target, peer)?, q.target);
        let (reply, gone) = self.rebuilder()?.disown(engine, q).await?;
        self.forget_damaged(target, gone);
        Ok(reply)
    }

    fn rebuilder(&self) -> Result<&Arc<Rebuilder>> {
        let none = || Error::new(ErrorKind::Unavailable, "the daemon is still starting");
        self.rebuilder.get().ok_or_else(none)
    }

    async fn list(&self, q: v1::ListRequest, peer: &PeerInfo) -> Result<v1::ListReply> {
        if peer.confinement().is_any() {
            let what = "a list of chunks is not for clients that are confined to a part";
            return Err(Error::new(ErrorKind::NotPermitted, what));
        }
        let after = q.after.map(ChunkId::try_from).transpose()?;
        let session = Some(SessionId(q.session)).filter(|s| s.0 != 0);
        let limit = listed(q.limit);
        let page = self.find(q.target, peer)?.list(after, session, limit).await?;
        let items = page
            .items
            .into_iter()
            .map(|(id, length)| v1::list_reply::Item { chunk: Some(id.into()), length });
        Ok(v1::ListReply { items: items.collect(), more: page.more })
    }
}

/// Chunks of one answer to [`op::LIST`], when so many are asked for.
fn listed(asked: u32) -> usize {
    (if asked == 0 { LIST_DEFAULT } else { asked.min(LIST_MAX) }) as usize
}

fn was_served(answer: &Result<Outgoing>) -> bool {
    answer.as_ref().map_or_else(|e| e.kind == ErrorKind::TimedOut, |_| true)
}

fn chunk(key: Option<v1::ChunkKey>) -> Result<ChunkId> {
    key.ok_or_else(|| Error::new(ErrorKind::Protocol, "request without a chunk"))?.try_into()
}
