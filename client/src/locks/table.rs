//! The table of locks, which decides what it can without asking.
//!
//! Invariants: locks that the leader does not know are taken only while the right to lasts; what
//! this mount may hold is in the table, so that closing a file on which it holds nothing costs no
//! request; a recall has few locks of the inode to tell, so that it is answered in time.

use super::entry::{Gate, Holder, OfInode, Owner};
use crate::cache::Leases;
use crate::meta::{Session, Sessions};
use crate::types::{HandleId, Lock, LockKind};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tracing::warn;
use weft_net::sync::Mutex;
use weft_proto::locks::{MAX_LOCKS, Ranges};
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId, v1};

/// Most ranges of one inode that the leader does not know. Telling of each is a commit, and who
/// looks at the file waits for all: some seconds, of a leader that is busy.
pub(super) const MAX_UNTOLD: usize = 512;

/// All owners of a mount.
pub(super) struct Table {
    sessions: Arc<Sessions>,
    leases: Arc<Leases>,
    inodes: Mutex<BTreeMap<InodeId, OfInode>>,
    /// Entries in the table: mostly none.
    count: AtomicUsize,
}

pub(crate) fn lost_locks() -> Error {
    let what = "the cluster declared this mount dead, and its locks are lost; close the file";
    Error::new(ErrorKind::Io, what)
}

impl Table {
    pub fn new(sessions: Arc<Sessions>, leases: Arc<Leases>) -> Self {
        Self { sessions, leases, inodes: Mutex::default(), count: AtomicUsize::new(0) }
    }

    /// A session is over: says how many lose their locks.
    pub fn lost_with(&self, session: SessionId) {
        let table = self.inodes.lock();
        let entries = table.values().flat_map(|of| &of.entries);
        let lost = entries.filter(|e| e.held && e.session.id == session).count();
        if lost > 0 {
            let what = "owners have lost their locks; what they do with the files fails";
            warn!(%session, "{lost} {what}");
        }
    }

    /// Whether anybody's locks on the inode are lost.
    pub fn lost_on(&self, ino: InodeId) -> bool {
        !self.is_empty()
            && self
                .inodes
                .lock()
                .get(&ino)
                .is_some_and(|of| of.entries.iter().any(|e| e.is_lost(&self.sessions)))
    }

    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// The owner is about to ask for something.
    pub fn begin(&self, ino: InodeId, owner: Owner, handle: HandleId) -> Gate {
        let mut table = self.inodes.lock();
        let entries = &mut table.entry(ino).or_default().entries;
        if let Some(entry) = entries.iter_mut().find(|e| e.owner == owner) {
            if !entry.handles.contains(&handle) {
                entry.handles.push(handle);
            }
            entry.asking += 1;
            return entry.gate.clone();
        }
        self.count.fetch_add(1, Ordering::AcqRel);
        let gate = Gate::default();
        entries.push(Holder {
            owner,
            session: self.sessions.current(),
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
    pub fn session_of(&self, ino: InodeId, gate: &Gate) -> Result<Arc<Session>> {
        let mut session = Err(lost_locks());
        self.edit(ino, gate, |entry| {
            if !entry.is_lost(&self.sessions) {
                if !entry.held {
                    entry.session = self.sessions.current();
                }
                session = Ok(entry.session.clone());
                entry.told = true;
            }
            true
        });
        session
    }

    /// A request of [`Self::begin`] is over; `change` says what it led to.
    pub fn end(&self, ino: InodeId, gate: &Gate, change: impl FnOnce(&mut Holder)) {
        self.edit(ino, gate, |entry| {
            entry.asking -= 1;
            change(entry);
            entry.held || entry.doubtful || entry.asking > 0
        });
    }

    /// Nobody waits any more for a request of the owner that goes on: what it holds is not known.
    pub fn doubt(&self, ino: InodeId, owner: Owner) {
        let mut table = self.inodes.lock();
        let entries = table.get_mut(&ino).into_iter().flat_map(|of| &mut of.entries);
        entries.filter(|e| e.owner == owner).for_each(|e| e.doubtful = true);
    }

    /// Changes an entry; it stays if `change` says so. Answers whether it was there.
    pub fn edit(
        &self,
        ino: InodeId,
        gate: &Gate,
        change: impl FnOnce(&mut Holder) -> bool,
    ) -> bool {
        let mut table = self.inodes.lock();
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

    pub fn find<T>(
        &self,
        ino: InodeId,
        owner: Owner,
        read: impl FnOnce(&Holder) -> T,
    ) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let table = self.inodes.lock();
        table.get(&ino)?.entries.iter().find(|e| e.owner == owner).map(read)
    }

    /// Gates of the owners that asked through this handle and no other; it is forgotten of the
    /// rest.
    pub fn only_through(&self, ino: InodeId, handle: HandleId) -> Vec<Gate> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut table = self.inodes.lock();
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

    /// Locks without asking, for an owner that [`Self::begin`] entered. `None`: the leader has to
    /// be asked, about this and from now on.
    pub fn lock_here(&self, ino: InodeId, gate: &Gate, lock: &Lock) -> Option<Result<()>> {
        let mut table = self.inodes.lock();
        let of = table.get_mut(&ino)?;
        // A recall first takes the right away and then tells what it finds under this same lock.
        // What is more than a session may hold the leader refuses, and not what it is told of.
        of.told = of.told
            || !self.leases.may_lock(ino)
            || of.untold() >= MAX_UNTOLD
            || self.count.load(Ordering::Acquire) > MAX_LOCKS;
        if of.told {
            return None;
        }
        if of.against(&self.sessions, lock).is_some() {
            let what = "another process holds a lock";
            return Some(Err(Error::new(ErrorKind::WouldBlock, what)));
        }
        let entry = of.entries.iter_mut().find(|e| e.is(gate))?;
        if entry.is_lost(&self.sessions) {
            return Some(Err(lost_locks()));
        }
        entry.here.set(lock.start, lock.end, lock.kind.write());
        if lock.kind != LockKind::None {
            entry.here.pid = lock.pid;
        }
        if !entry.held {
            entry.session = self.sessions.current();
        }
        entry.held = !entry.here.ranges.is_empty();
        Some(Ok(()))
    }

    /// What stands against a lock, if the leader need not be asked.
    pub fn conflict_here(&self, ino: InodeId, lock: &Lock) -> Option<Option<Lock>> {
        let table = self.inodes.lock();
        let of = table.get(&ino);
        let knows = self.leases.may_lock(ino) && !of.is_some_and(|of| of.told);
        knows.then(|| of.and_then(|of| of.against(&self.sessions, lock)))
    }

    /// From now on the leader is asked for the locks of the inode. Answers the gates of the owners
    /// that it does not know yet.
    pub fn unpublished(&self, ino: InodeId) -> Vec<Gate> {
        let mut table = self.inodes.lock();
        let Some(of) = table.get_mut(&ino) else { return Vec::new() };
        of.told = true;
        let unpublished = of.entries.iter_mut().filter(|e| !e.here.ranges.is_empty());
        unpublished
            .map(|entry| {
                entry.told = true;
                entry.gate.clone()
            })
            .collect()
    }

    /// Releases what only this mount knows of. Answers whether that was all.
    pub fn release_here(&self, ino: InodeId, gate: &Gate) -> bool {
        let mut all = false;
        self.edit(ino, gate, |entry| {
            all = !entry.told && entry.asking == 0;
            !all
        });
        all
    }

    /// Inodes of which somebody holds locks, or asks for them.
    pub fn locked(&self) -> Vec<InodeId> {
        self.inodes.lock().keys().copied().collect()
    }

    /// All owners; `None` while one of them asks for something, or the leader does not know all.
    pub fn at_rest(&self) -> Option<Vec<v1::LockHolder>> {
        let table = self.inodes.lock();
        let entries = table.iter().flat_map(|(ino, of)| of.entries.iter().map(|e| (*ino, e)));
        let holder = |(ino, e): (InodeId, &Holder)| {
            let rests = e.asking == 0 && e.here.ranges.is_empty() && e.gate.try_write().is_ok();
            rests.then(|| v1::LockHolder {
                ino: ino.0,
                flock: e.owner.0,
                owner: e.owner.1,
                lost: e.is_lost(&self.sessions),
                handles: e.handles.iter().map(|handle| handle.0).collect(),
            })
        };
        entries.map(holder).collect()
    }

    /// An owner whose locks the leader knows.
    pub fn adopt(&self, ino: InodeId, holder: Holder) {
        let mut table = self.inodes.lock();
        let of = table.entry(ino).or_default();
        of.told = true;
        of.entries.push(holder);
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// Held by who tells the leader of locks of the inode, if there are any.
    pub fn telling(&self, ino: InodeId) -> Option<Arc<tokio::sync::Mutex<()>>> {
        self.inodes.lock().get(&ino).map(|of| of.telling.clone())
    }

    /// Gates of the owners whose locks are being released.
    pub fn releasing(&self, ino: InodeId) -> Vec<Gate> {
        let table = self.inodes.lock();
        let entries = table.get(&ino).into_iter().flat_map(|of| &of.entries);
        entries.filter(|e| e.gate.try_read().is_err()).map(|e| e.gate.clone()).collect()
    }

    /// Fails if locks that were taken through the handle are lost.
    pub fn hold(&self, ino: InodeId, handle: HandleId) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let table = self.inodes.lock();
        let mut of_handle = table.get(&ino).into_iter().flat_map(|of| &of.entries);
        match of_handle.any(|e| e.handles.contains(&handle) && e.is_lost(&self.sessions)) {
            true => Err(lost_locks()),
            false => Ok(()),
        }
    }
}
