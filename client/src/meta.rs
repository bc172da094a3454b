//! The one path of metadata requests: to the leader, with retries inside the deadline.
//!
//! Invariants: a request that changes something carries its session and a number that no other
//! request of the session has, the same on every retry (I4); when its session dies while it is
//! unknown whether the request took effect, the caller gets an error and never a second effect; a change
//! that was sent is followed to its end, and what it did is known here, also if its caller is gone.

use crate::Options;
use crate::creates::Creates;
use crate::leases::Leases;
use crate::options::after;
use crate::session::{Session, Sessions};
use crate::to_the_end::to_the_end;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tracing::debug;
use weft_net::{Peers, Way};
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Result, v1};
use weft_segments::{MapWatch, Outage, Rng};

/// One server gets this long to answer before another is asked.
const ATTEMPT: Duration = Duration::from_secs(5);
/// For what works long there.
const LONG_ATTEMPT: Duration = Duration::from_secs(600);

/// Who was last seen to lead, and whom to try next.
struct Servers {
    list: Vec<String>,
    leader: Option<String>,
    next: usize,
}

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

pub(crate) struct Meta {
    peers: Arc<Peers>,
    map: Arc<MapWatch>,
    rng: Arc<Rng>,
    servers: Mutex<Servers>,
    op_deadline: Duration,
    outage: Outage,
    pub sessions: Arc<Sessions>,
    pub leases: Leases,
    pub creates: Creates,
    /// Requests that operations had to make; what keeps the session alive is not counted.
    pub requests: AtomicU64,
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

impl Meta {
    pub fn new(options: &Options, peers: Arc<Peers>, map: Arc<MapWatch>, rng: Arc<Rng>) -> Self {
        Self {
            peers,
            map,
            rng,
            servers: Mutex::new(Servers { list: options.metadata.clone(), leader: None, next: 0 }),
            op_deadline: options.op_deadline,
            outage: Outage::default(),
            sessions: Arc::default(),
            leases: Leases::default(),
            creates: Creates::default(),
            requests: AtomicU64::new(0),
        }
    }

    /// When an operation that starts now fails.
    pub fn deadline(&self) -> Instant {
        after(self.op_deadline)
    }

    /// A request that changes nothing that is replicated.
    pub async fn ask(self: &Arc<Self>, op: Op) -> Result<Reply> {
        let deadline = self.deadline();
        self.settle_for(&op).await?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        loop {
            let session = self.sessions.current();
            let request = v1::MetaRequest {
                session: session.id.0,
                op: Some(op.clone()),
                ..Default::default()
            };
            let start = self.leases.start();
            match self.send(&request, ATTEMPT, deadline).await {
                Err(f) if f.error.kind == ErrorKind::SessionExpired => {
                    self.sessions.replacement(session.id, deadline).await?;
                }
                Err(failed) => return Err(failed.into()),
                Ok(answered) => {
                    self.leases.learn(start, &op, &answered.reply);
                    return answered.result();
                }
            }
        }
    }

    /// A request that works long on its server.
    pub async fn ask_patiently(&self, op: Op) -> Result<Reply> {
        let session = self.sessions.current().id.0;
        let request = v1::MetaRequest { session, op: Some(op), ..Default::default() };
        let deadline = after(self.op_deadline.saturating_mul(10));
        self.send(&request, LONG_ATTEMPT, deadline).await?.result()
    }

    /// A request that changes something, once (I4).
    pub async fn change(self: &Arc<Self>, op: Op) -> Result<Reply> {
        let deadline = self.deadline();
        loop {
            let session = self.sessions.current();
            match self.change_in(&session, op.clone(), deadline).await {
                Err(f) if f.error.kind == ErrorKind::SessionExpired => {
                    self.sessions.replacement(session.id, deadline).await?;
                    if f.ambiguous {
                        return Err(Error::new(
                            ErrorKind::Io,
                            "the cluster declared this mount dead while a request was under way; \
                             whether it took effect is not known: check and repeat it",
                        ));
                    }
                }
                answer => return Ok(answer?),
            }
        }
    }

    /// As [`Self::change`], in this session or not at all.
    pub async fn change_in(
        self: &Arc<Self>,
        session: &Arc<Session>,
        op: Op,
        deadline: Instant,
    ) -> Result<Reply, Failed> {
        let settled = self.settle_for(&op).await;
        settled.map_err(|error| Failed { error, ambiguous: false })?;
        self.change_at_once(session, op, deadline).await
    }

    /// As [`Self::change_in`], whatever the group has not heard of yet.
    pub async fn change_at_once(
        self: &Arc<Self>,
        session: &Arc<Session>,
        op: Op,
        deadline: Instant,
    ) -> Result<Reply, Failed> {
        let (meta, session) = (self.clone(), session.clone());
        to_the_end(async move { meta.change_once(&session, op, deadline).await }).await
    }

    async fn change_once(
        &self,
        session: &Session,
        op: Op,
        deadline: Instant,
    ) -> Result<Reply, Failed> {
        let number = session.number(deadline).await;
        let number = number.map_err(|error| Failed { error, ambiguous: false })?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        let request = v1::MetaRequest {
            session: session.id.0,
            number: number.get(),
            acked_below: number.acked_below(),
            op: Some(op.clone()),
        };
        let start = self.leases.start();
        match self.send(&request, ATTEMPT, deadline).await {
            Ok(answered) => {
                self.leases.changed(start, &op, &answered.reply);
                if answered.repeated {
                    // The leader that answered need not know what the change touched.
                    self.leases.unsure();
                }
                Ok(answered.result().map_err(|error| Failed { error, ambiguous: true })?)
            }
            Err(failed) => {
                match failed.ambiguous {
                    true => self.leases.unsure(),
                    false => self.leases.refused(&op),
                }
                Err(failed)
            }
        }
    }

    /// Sends until an answer comes that is not about who leads, or the deadline does.
    pub async fn send(
        &self,
        request: &v1::MetaRequest,
        attempt: Duration,
        deadline: Instant,
    ) -> Result<Answered, Failed> {
        let way = self.way(request.op.as_ref());
        let mut ambiguous = false;
        let mut hints = 0;
        let begun = Instant::now();
        for turn in 0.. {
            let server = self.server();
            let until = deadline.min(Instant::now() + attempt);
            let call = self.peers.peer_on(&server, way);
            let answer = call.call(request, until).await;
            let error = match answer {
                Ok(reply) => {
                    self.outage.over("the metadata leader answers again");
                    self.servers.lock().leader = Some(server);
                    return Ok(Answered { reply, repeated: ambiguous });
                }
                Err(error) => error,
            };
            let hinted = match error.kind {
                ErrorKind::NotLeader => self.redirect(&server, &error.hint),
                ErrorKind::Unavailable | ErrorKind::TimedOut | ErrorKind::StaleMap => {
                    ambiguous = true;
                    self.redirect(&server, &error.hint)
                }
                _ => {
                    self.servers.lock().leader = Some(server);
                    return Err(Failed { error, ambiguous });
                }
            };
            debug!(server, ?error, hinted, "metadata request goes on");
            let wait = if hinted && hints < 3 { Duration::ZERO } else { self.rng.backoff(turn) };
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

    /// What a request goes with. Those that may wait for other mounts must hold up neither what those wait
    /// for nor the session's signs of life: the leader takes only so much of one kind at a time.
    fn way(&self, op: Option<&Op>) -> Way {
        match op {
            Some(Op::Renew(_) | Op::Recalls(_) | Op::ReturnLeases(_) | Op::CancelLock(_)) => {
                Way::Prompt
            }
            Some(Op::MakeFiles(_) | Op::Close(_)) => Way::Freeing,
            // Told, or given back.
            Some(Op::SetLock(op)) if op.held || op.lock.as_ref().is_none_or(unlocks) => {
                Way::Freeing
            }
            // Others wait for it, and nobody else uses the file.
            Some(Op::CommitExtents(op)) if self.leases.writes(InodeId(op.ino)) => Way::Freeing,
            _ => Way::Common,
        }
    }

    /// The server to ask now.
    fn server(&self) -> String {
        let mut servers = self.servers.lock();
        if let Some(leader) = &servers.leader {
            return leader.clone();
        }
        let members = &self.map.current().wire.members;
        let count = servers.list.len() + members.len();
        let turn = servers.next % count.max(1);
        servers.next += 1;
        match servers.list.get(turn) {
            Some(server) => server.clone(),
            None => members[turn - servers.list.len()].address.clone(),
        }
    }

    /// `server` does not lead; `hint` may. Answers whether there is a hint to follow.
    fn redirect(&self, server: &str, hint: &str) -> bool {
        let mut servers = self.servers.lock();
        if !hint.is_empty() && hint != server {
            servers.leader = Some(hint.to_string());
            return true;
        }
        if servers.leader.as_deref() == Some(server) {
            servers.leader = None;
        }
        false
    }
}

fn unlocks(lock: &v1::Lock) -> bool {
    lock.kind() == v1::lock::Kind::None
}
