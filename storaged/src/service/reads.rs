//! Reads: a part of one chunk, or of many of one target.

use super::wanted::bytes_of;
use super::{Targets, chunk, of_target, watched};
use crate::engine::Engine;
use crate::load::Asked;
use crate::sharing::REQUEST;
use crate::tickets::Use;
use bytes::Bytes;
use weft_net::trace::Span;
use weft_net::{Class, PeerInfo};
use weft_proto::layout::MAX_CHUNK;
use weft_proto::{ChunkId, Error, ErrorKind, Result, Role, v1};

/// Most parts of one request, and bytes of them all.
const MAX_PARTS: usize = 256;
const MAX_BYTES: u64 = 4 << 20;

impl Targets {
    pub(super) async fn get(
        &self,
        q: v1::GetRequest,
        peer: &PeerInfo,
    ) -> Result<(v1::GetReply, Vec<Bytes>)> {
        let (engine, chunk) = (self.find(q.target, peer)?, chunk(q.chunk)?);
        self.check_ticket(peer, &q.ticket, Use::Read, [chunk])?;
        if q.len > MAX_CHUNK {
            let what = format!("chunk {chunk}: {} bytes are over {MAX_CHUNK}", q.len);
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        let background = q.background && peer.may_be(Role::Storage);
        let tenant = self.sharing.tenant(peer.tenant(), background);
        let serving = (!background).then(|| self.load.begin(q.target, Asked::Read, 1));
        let _slow = (!background).then(|| watched("GET", q.target, chunk, peer));
        let turn = self.enter(q.target, &tenant, Class::Read, q.len);
        let _turn = Span::part("turn").around(turn).await;
        let read = of_target("read", q.target).around(engine.get(chunk, q.off, q.len));
        let range = read.await.inspect_err(|e| self.note_unread(q.target, chunk, &engine, e))?;
        if let Some(serving) = serving {
            serving.done(q.len);
        }
        tenant.note_served(1, q.len, 0);
        Ok((v1::GetReply { checksums: range.checksums }, range.data))
    }

    pub(super) async fn get_many(
        &self,
        q: v1::GetManyRequest,
        peer: &PeerInfo,
    ) -> Result<(v1::GetManyReply, Vec<Bytes>)> {
        let engine = self.find(q.target, peer)?;
        let (parts, bytes) = (q.parts.len(), bytes_of(&q));
        let sound = (1..=MAX_PARTS).contains(&parts) && q.tickets.len() <= parts;
        if !sound || bytes > MAX_BYTES {
            let tickets = q.tickets.len();
            let what = format!(
                "{parts} parts, {bytes} bytes and {tickets} tickets: at most {MAX_PARTS} parts, \
                 {MAX_BYTES} bytes, and a ticket for each part"
            );
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        let ranges = q.parts.iter().map(|part| Ok((chunk(part.chunk)?, part.off, part.len)));
        let ranges = ranges.collect::<Result<Vec<_>>>()?;
        self.check_tickets(&q, &ranges, peer)?;
        let tenant = self.sharing.tenant(peer.tenant(), false);
        let serving = self.load.begin(q.target, Asked::Read, parts as u64);
        let _slow = watched("GET_MANY", q.target, ranges[0].0, peer);
        // One of them is counted by the gate.
        let cost = bytes + (parts as u64 - 1) * REQUEST;
        let turn = self.enter(q.target, &tenant, Class::Read, cost);
        let _turn = Span::part("turn").around(turn).await;
        let read = async {
            engine.get_many(&ranges).await.map_err(|(at, error)| {
                self.note_unread(q.target, ranges[at].0, &engine, &error);
                error
            })
        };
        let read = of_target("read", q.target).around(read).await?;
        serving.done(bytes);
        tenant.note_served(parts as u64, bytes, 0);
        let (mut checksums, mut data) = (Vec::new(), Vec::new());
        for range in read {
            checksums.extend(range.checksums);
            data.extend(range.data);
        }
        Ok((v1::GetManyReply { checksums }, data))
    }

    fn check_tickets(
        &self,
        q: &v1::GetManyRequest,
        ranges: &[(ChunkId, u64, u64)],
        peer: &PeerInfo,
    ) -> Result<()> {
        // Without any, nothing is shown for all.
        let shown = q.tickets.len().max(1);
        if q.parts.iter().any(|part| part.ticket as usize >= shown) {
            return Err(Error::new(ErrorKind::Protocol, "a part whose ticket is not there"));
        }
        for at in 0..shown {
            let of_it = q.parts.iter().zip(ranges).filter(|(part, _)| part.ticket as usize == at);
            let ticket = q.tickets.get(at).map_or(&[][..], |ticket| ticket);
            self.check_ticket(peer, ticket, Use::Read, of_it.map(|(_, (chunk, ..))| *chunk))?;
        }
        Ok(())
    }

    /// A chunk could not be read.
    fn note_unread(&self, target: u32, chunk: ChunkId, engine: &Engine, error: &Error) {
        // Some blocks of a drive that is there otherwise.
        if error.kind == ErrorKind::Io && engine.failure().is_none() {
            self.note_damaged((target, chunk));
        }
    }
}
