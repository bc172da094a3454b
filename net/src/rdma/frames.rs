//! Frames on their way out: what is in the message, and what the card moves by itself.

use super::connection::{Connection, Side};
use super::memory::Registered;
use super::state::{Exposed, Outgoing};
use super::wire::{MAX_PIECES, Payload, Piece, Places};
use crate::aligned::AlignedBuf;
use crate::buffer::Buffer;
use crate::frame::{Frame, HEADER_LEN, Head, Header};
use crate::metrics::rdma::COPIED;
use bytes::Bytes;
use std::collections::VecDeque;
use std::io;

/// Payloads up to this length follow the head: cheaper than a request to the card.
const INLINE: usize = 512;

impl Connection {
    /// Queues a frame, and posts it if there is room. `into`: where the payload of its answer goes.
    /// False: the connection was over, and nothing was queued. The cost of what was is told by
    /// [`Self::take_left`], also if it cannot be posted.
    pub fn push(&self, frame: Frame<'_>, into: &[Buffer], cost: Option<usize>) -> bool {
        let id = frame.header.id;
        let made = match self.side {
            Side::Caller => self.request(frame, into, cost),
            Side::Server => self.answer(frame, cost),
        };
        let (frame, exposed) = match made {
            Ok(made) => made,
            Err(error) => {
                self.end(&format!("cannot register memory: {error}"));
                return false;
            }
        };
        let mut state = self.state.lock();
        if state.over.is_some() || state.closed {
            return false;
        }
        if let Some(exposed) = exposed.filter(|_| id != 0) {
            state.exposed.insert(id, exposed);
        }
        state.frames.push_back(frame);
        self.posted(state);
        true
    }

    /// Nobody waits for the answer to a request any more. Answers whether the other side may still
    /// write to its memory: it has begun to leave, and was not answered. If not, nothing of it
    /// leaves.
    pub fn give_up(&self, id: u64) -> bool {
        let mut state = self.state.lock();
        let Some(exposed) = state.exposed.get(&id) else { return false };
        if exposed.asked {
            return true;
        }
        let waits = |frame: &Outgoing| frame.header.id == id && frame.at == 0;
        let Some(at) = state.frames.iter().position(waits) else { return true };
        let taken_back = (state.frames.remove(at), state.exposed.remove(&id));
        // It may have been what the last message waited for.
        self.posted(state);
        // Freed while others push.
        drop(taken_back);
        false
    }

    /// The server reads the payload of a request from where it lies.
    fn request(
        &self,
        frame: Frame<'_>,
        into: &[Buffer],
        cost: Option<usize>,
    ) -> io::Result<(Outgoing, Option<Exposed>)> {
        let Frame { header, head, payload, until } = frame;
        // Without an answer nobody would know when it was read.
        let to_be_read = if header.id == 0 { 0 } else { header.payload_len as usize };
        let (exposed, sources, landings) = self.expose(&payload, to_be_read, into)?;
        let place = if sources.is_empty() { Payload::Follows } else { Payload::ToBeRead };
        let (from, to) = (sources.len() as u16, landings.len() as u16);
        let places = Places { payload: place, sources: from, landings: to };
        let pieces = sources.into_iter().chain(landings);
        let mut bytes = encoded(&header, &head, places, pieces);
        if place == Payload::Follows {
            append(&mut bytes, &payload);
        }
        Ok((Outgoing { header, bytes, at: 0, until, writes: VecDeque::new(), cost }, Some(exposed)))
    }

    /// The payload of an answer is written to where the request wants it, if it has that length.
    fn answer(
        &self,
        frame: Frame<'_>,
        cost: Option<usize>,
    ) -> io::Result<(Outgoing, Option<Exposed>)> {
        let Frame { header, head, payload, .. } = frame;
        let len = header.payload_len as usize;
        let landings = match header.id {
            0 => None,
            id => self.state.lock().landings_of(id),
        };
        let fits = |to: &Vec<Piece>| to.iter().map(|p| p.len as usize).sum::<usize>() == len;
        let mut places = Places { payload: Payload::Follows, sources: 0, landings: 0 };
        let (bytes, writes) = match landings.filter(|to| len > 0 && fits(to)) {
            Some(landings) => {
                let writes = paired(self.known(payload)?, landings);
                places.payload = Payload::Written;
                (encoded(&header, &head, places, []), writes)
            }
            None => {
                let mut bytes = encoded(&header, &head, places, []);
                append(&mut bytes, &payload);
                (bytes, VecDeque::new())
            }
        };
        Ok((Outgoing { header, bytes, at: 0, until: None, writes, cost }, None))
    }

    /// Shows the other side the payload of a request, and where that of its answer goes.
    fn expose(
        &self,
        payload: &[Bytes],
        len: usize,
        into: &[Buffer],
    ) -> io::Result<(Exposed, Vec<Piece>, Vec<Piece>)> {
        let (mut sources, mut landings, mut kept, mut registered) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        if len > INLINE {
            for piece in self.known(payload.to_vec())? {
                let start = piece.as_ptr().cast_mut();
                sources.push(self.piece(start, piece.len(), &mut registered)?);
                kept.push(piece);
            }
            if sources.len() > MAX_PIECES {
                // All in one.
                sources.clear();
                registered.clear();
                let whole = gathered(&kept);
                sources.push(self.piece(whole.as_ptr().cast_mut(), len, &mut registered)?);
                kept = vec![whole];
            }
        }
        let wanted = into.iter().map(Buffer::len).sum::<usize>();
        let (mut landing, mut shown) = (None, Vec::new());
        if wanted > 0 && into.len() <= MAX_PIECES {
            for buffer in into.iter().filter(|buffer| !buffer.is_empty()) {
                landings.push(match buffer.show(&self.domain) {
                    Some((address, key, told)) => {
                        shown.push(told);
                        Piece { address, len: buffer.len() as u32, key }
                    }
                    None => self.piece(buffer.memory(), buffer.len(), &mut registered)?,
                });
            }
            landing = Some(wanted);
        }
        let (asked, _sources, _registered, _shown) = (false, kept, registered, shown);
        let exposed = Exposed { asked, landing, _sources, _registered, _shown };
        Ok((exposed, sources, landings))
    }

    fn piece(&self, start: *mut u8, len: usize, kept: &mut Vec<Registered>) -> io::Result<Piece> {
        let (keys, registered) = self.domain.know(start, len)?;
        kept.extend(registered);
        Ok(Piece { address: start.expose_provenance() as u64, len: len as u32, key: keys.remote })
    }

    /// The same bytes, in regions as far as those have room; what lay elsewhere is copied.
    fn known(&self, payload: Vec<Bytes>) -> io::Result<Vec<Bytes>> {
        let mut known: Vec<Bytes> = Vec::with_capacity(payload.len());
        let mut strays: Vec<Bytes> = Vec::new();
        for piece in payload.into_iter().filter(|piece| !piece.is_empty()) {
            if self.domain.in_region(piece.as_ptr())?.is_some() {
                known.extend((!strays.is_empty()).then(|| gathered(&std::mem::take(&mut strays))));
                known.push(piece);
            } else {
                strays.push(piece);
            }
        }
        known.extend((!strays.is_empty()).then(|| gathered(&strays)));
        Ok(known)
    }
}

/// All of a frame but its payload, with room for its header, which is said when it leaves.
fn encoded(
    header: &Header,
    head: &Head<'_>,
    places: Places,
    pieces: impl IntoIterator<Item = Piece>,
) -> Vec<u8> {
    let places_len = places.encode().len() + places.pieces_len();
    let len = HEADER_LEN + places_len + header.head_len as usize + INLINE;
    let mut bytes = Vec::with_capacity(len);
    bytes.resize(HEADER_LEN, 0);
    bytes.extend_from_slice(&places.encode());
    pieces.into_iter().for_each(|piece| piece.encode(&mut bytes));
    match head {
        Head::Message(message) => message.encode(&mut bytes),
        Head::Bytes(head) => bytes.extend_from_slice(head),
    }
    bytes
}

fn append(to: &mut Vec<u8>, payload: &[Bytes]) {
    for piece in payload {
        to.extend_from_slice(piece);
    }
}

/// A copy in one piece.
fn gathered(pieces: &[Bytes]) -> Bytes {
    let len = pieces.iter().map(Bytes::len).sum();
    let mut whole = AlignedBuf::take(len);
    let mut rest = whole.as_mut_slice();
    for piece in pieces {
        let (now, later) = rest.split_at_mut(piece.len());
        now.copy_from_slice(piece);
        rest = later;
    }
    COPIED.inc_by(len as u64);
    whole.into()
}

/// Each run of bytes with the memory that it goes to; both are as long as each other in all.
fn paired(payload: Vec<Bytes>, landings: Vec<Piece>) -> VecDeque<(Bytes, Piece)> {
    let mut pairs = VecDeque::with_capacity(payload.len().max(landings.len()));
    let mut landings = landings.into_iter();
    let mut to = landings.next();
    for mut piece in payload {
        while !piece.is_empty()
            && let Some(at) = &mut to
        {
            let now = piece.len().min(at.len as usize);
            pairs.push_back((piece.split_to(now), Piece { len: now as u32, ..*at }));
            at.address += now as u64;
            at.len -= now as u32;
            if at.len == 0 {
                to = landings.next();
            }
        }
    }
    pairs
}

#[cfg(test)]
mod tests;
