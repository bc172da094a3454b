//! Locks of files, as processes on this mount take them. They are kept in the replicated state, for all
//! clients; but those of a file that only this mount may write, and of which nobody else holds or wants a
//! lock, are known here alone, and cost no request, until the leader recalls that right.
//!
//! Invariants:
//! - locks that the leader does not know are taken only while the right to lasts, and are told before it is
//!   given back ([`tell`]), and before the leader is asked for any lock of that file;
//! - what this mount may hold is in the table, so that closing a file on which it holds nothing costs no
//!   request;
//! - an owner's locks are released after all that it asked for before has ended, answered or not;
//! - locks end with the session that took them (I5). Its owner is told: whatever it does with the file
//!   through that handle fails, until it closes it.

use crate::filesystem::Filesystem;
use crate::meta::{Failed, Meta};
use crate::mount::Mount;
use crate::options::{FOR_EVER, after};
use crate::session::{Session, Sessions};
use crate::to_the_end::to_the_end;
use crate::types::{HandleId, Lock, LockKind};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::RwLock;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{debug, warn};
use weft_proto::locks::{LAST, MAX_RANGES, Range, Ranges};
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId, v1};

/// A request for a turn waits this long at the leader.
const WAIT: Duration = Duration::from_secs(10);
/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(20);
/// What nobody waits for is tried this long.
const BEHIND: Duration = Duration::from_secs(60);

/// Whose locks: of flock(2) or not, and the kernel's name for the owner.
type Owner = (bool, u64);

/// What one owner has to do with one inode.
struct Entry {
    owner: Owner,
    /// Its locks were taken in this one.
    session: Arc<Session>,
    /// It may hold something.
    held: bool,
    /// What the leader does not know of that.
    here: Ranges,
    /// The leader may know some of it.
    told: bool,
    /// It is not known what it holds.
    doubtful: bool,
    /// Handles through which it asked: a caller that was killed may be gone before its answer comes.
    handles: Vec<HandleId>,
    /// Requests under way.
    asking: usize,
    /// Requests hold it shared, and the release of all alone.
    gate: Arc<RwLock<()>>,
}

impl Entry {
    fn is(&self, gate: &Arc<RwLock<()>>) -> bool {
        Arc::ptr_eq(&self.gate, gate)
    }

    fn is_lost(&self, sessions: &Sessions) -> bool {
        self.doubtful || self.held && sessions.is_over(self.session.id)
    }
}

/// All owners of an inode.
#[derive(Default)]
struct OfInode {
    entries: Vec<Entry>,
    /// The leader is asked for every lock, and knows those that are held, or is being told.
    told: bool,
    /// Held by who tells it.
    telling: Arc<tokio::sync::Mutex<()>>,
}

impl OfInode {
    /// What another owner holds that stands against `lock`.
    fn against(&self, sessions: &Sessions, lock: &Lock) -> Option<Lock> {
        let wanted = to_wire(InodeId(0), lock);
        self.entries.iter().find_map(|e| {
            let other = e.owner.0 == lock.flock && e.owner.1 != lock.owner && !e.is_lost(sessions);
            let range = e.here.against(&wanted).filter(|_| other && lock.kind != LockKind::None)?;
            let kind = if range.write { LockKind::Write } else { LockKind::Read };
            let Range { start, end, .. } = range;
            Some(Lock { flock: lock.flock, owner: e.owner.1, kind, start, end, pid: e.here.pid })
        })
    }
}

/// All owners of a mount.
#[derive(Default)]
pub(crate) struct Locks {
    table: Mutex<BTreeMap<InodeId, OfInode>>,
    /// Entries in the table: mostly none.
    count: AtomicUsize,
    ticket: AtomicU64,
}

pub(crate) fn lost_locks() -> Error {
    let what = "the cluster declared this mount dead, and its locks are lost; close the file";
    Error::new(ErrorKind::Io, what)
}

impl Locks {
    /// A session is over: says how many lose their locks.
    pub fn lost_with(&self, session: SessionId) {
        let table = self.table.lock();
        let entries = table.values().flat_map(|of| &of.entries);
        let lost = entries.filter(|e| e.held && e.session.id == session).count();
        if lost > 0 {
            warn!(%session, "{lost} owners have lost their locks; what they do with the files fails");
        }
    }

    /// Whether anybody's locks on the inode are lost.
    pub fn lost_on(&self, sessions: &Sessions, ino: InodeId) -> bool {
        !self.is_empty()
            && self
                .table
                .lock()
                .get(&ino)
                .is_some_and(|of| of.entries.iter().any(|e| e.is_lost(sessions)))
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// The owner is about to ask for something.
    fn begin(
        &self,
        sessions: &Sessions,
        ino: InodeId,
        owner: Owner,
        handle: HandleId,
    ) -> Arc<RwLock<()>> {
        let mut table = self.table.lock();
        let entries = &mut table.entry(ino).or_default().entries;
        if let Some(entry) = entries.iter_mut().find(|e| e.owner == owner) {
            if !entry.handles.contains(&handle) {
                entry.handles.push(handle);
            }
            entry.asking += 1;
            return entry.gate.clone();
        }
        self.count.fetch_add(1, Ordering::AcqRel);
        let gate: Arc<RwLock<()>> = Arc::default();
        entries.push(Entry {
            owner,
            session: sessions.current(),
            held: false,
            here: Ranges::default(),
            told: false,
            doubtful: false,
            handles: vec![handle],
            asking: 1,
            gate: gate.clone(),
        });
        gate
    }

    /// The session to ask in. Fails if the owner has lost what it held.
    fn session_of(
        &self,
        sessions: &Sessions,
        ino: InodeId,
        gate: &Arc<RwLock<()>>,
    ) -> Result<Arc<Session>> {
        let mut session = Err(lost_locks());
        self.edit(ino, gate, |entry| {
            if !entry.is_lost(sessions) {
                if !entry.held {
                    entry.session = sessions.current();
                }
                session = Ok(entry.session.clone());
                entry.told = true;
            }
            true
        });
        session
    }

    /// A request of [`Locks::begin`] is over; `change` says what it led to.
    fn end(&self, ino: InodeId, gate: &Arc<RwLock<()>>, change: impl FnOnce(&mut Entry)) {
        self.edit(ino, gate, |entry| {
            entry.asking -= 1;
            change(entry);
            entry.held || entry.doubtful || entry.asking > 0
        });
    }

    /// Changes an entry; it stays if `change` says so. Answers whether it was there.
    fn edit(
        &self,
        ino: InodeId,
        gate: &Arc<RwLock<()>>,
        change: impl FnOnce(&mut Entry) -> bool,
    ) -> bool {
        let mut table = self.table.lock();
        let Some(OfInode { entries, .. }) = table.get_mut(&ino) else { return false };
        let Some(at) = entries.iter().position(|e| e.is(gate)) else { return false };
        if !change(&mut entries[at]) {
            entries.swap_remove(at);
            self.count.fetch_sub(1, Ordering::AcqRel);
            if entries.is_empty() {
                table.remove(&ino);
            }
        }
        true
    }

    fn find<T>(&self, ino: InodeId, owner: Owner, read: impl FnOnce(&Entry) -> T) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let table = self.table.lock();
        table.get(&ino)?.entries.iter().find(|e| e.owner == owner).map(read)
    }

    /// Gates of the owners that asked through this handle and no other; it is forgotten of the rest.
    fn only_through(&self, ino: InodeId, handle: HandleId) -> Vec<Arc<RwLock<()>>> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut table = self.table.lock();
        let mut gates = Vec::new();
        for entry in table.get_mut(&ino).into_iter().flat_map(|of| &mut of.entries) {
            if entry.handles == [handle] {
                gates.push(entry.gate.clone());
            } else {
                entry.handles.retain(|h| *h != handle);
            }
        }
        gates
    }

    /// Locks without asking, for an owner that [`Self::begin`] entered. `None`: the leader has to be asked,
    /// about this and from now on.
    fn lock_here(
        &self,
        meta: &Meta,
        ino: InodeId,
        gate: &Arc<RwLock<()>>,
        lock: &Lock,
    ) -> Option<Result<()>> {
        let mut table = self.table.lock();
        let of = table.get_mut(&ino)?;
        // A recall first takes the right away and then tells what it finds under this same lock.
        of.told |= !meta.leases.may_lock(ino);
        if of.told {
            return None;
        }
        if of.against(&meta.sessions, lock).is_some() {
            let what = "another process holds a lock";
            return Some(Err(Error::new(ErrorKind::WouldBlock, what)));
        }
        let entry = of.entries.iter_mut().find(|e| e.is(gate))?;
        if entry.is_lost(&meta.sessions) {
            return Some(Err(lost_locks()));
        }
        let mut here = entry.here.clone();
        here.set(lock.start, lock.end, lock.kind.write());
        if here.ranges.len() > MAX_RANGES.max(entry.here.ranges.len()) {
            let what = format!("over {MAX_RANGES} ranges of one file are locked by one owner");
            return Some(Err(Error::new(ErrorKind::NoLocks, what)));
        }
        if lock.kind != LockKind::None {
            here.pid = lock.pid;
        }
        if !entry.held {
            entry.session = meta.sessions.current();
        }
        (entry.held, entry.here) = (!here.ranges.is_empty(), here);
        Some(Ok(()))
    }

    /// What stands against a lock, if the leader need not be asked.
    fn conflict_here(&self, meta: &Meta, ino: InodeId, lock: &Lock) -> Option<Option<Lock>> {
        let table = self.table.lock();
        let of = table.get(&ino);
        let knows = meta.leases.may_lock(ino) && !of.is_some_and(|of| of.told);
        knows.then(|| of.and_then(|of| of.against(&meta.sessions, lock)))
    }

    /// From now on the leader is asked for the locks of the inode. Answers the gates of the owners that it
    /// does not know yet.
    fn untold(&self, ino: InodeId) -> Vec<Arc<RwLock<()>>> {
        let mut table = self.table.lock();
        let Some(of) = table.get_mut(&ino) else { return Vec::new() };
        of.told = true;
        let untold = of.entries.iter_mut().filter(|e| !e.here.ranges.is_empty());
        untold
            .map(|entry| {
                entry.told = true;
                entry.gate.clone()
            })
            .collect()
    }

    /// Releases what only this mount knows of. Answers whether that was all.
    fn release_here(&self, ino: InodeId, gate: &Arc<RwLock<()>>) -> bool {
        let mut all = false;
        self.edit(ino, gate, |entry| {
            all = !entry.told && entry.asking == 0;
            !all
        });
        all
    }
}

/// Tells the leader which locks of the inode it does not know. When this returns it knows them, or their
/// owners will be told that they have lost them.
pub(crate) async fn tell(mount: &Arc<Mount>, ino: InodeId) {
    if !mount.locks.is_empty() {
        let mount = mount.clone();
        to_the_end(async move { tell_all(&mount, ino).await }).await;
    }
}

async fn tell_all(mount: &Mount, ino: InodeId) {
    let locks = &mount.locks;
    let telling = locks.table.lock().get(&ino).map(|of| of.telling.clone());
    let Some(telling) = telling else { return };
    let _one_at_a_time = telling.lock().await;
    for gate in locks.untold(ino) {
        // A release waits for this, and comes after it.
        let _shared = gate.read().await;
        let mut found = None;
        locks.edit(ino, &gate, |e| {
            found = Some((e.session.clone(), e.owner, e.here.clone()));
            true
        });
        let Some((session, (flock, owner), here)) = found else { continue };
        let mut told = Ok(());
        for Range { start, end, write } in here.ranges {
            let kind = if write { LockKind::Write } else { LockKind::Read };
            let lock = to_wire(ino, &Lock { flock, owner, kind, start, end, pid: here.pid });
            let op = Op::SetLock(v1::SetLockOp { lock: Some(lock), ticket: 0, held: true });
            told = mount.meta.change_in(&session, op, mount.meta.deadline()).await.map(drop);
            if told.is_err() {
                break;
            }
        }
        locks.edit(ino, &gate, |entry| {
            entry.here = Ranges::default();
            if let Err(failed) = told {
                warn!(%ino, error = %failed.error, "locks could not be told, and are lost");
                entry.doubtful = true;
            }
            true
        });
    }
}

/// Releases all that one owner holds of an inode. Ends when that is done; goes on without being
/// waited for.
async fn release(mount: &Arc<Mount>, ino: InodeId, gate: Arc<RwLock<()>>) {
    if mount.locks.release_here(ino, &gate) {
        return;
    }
    let patience = mount.options.op_deadline;
    let mount = mount.clone();
    let releasing = tokio::spawn(async move {
        let _alone = gate.write().await;
        let mut found = None;
        mount.locks.edit(ino, &gate, |entry| {
            let may_hold = entry.held || entry.doubtful;
            found = may_hold.then(|| (entry.session.clone(), entry.owner));
            may_hold
        });
        let Some((session, (flock, owner))) = found else { return };
        if !mount.meta.sessions.is_over(session.id) {
            let kind = LockKind::None;
            let lock = Lock { flock, owner, kind, start: 0, end: LAST, pid: 0 };
            let lock = Some(to_wire(ino, &lock));
            let op = Op::SetLock(v1::SetLockOp { lock, ..Default::default() });
            // Until its session ends.
            let until = after(FOR_EVER);
            match mount.meta.change_in(&session, op, until).await {
                Err(failed) if failed.error.kind != ErrorKind::SessionExpired => {
                    warn!(%ino, error = %failed.error, "locks were not released");
                }
                _ => {}
            }
        }
        mount.locks.edit(ino, &gate, |_| false);
    });
    if timeout(patience, releasing).await.is_err() {
        warn!(%ino, "locks are not released yet: no metadata leader answers");
    }
}

/// A place in the queue at the leader, given up when this is dropped.
struct Place {
    mount: Arc<Mount>,
    ticket: u64,
    /// The leader has taken it away.
    over: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        // Without a runtime the mount is ending, and its session with it.
        let Some(runtime) = Handle::try_current().ok().filter(|_| !self.over) else { return };
        let (mount, ticket) = (self.mount.clone(), self.ticket);
        runtime.spawn(async move {
            // If it does not get through, the leader forgets who does not ask on.
            let op = Op::CancelLock(v1::CancelLockOp { ticket });
            let asked = timeout(BEHIND, mount.meta.ask(op)).await;
            if let Err(error) = asked.unwrap_or(Err(ErrorKind::TimedOut.into())) {
                debug!(%error, "a place in the queue for a lock was not given up");
            }
        });
    }
}

impl Place {
    /// Waits, however long, until it is this one's turn.
    async fn turn(&self, ino: InodeId, lock: &Lock) -> Result<()> {
        let meta = &self.mount.meta;
        loop {
            let session = meta.sessions.current();
            let lock = Some(to_wire(ino, lock));
            let op = Op::WaitLock(v1::WaitLockOp { lock, ticket: self.ticket });
            let request =
                v1::MetaRequest { session: session.id.0, op: Some(op), ..Default::default() };
            let answer = meta.send(&request, WAIT, Instant::now() + 2 * WAIT).await;
            match answer.map(|answered| answered.reply.result) {
                Ok(Some(Reply::Lock(v1::LockReply { turn: true, .. }))) => return Ok(()),
                Ok(Some(Reply::Lock(_))) => {}
                Ok(_) => return Err(other()),
                Err(failed) => match failed.error.kind {
                    ErrorKind::SessionExpired => {
                        if meta.sessions.replacement(session.id, meta.deadline()).await.is_err() {
                            sleep(PAUSE).await;
                        }
                    }
                    ErrorKind::TimedOut | ErrorKind::Unavailable | ErrorKind::NotLeader => {
                        sleep(PAUSE).await;
                    }
                    _ => return Err(failed.error),
                },
            }
        }
    }
}

fn would_block<T>(answer: &Result<T>) -> bool {
    answer.as_ref().is_err_and(|error| error.kind == ErrorKind::WouldBlock)
}

fn other() -> Error {
    Error::new(ErrorKind::Protocol, "a metadata server answered another kind of reply")
}

fn to_wire(ino: InodeId, lock: &Lock) -> v1::Lock {
    let Lock { flock, owner, start, end, pid, .. } = *lock;
    let kind = match lock.kind {
        LockKind::None => v1::lock::Kind::None,
        LockKind::Read => v1::lock::Kind::Read,
        LockKind::Write => v1::lock::Kind::Write,
    };
    v1::Lock { ino: ino.0, flock, owner, kind: kind.into(), start, end, pid, session: 0 }
}

impl Mount {
    async fn try_lock(
        self: &Arc<Self>,
        ino: InodeId,
        handle: HandleId,
        lock: &Lock,
        ticket: u64,
    ) -> Result<()> {
        let (mount, lock) = (self.clone(), *lock);
        to_the_end(async move { mount.lock_once(ino, handle, &lock, ticket).await }).await
    }

    async fn lock_once(
        self: &Arc<Self>,
        ino: InodeId,
        handle: HandleId,
        lock: &Lock,
        ticket: u64,
    ) -> Result<()> {
        let (locks, meta) = (&self.locks, &self.meta);
        let (owner, deadline) = ((lock.flock, lock.owner), meta.deadline());
        let unlocks = lock.kind == LockKind::None;
        if unlocks && locks.find(ino, owner, |_| ()).is_none() {
            return Ok(());
        }
        // Held until all is over, so that a release waits for it, and comes after it.
        let (gate, _shared) = loop {
            let gate = locks.begin(&meta.sessions, ino, owner, handle);
            if let Some(locked) = locks.lock_here(meta, ino, &gate, lock) {
                locks.end(ino, &gate, |_| ());
                return locked;
            }
            tell(self, ino).await;
            let shared = timeout_at(deadline, gate.clone().read_owned()).await;
            match shared {
                Ok(shared) if locks.find(ino, owner, |e| e.is(&gate)) == Some(true) => {
                    break (gate, shared);
                }
                // All was released meanwhile.
                Ok(_) => locks.end(ino, &gate, |_| ()),
                Err(_) => {
                    locks.end(ino, &gate, |_| ());
                    let what = "earlier locks are not released yet";
                    return Err(Error::new(ErrorKind::TimedOut, what));
                }
            }
        };
        let op = Op::SetLock(v1::SetLockOp { lock: Some(to_wire(ino, lock)), ticket, held: false });
        let answer = self.ask_for_lock(ino, &gate, op, deadline).await;
        locks.end(ino, &gate, |entry| match &answer {
            Ok(_) if unlocks => {
                let all = lock.start == 0 && lock.end == LAST && entry.asking == 0;
                entry.held &= !all;
            }
            Ok(session) => {
                // If another thread of the owner met the end of the session first.
                entry.doubtful |= entry.session.id != *session;
                entry.held = true;
            }
            // What it did will be known, or went with its session.
            Err(failed) => entry.doubtful |= failed.ambiguous && unsettled(&failed.error),
        });
        answer.map(drop).map_err(Error::from)
    }

    /// Asks in the session of now; in the next one if that ends, with which went whatever was done in
    /// it. Answers in which.
    async fn ask_for_lock(
        &self,
        ino: InodeId,
        gate: &Arc<RwLock<()>>,
        op: Op,
        deadline: Instant,
    ) -> Result<SessionId, Failed> {
        let (locks, meta) = (&self.locks, &self.meta);
        let known = |error| Failed { error, ambiguous: false };
        loop {
            let session = locks.session_of(&meta.sessions, ino, gate).map_err(known)?;
            match meta.change_in(&session, op.clone(), deadline).await {
                Ok(_) => return Ok(session.id),
                Err(failed) if failed.error.kind == ErrorKind::SessionExpired => {
                    meta.sessions.replacement(session.id, deadline).await.map_err(known)?;
                }
                Err(failed) => return Err(failed),
            }
        }
    }

    /// Waits for releases of the inode's locks that are under way. Answers whether there were any.
    async fn releases(&self, ino: InodeId) -> bool {
        let gates: Vec<_> = {
            let table = self.locks.table.lock();
            let entries = table.get(&ino).into_iter().flat_map(|of| &of.entries);
            entries.filter(|e| e.gate.try_read().is_err()).map(|e| e.gate.clone()).collect()
        };
        for gate in &gates {
            let _ = timeout_at(self.meta.deadline(), gate.read()).await;
        }
        !gates.is_empty()
    }
}

impl Filesystem {
    /// Locks, or unlocks, without waiting. Errors: `WouldBlock` if another holds what stands against
    /// it; `Io` if locks of this owner were lost.
    pub async fn set_lock(&self, handle: HandleId, lock: Lock) -> Result<()> {
        let ino = self.files().handle(handle)?.file.ino;
        let mut locked = self.mount().try_lock(ino, handle, &lock, 0).await;
        // What another process on this mount has closed before may be on its way.
        if would_block(&locked) && self.mount().releases(ino).await {
            locked = self.mount().try_lock(ino, handle, &lock, 0).await;
        }
        // On Linux flock(2) gives up what it holds before it asks for the other kind.
        if would_block(&locked)
            && lock.flock
            && self.mount().locks.find(ino, (true, lock.owner), |e| e.held) == Some(true)
        {
            let none = Lock { kind: LockKind::None, ..lock };
            self.mount().try_lock(ino, handle, &none, 0).await?;
        }
        locked
    }

    /// Locks as soon as that can be. Errors: as [`Self::set_lock`]; `Interrupted` if `interrupted` ends
    /// first; `Deadlock`.
    pub async fn wait_lock(
        &self,
        handle: HandleId,
        lock: Lock,
        interrupted: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        let ino = self.files().handle(handle)?.file.ino;
        let first = self.set_lock(handle, lock).await;
        if !would_block(&first) {
            return first;
        }
        let mount = self.mount().clone();
        let ticket = mount.locks.ticket.fetch_add(1, Ordering::Relaxed) + 1;
        tell(&mount, ino).await;
        let mut place = Place { mount, ticket, over: false };
        tokio::pin!(interrupted);
        loop {
            tokio::select! {
                biased;
                () = &mut interrupted => {
                    return Err(Error::new(ErrorKind::Interrupted, "a signal came"));
                }
                turn = place.turn(ino, &lock) => turn?,
            }
            // Not to be interrupted: it is answered what happened.
            let locked = self.mount().try_lock(ino, handle, &lock, ticket).await;
            if !would_block(&locked) {
                place.over = locked.is_ok();
                return locked;
            }
        }
    }

    /// What stands against a lock.
    pub async fn get_lock(&self, handle: HandleId, lock: Lock) -> Result<Option<Lock>> {
        let ino = self.files().handle(handle)?.file.ino;
        if let Some(known) = self.mount().locks.conflict_here(self.meta(), ino, &lock) {
            return Ok(known);
        }
        tell(self.mount(), ino).await;
        let op = Op::GetLock(v1::GetLockOp { lock: Some(to_wire(ino, &lock)) });
        let Reply::Lock(reply) = self.meta().ask(op).await? else { return Err(other()) };
        let session = self.session();
        Ok(reply.conflict.map(|found| Lock {
            flock: found.flock,
            owner: found.owner,
            kind: match found.kind() {
                v1::lock::Kind::None => LockKind::None,
                v1::lock::Kind::Read => LockKind::Read,
                v1::lock::Kind::Write => LockKind::Write,
            },
            start: found.start,
            end: found.end,
            pid: if found.session == session.0 { found.pid } else { 0 },
        }))
    }

    /// Fails if locks that were taken through the handle are lost.
    pub(crate) fn locks_hold(&self, ino: InodeId, handle: HandleId) -> Result<()> {
        let locks = &self.mount().locks;
        if locks.is_empty() {
            return Ok(());
        }
        let table = locks.table.lock();
        let mut of_handle = table.get(&ino).into_iter().flat_map(|of| &of.entries);
        match of_handle.any(|e| e.handles.contains(&handle) && e.is_lost(&self.meta().sessions)) {
            true => Err(lost_locks()),
            false => Ok(()),
        }
    }

    /// Whether the owner may hold locks of fcntl(2) on the inode.
    pub(crate) fn has_locks(&self, ino: InodeId, owner: u64) -> bool {
        self.mount().locks.find(ino, (false, owner), |_| ()).is_some()
    }
}

/// Releases what the owner holds by fcntl(2) of the inode.
pub(crate) async fn unlock_owner(mount: &Arc<Mount>, ino: InodeId, owner: u64) {
    let gate = mount.locks.find(ino, (false, owner), |e| e.gate.clone());
    if let Some(gate) = gate {
        release(mount, ino, gate).await;
    }
}

/// Releases what was locked through this handle alone.
pub(crate) async fn unlock_handle(mount: &Arc<Mount>, ino: InodeId, handle: HandleId) {
    for gate in mount.locks.only_through(ino, handle) {
        release(mount, ino, gate).await;
    }
}

/// May the request still take effect?
fn unsettled(error: &Error) -> bool {
    use ErrorKind::*;
    matches!(error.kind, TimedOut | Unavailable | NotLeader | StaleMap | Protocol)
}
