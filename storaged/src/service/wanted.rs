//! What requests to read ask for, looked at before they are served.

use bytes::Bytes;
use prost::Message;
use weft_net::PeerInfo;
use weft_proto::{Role, op, v1};

/// Longest head of a request that [`asks`], in bytes: what longer ones ask for is not weighed
/// before it is read (`weft_net`, `server/session`), nor what they become when they are decoded.
pub(super) const MAX_HEAD: usize = 64 << 10;

/// Whether an operation reads chunks.
pub(super) fn is_read(op: u16) -> bool {
    matches!(op, op::GET | op::GET_MANY)
}

/// Whether an operation is answered with much more than it sends.
pub(super) fn asks(op: u16) -> bool {
    is_read(op) || op == op::LIST
}

/// What a request to read asks for.
pub(super) struct Wanted {
    pub target: u32,
    pub parts: u64,
    pub bytes: u64,
    background: bool,
}

impl Wanted {
    /// `None`: it is no such request, or is going to be refused.
    pub fn of(op: u16, head: &Bytes) -> Option<Self> {
        match op {
            _ if head.len() > MAX_HEAD => None,
            op::GET => {
                let q = v1::GetRequest::decode(head.clone()).ok()?;
                Some(Self { target: q.target, parts: 1, bytes: q.len, background: q.background })
            }
            op::GET_MANY => {
                let q = v1::GetManyRequest::decode(head.clone()).ok()?;
                let (target, parts) = (q.target, q.parts.len() as u64);
                Some(Self { target, parts, bytes: bytes_of(&q), background: false })
            }
            _ => None,
        }
    }

    /// Whether somebody reads to make chunks, who may: he gives way to others, and is none of them.
    pub fn is_background(&self, peer: &PeerInfo) -> bool {
        self.background && peer.may_be(Role::Storage)
    }
}

/// Of all parts.
pub(super) fn bytes_of(q: &v1::GetManyRequest) -> u64 {
    q.parts.iter().fold(0, |all, part| part.len.saturating_add(all))
}
