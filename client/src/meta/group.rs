//! The metadata group: its requests go to the leader, with retries inside the deadline.

use super::confinement::Confinement;
use super::servers::Servers;
use super::sessions::Sessions;
use crate::Options;
use crate::cache::Leases;
use crate::options::{FOR_EVER, KeepSession, after};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tracing::debug;
use weft_net::buggify::{self, Point};
use weft_net::{Peers, Way};
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Kind, Result, SessionId, v1};
use weft_segments::{MapWatch, Outage, Rng, TicketBook};

/// One server gets this long to answer before another is asked.
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// Hints that are followed at once, for one request.
const MAX_HINTS: u32 = 3;

/// A request that ended without an answer that could be trusted.
pub(crate) struct Failed {
    pub error: Error,
    /// The request may have taken effect, or may still do so.
    pub ambiguous: bool,
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}

/// An answer, and whether an earlier try of the same request may have been carried out.
pub(crate) struct Answered {
    pub reply: v1::MetaReply,
    pub repeated: bool,
}

impl Answered {
    pub fn result(self) -> Result<Reply> {
        let what = "metadata reply without a result";
        self.reply.result.ok_or_else(|| Error::new(ErrorKind::Protocol, what))
    }
}

/// The group, as far as this mount knows it.
pub(crate) struct Group {
    peers: Arc<Peers>,
    rng: Arc<Rng>,
    pub map: Arc<MapWatch>,
    servers: Servers,
    pub(super) op_deadline: Duration,
    outage: Outage,
    pub sessions: Arc<Sessions>,
    /// What the mount sees and may do.
    pub confinement: Confinement,
    /// Which restore from a backup the cluster was begun anew with when the mount was made.
    pub incarnation: OnceLock<u64>,
    /// What its answers taught.
    pub leases: Arc<Leases>,
    /// Requests that operations had to make; what keeps the session alive is not counted.
    pub requests: AtomicU64,
    /// The leader said last that the namespace may not grow.
    pub low_on_room: AtomicBool,
    /// Where tickets for chunks go.
    pub tickets: OnceLock<Arc<TicketBook>>,
    /// Told the key of each session.
    pub(super) keep_session: Option<KeepSession>,
}

impl Group {
    pub fn new(options: &Options, peers: Arc<Peers>, map: Arc<MapWatch>, rng: Arc<Rng>) -> Self {
        Self {
            peers,
            rng,
            servers: Servers::new(options.metadata.clone(), map.clone()),
            map,
            op_deadline: options.op_deadline,
            outage: Outage::default(),
            sessions: Arc::default(),
            confinement: Confinement::new(options.read_only),
            incarnation: OnceLock::new(),
            leases: Arc::default(),
            requests: AtomicU64::new(0),
            low_on_room: AtomicBool::new(false),
            tickets: OnceLock::new(),
            keep_session: options.keep_session.clone(),
        }
    }

    /// When an operation that starts now fails.
    pub fn deadline(&self) -> Instant {
        after(self.op_deadline)
    }

    /// Sends until an answer comes that is not about who leads, or the deadline does. Who refuses
    /// to be asked is no leader, and is passed over; if all servers do, that is the answer, unless
    /// it is a change that goes on for ever: what was acknowledged long ago is not given up for a
    /// certificate that has run out.
    pub async fn send(
        &self,
        request: &v1::MetaRequest,
        attempt: Duration,
        deadline: Instant,
    ) -> Result<Answered, Failed> {
        let way = self.way(request.op.as_ref());
        let mut ambiguous = false;
        let mut hints = 0;
        let mut refusing = BTreeSet::new();
        let begun = Instant::now();
        let keeps = request.op.as_ref().is_some_and(|op| op.kind() == Kind::Change);
        for turn in 0.. {
            let server = self.servers.next();
            let until = deadline.min(Instant::now() + attempt);
            let call = self.peers.peer_on(&server, way);
            let asked = call.call_if_reached(request, until).await;
            buggify::pause(Point::AnswerLate).await;
            let asked = match buggify::fires(Point::AnswerLost) {
                true => Ok(Err(Error::new(ErrorKind::Unavailable, "the answer is lost"))),
                false => asked,
            };
            let (error, hinted) = match asked {
                Ok(Ok(reply)) => {
                    self.was_answered(request, server, &reply);
                    return Ok(Answered { reply, repeated: ambiguous });
                }
                Ok(Err(error)) if is_final(error.kind) => {
                    if error.kind == ErrorKind::Quota {
                        self.leases.quotas.refused();
                    }
                    self.servers.leads(server);
                    return Err(Failed { error, ambiguous });
                }
                Ok(Err(error)) => {
                    refusing.remove(&server);
                    if error.kind != ErrorKind::NotLeader {
                        ambiguous = true;
                        self.servers.silent(&server);
                    }
                    let hinted = self.servers.redirect(&server, &error.hint);
                    (error, hinted)
                }
                // Nothing was sent to it.
                Err(error) => {
                    let nobody = self.servers.not_asked(&server, error.kind, &mut refusing);
                    if nobody && !(keeps && goes_on_for_ever(begun, deadline)) {
                        return Err(Failed { error, ambiguous });
                    }
                    (error, false)
                }
            };
            debug!(server, ?error, hinted, "metadata request goes on");
            let wait =
                if hinted && hints < MAX_HINTS { Duration::ZERO } else { self.rng.backoff(turn) };
            hints += u32::from(hinted);
            let next = Instant::now() + wait;
            let what = || format!("no metadata leader answers; {server} said last: {error}");
            self.outage.waits(begun, what);
            if next >= deadline || self.sessions.have_ended() {
                let message = format!("{}, after {:?}", what(), begun.elapsed());
                return Err(Failed { error: Error::new(ErrorKind::TimedOut, message), ambiguous });
            }
            sleep_until(next).await;
        }
        unreachable!("turns do not end")
    }

    /// `server` leads, and has answered.
    fn was_answered(&self, request: &v1::MetaRequest, server: String, reply: &v1::MetaReply) {
        self.outage.over("the metadata leader answers again");
        self.servers.leads(server);
        self.keep_tickets(request, reply);
        self.leases.quotas.learn(request.op.as_ref(), reply);
        if matches!(request.op, Some(Op::Batch(_) | Op::Renew(_))) {
            self.low_on_room.store(reply.low_on_room, Ordering::Relaxed);
        }
    }

    fn keep_tickets(&self, request: &v1::MetaRequest, reply: &v1::MetaReply) {
        let Some(book) = self.tickets.get() else { return };
        match &reply.result {
            Some(Reply::OpenSession(opened)) if !opened.ticket.is_empty() => {
                book.learn_session(SessionId(opened.session), &opened.ticket);
            }
            Some(Reply::Renew(renewed)) if !renewed.ticket.is_empty() => {
                book.learn_session(SessionId(request.session), &renewed.ticket);
            }
            _ => {}
        }
        book.learn(&reply.tickets);
    }

    /// What a request goes with. Those that may wait for other mounts must hold up neither what
    /// those wait for nor the session's signs of life: the leader takes only so much of one kind at
    /// a time.
    fn way(&self, op: Option<&Op>) -> Way {
        match op {
            Some(Op::Renew(_) | Op::Recalls(_) | Op::ReturnLeases(_) | Op::CancelLock(_)) => {
                Way::Prompt
            }
            Some(Op::Batch(_) | Op::Close(_)) => Way::Freeing,
            // Told, or given back.
            Some(Op::SetLock(op)) if op.held || op.lock.as_ref().is_none_or(unlocks) => {
                Way::Freeing
            }
            // Others wait for it, and nobody else uses the file.
            Some(Op::CommitExtents(op)) if self.leases.writes(InodeId(op.ino)) => Way::Freeing,
            _ => Way::Common,
        }
    }
}

/// Whether an error is the leader's answer, and not about who leads.
fn is_final(kind: ErrorKind) -> bool {
    use ErrorKind::*;
    !matches!(kind, NotLeader | Unavailable | TimedOut | StaleMap)
}

/// Whether a request with this deadline is never given up, as what is in the log is not, and as
/// nothing is of a mount that waits for its cluster however long.
fn goes_on_for_ever(begun: Instant, deadline: Instant) -> bool {
    deadline.saturating_duration_since(begun) > FOR_EVER / 2
}

fn unlocks(lock: &v1::Lock) -> bool {
    lock.kind() == v1::lock::Kind::None
}

/// An answer of another kind than the request has.
pub(crate) fn unexpected(request: &str) -> Error {
    Error::new(ErrorKind::Protocol, format!("the reply to {request} is of another kind"))
}
