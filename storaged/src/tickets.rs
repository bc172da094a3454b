//! What clients have to show before they reach chunks, where certificates prove who asks.
//!
//! Who may use the whole filesystem reads without a ticket: all of it is his to read. What a
//! session has stored is written and deleted by its client alone.

use crate::config::Clock;
use parking_lot::RwLock;
use std::collections::VecDeque;
use std::sync::Arc;
use weft_net::PeerInfo;
use weft_proto::{ChunkId, Error, ErrorKind, Result, Role, v1};
use weft_segments::{Allowed, TicketKey};

/// Keys that are kept: those of the servers that led of late.
const KEYS: usize = 8;

/// The keys of the metadata group, as far as they were told.
pub(crate) struct Tickets {
    keys: RwLock<VecDeque<Arc<TicketKey>>>,
    clock: Clock,
}

/// What a request does with chunks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
}

impl Tickets {
    pub fn new(clock: Clock) -> Self {
        Self { keys: RwLock::default(), clock }
    }

    /// Takes the key of the server that leads.
    pub fn learn(&self, key: &v1::TicketKey) {
        if self.keys.read().iter().any(|known| known.id() == key.id) {
            return;
        }
        match TicketKey::from_wire(key) {
            Ok(key) => {
                let mut keys = self.keys.write();
                keys.push_front(Arc::new(key));
                keys.truncate(KEYS);
            }
            Err(error) => tracing::warn!(%error, "the key for tickets is not taken"),
        }
    }

    fn key(&self, id: u64) -> Option<Arc<TicketKey>> {
        self.keys.read().iter().find(|key| key.id() == id).cloned()
    }

    /// Error: `NoTicket`, the peer may not do this with these chunks.
    pub fn check(
        &self,
        peer: &PeerInfo,
        ticket: &[u8],
        use_: Use,
        chunks: impl IntoIterator<Item = ChunkId>,
    ) -> Result<()> {
        let Some(subject) = &peer.subject else { return Ok(()) };
        let is_free = match subject.role {
            Role::Storage | Role::Metadata => true,
            Role::Admin | Role::Client => {
                use_ == Use::Read && subject.confinement.subtree.is_empty()
            }
        };
        if is_free {
            return Ok(());
        }
        let now = (self.clock.0)();
        let allowed = Allowed::by(ticket, &subject.to_string(), now, |id| self.key(id))?;
        let may = |chunk: &ChunkId| match use_ {
            Use::Read => allowed.reads(chunk.segment),
            Use::Write => allowed.writes(chunk.segment.session),
        };
        match chunks.into_iter().find(|chunk| !may(chunk)) {
            None => Ok(()),
            Some(chunk) => {
                let what = format!("the ticket of {subject} is not for chunk {chunk}");
                tracing::warn!(peer = %subject, address = %peer.address, %chunk, "refused: {what}");
                Err(Error::new(ErrorKind::NoTicket, what))
            }
        }
    }
}
