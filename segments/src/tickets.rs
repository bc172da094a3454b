//! Tickets: what a client may reach of the chunks of storage daemons, signed by the metadata group.
//!
//! A metadata server says in a ticket who may use it, for how long, and which session's chunks he
//! may write, delete and read, or which segments he may read. It signs it with a key of its own
//! (HMAC with SHA-256), which it tells storage daemons, and nobody else. A client shows a ticket
//! with each request that needs one.
//!
//! Invariant: a ticket is of use to nobody but whose certificate has the name in it.

use bytes::Bytes;
use prost::Message;
use ring::hmac;
use std::collections::{HashMap, VecDeque};
use weft_net::sync::{Mutex, RwLock};
use weft_proto::{Error, ErrorKind, Result, SegmentId, SessionId, v1};

/// Segments that one ticket is for: it travels with each request.
const MAX_SEGMENTS: usize = 16;
/// Longest ticket that is looked at, in bytes.
const MAX_TICKET: usize = 2048;
/// Segments of which a client keeps the tickets.
const MAX_KNOWN: usize = 1 << 18;

/// A key that signs tickets.
pub struct TicketKey {
    id: u64,
    secret: [u8; 32],
    key: hmac::Key,
}

impl TicketKey {
    /// A key of 32 secret bytes.
    pub fn new(id: u64, secret: [u8; 32]) -> Self {
        Self { id, secret, key: hmac::Key::new(hmac::HMAC_SHA256, &secret) }
    }

    /// Which of all keys it is.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// As storage daemons are told it.
    pub fn to_wire(&self) -> v1::TicketKey {
        v1::TicketKey { id: self.id, secret: self.secret.to_vec().into() }
    }

    /// As it was told. Error: `Protocol`.
    pub fn from_wire(key: &v1::TicketKey) -> Result<Self> {
        let secret = <[u8; 32]>::try_from(&key.secret[..]);
        let secret = secret.map_err(|_| Error::new(ErrorKind::Protocol, "a key of odd length"))?;
        Ok(Self::new(key.id, secret))
    }

    fn sign(&self, body: &v1::TicketBody) -> Bytes {
        let body = body.encode_to_vec();
        let mac = hmac::sign(&self.key, &body).as_ref().to_vec().into();
        v1::Ticket { key: self.id, body: body.into(), mac }.encode_to_vec().into()
    }

    /// A ticket for all chunks of a session, good until `until`, in seconds since 1970.
    pub fn of_session(&self, owner: &str, session: SessionId, until: u64) -> Bytes {
        let body =
            v1::TicketBody { owner: owner.into(), until, session: session.0, segments: vec![] };
        self.sign(&body)
    }

    /// Tickets for reading these segments.
    pub fn of_segments(&self, owner: &str, segments: &[SegmentId], until: u64) -> Vec<Bytes> {
        let some = |some: &[SegmentId]| {
            let segments = some.iter().map(|id| (*id).into()).collect();
            self.sign(&v1::TicketBody { owner: owner.into(), until, session: 0, segments })
        };
        segments.chunks(MAX_SEGMENTS).map(some).collect()
    }
}

/// What a ticket says.
pub struct Allowed(v1::TicketBody);

impl Allowed {
    /// Of a ticket that `owner` shows at `now`, in seconds since 1970; `key` finds the key of an
    /// id. Error: `NoTicket`, it is none, or not his, or not any more.
    pub fn by<'k, K: std::ops::Deref<Target = TicketKey> + 'k>(
        ticket: &[u8],
        owner: &str,
        now: u64,
        key: impl FnOnce(u64) -> Option<K>,
    ) -> Result<Self> {
        let no = |what: &str| Error::new(ErrorKind::NoTicket, format!("{owner}: {what}"));
        if ticket.is_empty() {
            return Err(no("a request that needs a ticket, without one"));
        }
        if ticket.len() > MAX_TICKET {
            return Err(no("a ticket that is too long"));
        }
        let ticket = v1::Ticket::decode(ticket).map_err(|_| no("a ticket that does not read"))?;
        let key = key(ticket.key).ok_or_else(|| no("a ticket by a key that is not known here"))?;
        hmac::verify(&key.key, &ticket.body, &ticket.mac)
            .map_err(|_| no("a ticket that no metadata server has signed"))?;
        let body = v1::TicketBody::decode(&ticket.body[..]);
        let body = body.map_err(|_| no("a ticket that does not read"))?;
        if body.owner != owner {
            return Err(no("a ticket of somebody else"));
        }
        if body.until < now {
            return Err(no("a ticket that has expired"));
        }
        Ok(Self(body))
    }

    /// Whether chunks of this session may be written, deleted and read.
    pub fn writes(&self, session: SessionId) -> bool {
        self.0.session != 0 && self.0.session == session.0
    }

    /// Whether this segment may be read.
    pub fn reads(&self, segment: SegmentId) -> bool {
        let is_this = |key: &v1::SegmentKey| SegmentId::from(*key) == segment;
        self.writes(segment.session) || self.0.segments.iter().any(is_this)
    }
}

/// The tickets of a client.
#[derive(Default)]
pub struct TicketBook {
    session: RwLock<(SessionId, Bytes)>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    segments: HashMap<SegmentId, Bytes>,
    order: VecDeque<SegmentId>,
}

impl TicketBook {
    /// Takes the ticket of the session that new segments belong to.
    pub fn learn_session(&self, session: SessionId, ticket: &Bytes) {
        *self.session.write() = (session, ticket.clone());
    }

    /// Takes tickets of segments. What does not read is of no use.
    pub fn learn(&self, tickets: &[Bytes]) {
        for ticket in tickets {
            let outer = v1::Ticket::decode(ticket.clone());
            let body = outer.and_then(|outer| v1::TicketBody::decode(outer.body));
            let Ok(body) = body else { continue };
            let mut known = self.known.lock();
            for segment in body.segments.into_iter().take(MAX_SEGMENTS).map(SegmentId::from) {
                if known.segments.insert(segment, ticket.clone()).is_none() {
                    known.order.push_back(segment);
                }
            }
            while known.order.len() > MAX_KNOWN {
                let oldest = known.order.pop_front();
                oldest.map(|oldest| known.segments.remove(&oldest));
            }
        }
    }

    /// What to show for a segment; empty if there is nothing, or none is needed.
    pub(crate) fn of(&self, segment: SegmentId) -> Bytes {
        {
            let (session, ticket) = &*self.session.read();
            if *session == segment.session {
                return ticket.clone();
            }
        }
        let known = self.known.lock();
        known.segments.get(&segment).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    const A: SessionId = SessionId(7);
    const B: SessionId = SessionId(8);

    fn key(id: u64) -> Arc<TicketKey> {
        Arc::new(TicketKey::new(id, [id as u8; 32]))
    }

    fn shown(ticket: &[u8], owner: &str, now: u64) -> Result<Allowed> {
        Allowed::by(ticket, owner, now, |id| (id < 3).then(|| key(id)))
    }

    fn segment(session: SessionId, seq: u64) -> SegmentId {
        SegmentId { session, seq }
    }

    #[test]
    fn a_ticket_is_for_its_owner_its_time_and_what_it_names() {
        let ticket = key(1).of_session("client a", A, 100);
        let allowed = shown(&ticket, "client a", 100).unwrap();
        assert!(allowed.writes(A) && allowed.reads(segment(A, 1)));
        assert!(!allowed.writes(B) && !allowed.reads(segment(B, 1)));
        let segments: Vec<_> = (1..=40).map(|seq| segment(B, seq)).collect();
        let tickets = key(2).of_segments("client a", &segments, 100);
        assert_eq!(tickets.len(), 3);
        let allowed = shown(&tickets[0], "client a", 0).unwrap();
        assert!(allowed.reads(segment(B, 16)) && !allowed.reads(segment(B, 17)));
        assert!(!allowed.writes(B) && !allowed.writes(SessionId(0)));
        for (what, refused) in [
            ("none", shown(&[], "client a", 0)),
            ("somebody else's", shown(&ticket, "client b", 0)),
            ("expired", shown(&ticket, "client a", 101)),
            ("an unknown key", shown(&key(3).of_session("client a", A, 100), "client a", 0)),
            ("a forged key", {
                let forged = TicketKey::new(1, [9; 32]);
                shown(&forged.of_session("client a", A, 100), "client a", 0)
            }),
        ] {
            assert_eq!(refused.err().expect(what).kind, ErrorKind::NoTicket, "{what}");
        }
    }

    #[test]
    fn a_client_shows_what_it_was_given() {
        let book = TicketBook::default();
        assert!(book.of(segment(A, 1)).is_empty());
        let of_session = key(1).of_session("client a", A, 100);
        book.learn_session(A, &of_session);
        let tickets = key(1).of_segments("client a", &[segment(B, 1)], 100);
        book.learn(&tickets);
        book.learn(&[Bytes::from_static(b"garbage")]);
        assert_eq!(book.of(segment(A, 9)), of_session);
        assert_eq!(book.of(segment(B, 1)), tickets[0]);
        assert!(book.of(segment(B, 2)).is_empty());
    }

    proptest! {
        #[test]
        fn whatever_is_changed_in_a_ticket_is_noticed(at in 0usize..200, bit in 0u8..8) {
            let ticket = key(1).of_session("client a", A, 100);
            let mut changed = ticket.to_vec();
            let at = at % changed.len();
            changed[at] ^= 1 << bit;
            if let Ok(allowed) = shown(&changed, "client a", 0) {
                // Another way to write the same.
                prop_assert!(allowed.writes(A) && !allowed.writes(B));
            }
        }

        #[test]
        fn garbage_is_no_ticket(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(shown(&bytes, "client a", 0).is_err());
        }
    }
}
