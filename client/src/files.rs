//! The files and directories that are open on this mount, and their handles.
//!
//! Invariants: an inode has at most one [`File`]; while a handle exists, or data of the file is not
//! committed, the inode is open ([`crate::opens`]), so that it outlives its last name.

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
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;
use weft_proto::v1::make_files_op;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Result, v1};

/// Files that are flushed at a time when all are.
const TOGETHER: usize = 64;
/// A declaration waits so long for what is cached above to be forgotten: it may be that a read there
/// waits for a leader that waits for the declaration.
const SOON: Duration = Duration::from_secs(1);

/// The last descriptor of a handle was closed so long ago at most, if the end of that is on its
/// way.
const CLOSING: Duration = Duration::from_millis(500);

/// One open of a file.
pub(crate) struct Handle {
    pub file: Arc<File>,
    pub append: bool,
    pub sync: bool,
    pub no_atime: bool,
    /// It is open for writing, or was written through all the same.
    writes: AtomicBool,
    pub ahead: ReadAhead,
    /// The caller may map the file to write through it.
    maps: AtomicBool,
    /// A descriptor of it was closed; there may be no other.
    closing: AtomicBool,
    /// Failures of the file that this handle was told.
    told: Mutex<u64>,
}

impl Handle {
    /// A failure of the file that this handle was not told yet.
    pub fn failure(&self) -> Result<()> {
        self.file.failure_since(&mut self.told.lock())
    }

    /// [`Self::failure`], which whoever asks next is told again: a process that closes its copy of a descriptor, as
    /// each that is begun does, may not look, and takes nothing from who will.
    pub fn failure_at_close(&self) -> Result<()> {
        self.file.failure_since(&mut self.told.lock().clone())
    }

    /// [`Self::flush`] for a descriptor that is closed.
    pub async fn flush_at_close(&self) -> Result<()> {
        let flushed = self.file.flush().await;
        self.failure_at_close().and(flushed)
    }

    /// Something is written through it.
    pub fn writes(&self) {
        self.writes.store(true, Ordering::Relaxed);
    }

    /// Whether its close has nothing to wait for. What is written through others is theirs to wait for.
    pub fn is_closed(&self) -> bool {
        self.file.is_closed() || !(self.writes.load(Ordering::Relaxed) || self.file.is_new())
    }

    /// One of its descriptors is closed.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// Flushes, and answers a failure of this flush or an earlier one.
    pub async fn flush(&self) -> Result<()> {
        let flushed = self.file.flush().await;
        self.failure().and(flushed)
    }
}

/// A handle, the attributes of its file, and whether what is cached above of the content is good.
pub(crate) type Entered = (HandleId, Attr, bool);

struct Entry {
    file: Arc<File>,
    handles: u32,
}

fn not_open(id: HandleId) -> Error {
    Error::new(ErrorKind::Invalid, format!("handle {} is not open", id.0))
}

pub(crate) struct Files {
    mount: Arc<Mount>,
    table: Mutex<BTreeMap<InodeId, Entry>>,
    /// Named by the numbers of their opens, as directories are.
    handles: RwLock<HashMap<HandleId, Arc<Handle>>>,
    directories: Mutex<HashMap<HandleId, Directory>>,
}

/// One open of a directory.
struct Directory {
    ino: InodeId,
    /// The first cookie of a name that was made after it began to be read; 0: it has not been read.
    end: u64,
}

impl Files {
    pub fn new(mount: Arc<Mount>) -> Arc<Self> {
        Arc::new(Self {
            mount,
            table: Mutex::default(),
            handles: RwLock::default(),
            directories: Mutex::default(),
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

    /// What was read ahead and is not read on is not kept.
    pub fn rest(&self) {
        self.handles.read().values().for_each(|handle| handle.ahead.rest());
    }

    pub fn handle(&self, id: HandleId) -> Result<Arc<Handle>> {
        self.handles.read().get(&id).cloned().ok_or_else(|| not_open(id))
    }

    /// Attributes that a server told, as this mount sees them.
    pub fn view(&self, attr: Attr) -> Attr {
        let attr = self.mount.meta.leases.newest(attr);
        let attr = self.get(attr.ino).map_or(attr, |file| file.told(attr));
        self.mount.accesses.view(attr)
    }

    /// Opens an inode. Answers whether what the caller has cached is good.
    pub async fn open(&self, ino: InodeId, flags: OpenFlags) -> Result<Entered> {
        let opens = &self.mount.opens;
        let number = opens.begin(ino);
        let entered = match self.known(ino, flags) {
            Some(content) => self.enter(&content, number, flags),
            None => {
                let told = opens.declare(ino, flags.write).await;
                told.and_then(|reply| self.enter(&reply, number, flags))
            }
        };
        match entered {
            Ok((id, attr, keep)) => self.cut_if_asked(id, attr, keep, flags).await,
            Err(error) => {
                opens.end(ino);
                Err(error)
            }
        }
    }

    /// What an open answers, if a lease says so.
    fn known(&self, ino: InodeId, flags: OpenFlags) -> Option<Arc<v1::OpenReply>> {
        let (content, mode) = self.mount.meta.leases.content(ino)?;
        let enough = !flags.truncate && (!flags.write || mode == Mode::Write);
        enough.then_some(content)
    }

    /// Opens a directory.
    pub async fn open_dir(&self, ino: InodeId) -> Result<HandleId> {
        let opens = &self.mount.opens;
        let id = HandleId(opens.begin(ino));
        if self.mount.meta.leases.mode(ino).is_none()
            && let Err(error) = opens.declare(ino, false).await
        {
            opens.end(ino);
            return Err(error);
        }
        self.directories.lock().insert(id, Directory { ino, end: 0 });
        Ok(id)
    }

    pub fn directory(&self, id: HandleId) -> Result<InodeId> {
        let directories = self.directories.lock();
        directories.get(&id).map(|open| open.ino).ok_or_else(|| not_open(id))
    }

    /// The cookie at which an open directory ends that is read after `cookie`. It is `next_cookie`, that of
    /// the next new name (0: not known), when it is read from the start, or for the first time.
    pub fn end_of(&self, id: HandleId, cookie: u64, next_cookie: u64) -> Result<u64> {
        let mut directories = self.directories.lock();
        let open = directories.get_mut(&id).ok_or_else(|| not_open(id))?;
        if cookie == 0 || open.end == 0 {
            open.end = if next_cookie == 0 { u64::MAX } else { next_cookie };
        }
        Ok(open.end)
    }

    pub fn release_dir(&self, id: HandleId) -> Result<()> {
        let open = self.directories.lock().remove(&id).ok_or_else(|| not_open(id))?;
        self.mount.opens.end(open.ino);
        Ok(())
    }

    /// The caller may map a file to write through this handle. Answers whether this mount has the right to
    /// that, which one has at a time.
    pub async fn map(&self, id: HandleId) -> bool {
        let Ok(handle) = self.handle(id) else { return false };
        let (ino, opens, meta) = (handle.file.ino, &self.mount.opens, &self.mount.meta);
        // Before the lease is looked at: whoever takes that back asks whether it is mapped.
        let begun = opens.begin_to_map(ino);
        let granted = meta.leases.may_map(ino)
            || match meta.ask(Op::Map(v1::MapOp { ino: ino.0 })).await {
                Ok(Reply::Map(map)) => map.granted,
                Ok(_) => false,
                Err(error) => {
                    debug!(%ino, %error, "it is not known who maps a file");
                    false
                }
            };
        // What is cached by now was filled under a lease to read.
        let first = !opens.may_be_mapped(ino);
        let taken = if first && !granted { Some(handle.file.take_back().await) } else { None };
        handle.maps.store(true, Ordering::Relaxed);
        let entitled = opens.map(ino, begun, granted);
        if first && !entitled && taken.is_none() {
            // What was granted went with its session.
            drop(handle.file.take_back().await);
        }
        drop(taken);
        entitled
    }

    /// Whether the caller needs the right to map a file to write. Of a descriptor that was closed,
    /// the end may still be on its way from the caller: it is waited for.
    pub async fn needs_map(&self, ino: InodeId) -> bool {
        let mut ends = self.mount.opens.unmapped();
        let until = Instant::now() + CLOSING;
        loop {
            ends.borrow_and_update();
            if !self.mount.opens.maps(ino) {
                return false;
            }
            let in_use = self.handles.read().values().any(|handle| {
                let maps = handle.maps.load(Ordering::Relaxed);
                handle.file.ino == ino && maps && !handle.closing.load(Ordering::Relaxed)
            });
            if in_use || timeout_at(until, ends.changed()).await.is_err() {
                return true;
            }
        }
    }

    /// The session is over, and with it all leases: what is stored above is not written back any more.
    pub async fn lose_content(&self) {
        self.all().iter().for_each(|file| file.above.lose());
        self.forget_content().await;
    }

    /// The time of all leases is over.
    pub async fn lapse(&self) {
        self.all().iter().for_each(|file| file.lapsed());
        self.forget_content().await;
    }

    /// The leases turn out to have lasted. What was kept in doubt is committed now, since others may use its file;
    /// a failure is noted for its handles.
    pub fn revive(&self) {
        let files = self.all();
        files.iter().for_each(|file| file.revived());
        for file in files.into_iter().filter(|file| file.is_in_doubt()) {
            tokio::spawn(async move { file.flush().await });
        }
    }

    /// All leases to read are gone: what is cached above may be old. Does not wait for long, and
    /// what is left then is forgotten later.
    pub async fn forget_content(&self) {
        let leases = &self.mount.meta.leases;
        let files = self.all().into_iter().filter(|file| !leases.may_buffer(file.ino));
        let forgotten = files.map(|file| tokio::spawn(async move { drop(file.take_back().await) }));
        let _ = timeout(SOON, join_all(forgotten)).await;
    }

    /// Makes a file and opens it, if a lease allows to do that without asking: `file` but for its number.
    pub fn make(&self, file: make_files_op::File, flags: OpenFlags) -> Option<Result<Entered>> {
        let opens = &self.mount.opens;
        let mut begun = (InodeId(0), 0);
        let reply = self.mount.meta.make(file, |ino| begun = (ino, opens.begin(ino)))?;
        let (ino, number) = begun;
        Some(self.enter(&reply, number, flags).inspect_err(|_| opens.end(ino)))
    }

    /// Makes a file, by the operation that `op` gives for the number of its open, and opens it.
    pub async fn create(&self, op: impl FnOnce(u64) -> Op, flags: OpenFlags) -> Result<Entered> {
        let opens = &self.mount.opens;
        let (number, declared) = (opens.number(), opens.declarations());
        let (id, attr, keep) = match self.mount.meta.change(op(number)).await? {
            Reply::Open(reply) => {
                let (made, _) = attr_and_layout(&reply)?;
                opens.made(made.ino, number);
                self.enter(&reply, number, flags).inspect_err(|_| opens.end(made.ino))?
            }
            _ => {
                return Err(Error::new(
                    ErrorKind::Protocol,
                    "the reply to a create is of another kind",
                ));
            }
        };
        if opens.declarations() != declared
            && let Err(error) = opens.declare(attr.ino, false).await
        {
            self.forget(id);
            return Err(error);
        }
        self.cut_if_asked(id, attr, keep, flags).await
    }

    async fn cut_if_asked(
        &self,
        id: HandleId,
        attr: Attr,
        keep: bool,
        flags: OpenFlags,
    ) -> Result<Entered> {
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

    /// Takes an answered open into the table and makes a handle, which ends the open when it is gone.
    fn enter(&self, reply: &v1::OpenReply, number: u64, flags: OpenFlags) -> Result<Entered> {
        let (attr, layout) = attr_and_layout(reply)?;
        let file = {
            let mut table = self.table.lock();
            let entry = table.entry(attr.ino).or_insert_with(|| Entry {
                file: Arc::new(File::new(self.mount.clone(), attr, layout)),
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
        let keep = self.mount.note_open(attr.ino, attr.data_version);
        let told = Mutex::new(file.failures());
        let handle = Handle {
            file,
            append: flags.append,
            sync: flags.sync,
            no_atime: flags.no_atime,
            writes: AtomicBool::new(flags.write),
            ahead: ReadAhead::default(),
            maps: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            told,
        };
        let id = HandleId(number);
        self.handles.write().insert(id, Arc::new(handle));
        Ok((id, view, keep))
    }

    /// The handle is gone; the last one of a file commits what is left and closes it.
    pub async fn release(&self, id: HandleId) -> Result<()> {
        let handle = self.handle(id)?;
        if handle.is_closed() && self.forget_if_others_stay(id, &handle) {
            return handle.failure();
        }
        let result = match handle.file.is_closed() {
            true => handle.failure(),
            false => handle.flush().await,
        };
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
        self.ended(handle);
        true
    }

    fn forget(&self, id: HandleId) {
        let handle = self.handles.write().remove(&id);
        if let Some(handle) = handle {
            self.leave(handle.file.ino);
            self.ended(&handle);
        }
    }

    /// A handle is no more.
    fn ended(&self, handle: &Handle) {
        if handle.maps.load(Ordering::Relaxed) {
            self.mount.opens.unmap(handle.file.ino);
        }
        self.mount.opens.end(handle.file.ino);
    }

    /// One handle less.
    fn leave(&self, ino: InodeId) {
        let mut table = self.table.lock();
        let Some(entry) = table.get_mut(&ino) else { return };
        entry.handles -= 1;
        if entry.handles == 0 {
            table.remove(&ino);
            self.mount.meta.creates.left(ino);
        }
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
        // And files that were made and closed.
        let creates = &self.mount.meta.creates;
        first.and(self.mount.meta.settle_all().await).and(creates.take_lost(None))
    }
}
