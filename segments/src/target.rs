//! Requests to one storage target, in Weft's own types.
//!
//! Invariant: bytes that a read answers match their checksums (I3).

mod orders;

use crate::tickets::TicketBook;
use bytes::Bytes;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use tokio::time::Instant;
use weft_net::{Body, Buffer, Features, Peer, Peers, brought_back};
use weft_proto::layout::BLOCK;
use weft_proto::planted::{self, Bug};
use weft_proto::{Call, ChunkId, Error, ErrorKind, Result, SegmentId, SessionId, TargetId, v1};

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

/// A part of a chunk that is read: whole blocks from `off` on.
pub(crate) struct Part {
    pub chunk: ChunkId,
    pub off: u64,
    /// Where the bytes go.
    pub into: Vec<Buffer>,
}

impl Part {
    /// In bytes.
    pub fn len(&self) -> u64 {
        self.into.iter().map(|piece| piece.len() as u64).sum()
    }
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
        self.verify_read(answer.payload, &answer.head.checksums).await
    }

    /// How much it is shown for a segment, in bytes.
    pub(crate) fn ticket_len(&self, segment: SegmentId) -> usize {
        self.ticket(segment).len()
    }

    /// Whether it is the same one, of the same cluster.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.id == other.id && Arc::ptr_eq(&self.peer, &other.peer)
    }

    /// Whether it is known to serve [`Self::get_many`].
    pub(crate) fn serves_many(&self) -> bool {
        !self.background && self.peer.features().has(Features::GET_MANY)
    }

    /// As [`Self::get`], of many parts with one request. If the target cannot read one of them,
    /// none is answered; bytes that do not match are the fault of their part alone.
    pub(crate) async fn get_many(
        &self,
        parts: Vec<Part>,
        deadline: Instant,
    ) -> Result<Vec<Result<Vec<Buffer>>>> {
        let (mut wanted, mut into, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        let mut tickets: Vec<Bytes> = Vec::new();
        for part in parts {
            let (key, (off, len)) = (Some(part.chunk.into()), (part.off, part.len()));
            let ticket = self.ticket(part.chunk.segment);
            let known = tickets.iter().position(|known| *known == ticket);
            let ticket = known.unwrap_or_else(|| {
                tickets.push(ticket);
                tickets.len() - 1
            }) as u32;
            wanted.push(v1::get_many_request::Part { chunk: key, off, len, ticket });
            counts.push((part.into.len(), (len / u64::from(BLOCK)) as usize));
            into.extend(part.into);
        }
        let request = v1::GetManyRequest { target: self.id.0, parts: wanted, tickets };
        let body = Body { send: Vec::new(), into };
        let answer =
            self.peer.exchange(&request, body, deadline).await.map_err(|e| self.said(e))?;
        let blocks: usize = counts.iter().map(|(_, blocks)| blocks).sum();
        if answer.head.checksums.len() != blocks {
            let what = format!("{} checksums of {blocks} blocks", answer.head.checksums.len());
            return Err(self.said(Error::new(ErrorKind::Protocol, what)));
        }
        let (mut pieces, mut checksums) = (answer.payload.into_iter(), &answer.head.checksums[..]);
        let mut read = Vec::with_capacity(counts.len());
        for (count, blocks) in counts {
            let mine = checksums.split_off(..blocks).unwrap_or_default();
            read.push(self.verify_read(pieces.by_ref().take(count).collect(), mine).await);
        }
        Ok(read)
    }

    /// What was read, if it is right; what landed in a device is looked at as it is there.
    async fn verify_read(&self, read: Vec<Buffer>, checksums: &[u32]) -> Result<Vec<Buffer>> {
        let read = brought_back(read).await.map_err(|e| self.said(e))?;
        if verified(&read, checksums) || planted::is(Bug::ChecksumIgnored) {
            read.iter().for_each(Buffer::note_right);
            return Ok(read);
        }
        Err(self.said(Error::new(ErrorKind::Corrupt, "bytes do not match their checksums")))
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
