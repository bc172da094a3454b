//! The files that are open on this mount, and their handles.
//!
//! Invariants: an inode has at most one [`File`]; while a handle exists, or data of the file is not
//! committed, the inode is open ([`crate::namespace::Opens`]), so that it outlives its last name.

use super::context::Context;
use super::directories::{Directories, not_open};
use super::handle::Handle;
use super::inode::File;
use super::lease::attr_and_layout;
use crate::cache::AccessTimes;
use crate::namespace::{Owing, Synced};
use crate::types::{Attr, HandleId, OpenFlags};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_net::sync::{Mutex, RwLock};
use weft_proto::{InodeId, Result, v1};

/// Files that are flushed at a time when all are.
pub(super) const MAX_FLUSHES: usize = 64;

/// A handle, the attributes of its file, and whether what is cached above of the content is good.
pub(crate) type Entered = (HandleId, Attr, bool);

struct InUse {
    file: Arc<File>,
    /// Without any, it is here until what was written is committed.
    handles: u32,
}

pub(crate) struct Files {
    pub(super) context: Arc<Context>,
    atimes: Arc<AccessTimes>,
    table: Mutex<BTreeMap<InodeId, InUse>>,
    /// Named by the numbers of their opens, as directories are.
    pub(super) handles: RwLock<HashMap<HandleId, Arc<Handle>>>,
    pub(super) directories: Directories,
}

impl Files {
    pub fn new(context: Arc<Context>, atimes: Arc<AccessTimes>) -> Arc<Self> {
        let log = context.log.clone();
        let files = Arc::new(Self {
            context,
            atimes,
            table: Mutex::default(),
            handles: RwLock::default(),
            directories: Directories::default(),
        });
        let owing: Arc<dyn Owing> = files.clone();
        log.set_owing(Arc::downgrade(&owing));
        files
    }

    /// The file if it is open here.
    pub fn get(&self, ino: InodeId) -> Option<Arc<File>> {
        self.table.lock().get(&ino).map(|entry| entry.file.clone())
    }

    pub fn all(&self) -> Vec<Arc<File>> {
        self.table.lock().values().map(|entry| entry.file.clone()).collect()
    }

    /// What was read ahead and is not read on is not kept.
    pub fn rest(&self) {
        self.handles.read().values().for_each(|handle| handle.ahead.rest());
    }

    pub fn handle(&self, id: HandleId) -> Result<Arc<Handle>> {
        self.handles.read().get(&id).cloned().ok_or_else(|| not_open(id))
    }

    /// Attributes that a server told, as this mount sees them.
    pub fn view(&self, attr: Attr) -> Attr {
        let attr = self.context.leases.newest(attr);
        let attr = self.get(attr.ino).map_or(attr, |file| file.told(attr));
        self.atimes.view(attr)
    }

    /// As [`Self::view`], unless something has to be committed first ([`File::told_now`]).
    pub fn view_now(&self, attr: Attr) -> Option<Attr> {
        let attr = self.context.leases.newest(attr);
        let attr = match self.get(attr.ino) {
            Some(file) => file.told_now(attr)?,
            None => attr,
        };
        Some(self.atimes.view(attr))
    }

    /// Takes an answered open into the table and makes a handle, which ends the open when it is
    /// gone.
    pub(super) fn enter(
        &self,
        reply: &v1::OpenReply,
        number: u64,
        flags: OpenFlags,
    ) -> Result<Entered> {
        let (attr, layout) = attr_and_layout(reply)?;
        let file = {
            let mut table = self.table.lock();
            let entry = table.entry(attr.ino).or_insert_with(|| InUse {
                file: Arc::new(File::new(self.context.clone(), attr, layout)),
                handles: 0,
            });
            entry.handles += 1;
            entry.file.clone()
        };
        let view = match file.opened(attr, layout, reply.extents.clone()) {
            Ok(view) => view,
            Err(error) => {
                self.leave(attr.ino);
                return Err(error);
            }
        };
        let (same, coherence) = self.context.pages.note_open(attr.ino, attr.data_version);
        // A recall that found no file to take pages back from took the lease before.
        let leased = self.context.leases.attr(attr.ino);
        let keep = same && leased.is_some_and(|of| of.data_version <= attr.data_version);
        let id = HandleId(number);
        let handle = Arc::new(Handle::new(file, flags, coherence));
        self.handles.write().insert(id, handle);
        Ok((id, view, keep))
    }

    /// A file that was open with so many handles in another process.
    pub(super) fn adopt_file(&self, file: Arc<File>, handles: usize) {
        if let Ok(handles @ 1..) = u32::try_from(handles) {
            self.table.lock().insert(file.ino, InUse { file, handles });
        }
    }

    /// The handle is gone; the last one of a file commits what is left and closes it.
    pub async fn release(&self, id: HandleId) -> Result<()> {
        let handle = self.handle(id)?;
        if handle.is_closed() && self.forget_if_others_stay(id, &handle) {
            return handle.failure_at_release();
        }
        let flushed = match handle.file.is_closed() {
            true => Ok(()),
            false => handle.file.flush().await,
        };
        let result = handle.failure_at_release().and(flushed);
        self.forget(id);
        result
    }

    /// Forgets a handle, unless it is the last of its file.
    fn forget_if_others_stay(&self, id: HandleId, handle: &Handle) -> bool {
        let ino = handle.file.ino;
        match self.table.lock().get_mut(&ino) {
            Some(entry) if entry.handles > 1 => entry.handles -= 1,
            _ => return false,
        }
        self.handles.write().remove(&id);
        handle.end();
        self.ended(handle);
        true
    }

    pub(super) fn forget(&self, id: HandleId) {
        let handle = self.handles.write().remove(&id);
        if let Some(handle) = handle {
            handle.end();
            self.leave(handle.file.ino);
            self.ended(&handle);
        }
    }

    /// A handle is no more.
    fn ended(&self, handle: &Handle) {
        if handle.maps.load(Ordering::Relaxed) {
            self.context.opens.unmap(handle.file.ino);
        }
        self.closed(handle.file.ino);
    }

    /// An inode is open once less.
    pub(super) fn closed(&self, ino: InodeId) {
        let Context { opens, log, leases, .. } = &*self.context;
        opens.end(ino);
        log.unused(ino, |ino| opens.is_open(ino) || leases.is_known_above(ino));
    }

    /// One handle less, which its caller still has, or another reference to the file for it.
    fn leave(&self, ino: InodeId) {
        let mut table = self.table.lock();
        let Some(entry) = table.get_mut(&ino) else { return };
        entry.handles -= 1;
        // Whoever is about to change it would do so unseen.
        let used = Arc::strong_count(&entry.file) > 2;
        if entry.handles == 0 && !entry.file.has_unwritten() && !used {
            table.remove(&ino);
            self.context.log.left(ino);
        }
    }

    /// Forgets files without handles of which everything is committed, or given up.
    pub fn sweep(&self) {
        let mut gone = Vec::new();
        self.table.lock().retain(|_, entry| {
            entry.file.note_not_made();
            if entry.handles > 0 || entry.file.has_unwritten() {
                return true;
            }
            // Whoever is about to change it would do so unseen.
            let used = Arc::strong_count(&entry.file) > 1;
            gone.extend((!used).then_some(entry.file.ino));
            used
        });
        gone.into_iter().for_each(|ino| self.context.log.left(ino));
    }

    /// Nothing is cached above of an inode.
    pub fn not_cached(&self, ino: InodeId) {
        self.context.pages.not_coherent(ino);
    }

    /// The group has never heard of this file, and never will.
    pub fn never_was(&self, ino: InodeId) {
        let mut table = self.table.lock();
        if let Some(entry) = table.get(&ino).filter(|entry| entry.handles == 0) {
            entry.file.abandon();
            table.remove(&ino);
        }
    }

    /// The mount is ending: nothing is taken in any more.
    pub fn close(&self) {
        self.context.closing.store(true, Ordering::Release);
    }

    /// [`Self::commit_all`]; answers the first failure, also of files that were made and closed.
    pub async fn flush_all(&self) -> Result<()> {
        let committed = self.commit_all().await;
        self.sweep();
        // Told first: what else failed fails again, or is told to who has it open.
        self.context.log.take_lost(Synced::All).and(committed)
    }

    /// Commits what was written under ranges, which has no place in the log of changes: before a
    /// name is changed that may be of one of these files.
    pub async fn write_ranges_back(&self) -> Result<()> {
        let files = self.all().into_iter().filter(|file| file.owes_ranges());
        let written = join_all(files.map(|file| async move {
            let written = file.write_back().await;
            if file.owes_ranges() { written } else { Ok(()) }
        }));
        written.await.into_iter().collect()
    }

    /// Commits everything of all files, many at a time. Answers the first failure.
    pub async fn commit_all(&self) -> Result<()> {
        // Together, as far as they can be.
        let dirty = self.all().into_iter().filter(|file| file.is_dirty());
        let dirty: Vec<_> = dirty.map(|file| (file.failures(), file)).collect();
        for (_, file) in &dirty {
            file.defer();
        }
        let settled = self.context.log.settle_log().await;
        let flushes = dirty.into_iter().map(|(mut seen, file)| async move {
            match file.is_dirty() && file.failures() == seen {
                true => file.flush().await,
                false => file.failure_since(&mut seen),
            }
        });
        let mut flushes = stream::iter(flushes).buffer_unordered(MAX_FLUSHES);
        let mut first = Ok(());
        while let Some(flushed) = flushes.next().await {
            first = first.and(flushed);
        }
        first.and(settled)
    }
}
