//! Who may ask for what, where certificates prove who asks.
//!
//! Invariants: a session is used by nobody but who opened it (I5); nothing is looked at for a
//! confined client before it is known to lie where that may be.

mod below;
mod confine;
mod limits;

use crate::node::{Known, Node};
use confine::{Asked, Confined};
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_net::PeerInfo;
use weft_proto::{Error, ErrorKind, Kind, Result, SessionId, v1};

/// How long a ticket is good for, in seconds: clocks may differ by minutes.
const TICKET_SECONDS: u64 = 600;

/// A peer and what it may.
pub(super) struct Access<'a> {
    node: &'a Node,
    peer: &'a PeerInfo,
    session: SessionId,
    confined: Option<Confined<'a>>,
    /// What such a client asks about by name.
    asked: Asked,
    /// A change that such a client asks for once more.
    repeats: bool,
    /// Why the step is refused that a batch was cut at.
    cut: Option<Error>,
}

impl<'a> Access<'a> {
    /// Whether all that was acknowledged must be known here to check a request.
    pub fn wants_newest(peer: &PeerInfo, request: &v1::MetaRequest) -> bool {
        let ends = matches!(request.op, Some(Op::EndSession(_)));
        peer.confinement().is_any() || (ends && peer.subject.is_some())
    }

    /// Checks a request, and takes out of it what is not the asker's to say. Errors:
    /// `NotPermitted`, `ReadOnly`; `Stale`, an inode is not where the client may be; `NotFound`,
    /// the directory that it is confined to is not there.
    pub fn check(
        node: &'a Node,
        peer: &'a PeerInfo,
        request: &mut v1::MetaRequest,
    ) -> Result<Self> {
        let session = SessionId(request.session);
        let (confined, asked, repeats, cut) = (None, Asked::of(None), false, None);
        let mut this = Self { node, peer, session, confined, asked, repeats, cut };
        let owner = this.owner();
        match &mut request.op {
            Some(Op::OpenSession(op)) => {
                op.owner = owner.clone();
                op.confined = peer.confinement().is_any() && node.all_know(Known::Confined);
            }
            Some(Op::EndSession(op)) if !owner.is_empty() => {
                if let Some(session) = node.state.session_of(&op.nonce)? {
                    this.owns(session, &owner)?;
                }
            }
            _ => {}
        }
        if owner.is_empty() {
            return Ok(this);
        }
        if session.0 != 0 {
            this.owns(session, &owner)?;
        }
        let confinement = peer.confinement();
        if confinement.is_any() {
            let confined = Confined::new(node, session, &owner, confinement)?;
            // It was checked when it was carried out, and what it is about may be gone by now. What
            // it says that it is about this time is not looked at.
            let changes = request.op.as_ref().is_some_and(|op| op.kind() == Kind::Change);
            this.repeats = changes && node.state.is_done(request)?;
            if !this.repeats {
                this.cut = confined.check(request)?;
                this.asked = Asked::of(request.op.as_ref());
            }
            this.confined = Some(confined);
        }
        Ok(this)
    }

    /// Whether this is a change that was carried out before, of which only the answer is wanted:
    /// nothing that it says now was checked.
    pub fn repeats(&self) -> bool {
        self.repeats
    }

    /// Who was proved to ask; empty: nobody has to.
    fn owner(&self) -> String {
        self.peer.subject.as_ref().map(|subject| subject.to_string()).unwrap_or_default()
    }

    fn owns(&self, session: SessionId, who: &str) -> Result<()> {
        let known = self.node.soft.with(|s| s.owner_of(session).map(|owner| owner == who));
        let owns = match known {
            Some(owns) => owns,
            // Not of this term: the state knows.
            None => self.node.state.owner_of(session)? == who,
        };
        if owns {
            return Ok(());
        }
        let address = &self.peer.address;
        tracing::warn!(peer = who, %address, %session, "refused: somebody else's session");
        let what = format!("session {session} was not opened by {who}");
        Err(Error::new(ErrorKind::NotPermitted, what))
    }

    /// Whether less is carried out than was asked for.
    pub fn is_less(&self) -> bool {
        self.repeats || self.cut.is_some()
    }

    /// What is answered to a batch of which nothing is left to be carried out.
    pub fn nothing_left(&self, request: &v1::MetaRequest) -> Option<v1::MetaReply> {
        let of_none = matches!(&request.op, Some(Op::Batch(batch)) if batch.steps.is_empty());
        let result = Some(Reply::Batch(v1::BatchReply::default()));
        (of_none && self.cut.is_some()).then(|| v1::MetaReply { result, ..Default::default() })
    }

    /// Looks at an answer on its way out.
    pub fn note(&self, reply: &mut v1::MetaReply) {
        if let (Some(why), Some(Reply::Batch(told))) = (&self.cut, &mut reply.result)
            && told.error == 0
        {
            (told.error, told.message) = (why.kind.code(), why.message.clone());
        }
        let owner = self.owner();
        if owner.is_empty() {
            return;
        }
        let key = &self.node.ticket_key;
        let writes = !self.peer.confinement().read_only;
        let until = self.node.env.clock.now_ns() as u64 / 1_000_000_000 + TICKET_SECONDS;
        match &mut reply.result {
            Some(Reply::OpenSession(opened)) if writes => {
                opened.ticket = key.of_session(&owner, SessionId(opened.session), until);
            }
            Some(Reply::Renew(renewed)) if writes => {
                renewed.ticket = key.of_session(&owner, self.session, until);
            }
            _ => {}
        }
        let Some(confined) = &self.confined else { return };
        confined.note(&self.asked, reply);
        let segments = confined.segments(reply);
        if !segments.is_empty() && !confined.limits().subtree.is_empty() {
            reply.tickets = key.of_segments(&owner, &segments, until);
        }
        match &mut reply.result {
            Some(Reply::OpenSession(opened)) => {
                opened.root = confined.root().0;
                opened.read_only = confined.limits().read_only;
                opened.squash_root = confined.limits().squash_root;
            }
            // What is above its root is nobody's business.
            Some(Reply::ReadDir(page)) if self.asked.lists(confined.root()) => {
                page.parent = confined.root().0;
            }
            _ => {}
        }
        if let Some(Reply::GetQuota(quotas)) = &mut reply.result {
            confined.hide_quotas(quotas);
        }
    }
}
