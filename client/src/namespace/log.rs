//! The log of changes: what was done on this mount under leases to write, was answered at once, and
//! the metadata group has not heard of yet.
//!
//! Under a lease to write a directory, names in it are made, moved and taken away here, if all that
//! the group would look at is known and held: nobody else changes it, or looks, without recalling
//! the lease. What is made is held, too, so that a whole tree is. Attributes, and the content of
//! files that are closed, go the same way. The group is told in batches, each one entry of its log:
//! when enough has come together, when the oldest has waited for long enough, when somebody wants
//! to know, and when somebody syncs.
//!
//! Invariants: entries are told in order, and the next batch only when the last was answered, so
//! that what survives the end of this mount is a prefix of what it did (I2); a request about what
//! entries are about is sent after those were told, one that changes something after all were
//! ([`ChangeLog::settle`]), and the answer to a recall, too (I6); nothing is done twice (I4); what
//! cannot be done is told to the handles of the file, or to who syncs that, its directory or the
//! filesystem next (I8); whoever does more waits when very much is not told yet.

use super::entries::{Made, Of, Table};
use super::lost::{Lost, Synced};
use super::owed::{Owed, Owing};
use crate::meta::Group;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout_at;
use weft_net::sync::Mutex;
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId};

/// Entries that wait; who does more waits for the group.
pub(super) const MAX_PENDING: usize = 8192;
/// So many are told at once, and as soon as there are.
pub(super) const BATCH: usize = 512;

/// No session has this number.
const NONE: SessionId = SessionId(u64::MAX);

/// What was done here, and how the group is told.
pub(crate) struct ChangeLog {
    pub(super) group: Arc<Group>,
    /// The group is told of what was done so long ago.
    pub(super) publish_age: Duration,
    /// Entries, and what was made and its handles have to be told of.
    count: AtomicUsize,
    pub(super) table: Mutex<Table>,
    /// Held by who tells: of this session, and of earlier ones.
    pub(super) turns: [Arc<tokio::sync::Mutex<()>>; 2],
    /// Something is to be told that nobody waits for; the same.
    pub(super) due: [Notify; 2],
    /// A place was filled, or given up. Only who tells of this session waits.
    pub(super) filled: Notify,
    /// All there is now is to be told.
    pub(super) hurry: AtomicBool,
    pub(super) owed: Arc<Owed>,
    /// Something is lost of what is removed, and may be open still.
    removed_is_lost: AtomicBool,
}

impl ChangeLog {
    pub fn new(group: Arc<Group>, publish_age: Duration) -> Self {
        let owed = Arc::new(Owed::new(group.sessions.clone()));
        Self {
            group,
            publish_age,
            count: AtomicUsize::new(0),
            table: Mutex::default(),
            turns: Default::default(),
            due: Default::default(),
            filled: Notify::new(),
            hurry: AtomicBool::new(false),
            owed,
            removed_is_lost: AtomicBool::new(false),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Whether the group has not heard that this was made, or its handles of its failure.
    pub fn has(&self, ino: InodeId) -> bool {
        !self.is_empty() && self.table.lock().made.contains_key(&ino)
    }

    /// Whether there are entries about this inode.
    pub fn is_unpublished(&self, ino: InodeId) -> bool {
        let concerned = |table: &Table| table.concerned(Some(&[ino]));
        !self.is_empty() && concerned(&self.table.lock()).is_ok_and(|last| last != [None; 2])
    }

    /// Why a file could not be made; its handles are told.
    pub fn take_failure(&self, ino: InodeId) -> Option<Error> {
        if self.is_empty() {
            return None;
        }
        let mut table = self.table.lock();
        let error = table.made.get(&ino)?.failed.clone()?;
        table.made.remove(&ino);
        self.counted(&table);
        Some(error)
    }

    /// The last handle of a file is gone.
    pub fn left(&self, ino: InodeId) {
        if self.is_empty() {
            return;
        }
        let table = &mut *self.table.lock();
        let Some(made) = table.made.get_mut(&ino) else { return };
        made.left = true;
        if made.failed.is_some() {
            // Who syncs was told.
            table.made.remove(&ino);
            self.counted(table);
        }
    }

    /// Has all that waits be told.
    pub fn wake(&self) {
        self.hurry.store(true, Ordering::Release);
        self.due.iter().for_each(Notify::notify_one);
    }

    /// Tells who has content that may lose its place.
    pub fn set_owing(&self, files: Weak<dyn Owing>) {
        self.owed.set_owing(files);
    }

    /// Content is about to lose its place: to be called before who waits for the log can see that.
    pub fn owe(&self) {
        self.owed.owe();
    }

    /// Whether there may be content that has lost its place.
    pub fn owes(&self) -> bool {
        self.owed.owes()
    }

    /// Returns when content that has lost its place is committed, or given up and told. Not for who
    /// commits content.
    pub async fn pay(&self) -> Result<()> {
        if !self.owes() {
            return Ok(());
        }
        let paid = timeout_at(self.group.deadline(), self.owed.paid());
        tokio::select! {
            biased;
            paid = paid => paid.map_err(|_| {
                let what = "what was closed in a session that is over is not committed yet";
                Error::new(ErrorKind::TimedOut, what)
            }),
            () = self.group.sessions.ended() => {
                Err(Error::new(ErrorKind::Unavailable, "the mount has ended"))
            }
        }
    }

    /// Whether a place was neither filled nor given up.
    pub fn has_place(&self, seq: u64) -> bool {
        self.table.lock().find(seq).is_some()
    }

    /// A file was committed outside of the log, with what was written to it by this time.
    pub fn was_written(&self, ino: InodeId, at_ns: i64) {
        if self.group.leases.has_xattr_steps(ino) {
            self.table.lock().was_written(ino, at_ns);
        }
    }

    /// What was written to a file is lost, and nobody who wrote it can be told. Whoever syncs it,
    /// this directory, or everything is.
    pub fn lose(&self, file: InodeId, dir: Option<InodeId>, error: &Error) {
        self.table.lock().lost.lose([file], dir, error);
    }

    /// An inode is removed, and `gone`, or is when it is [`Self::unused`]: nobody can be told any
    /// more what is lost of it. If it comes to stay all the same, that is told.
    pub(super) fn removed(&self, table: &mut Table, ino: InodeId, gone: bool) {
        match gone {
            true => table.lost.forget(ino),
            false => table.lost.removed(ino),
        }
        self.removed_is_lost.store(table.lost.has_removed(), Ordering::Release);
    }

    /// An inode is open no more, or not known any more to who could open it without its name:
    /// `is_open` says whether it is either still.
    pub fn unused(&self, ino: InodeId, is_open: impl Fn(InodeId) -> bool) {
        if self.removed_is_lost.load(Ordering::Acquire) && !is_open(ino) {
            let mut table = self.table.lock();
            table.lost.unused(ino);
            self.removed_is_lost.store(table.lost.has_removed(), Ordering::Release);
        }
    }

    /// What a sync has to be told, once.
    pub fn take_lost(&self, of: Synced) -> Result<()> {
        self.table.lock().lost.take(of)
    }

    /// What the next sync of everything is told.
    pub fn look_at_lost(&self) -> Result<()> {
        self.table.lock().lost.look()
    }

    pub(super) fn counted(&self, table: &Table) {
        self.count.store(table.len() + table.made.len(), Ordering::Release);
    }

    /// Something may be pushed, so that whoever takes a lease away looks here.
    pub(super) fn expect(&self, table: &Table) {
        self.count.store(table.len() + table.made.len() + 1, Ordering::Release);
    }

    /// Something was pushed.
    pub(super) fn pushed(&self, table: &Table) {
        self.counted(table);
        if table.this.len() == 1 || table.this.len() >= BATCH {
            self.due[Of::This as usize].notify_one();
        }
    }

    /// The session has ended, and with it what was set aside for it.
    pub fn lost(&self) {
        let mut table = self.table.lock();
        table.numbers.clear();
        table.ended += 1;
        if table.part(NONE) || table.has_content() {
            self.owe();
        }
        self.counted(&table);
        drop(table);
        self.filled.notify_one();
        self.due[Of::Earlier as usize].notify_one();
    }

    /// Whether the group can be told of anything.
    pub fn is_known(&self) -> bool {
        self.table.lock().batches
    }

    /// The mount is ending: from now on the group is asked, and nothing is done here.
    pub fn close(&self) {
        self.table.lock().closed = true;
    }

    /// Until [`Self::unseal`] the group is asked, and nothing is done here.
    pub fn seal(&self) {
        self.table.lock().sealed = true;
    }

    /// Things are done here again.
    pub fn unseal(&self) {
        self.table.lock().sealed = false;
    }

    /// The mount is gone: what was not told never is.
    pub fn end(&self) {
        let gone = {
            let mut table = self.table.lock();
            let gone = (std::mem::take(&mut table.this), std::mem::take(&mut table.earlier));
            self.counted(&table);
            gone
        };
        // Files hold the log.
        drop(gone);
        self.filled.notify_one();
    }

    /// Whether what makes the namespace larger has to ask first.
    pub fn is_low_on_room(&self) -> bool {
        self.group.low_on_room.load(Ordering::Relaxed)
    }

    /// What nobody was told. `None` while there is something that the group, or a handle, has not
    /// heard of.
    pub(super) fn rest(&self) -> Option<Lost> {
        let table = self.table.lock();
        (table.len() == 0 && table.made.is_empty()).then(|| table.lost.clone())
    }

    pub(super) fn made(left: bool) -> Made {
        Made { entries: Vec::new(), failed: None, left }
    }
}
