//! The framed service: decodes a request, brings it to the state, the soft state or the log, and
//! encodes the answer. One file for each kind of request.

mod access;
mod accesses;
mod changes;
mod context;
mod end_session;
mod leases;
mod locks;
mod long_reads;
mod mend;
mod open_session;
mod opens;
mod quotas;
mod reads;

use crate::config::Member;
use crate::conflicts;
use crate::metrics::OPERATIONS;
use crate::node::{Known, Node};
use crate::operation::GRANT;
use crate::ops;
use crate::replication::{self, Speaker};
use crate::sharing::{self, Turn, Urgency};
use crate::snapshot::{self, Snapshots};
use crate::soft::targets::Targets;
use access::Access;
use bytes::Bytes;
use context::{RequestContext, without};
use long_reads::LongReads;
use prost::Message;
use reads::{ASKING, LOOKUP_INLINE, UNASKED};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use v1::meta_request::Op;
use weft_net::buggify::{self, Point};
use weft_net::slow::{self, Slow};
use weft_net::trace::Span;
use weft_net::{Incoming, Outgoing, PeerInfo, Service};
use weft_proto::{Error, ErrorKind, InodeId, Kind, NodeId, Result, SessionId, op, v1};

/// How long a request without a deadline may take.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long any may, whatever it says: what waits here outlives its connection.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);
/// The same of what looks at very many records.
const MAX_LONG_TIMEOUT: Duration = Duration::from_secs(600);

/// Where Raft messages go, with who sent them.
type Inbox = mpsc::Sender<(Speaker, Vec<raft::eraftpb::Message>)>;

/// One server's answers.
pub struct MetadataService {
    node: Arc<Node>,
    targets: Arc<Targets>,
    snapshots: Arc<Snapshots>,
    inbox: Inbox,
    shutdown: watch::Receiver<bool>,
    long_reads: LongReads,
}

impl MetadataService {
    pub fn new(
        node: Arc<Node>,
        targets: Arc<Targets>,
        snapshots: Arc<Snapshots>,
        inbox: Inbox,
        shutdown: watch::Receiver<bool>,
    ) -> Self {
        let long_reads = LongReads::default();
        Self { node, targets, snapshots, inbox, shutdown, long_reads }
    }

    async fn raft(&self, batch: v1::RaftBatch, peer: &PeerInfo) -> Result<v1::RaftAck> {
        speaks_for(peer, batch.from)?;
        let address = &peer.address;
        let ours = self.node.map().cluster.clone();
        if !batch.cluster.is_empty() && !ours.is_empty() && batch.cluster != ours {
            return Err(Error::new(
                ErrorKind::WrongCluster,
                format!("metadata server {} at {} belongs to another cluster", batch.from, address),
            ));
        }
        let messages = replication::decode(&batch, self.node.config.id)?;
        let group = self.node.membership();
        if group.removed.contains(&batch.from) {
            let members = group.members.clone();
            return Ok(v1::RaftAck {
                removed: true,
                members,
                changes_members: true,
                known_entries: Known::NEWEST,
                ..Default::default()
            });
        }
        // Who is not known here may have come by entries that this server has yet to be sent: it
        // says which cluster it is of, and where it is.
        let stranger = group.get(batch.from).is_none();
        if stranger && (batch.cluster.is_empty() || batch.address.is_empty()) {
            let what = format!("server {} is not another member of this group", batch.from);
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        let from = Speaker {
            member: Member { id: NodeId(batch.from), address: batch.address },
            least_silence: Duration::from_millis(batch.least_silence_ms.into()),
        };
        let stopping = |_| Error::new(ErrorKind::Unavailable, "this metadata server is stopping");
        self.inbox.send((from, messages)).await.map_err(stopping)?;
        Ok(v1::RaftAck {
            changes_members: true,
            known_entries: Known::NEWEST,
            low_on_room: self.node.low_on_room(),
            cannot_fetch: self.node.behind.is(),
            damaged: self.node.damaged().is_some(),
            ..Default::default()
        })
    }

    /// As [`Self::meta`], when it is the turn of whoever asks.
    async fn in_turn(
        &self,
        message: v1::MetaRequest,
        peer: &PeerInfo,
        deadline: Instant,
    ) -> Result<v1::MetaReply> {
        let (node, session) = (&*self.node, SessionId(message.session));
        let (name, begun) = (message.op.as_ref().map_or("None", Op::name), Instant::now());
        if !node.view().serving {
            // It is sent on at once.
            return self.meta(message, peer, deadline).await;
        }
        let number = message.number;
        let tell = |Slow { ms, untold }| {
            let client = &peer.name;
            tracing::warn!(op = name, ?client, %session, number, ms, untold, "a slow request");
        };
        // These wait for others by their nature.
        let waits = matches!(message.op, Some(Op::Recalls(_) | Op::WaitLock(_)));
        let _slow = (!waits).then(|| slow::watch(name, tell));
        if let Some(op) = &message.op {
            node.hot.note(begun, op);
        }
        let has_turn = |op: &v1::SetLockOp| node.soft.with(|s| s.locks.has_turn(session, op));
        let urgency = Urgency::of(message.op.as_ref(), has_turn);
        let turn = Turn::of(peer.client_tenant(), message.op.as_ref(), urgency);
        let awaited = || conflicts::awaited(node, session);
        let answer = self.meta(message, peer, deadline);
        let answer = node.sharing.in_turn(&node.state, turn, deadline, awaited, answer);
        let answer = Span::part(name).around(answer).await;
        OPERATIONS.with_label_values(&[name]).observe(begun.elapsed().as_secs_f64());
        answer
    }

    async fn meta(
        &self,
        message: v1::MetaRequest,
        peer: &PeerInfo,
        deadline: Instant,
    ) -> Result<v1::MetaReply> {
        let session = SessionId(message.session);
        let quotas = quotas::About::of(&self.node, message.op.as_ref());
        let answer = async {
            if let (Some(about), Some(op)) = (&quotas, &message.op)
                && self.node.view().ready
                && about.is_decided_by_a_purge(&self.node, op)
            {
                sharing::give_place_back();
                self.node.purged.wait(self.node.state.orphaned(), deadline).await;
            }
            match self.admit(message, peer, deadline).await {
                Err(e) if e.kind == ErrorKind::SessionExpired => {
                    Err(self.if_over(session, e).await)
                }
                answer => answer,
            }
        };
        let answer = async {
            let answer = answer.await;
            buggify::pause(Point::ServerLate).await;
            answer
        };
        let (mut reply, cut) = tokio::time::timeout_at(deadline, answer)
            .await
            .map_err(|_| {
                Error::new(ErrorKind::TimedOut, "the metadata group did not answer in time")
            })?
            .map_err(|error| self.node.or_elsewhere(error))?;
        without(
            reads::add_xattrs(&self.node, &mut reply),
            "extended attributes that were not asked for",
        );
        if self.node.state.has_quotas() {
            let about = cut.or(quotas).unwrap_or_default();
            without(about.tell(&self.node, &mut reply), "what quotas leave");
        }
        Ok(reply)
    }

    /// Whether a session is over only the state says, of who leads now: soft state may be that of a
    /// term which has ended, or of none. A client that is told so gives up what it holds.
    async fn if_over(&self, session: SessionId, error: Error) -> Error {
        if let Err(not_leader) = self.node.read_barrier().await {
            return not_leader;
        }
        match self.node.state.session_exists(session) {
            Ok(false) => error,
            Ok(true) => {
                let what = format!("session {session} is not known here yet");
                Error::new(ErrorKind::Unavailable, what)
            }
            Err(unreadable) => unreadable,
        }
    }

    /// Answers what the asker may ask for; and what that was about, if it is less than was asked.
    async fn admit(
        &self,
        mut request: v1::MetaRequest,
        peer: &PeerInfo,
        deadline: Instant,
    ) -> Result<(v1::MetaReply, Option<quotas::About>)> {
        if Access::wants_newest(peer, &request) {
            self.node.lead(deadline).await?;
            self.node.read_barrier().await?;
        }
        let access = Access::check(&self.node, peer, &mut request)?;
        let left = || match access.repeats() {
            true => quotas::About::default(),
            false => quotas::About::of(&self.node, request.op.as_ref()).unwrap_or_default(),
        };
        let cut = access.is_less().then(left);
        let mut reply = match access.repeats() {
            true => {
                self.node.lead(deadline).await?;
                changes::answer_again(&self.node, request).await?
            }
            false => match access.nothing_left(&request) {
                Some(reply) => reply,
                None => self.dispatch(request, deadline).await?,
            },
        };
        access.note(&mut reply);
        Ok((reply, cut))
    }

    async fn dispatch(&self, request: v1::MetaRequest, deadline: Instant) -> Result<v1::MetaReply> {
        let (node, targets, shutdown) = (&self.node, &*self.targets, &self.shutdown);
        let session = SessionId(request.session);
        let long_reads = &self.long_reads;
        let cx = RequestContext { node, targets, shutdown, long_reads, session, deadline, request };
        let kind = cx.op()?.kind();
        if matches!(kind, Kind::Change | Kind::Session) {
            return changes::change(cx).await;
        }
        let (cx, op) = (&cx, cx.op()?);
        match kind {
            Kind::Read => reads::answer(cx, op).await,
            _ => match op {
                Op::Open(op) => opens::open(cx, op).await,
                Op::Close(op) => opens::close(cx, op).await,
                Op::Renew(op) => opens::renew(cx, op).await,
                Op::Lease(op) => leases::lease(cx, op).await,
                Op::LookupMany(op) => reads::lookup_many(cx, op).await,
                Op::LeaseMany(op) => leases::lease_many(cx, op).await,
                Op::Map(op) => leases::map(cx, InodeId(op.ino)).await,
                Op::ReturnLeases(op) => leases::return_leases(cx, op).await,
                Op::Recalls(op) => leases::recalls(cx, op.seen).await,
                Op::GetLock(op) => locks::get_lock(cx, op.lock.as_ref()).await,
                Op::WaitLock(op) => locks::wait_lock(cx, op).await,
                Op::CancelLock(op) => locks::cancel_lock(cx, op).await,
                Op::Mend(_) => mend::mend(cx).await,
                Op::EndSession(op) => end_session::end_session(cx, op).await,
                _ => Err(Error::new(ErrorKind::Protocol, "this request is not one of soft state")),
            },
        }
    }

    /// Admits a server that lost its disk, if this one leads.
    async fn join(&self, asking: v1::JoinRequest, deadline: Instant) -> Result<v1::JoinReply> {
        let admit = async {
            self.node.lead(deadline).await?;
            self.node.admit(asking).await
        };
        tokio::time::timeout_at(deadline, admit)
            .await
            .map_err(|_| Error::new(ErrorKind::TimedOut, "no majority has acknowledged it yet"))?
    }
}

#[async_trait::async_trait]
impl Service for MetadataService {
    async fn call(&self, request: Incoming) -> Result<Outgoing> {
        match request.op {
            op::META => {
                let asked: v1::MetaRequest = request.decode()?;
                if request.head.len() > ASKING
                    && asked.op.as_ref().is_some_and(|op| answer_of(op) > 0)
                {
                    let what = format!("a question of {} bytes, over {ASKING}", request.head.len());
                    return Err(Error::new(ErrorKind::Invalid, what));
                }
                let deadline = deadline_of(request.deadline, longest_of(asked.op.as_ref()));
                Ok(Outgoing::message(&self.in_turn(asked, &request.peer, deadline).await?))
            }
            op::RAFT => request.answer(|q| self.raft(q, &request.peer)).await,
            op::SNAPSHOT_PIECE => request.answer_with_payload(|q| self.snapshots.piece(q)).await,
            op::JOIN => {
                let join = async |q: v1::JoinRequest| {
                    speaks_for(&request.peer, q.node)?;
                    self.join(q, deadline_of(request.deadline, MAX_TIMEOUT)).await
                };
                request.answer(join).await
            }
            other => Err(Error::new(
                ErrorKind::Protocol,
                format!(
                    "a metadata server knows no operation {other}; is {} asking the right daemon?",
                    request.peer.name
                ),
            )),
        }
    }

    fn weigh(&self, op: u16, head: &Bytes) -> usize {
        match op {
            op::META if head.len() <= ASKING => {
                let op = v1::MetaRequest::decode(head.clone()).ok().and_then(|asked| asked.op);
                op.as_ref().map_or(0, answer_of)
            }
            op::SNAPSHOT_PIECE => snapshot::PIECE as usize,
            _ => 0,
        }
    }
}

/// Until when a request is answered that may take no longer than this.
fn deadline_of(asked: Option<Instant>, longest: Duration) -> Instant {
    let now = Instant::now();
    asked.unwrap_or(now + DEFAULT_TIMEOUT).min(now + longest)
}

fn longest_of(op: Option<&Op>) -> Duration {
    match op {
        Some(Op::Check(_) | Op::Mend(_) | Op::GetUsage(_)) => MAX_LONG_TIMEOUT,
        _ => MAX_TIMEOUT,
    }
}

/// Who has a certificate is the server that it names, and no other.
fn speaks_for(peer: &PeerInfo, member: u64) -> Result<()> {
    match &peer.subject {
        Some(subject) if subject.name != member.to_string() => {
            let what = format!("the certificate is that of {subject}, and not of server {member}");
            tracing::warn!(address = %peer.address, "refused: {what}");
            Err(Error::new(ErrorKind::NotPermitted, what))
        }
        _ => Ok(()),
    }
}

/// Bytes of an answer at most, as far as it is to be weighed.
fn answer_of(op: &Op) -> usize {
    ops::longest(op) + along(op)
}

/// Bytes that come along with what is told of one inode.
const OF_ONE: usize = ops::SHORT_ALL + 4 * GRANT;

/// Bytes that come along with an answer, at most: extended attributes, leases (those of many names
/// are counted with these), and the content of a small file and where it lies.
fn along(op: &Op) -> usize {
    match op {
        Op::ReadDir(asked) if asked.attrs => UNASKED + OF_ONE,
        Op::Lookup(_) => OF_ONE + 2 * LOOKUP_INLINE as usize,
        // What it makes may be there when its turn comes.
        Op::Create(asked) if !asked.exclusive => OF_ONE + ops::LONGEST_THERE,
        Op::LookupMany(asked) => UNASKED + OF_ONE + 2 * GRANT * asked.items.len(),
        Op::GetAttr(_) | Op::GetExtents(_) | Op::ReadDir(_) | Op::Open(_) | Op::Lease(_) => OF_ONE,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
