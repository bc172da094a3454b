//! Requests to one storage target, in Weft's own types.
//!
//! Invariant: bytes that a read answers match their checksums (I3).

use crate::segment::Segment;
use crate::tickets::TicketBook;
use bytes::Bytes;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use tokio::time::Instant;
use weft_net::{Body, Buffer, Peer, Peers};
use weft_proto::layout::BLOCK;
use weft_proto::{
    Call, ChunkId, Error, ErrorKind, MapEpoch, Result, SegmentId, SessionId, TargetId, v1,
};

/// Chunks in one request to delete.
const MAX_DELETE: usize = 2048;
/// Ranges of sessions in one request.
const MAX_FENCE: usize = 4096;

/// The way to one target. Every request fails with the errors of [`Peer::call`], which say the
/// target and its address, and with those of the target that are named beside it.
#[derive(Clone)]
pub struct TargetClient {
    id: TargetId,
    peer: Arc<Peer>,
    /// Reads are not those of somebody who waits.
    background: bool,
    /// What it is shown, where it has to be.
    tickets: Option<Arc<TicketBook>>,
}

/// A part of the list of chunks.
#[derive(Debug)]
pub struct ListPage {
    /// Chunks and their lengths in bytes, in id order.
    pub items: Vec<(ChunkId, u64)>,
    /// There are chunks after the last item.
    pub more: bool,
}

impl TargetClient {
    /// The target at the storage daemon at `address`. Nothing is connected yet.
    pub fn new(peers: &Peers, id: TargetId, address: &str) -> Self {
        Self { id, peer: peers.peer(address), background: false, tickets: None }
    }

    /// The same, for reads that nobody waits for.
    pub(crate) fn in_background(self, background: bool) -> Self {
        Self { background, ..self }
    }

    /// The same, shown these tickets.
    pub(crate) fn showing(self, tickets: &Arc<TicketBook>) -> Self {
        Self { tickets: Some(tickets.clone()), ..self }
    }

    fn ticket(&self, segment: SegmentId) -> Bytes {
        self.tickets.as_ref().map(|tickets| tickets.of(segment)).unwrap_or_default()
    }

    /// Its id.
    pub fn id(&self) -> TargetId {
        self.id
    }

    /// Stores a chunk durably: whole blocks, with the CRC-32 of each. Errors: `NoSpace` (with the
    /// longest chunk that there is room for as hint), `Exists` (with other content),
    /// `SessionExpired` (its session is fenced off), `NoTicket`.
    pub async fn put(
        &self,
        chunk: ChunkId,
        checksums: Vec<u32>,
        data: Vec<Bytes>,
        deadline: Instant,
    ) -> Result<()> {
        let (target, ticket) = (self.id.0, self.ticket(chunk.segment));
        let request = v1::PutRequest { target, chunk: Some(chunk.into()), checksums, ticket };
        let body = Body { send: data, into: Vec::new() };
        let sent = self.peer.exchange(&request, body, deadline).await;
        sent.map(drop).map_err(|e| self.said(e))
    }

    /// Reads a chunk from `off` into buffers of whole blocks, and checks each block. Errors:
    /// `Corrupt` (the target should be told: [`Self::report_corrupt`]), `NotFound`.
    pub async fn get(
        &self,
        chunk: ChunkId,
        off: u64,
        into: Vec<Buffer>,
        deadline: Instant,
    ) -> Result<Vec<Buffer>> {
        let len = into.iter().map(|piece| piece.len() as u64).sum();
        let (target, background) = (self.id.0, self.background);
        let (key, ticket) = (Some(chunk.into()), self.ticket(chunk.segment));
        let request = v1::GetRequest { target, chunk: key, off, len, background, ticket };
        let body = Body { send: Vec::new(), into };
        let answer =
            self.peer.exchange(&request, body, deadline).await.map_err(|e| self.said(e))?;
        if !verified(&answer.payload, &answer.head.checksums) {
            let what = "bytes do not match their checksums";
            return Err(self.said(Error::new(ErrorKind::Corrupt, what)));
        }
        Ok(answer.payload)
    }

    /// Deletes chunks durably; those that are not there count as deleted.
    pub async fn delete(&self, chunks: &[ChunkId], deadline: Instant) -> Result<()> {
        for chunks in chunks.chunks(MAX_DELETE) {
            // All of them are of one session, if a ticket is needed at all.
            let ticket = chunks.first().map(|chunk| self.ticket(chunk.segment));
            let ticket = ticket.unwrap_or_default();
            let chunks = chunks.iter().copied().map(Into::into).collect();
            let request = v1::DeleteRequest { target: self.id.0, chunks, ticket };
            self.call(&request, deadline).await?;
        }
        Ok(())
    }

    /// Up to `limit` chunks in id order, after `after`, of one session or of all.
    pub async fn list(
        &self,
        after: Option<ChunkId>,
        session: Option<SessionId>,
        limit: u32,
        deadline: Instant,
    ) -> Result<ListPage> {
        let (after, session) = (after.map(Into::into), session.map_or(0, |session| session.0));
        let request = v1::ListRequest { target: self.id.0, after, session, limit };
        let page = self.call(&request, deadline).await?;
        let keyless = || Error::new(ErrorKind::Protocol, "a listed chunk without a key");
        let item = |item: v1::list_reply::Item| {
            Ok((ChunkId::try_from(item.chunk.ok_or_else(keyless)?)?, item.length))
        };
        let items = page.items.into_iter().map(item).collect::<Result<Vec<_>>>();
        let items = items.map_err(|e| self.said(e))?;
        Ok(ListPage { more: page.more && !items.is_empty(), items })
    }

    /// Has the target refuse what these sessions, which have ended, sent and has not arrived: what
    /// a list then shows of them is all.
    pub async fn fence(&self, ended: &[RangeInclusive<u64>], deadline: Instant) -> Result<()> {
        for ended in ended.chunks(MAX_FENCE) {
            let ended = ended.iter();
            let ended = ended.map(|s| v1::SessionRange { first: *s.start(), last: *s.end() });
            let request = v1::FenceRequest { target: self.id.0, ended: ended.collect() };
            self.call(&request, deadline).await?;
        }
        Ok(())
    }

    /// Has the target compare a chunk with its checksums. Answers the offset of the first block
    /// that does not match. Errors: `Io` (the drive cannot read it), `NotFound`.
    pub async fn verify(&self, chunk: ChunkId, deadline: Instant) -> Result<Option<u64>> {
        let request = v1::VerifyRequest { target: self.id.0, chunk: Some(chunk.into()) };
        Ok(self.call(&request, deadline).await?.bad_off)
    }

    /// Tells the target that bytes of a chunk came corrupt, or, with a `length` that it should have
    /// (0: not said), that it is not what it should be, so that it looks for itself.
    pub async fn report_corrupt(
        &self,
        chunk: ChunkId,
        off: u64,
        len: u64,
        length: u64,
        deadline: Instant,
    ) -> Result<()> {
        let (target, chunk) = (self.id.0, Some(chunk.into()));
        let request = v1::ReportCorruptRequest { target, chunk, off, len, length };
        self.call(&request, deadline).await.map(drop)
    }

    /// Has the target's daemon make chunks of this target of the other shards of their segments, as
    /// the map of `epoch` says where they are, unless they are there; with `heal`, also if they are
    /// and are damaged. Answers what became of each.
    pub async fn rebuild(
        &self,
        items: Vec<(&Segment, u8)>,
        epoch: MapEpoch,
        heal: bool,
        deadline: Instant,
    ) -> Result<v1::RebuildReply> {
        let item = |(segment, shard): (&Segment, u8)| v1::rebuild_request::Item {
            segment: Some(segment.to_wire()),
            shard: shard.into(),
        };
        let count = items.len();
        let items = items.into_iter().map(item).collect();
        let request = v1::RebuildRequest { target: self.id.0, items, epoch: epoch.0, heal };
        let reply = self.call(&request, deadline).await?;
        if reply.outcomes.len() != count {
            let what = format!("{} outcomes for {count} chunks", reply.outcomes.len());
            return Err(self.said(Error::new(ErrorKind::Protocol, what)));
        }
        Ok(reply)
    }

    /// Has the target's daemon write the bytes of these extents as new segments, of the session and
    /// with the numbers that `order` says. Answers these.
    pub async fn compact(
        &self,
        order: &v1::CompactRequest,
        deadline: Instant,
    ) -> Result<Vec<Segment>> {
        let reply = self.call(order, deadline).await?;
        let segments =
            reply.segments.into_iter().map(Segment::try_from).collect::<Result<Vec<_>>>();
        let segments = segments.map_err(|e| self.said(e))?;
        let (has, bytes) = (
            segments.iter().map(|s| u128::from(s.geometry.length)).sum::<u128>(),
            order.extents.iter().map(|e| u128::from(e.len)).sum::<u128>(),
        );
        if has != bytes || segments.iter().any(|s| s.id.session.0 != order.session) {
            let what = format!("wrote {has} bytes for {bytes}, or in another session");
            return Err(self.said(Error::new(ErrorKind::Protocol, what)));
        }
        Ok(segments)
    }

    /// Has the target's daemon delete those of these chunks of which the metadata group says, when
    /// asked by it, that they have no business there. Answers how many it deleted.
    pub async fn disown(&self, chunks: &[ChunkId], deadline: Instant) -> Result<u64> {
        let mut deleted = 0;
        for chunks in chunks.chunks(MAX_DELETE) {
            let chunks = chunks.iter().copied().map(Into::into).collect();
            let request = v1::DisownRequest { target: self.id.0, chunks };
            deleted += self.call(&request, deadline).await?.deleted;
        }
        Ok(deleted)
    }

    async fn call<C: Call>(&self, request: &C, deadline: Instant) -> Result<C::Answer> {
        self.peer.call(request, deadline).await.map_err(|e| self.said(e))
    }

    fn said(&self, e: Error) -> Error {
        let message = format!("target {self}: {e}");
        Error { message, ..e }
    }
}

impl fmt::Display for TargetClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.id, self.peer.address())
    }
}

/// Pieces that are whole blocks, against the checksums of their blocks in order.
fn verified(pieces: &[Buffer], checksums: &[u32]) -> bool {
    let mut left = checksums;
    for piece in pieces {
        let blocks = piece.len().div_ceil(BLOCK as usize);
        let Some((mine, rest)) = left.split_at_checked(blocks) else { return false };
        if weft_erasure::verify_blocks(piece, mine).is_err() {
            return false;
        }
        left = rest;
    }
    left.is_empty()
}

/// Whether the target may answer better a little later.
pub(crate) fn passes_with_time(error: &Error) -> bool {
    use ErrorKind::{Busy, NoTicket, StaleMap, TimedOut, Unavailable};
    matches!(error.kind, Unavailable | TimedOut | StaleMap | Busy | NoTicket)
}
