//! Creates that are pending: files that were made on this mount and that the metadata group has not
//! heard of yet.
//!
//! Under a lease to write a directory a file is made here, if its name is known to be free: nobody
//! else makes one there, or looks, without recalling the lease. The group is told with the first
//! commit of the file, so that create, write and close are one commit; or before, when somebody
//! wants to know; or, if it was closed with nothing written to it, behind its caller's back. What
//! is to be told goes together.
//!
//! Invariants: a request about such a file or its directory is sent after the group was told
//! ([`Publisher::settle`]), and so is the answer to a recall; nothing is made twice: a file keeps
//! its number, by which the group knows it, also in the session after the one that it was made in;
//! one that cannot be made is told to its handles (I8), or without any to whoever syncs its
//! directory or the filesystem next; whoever makes files waits when many are not told yet.

use super::pending::{Stage, Table};
use crate::meta::Group;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;
use tokio::time::Instant;
use weft_proto::{InodeId, Result};

/// Makes files here, and tells the group of them.
pub(crate) struct Publisher {
    pub(super) group: Arc<Group>,
    /// Files in the table.
    pub(super) count: AtomicUsize,
    pub(super) table: Mutex<Table>,
    /// Held by who tells: of this session, and of earlier ones.
    pub(super) turns: [Arc<tokio::sync::Mutex<()>>; 2],
    /// Something is in the queue that nobody waits for; the same.
    pub(super) behind: [Notify; 2],
}

impl Publisher {
    pub fn new(group: Arc<Group>) -> Self {
        Self {
            group,
            count: AtomicUsize::new(0),
            table: Mutex::default(),
            turns: Default::default(),
            behind: Default::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Whether the group has not heard of this file, or its handles of its failure.
    pub fn has(&self, ino: InodeId) -> bool {
        !self.is_empty() && self.table.lock().files.contains_key(&ino)
    }

    /// Whether there is something that the group has not heard of in what [`Publisher::settle`] of
    /// this inode is about.
    pub fn is_unpublished(&self, ino: InodeId) -> bool {
        !self.is_empty()
            && self.table.lock().concerned(Some(&[ino])).is_ok_and(|inos| !inos.is_empty())
    }

    /// When the file was made, if the group has not heard of it.
    pub fn made_at(&self, ino: InodeId) -> Option<Instant> {
        if self.is_empty() {
            return None;
        }
        self.table.lock().files.get(&ino).map(|made| made.at)
    }

    /// The handles were told if the file could not be made.
    pub fn forget_failed(&self, ino: InodeId) {
        let mut table = self.table.lock();
        if table.files.get(&ino).is_some_and(|made| matches!(made.stage, Stage::Failed(_))) {
            table.files.remove(&ino);
            self.counted(&table);
        }
    }

    /// A file was closed with nothing written to it: it is told soon, if it was not. Answers
    /// whether there is nothing to tell its handles.
    pub fn closed(&self, ino: InodeId) -> bool {
        if self.is_empty() {
            return true;
        }
        let table = &mut *self.table.lock();
        self.want_behind(table, ino);
        !table.files.get(&ino).is_some_and(|made| matches!(made.stage, Stage::Failed(_)))
    }

    /// The last handle of a file is gone.
    pub fn left(&self, ino: InodeId) {
        if self.is_empty() {
            return;
        }
        let table = &mut *self.table.lock();
        let Some(made) = table.files.get_mut(&ino) else { return };
        made.left = true;
        match made.stage {
            Stage::Failed(_) => {
                table.lose(ino);
                self.counted(table);
            }
            Stage::Here => self.want_behind(table, ino),
            Stage::Leaving(_) => {}
        }
    }

    /// Nobody waits for the answer.
    pub(super) fn want_behind(&self, table: &mut Table, ino: InodeId) {
        if table.want(ino, None).is_some() {
            self.wake();
        }
    }

    /// Has what waits be told, if anything does.
    pub fn wake(&self) {
        self.behind.iter().for_each(Notify::notify_one);
    }

    /// The failure of files in a directory, or anywhere, that were closed before it was known; told
    /// once.
    pub fn take_lost(&self, dir: Option<InodeId>) -> Result<()> {
        self.table.lock().take_lost(dir)
    }

    pub(super) fn counted(&self, table: &Table) {
        self.count.store(table.files.len(), Ordering::Release);
    }

    /// It is not known whether the group has heard of this file.
    pub(super) fn back(&self, table: &mut Table, ino: InodeId) {
        if let Some(made) = table.files.get_mut(&ino)
            && matches!(made.stage, Stage::Leaving(_))
        {
            made.stage = Stage::Here;
            if made.left {
                self.wake();
            }
        }
    }

    /// The session has ended, and with it what was set aside for it.
    pub fn lost(&self) {
        let mut table = self.table.lock();
        table.numbers.clear();
        table.ended += 1;
    }
}
