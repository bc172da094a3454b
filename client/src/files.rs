//! The files that are open on this mount, and their handles.
//!
//! Invariants: an inode has at most one [`File`]; while a handle exists, or data of the file is not
//! committed, the inode is declared open, so that it outlives its last name; a close takes effect
//! only if no newer open was declared.

use crate::file::File;
use crate::file::ahead::ReadAhead;
use crate::file::attr_and_layout;
use crate::leases::Mode;
use crate::locks::Locks;
use crate::mount::Mount;
use crate::types::{Attr, HandleId, OpenFlags};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::sleep;
use tracing::debug;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Result, v1};

/// Files that are flushed at a time when all are.
const TOGETHER: usize = 64;
/// Closes are gathered for this long: nobody waits for them, and one burst wakes everyone on its
/// way once.
const GATHER: Duration = Duration::from_millis(20);

/// A declaration waits so long for what is cached above to be forgotten: it may be that a read there
/// waits for a leader that waits for the declaration.
const SOON: Duration = Duration::from_secs(1);

/// One open of a file.
pub(crate) struct Handle {
    pub file: Arc<File>,
    pub append: bool,
    pub sync: bool,
    pub no_atime: bool,
    pub ahead: ReadAhead,
    /// Failures of the file that this handle was told.
    told: Mutex<u64>,
}

impl Handle {
    /// A failure of the file that this handle was not told yet.
    pub fn failure(&self) -> Result<()> {
        self.file.failure_since(&mut self.told.lock())
    }

    /// Flushes, and answers a failure of this flush or an earlier one.
    pub async fn flush(&self) -> Result<()> {
        let flushed = self.file.flush().await;
        self.failure().and(flushed)
    }
}

struct Entry {
    file: Arc<File>,
    handles: u32,
    /// Of the newest open.
    open_seq: u64,
    /// The leader knows that the inode is open. Under a lease it need not: it asks before it removes
    /// the inode.
    told: bool,
}

pub(crate) struct Files {
    mount: Arc<Mount>,
    table: Mutex<BTreeMap<InodeId, Entry>>,
    handles: RwLock<HashMap<HandleId, Arc<Handle>>>,
    /// Closes that the leader was not told yet.
    closes: Arc<Mutex<Vec<v1::close_op::Item>>>,
    next: AtomicU64,
}

impl Files {
    pub fn new(mount: Arc<Mount>) -> Arc<Self> {
        Arc::new(Self {
            mount,
            table: Mutex::default(),
            handles: RwLock::default(),
            closes: Arc::default(),
            next: AtomicU64::new(1),
        })
    }

    pub fn locks(&self) -> &Locks {
        &self.mount.locks
    }

    /// The file if it is open here.
    pub fn get(&self, ino: InodeId) -> Option<Arc<File>> {
        self.table.lock().get(&ino).map(|entry| entry.file.clone())
    }

    pub fn all(&self) -> Vec<Arc<File>> {
        self.table.lock().values().map(|entry| entry.file.clone()).collect()
    }

    pub fn handle(&self, id: HandleId) -> Result<Arc<Handle>> {
        self.handles
            .read()
            .get(&id)
            .cloned()
            .ok_or_else(|| Error::new(ErrorKind::Invalid, format!("handle {} is not open", id.0)))
    }

    /// Attributes that a server told, as this mount sees them.
    pub fn view(&self, attr: Attr) -> Attr {
        let attr = self.get(attr.ino).map_or(attr, |file| file.told(attr));
        self.mount.accesses.view(attr)
    }

    /// Opens an inode. Answers whether what the caller has cached is good.
    pub async fn open(&self, ino: InodeId, flags: OpenFlags) -> Result<(HandleId, Attr, bool)> {
        if let Some(opened) = self.open_now(ino, flags) {
            return opened;
        }
        let sessions = &self.mount.meta.sessions;
        let open_seq = sessions.next_open();
        sessions.declare(ino, open_seq);
        let op = Op::Open(v1::OpenOp { ino: ino.0, open_seq, write: flags.write });
        let opened = match self.mount.meta.ask(op).await {
            Ok(Reply::Open(reply)) => self.enter(&reply, open_seq, flags, true),
            Ok(_) => {
                Err(Error::new(ErrorKind::Protocol, "the reply to an open is of another kind"))
            }
            Err(error) => Err(error),
        };
        match opened {
            Ok((id, attr, keep)) => self.cut_if_asked(id, attr, keep, flags).await,
            Err(error) => {
                self.close(ino, open_seq);
                Err(error)
            }
        }
    }

    /// [`Self::open`] if a lease answers it.
    pub fn open_now(
        &self,
        ino: InodeId,
        flags: OpenFlags,
    ) -> Option<Result<(HandleId, Attr, bool)>> {
        let (content, mode) = self.mount.meta.leases.content(ino)?;
        if flags.truncate || (flags.write && mode != Mode::Write) {
            return None;
        }
        let sessions = &self.mount.meta.sessions;
        let open_seq = sessions.next_open();
        sessions.declare(ino, open_seq);
        let opened = self.enter(&content, open_seq, flags, false);
        // A recall that came in between did not see this open: it must be told.
        if opened.is_ok() && self.mount.meta.leases.mode(ino).is_none() {
            let op = Op::Open(v1::OpenOp { ino: ino.0, open_seq, write: false });
            let meta = self.mount.meta.clone();
            self.tell_open(ino);
            tokio::spawn(async move { meta.ask(op).await.map(drop) });
        }
        Some(opened)
    }

    /// The leader is about to be told that the inode is open. Answers the number of the newest open,
    /// or 0 if it is not open.
    pub fn tell_open(&self, ino: InodeId) -> u64 {
        let mut table = self.table.lock();
        table.get_mut(&ino).map_or(0, |entry| {
            entry.told = true;
            entry.open_seq
        })
    }

    /// All leases to read are gone: what is cached above may be old.
    pub async fn forget_content(&self) {
        let leases = &self.mount.meta.leases;
        let files = self.all().into_iter().filter(|file| !leases.may_buffer(file.ino));
        join_all(files.map(|file| async move { file.forget_above(SOON).await })).await;
    }

    /// Makes a file, by the operation that `op` gives for the number of its open, and opens it.
    pub async fn create(
        &self,
        op: impl FnOnce(u64) -> Op,
        flags: OpenFlags,
    ) -> Result<(HandleId, Attr, bool)> {
        let sessions = &self.mount.meta.sessions;
        let (open_seq, declared) = (sessions.next_open(), sessions.declarations());
        let (id, attr, keep) = match self.mount.meta.change(op(open_seq)).await? {
            Reply::Open(reply) => self.enter(&reply, open_seq, flags, true)?,
            _ => {
                return Err(Error::new(
                    ErrorKind::Protocol,
                    "the reply to a create is of another kind",
                ));
            }
        };
        sessions.declare(attr.ino, open_seq);
        if sessions.declarations() != declared {
            let op = Op::Open(v1::OpenOp { ino: attr.ino.0, open_seq, write: false });
            if let Err(error) = self.mount.meta.ask(op).await {
                self.forget(id);
                return Err(error);
            }
        }
        self.cut_if_asked(id, attr, keep, flags).await
    }

    async fn cut_if_asked(
        &self,
        id: HandleId,
        attr: Attr,
        keep: bool,
        flags: OpenFlags,
    ) -> Result<(HandleId, Attr, bool)> {
        if !flags.truncate || attr.size == 0 {
            return Ok((id, attr, keep));
        }
        let change = crate::SetAttr { size: Some(0), ..Default::default() };
        match self.handle(id)?.file.set_attr(change).await {
            Ok(attr) => Ok((id, attr, false)),
            Err(error) => {
                // The failure to open is what counts.
                let _ = self.release(id).await;
                Err(error)
            }
        }
    }

    /// Takes an answered open into the table and makes a handle.
    fn enter(
        &self,
        reply: &v1::OpenReply,
        open_seq: u64,
        flags: OpenFlags,
        told: bool,
    ) -> Result<(HandleId, Attr, bool)> {
        let (attr, layout) = attr_and_layout(reply)?;
        let file = {
            let mut table = self.table.lock();
            let entry = table.entry(attr.ino).or_insert_with(|| Entry {
                file: Arc::new(File::new(self.mount.clone(), attr, layout)),
                handles: 0,
                open_seq,
                told,
            });
            entry.handles += 1;
            entry.told |= told;
            entry.open_seq = entry.open_seq.max(open_seq);
            entry.file.clone()
        };
        let view = match file.opened(attr, layout, reply.extents.clone()) {
            Ok(view) => view,
            Err(error) => {
                self.leave(attr.ino);
                return Err(error);
            }
        };
        let keep = self.mount.note_open(attr.ino, attr.data_version);
        let told = Mutex::new(file.failures());
        let handle = Handle {
            file,
            append: flags.append,
            sync: flags.sync,
            no_atime: flags.no_atime,
            ahead: ReadAhead::default(),
            told,
        };
        let id = HandleId(self.next.fetch_add(1, Ordering::Relaxed));
        self.handles.write().insert(id, Arc::new(handle));
        Ok((id, view, keep))
    }

    /// The handle is gone; the last one of a file commits what is left and closes it.
    pub async fn release(&self, id: HandleId) -> Result<()> {
        let handle = self.handle(id)?;
        let result = if handle.file.is_dirty() { handle.flush().await } else { handle.failure() };
        self.forget(id);
        result
    }

    fn forget(&self, id: HandleId) {
        let handle = self.handles.write().remove(&id);
        if let Some(handle) = handle {
            self.leave(handle.file.ino);
        }
    }

    /// One handle less.
    fn leave(&self, ino: InodeId) {
        let mut table = self.table.lock();
        let Some(entry) = table.get_mut(&ino) else { return };
        entry.handles -= 1;
        if entry.handles == 0 {
            let (open_seq, told) = (entry.open_seq, entry.told);
            table.remove(&ino);
            drop(table);
            match told {
                true => self.close(ino, open_seq),
                false => self.mount.meta.sessions.withdraw(ino, open_seq),
            }
        }
    }

    /// Tells the leader, behind the caller's back, as often as it takes.
    fn close(&self, ino: InodeId, open_seq: u64) {
        self.mount.meta.sessions.withdraw(ino, open_seq);
        let mut closes = self.closes.lock();
        closes.push(v1::close_op::Item { ino: ino.0, open_seq });
        if closes.len() > 1 {
            return;
        }
        let (meta, closes) = (self.mount.meta.clone(), self.closes.clone());
        tokio::spawn(async move {
            sleep(GATHER).await;
            let items = std::mem::take(&mut *closes.lock());
            let op = Op::Close(v1::CloseOp { items });
            while let Err(error) = meta.ask(op.clone()).await {
                debug!(%error, "closes did not get through; trying on");
                sleep(SOON).await;
            }
        });
    }

    /// The end of the session closes what is open in it: nothing is left to tell.
    pub fn closes_with_session(&self) {
        self.closes.lock().clear();
    }

    /// Commits everything of all files, many at a time. Answers the first failure.
    pub async fn flush_all(&self) -> Result<()> {
        let dirty = self.all().into_iter().filter(|file| file.is_dirty());
        let flushes = stream::iter(dirty.map(|file| async move { file.flush().await }));
        let mut flushes = flushes.buffer_unordered(TOGETHER);
        let mut first = Ok(());
        while let Some(flushed) = flushes.next().await {
            first = first.and(flushed);
        }
        first
    }
}
