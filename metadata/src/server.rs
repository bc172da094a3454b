//! The framed service: decodes a request, brings it to the state, the soft state or the log, and
//! encodes the answer.

use crate::conflicts;
use crate::leases::Mode;
use crate::lock_waits::Turn;
use crate::node::{Effect, Node};
use crate::ops;
use crate::replication;
use crate::sessions::Declaration;
use crate::snapshot::{self, Snapshots};
use crate::targets::Targets;
use bytes::Bytes;
use prost::Message;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_net::{Incoming, Outgoing, Service};
use weft_proto::{Error, ErrorKind, InodeId, NodeId, Result, SessionId, Uuid, op, v1};

/// How long a request without a deadline may take.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);
/// Who waits for recalls is answered so long before its deadline, if there are none.
const MAIL_SLACK: Duration = Duration::from_secs(1);
/// Content that comes with a lookup: enough for a small file to be read without another request.
const LOOKUP_INLINE: u64 = 16 << 10;

/// Extended attributes that come unasked with one answer, in bytes.
const UNASKED: usize = 256 << 10;

/// What asks for a long answer is no longer, in bytes.
const ASKING: usize = 1 << 10;

/// One server's answers.
pub struct MetadataService {
    node: Arc<Node>,
    targets: Arc<Targets>,
    snapshots: Arc<Snapshots>,
    inbox: mpsc::Sender<Vec<raft::eraftpb::Message>>,
    members: Vec<NodeId>,
    shutdown: watch::Receiver<bool>,
}

impl MetadataService {
    pub fn new(
        node: Arc<Node>,
        targets: Arc<Targets>,
        snapshots: Arc<Snapshots>,
        inbox: mpsc::Sender<Vec<raft::eraftpb::Message>>,
        shutdown: watch::Receiver<bool>,
    ) -> Self {
        let members = node.config.peers.iter().map(|p| p.id).collect();
        Self { node, targets, snapshots, inbox, members, shutdown }
    }

    async fn raft(&self, batch: v1::RaftBatch, address: &str) -> Result<v1::RaftAck> {
        let ours = self.node.map().cluster.clone();
        if !batch.cluster.is_empty() && !ours.is_empty() && batch.cluster != ours {
            return Err(Error::new(
                ErrorKind::WrongCluster,
                format!("metadata server {} at {} belongs to another cluster", batch.from, address),
            ));
        }
        let messages = replication::decode(batch, self.node.config.id, &self.members)?;
        let stopping = |_| Error::new(ErrorKind::Unavailable, "this metadata server is stopping");
        self.inbox.send(messages).await.map_err(stopping)?;
        Ok(v1::RaftAck {})
    }

    async fn meta(&self, message: v1::MetaRequest, deadline: Instant) -> Result<v1::MetaReply> {
        let session = SessionId(message.session);
        let answer = async {
            match self.dispatch(message, deadline).await {
                Err(e) if e.kind == ErrorKind::SessionExpired => {
                    Err(self.if_over(session, e).await)
                }
                answer => answer,
            }
        };
        let mut reply = tokio::time::timeout_at(deadline, answer)
            .await
            .map_err(|_| {
                Error::new(ErrorKind::TimedOut, "the metadata group did not answer in time")
            })?
            .map_err(|error| self.node.or_elsewhere(error))?;
        without(self.add_xattrs(&mut reply), "extended attributes that were not asked for");
        Ok(reply)
    }

    /// Whether a session is over only the state says, of who leads now: soft state may be that of a term which has
    /// ended, or of none. A client that is told so gives up what it holds.
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

    /// Adds the extended attributes of inodes that may have some and that the session is granted a lease on:
    /// who lists a directory asks for those of each name.
    fn add_xattrs(&self, reply: &mut v1::MetaReply) -> Result<()> {
        let with_some = |attr: &v1::Attr| (attr.acls || !attr.no_xattrs).then_some(attr.ino);
        let of_entry = |entry: &v1::DirEntry| entry.attr.as_ref().and_then(with_some);
        let inos = match &reply.result {
            Some(Reply::Attr(attr)) => Vec::from_iter(with_some(attr)),
            Some(Reply::Open(found)) => Vec::from_iter(found.attr.as_ref().and_then(with_some)),
            Some(Reply::ReadDir(page)) => page.entries.iter().filter_map(of_entry).collect(),
            _ => Vec::new(),
        };
        if inos.is_empty() {
            return Ok(());
        }
        let granted: HashSet<u64> = reply.grants.iter().map(|grant| grant.ino).collect();
        let mut bytes = 0;
        for ino in inos.into_iter().filter(|ino| granted.contains(ino)) {
            if bytes < UNASKED
                && let Some(xattrs) = self.node.state.short_xattrs(InodeId(ino))?
            {
                bytes += xattrs.encoded_len();
                reply.xattrs.push(xattrs);
            }
        }
        Ok(())
    }

    async fn dispatch(&self, request: v1::MetaRequest, deadline: Instant) -> Result<v1::MetaReply> {
        let missing = || Error::new(ErrorKind::Protocol, "a metadata request without an operation");
        let session = SessionId(request.session);
        match request.op.as_ref().ok_or_else(missing)? {
            Op::Lookup(op) => self.lookup(session, op, &request, deadline).await,
            Op::GetAttr(v1::GetAttrOp { ino }) | Op::GetExtents(v1::GetExtentsOp { ino, .. }) => {
                let ino = InodeId(*ino);
                self.may_read(session, Some(ino), deadline).await?;
                let grant = self.grant(session, ino, Mode::Read, false);
                let mut reply = self.node.state.read(&request)?;
                reply.grants.extend(grant);
                Ok(reply)
            }
            Op::ReadDir(op) => self.read_dir(session, op, &request, deadline).await,
            Op::ReadLink(_)
            | Op::GetXattr(_)
            | Op::ListXattr(_)
            | Op::GetLayout(_)
            | Op::ListSegments(_) => {
                self.may_read(session, None, deadline).await?;
                self.node.state.read(&request)
            }
            Op::Check(_) => {
                self.may_read(session, None, deadline).await?;
                self.check(request).await
            }
            Op::StatFs(_) => self.stat_fs(&request, deadline).await,
            Op::Open(open) => self.open(session, open, deadline).await,
            Op::Close(close) => self.close(session, close, deadline).await,
            Op::Lease(lease) => self.lease(session, lease, deadline).await,
            Op::Map(map) => self.map(session, InodeId(map.ino), deadline).await,
            Op::ReturnLeases(returned) => self.return_leases(session, returned, deadline).await,
            Op::Recalls(recalls) => self.recalls(session, recalls.seen, deadline).await,
            Op::GetLock(op) => self.get_lock(session, op.lock.as_ref(), deadline).await,
            Op::WaitLock(op) => self.wait_lock(session, op, deadline).await,
            Op::CancelLock(op) => self.cancel_lock(session, op, deadline).await,
            Op::SetLock(op) => {
                let locking = self.may_lock(session, op, deadline).await?;
                self.change(request, locking, deadline).await
            }
            Op::Renew(_) => {
                let Some(Op::Renew(renew)) = request.op else { return Err(missing()) };
                self.renew(session, renew, deadline).await
            }
            _ => self.change(request, None, deadline).await,
        }
    }

    /// Looks at every record, which takes seconds for a million: beside the event loop, without which this
    /// server would lose its lead.
    async fn check(&self, request: v1::MetaRequest) -> Result<v1::MetaReply> {
        let state = self.node.state.clone();
        let check = move || state.read(&request);
        if !self.node.env.threads {
            return check();
        }
        let ended = tokio::task::spawn_blocking(check).await;
        ended.map_err(|error| Error::new(ErrorKind::Internal, format!("the check: {error}")))?
    }

    /// Returns when this server leads, holds all that was acknowledged, knows what all sessions
    /// hold, and nobody else buffers writes of `ino` or makes files in it on its own. Without a session
    /// nobody is asked to flush: checks and listings want the committed state.
    async fn may_read(
        &self,
        session: SessionId,
        ino: Option<InodeId>,
        deadline: Instant,
    ) -> Result<()> {
        self.node.lead(deadline).await?;
        self.node.read_barrier().await?;
        if session.0 == 0 {
            return Ok(());
        }
        conflicts::all_declared(&self.node, session, deadline).await?;
        match ino {
            Some(ino) => conflicts::readable(&self.node, session, ino, deadline).await,
            None => Ok(()),
        }
    }

    fn grant(&self, to: SessionId, ino: InodeId, mode: Mode, must: bool) -> Option<v1::Grant> {
        self.node.sessions.lock().leases.grant(Instant::now(), to, ino, mode, must)
    }

    /// Answers attributes, with the content of a small file; with leases on both the directory and
    /// what was found there. That there is no such name is an answer of its own under a lease.
    async fn lookup(
        &self,
        session: SessionId,
        op: &v1::LookupOp,
        request: &v1::MetaRequest,
        deadline: Instant,
    ) -> Result<v1::MetaReply> {
        let parent = InodeId(op.parent);
        self.may_read(session, Some(parent), deadline).await?;
        if session.0 == 0 {
            return self.node.state.read(request);
        }
        let mut grants = Vec::from_iter(self.grant(session, parent, Mode::Read, false));
        let Some(child) = self.node.state.child(parent, &op.name)? else {
            // Says what is wrong, or that the name is missing.
            return match self.node.state.read(request) {
                Err(e) if e.kind == ErrorKind::NotFound && !grants.is_empty() => {
                    let result = Some(Reply::Missing(v1::Empty {}));
                    Ok(v1::MetaReply { result, grants, ..Default::default() })
                }
                answer => answer,
            };
        };
        conflicts::readable(&self.node, session, child, deadline).await?;
        grants.extend(self.grant(session, child, Mode::Read, false));
        let found = match self.node.state.open_reply(child) {
            // It lost its name while its lease was waited for.
            Err(e) if e.kind == ErrorKind::Stale || e.kind == ErrorKind::NotFound => {
                return self.node.state.read(request);
            }
            found => found?,
        };
        let small = found.attr.is_some_and(|a| {
            a.kind == v1::FileKind::Regular as i32 && a.inline_bytes <= LOOKUP_INLINE
        });
        let whole = found.extents.as_ref().is_some_and(|e| !e.truncated && e.extents.len() <= 4);
        let result = match found.attr {
            Some(attr) if !(small && whole) => Reply::Attr(attr),
            _ => Reply::Open(found),
        };
        Ok(v1::MetaReply { result: Some(result), grants, ..Default::default() })
    }

    /// Answers names, with a lease on the directory; with attributes only of those inodes on which a
    /// lease could be granted as well. Without a session: what is committed.
    async fn read_dir(
        &self,
        session: SessionId,
        op: &v1::ReadDirOp,
        request: &v1::MetaRequest,
        deadline: Instant,
    ) -> Result<v1::MetaReply> {
        self.may_read(session, Some(InodeId(op.ino)), deadline).await?;
        if session.0 == 0 {
            return self.node.state.read(request);
        }
        let dir = self.grant(session, InodeId(op.ino), Mode::Read, false);
        let names = Op::ReadDir(v1::ReadDirOp { attrs: false, ..*op });
        let names = v1::MetaRequest { op: Some(names), ..Default::default() };
        let mut reply = self.node.state.read(&names)?;
        if let Some(Reply::ReadDir(page)) = reply.result.as_mut().filter(|_| op.attrs) {
            let inos = page.entries.iter().map(|entry| InodeId(entry.ino));
            let grants: Vec<_> = {
                let (now, leases) = (Instant::now(), &mut self.node.sessions.lock().leases);
                inos.map(|ino| leases.grant(now, session, ino, Mode::Read, false)).collect()
            };
            for (entry, grant) in page.entries.iter_mut().zip(grants) {
                if let Some(grant) = grant {
                    entry.attr = self.node.state.attr(InodeId(entry.ino))?;
                    reply.grants.push(grant);
                }
            }
        }
        reply.grants.extend(dir);
        Ok(reply)
    }

    /// Grants a lease on a file to a session that has it open, with what an open answers.
    async fn lease(
        &self,
        session: SessionId,
        op: &v1::LeaseOp,
        deadline: Instant,
    ) -> Result<v1::MetaReply> {
        let ino = InodeId(op.ino);
        self.may_read(session, Some(ino), deadline).await?;
        let mut grants = Vec::new();
        if op.write {
            grants.extend(self.grant_to_write(session, ino)?);
        }
        if grants.is_empty() {
            let mode = if op.write && op.alone { Mode::Write } else { Mode::Read };
            grants.extend(conflicts::must_grant(&self.node, session, ino, mode, deadline).await?);
        }
        let reply = self.node.state.open_reply(ino)?;
        Ok(v1::MetaReply { result: Some(Reply::Open(reply)), grants, ..Default::default() })
    }

    async fn map(
        &self,
        session: SessionId,
        ino: InodeId,
        deadline: Instant,
    ) -> Result<v1::MetaReply> {
        self.may_read(session, Some(ino), deadline).await?;
        let granted = conflicts::may_map(&self.node, session, ino, deadline).await?;
        let result = Some(Reply::Map(v1::MapReply { granted }));
        Ok(v1::MetaReply { result, ..Default::default() })
    }

    async fn return_leases(
        &self,
        session: SessionId,
        op: &v1::ReturnLeasesOp,
        deadline: Instant,
    ) -> Result<v1::MetaReply> {
        self.node.lead(deadline).await?;
        let mut sessions = self.node.sessions.lock();
        for item in &op.items {
            let ino = InodeId(item.ino);
            if item.of_map {
                sessions.leases.map_answered(session, ino, item.seq, item.maps);
                continue;
            }
            if item.maps {
                sessions.leases.keeps_map(session, ino);
            }
            if item.open_seq != 0 {
                match sessions.open(session, ino, item.open_seq) {
                    // It is being opened, and whoever does that is told that it is gone.
                    Err(e) if e.kind == ErrorKind::Stale => {}
                    opened => opened?,
                }
            }
            sessions.leases.returned(session, ino, item.seq, item.keep_read);
        }
        Ok(empty())
    }

    /// Answers recalls newer than `seen`, as soon as there are any.
    async fn recalls(
        &self,
        session: SessionId,
        seen: u64,
        deadline: Instant,
    ) -> Result<v1::MetaReply> {
        let term = self.node.lead(deadline).await?;
        let until = deadline.checked_sub(MAIL_SLACK).unwrap_or(deadline);
        let mut views = self.node.watch_view();
        let mut shutdown = self.shutdown.clone();
        loop {
            let (recalls, need_declare, mut news) = {
                let sessions = self.node.sessions.lock();
                let expired = || {
                    let what = format!("session {session} is not known (any more); open a new one");
                    Error::new(ErrorKind::SessionExpired, what)
                };
                let (recalls, news) = sessions.leases.mail(session, seen).ok_or_else(expired)?;
                (recalls, sessions.must_declare(session), news)
            };
            let reply = v1::RecallsReply { recalls, need_declare };
            let over = Instant::now() >= until;
            if over || need_declare || !reply.recalls.is_empty() {
                let result = Some(Reply::Recalls(reply));
                return Ok(v1::MetaReply { result, ..Default::default() });
            }
            tokio::select! {
                biased;
                _ = shutdown.wait_for(|&stop| stop) => return Err(self.node.not_leader()),
                _ = views.wait_for(|v| !v.serving || v.term != term) => {
                    return Err(self.node.not_leader());
                }
                // The session ended, if this fails: the next look says so.
                _ = news.changed() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// Grants the right to write, and with it that to lock without asking if nobody else holds or wants a
    /// lock. The state is read after the grant, which is refused while another locks.
    fn grant_to_write(&self, to: SessionId, ino: InodeId) -> Result<Option<v1::Grant>> {
        let Some(mut grant) = self.grant(to, ino, Mode::Write, false) else { return Ok(None) };
        let wanted = self.node.sessions.lock().locks.others_wait(to, ino);
        grant.locks = !wanted && !self.node.state.others_hold_locks(to, ino)?;
        Ok(Some(grant))
    }

    /// What stands against a lock now.
    async fn get_lock(
        &self,
        session: SessionId,
        lock: Option<&v1::Lock>,
        deadline: Instant,
    ) -> Result<v1::MetaReply> {
        let lock = lock.ok_or_else(no_lock)?;
        self.may_read(session, Some(InodeId(lock.ino)), deadline).await?;
        let conflict = self.node.state.lock_conflict(session, lock)?;
        Ok(lock_reply(v1::LockReply { conflict, turn: false }))
    }

    /// Answers when it is the waiter's turn, or that it is not yet.
    async fn wait_lock(
        &self,
        session: SessionId,
        op: &v1::WaitLockOp,
        deadline: Instant,
    ) -> Result<v1::MetaReply> {
        let term = self.node.lead(deadline).await?;
        let until = deadline.checked_sub(MAIL_SLACK).unwrap_or(deadline);
        let lock = op.lock.as_ref().ok_or_else(no_lock)?;
        // Who locked without asking tells it now. Who locks so after this loses the right to when the
        // lock is set.
        conflicts::all_declared(&self.node, session, deadline).await?;
        conflicts::readable(&self.node, session, InodeId(lock.ino), deadline).await?;
        let mut turn = self.node.sessions.lock().wait_for_lock(session, op.ticket, lock)?;
        let (mut views, mut shutdown) = (self.node.watch_view(), self.shutdown.clone());
        let told = tokio::select! {
            biased;
            _ = shutdown.wait_for(|&stop| stop) => return Err(self.node.not_leader()),
            _ = views.wait_for(|v| !v.serving || v.term != term) => {
                return Err(self.node.not_leader());
            }
            told = turn.wait_for(|turn| *turn != Turn::NotYet) => told.map(|turn| *turn),
            () = tokio::time::sleep_until(until) => Ok(Turn::NotYet),
        };
        match told {
            Ok(Turn::Deadlock) => {
                let what = "who holds the lock waits for one of who wants it";
                Err(Error::new(ErrorKind::Deadlock, what))
            }
            Ok(turn) => Ok(lock_reply(v1::LockReply { conflict: None, turn: turn == Turn::Now })),
            // It was forgotten, with its session or for another reason. Let it ask again.
            Err(_) => Ok(lock_reply(v1::LockReply::default())),
        }
    }

    async fn cancel_lock(
        &self,
        session: SessionId,
        op: &v1::CancelLockOp,
        deadline: Instant,
    ) -> Result<v1::MetaReply> {
        self.node.lead(deadline).await?;
        self.node.sessions.lock().locks.cancel(session, op.ticket);
        Ok(empty())
    }

    /// Waits while it is the turn of another to set a lock that stands against this one, and until nobody
    /// else locks without asking, which goes on for as long as what this answers lives. Whether the lock is
    /// to be had is decided in the log alone, so that a retry is answered the same (I4).
    async fn may_lock(
        &self,
        session: SessionId,
        op: &v1::SetLockOp,
        deadline: Instant,
    ) -> Result<Option<Locking>> {
        let term = self.node.lead(deadline).await?;
        let lock = op.lock.as_ref().ok_or_else(no_lock)?;
        while let Some(mut changed) = self.turn_of_another(session, op, lock) {
            let what = "another client does not take the lock that it waited for";
            tokio::time::timeout_at(deadline, changed.changed())
                .await
                .map_err(|_| Error::new(ErrorKind::TimedOut, what))?
                .map_err(|_| self.node.not_leader())?;
        }
        if lock.kind() == v1::lock::Kind::None {
            return Ok(None);
        }
        if !op.held {
            let ino = InodeId(lock.ino);
            conflicts::may_begin_lock(&self.node, session, ino, deadline).await?;
        }
        let locking = Locking::begin(&self.node, term, session, InodeId(lock.ino));
        conflicts::all_declared(&self.node, session, deadline).await?;
        conflicts::readable(&self.node, session, locking.ino, deadline).await?;
        Ok(Some(locking))
    }

    fn turn_of_another(
        &self,
        session: SessionId,
        op: &v1::SetLockOp,
        lock: &v1::Lock,
    ) -> Option<watch::Receiver<u64>> {
        if op.held {
            return None;
        }
        self.node.sessions.lock().locks.in_the_way(session, op.ticket, lock)
    }

    async fn stat_fs(&self, request: &v1::MetaRequest, deadline: Instant) -> Result<v1::MetaReply> {
        self.node.lead(deadline).await?;
        self.node.read_barrier().await?;
        let mut reply = self.node.state.read(request)?;
        if let Some(Reply::StatFs(stat)) = &mut reply.result {
            let full_percent = self.node.config.full_percent;
            let space = self.targets.user_space(&self.node.map(), full_percent);
            (stat.capacity_bytes, stat.free_bytes) = (space.capacity, space.free);
            stat.available_bytes = Some(space.available);
        }
        Ok(reply)
    }

    /// Registers the open first and reads after, so that the inode cannot vanish in between; if
    /// there is nothing to open, the registration is taken back.
    async fn open(
        &self,
        session: SessionId,
        open: &v1::OpenOp,
        deadline: Instant,
    ) -> Result<v1::MetaReply> {
        let ino = InodeId(open.ino);
        self.may_read(session, Some(ino), deadline).await?;
        self.node.sessions.lock().open(session, ino, open.open_seq)?;
        let mut grants = Vec::new();
        if open.write {
            grants.extend(self.grant_to_write(session, ino)?);
        }
        if grants.is_empty() {
            // Nothing of a directory is cached without a lease: who opens one that others change all
            // the time need not wait for them.
            let attr = self.node.state.attr(ino)?;
            grants.extend(match attr.is_some_and(|a| a.kind() == v1::FileKind::Directory) {
                true => self.grant(session, ino, Mode::Read, false),
                false => {
                    conflicts::must_grant(&self.node, session, ino, Mode::Read, deadline).await?
                }
            });
        }
        match self.node.state.open_reply(ino) {
            Ok(reply) => {
                let result = Some(Reply::Open(reply));
                Ok(v1::MetaReply { result, grants, ..Default::default() })
            }
            Err(e) => {
                let _ = self.node.sessions.lock().close(session, ino, open.open_seq);
                Err(e)
            }
        }
    }

    async fn close(
        &self,
        session: SessionId,
        close: &v1::CloseOp,
        deadline: Instant,
    ) -> Result<v1::MetaReply> {
        self.node.lead(deadline).await?;
        let mut sessions = self.node.sessions.lock();
        for item in &close.items {
            sessions.close(session, InodeId(item.ino), item.open_seq)?;
        }
        Ok(empty())
    }

    async fn renew(
        &self,
        session: SessionId,
        renew: v1::RenewOp,
        deadline: Instant,
    ) -> Result<v1::MetaReply> {
        self.node.lead(deadline).await?;
        self.node.read_barrier().await?;
        let declaration = renew.declares.then(|| Declaration {
            opens: renew.opens.iter().map(|o| (InodeId(o.ino), o.open_seq)).collect(),
            write_leases: renew.write_leases.iter().map(|&ino| InodeId(ino)).collect(),
            piece: (renew.declaration, renew.piece),
            more: renew.more,
            maps: renew.maps.iter().map(|&ino| InodeId(ino)).collect(),
        });
        let need_declare = {
            let mut sessions = self.node.sessions.lock();
            sessions.has_open(session, renew.open_files);
            sessions.renew(Instant::now(), session, declaration)?
        };
        let reply = v1::RenewReply {
            need_declare,
            ttl_ms: self.node.config.session_ttl_ms,
            epoch: self.node.epoch().0,
        };
        Ok(v1::MetaReply { result: Some(Reply::Renew(reply)), ..Default::default() })
    }

    /// Changes the replicated state. `locking` ends with the change.
    async fn change(
        &self,
        request: v1::MetaRequest,
        locking: Option<Locking>,
        deadline: Instant,
    ) -> Result<v1::MetaReply> {
        let of_session = matches!(request.op, Some(Op::OpenSession(_) | Op::CloseSession(_)));
        let opens_session = matches!(request.op, Some(Op::OpenSession(_)));
        if !opens_session && (request.session == 0 || request.number == 0) {
            return Err(Error::new(
                ErrorKind::Protocol,
                "a change needs a session and a request number, so that a retry takes effect once",
            ));
        }
        let session = SessionId(request.session);
        let term = self.node.lead(deadline).await?;
        self.node.sessions.lock().touch(Instant::now(), session);
        // Nobody caches anything of them; who locks without asking was asked before.
        let of_lock = matches!(request.op, Some(Op::SetLock(_)));
        if !of_session && !of_lock {
            conflicts::all_declared(&self.node, session, deadline).await?;
        }
        let claim = conflicts::claim(&self.node, term, &request, deadline).await?;
        let effect = Effect::of(&request);
        let makes = Makes::of(request.op.as_ref());
        let entered = match &request.op {
            Some(Op::MakeFiles(op)) => self.enter_made(session, op),
            _ => Vec::new(),
        };
        let body = v1::log_entry::Body::Client(request);
        let (mut reply, (claim, _)) = propose(&self.node, body, effect, (claim, locking)).await?;
        reply.touched = claim.inos.iter().map(|ino| ino.0).collect();
        reply.grants = entered;
        without(self.grant_made(session, makes, &mut reply), "leases on what was made");
        // Of use to a session that keeps its lease, against which no other changes them.
        let after = |dir| self.node.state.attr(dir).ok().flatten();
        reply.dirs = claim.dirs().into_iter().filter_map(after).collect();
        drop(claim);
        if let Some(Reply::OpenSession(opened)) = &mut reply.result {
            opened.ttl_ms = self.node.config.session_ttl_ms;
        }
        Ok(reply)
    }

    /// Grants leases on what was just made: it is nobody else's yet. And on the directory, if nobody else uses
    /// it; that is still claimed. What another session has changed since, is not for this one to use.
    fn grant_made(&self, to: SessionId, makes: Makes, reply: &mut v1::MetaReply) -> Result<()> {
        let made = match &reply.result {
            Some(Reply::Open(v1::OpenReply { attr: Some(attr), .. })) => *attr,
            Some(Reply::Attr(attr)) => *attr,
            _ => return Ok(()),
        };
        let ino = InodeId(made.ino);
        let mut grants = Vec::new();
        match makes {
            Makes::File(dir) => {
                grants.extend(self.grant_to_write(to, ino)?);
                // Not if it was there already, and is opened only.
                if let Some(dir) = dir.filter(|_| !reply.touched.contains(&made.ino)) {
                    reply.grants.extend(self.grant_to_make(to, dir)?);
                }
            }
            Makes::Directory => grants.extend(self.grant_to_make(to, ino)?),
            Makes::Nothing if made.kind == v1::FileKind::Directory as i32 => {
                reply.grants.extend(self.grant(to, ino, Mode::Read, false));
            }
            Makes::Nothing => {}
        }
        if !grants.is_empty() && self.node.state.attr(ino)? == Some(made) {
            reply.grants.append(&mut grants);
        }
        Ok(())
    }

    /// Grants the right to make files in a directory without asking.
    fn grant_to_make(&self, to: SessionId, dir: InodeId) -> Result<Option<v1::Grant>> {
        let Some(mut grant) = self.grant(to, dir, Mode::Write, false) else { return Ok(None) };
        grant.layout = self.node.state.layout(dir)?;
        Ok(Some(grant))
    }

    /// The session holds what it made already, and shall do so here before anybody can see it.
    fn enter_made(&self, session: SessionId, op: &v1::MakeFilesOp) -> Vec<v1::Grant> {
        let leases = &mut self.node.sessions.lock().leases;
        op.files.iter().filter_map(|file| leases.enter_made(session, InodeId(file.ino))).collect()
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

/// Proposes an entry, and keeps what was taken for it until it was applied or can be no more. What is in
/// the log may take effect long after the deadline of who asked, and after he has gone.
async fn propose<T: Send + 'static>(
    node: &Arc<Node>,
    body: v1::log_entry::Body,
    effect: Effect,
    taken: T,
) -> Result<(v1::MetaReply, T)> {
    let node = node.clone();
    let proposal = tokio::spawn(async move { (node.propose(body, effect).await, taken) });
    // It may be in the log.
    let ended = |error| Error::new(ErrorKind::Unavailable, format!("a change: {error}"));
    let (reply, taken) = proposal.await.map_err(ended)?;
    Ok((reply?, taken))
}

/// What only comes along with an answer may be missing: what was asked for was done, and that must be told.
fn without(extra: Result<()>, what: &str) {
    if let Err(e) = extra {
        tracing::error!("an answer goes without {what}: {e}");
    }
}

/// What a change makes.
#[derive(Clone, Copy)]
enum Makes {
    /// A file that is open then, in this directory if it gets a name.
    File(Option<InodeId>),
    Directory,
    /// Nothing that its session is granted a lease on.
    Nothing,
}

impl Makes {
    fn of(op: Option<&Op>) -> Self {
        match op {
            Some(Op::Create(op)) => Self::File(Some(InodeId(op.parent))),
            Some(Op::TmpFile(_)) => Self::File(None),
            Some(Op::MkDir(_)) => Self::Directory,
            _ => Self::Nothing,
        }
    }
}

/// A lock is being set: nobody else is granted the right to write, and to lock without asking, until this is
/// dropped.
struct Locking {
    node: Arc<Node>,
    term: u64,
    by: SessionId,
    ino: InodeId,
}

impl Locking {
    fn begin(node: &Arc<Node>, term: u64, by: SessionId, ino: InodeId) -> Self {
        node.sessions.lock().leases.begin_lock(by, ino);
        Self { node: node.clone(), term, by, ino }
    }
}

impl Drop for Locking {
    fn drop(&mut self) {
        let mut sessions = self.node.sessions.lock();
        if self.node.view().term == self.term {
            sessions.leases.locked(self.by, self.ino);
        }
    }
}

#[async_trait::async_trait]
impl Service for MetadataService {
    async fn call(&self, request: Incoming) -> Result<Outgoing> {
        let deadline = request.deadline.unwrap_or_else(|| Instant::now() + DEFAULT_DEADLINE);
        match request.op {
            op::META => request.answer(|q| self.meta(q, deadline)).await,
            op::RAFT => request.answer(|q| self.raft(q, &request.peer.address)).await,
            op::SNAPSHOT_PIECE => request.answer_with_payload(|q| self.snapshots.piece(q)).await,
            op::JOIN => request.answer(|q| self.join(q, deadline)).await,
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
                let asked = v1::MetaRequest::decode(head.clone()).ok();
                asked.and_then(|asked| asked.op).map_or(0, |op| ops::longest(&op) + along(&op))
            }
            op::SNAPSHOT_PIECE => snapshot::PIECE as usize,
            _ => 0,
        }
    }
}

/// Bytes that come along with an answer, at most: extended attributes, leases (those of many names are counted
/// with these), and the content of a small file and where it lies.
fn along(op: &Op) -> usize {
    const OF_ONE: usize = ops::SHORT_ALL + 4 * ops::GRANT;
    match op {
        Op::ReadDir(asked) if asked.attrs => UNASKED + OF_ONE,
        Op::Lookup(_) => OF_ONE + 2 * LOOKUP_INLINE as usize,
        Op::GetAttr(_) | Op::GetExtents(_) | Op::ReadDir(_) | Op::Open(_) | Op::Lease(_) => OF_ONE,
        _ => 0,
    }
}

fn lock_reply(reply: v1::LockReply) -> v1::MetaReply {
    v1::MetaReply { result: Some(Reply::Lock(reply)), ..Default::default() }
}

fn no_lock() -> Error {
    Error::new(ErrorKind::Protocol, "a request about a lock without one")
}

fn empty() -> v1::MetaReply {
    v1::MetaReply { result: Some(Reply::Empty(v1::Empty {})), ..Default::default() }
}

/// The cluster's identity in a map, once the cluster was made.
pub fn cluster_of(map: &v1::ClusterMap) -> Option<Uuid> {
    Uuid::from_slice(&map.cluster).filter(|c| *c != Uuid::NIL)
}
