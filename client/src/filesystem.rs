//! The facade: a mounted filesystem, its life and its open files. The operations on names are in
//! `namespace`.

use crate::Options;
use crate::file::above::{ALL, forget_behind, forget_in_time};
use crate::file::write::Way;
use crate::files::{Entered, Files};
use crate::meta::Meta;
use crate::mount::ContentCache;
use crate::mount::Mount;
use crate::options::after;
use crate::to_the_end::{handing_over, to_the_end};
use crate::types::{
    Allocate, Attr, Counters, Creator, HandleId, OpenFlags, Opened, ReadData, Seek, Via,
};
use crate::{accesses, creates, file, flusher, locks, recalls, session};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};
use weft_net::{Identity, Peers};
use weft_proto::v1::make_files_op::File;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, MapEpoch, Result, SessionId, v1};
use weft_segments::{MapWatch, Rng, Segments, Timeouts};

/// A sync or an unmount waits so long at most for access times to be told.
const ACCESSES: Duration = Duration::from_secs(2);

/// How long to look for a cluster that answers at all, and to tell it that the session ends, which it does
/// by itself else.
const CONNECT: Duration = Duration::from_secs(60);
const CLOSE: Duration = Duration::from_secs(10);
/// Pause before what the cache above writes back while the leases are over is tried again.
const AGAIN: Duration = Duration::from_millis(100);

struct Inner {
    mount: Arc<Mount>,
    files: Arc<Files>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.mount.end();
    }
}

/// One mounted filesystem; clones share it. A call that is dropped before it ends goes on as far as it has to:
/// what was begun is never cut off, and what nobody is there to take is closed. Every operation ends within [`Options::op_deadline`],
/// a large transfer within that for each of its parts.
///
/// Dropping the last clone without [`Filesystem::shutdown`] loses what was not flushed, as a crash
/// does.
#[derive(Clone)]
pub struct Filesystem {
    inner: Arc<Inner>,
}

impl Filesystem {
    /// Opens a session with the metadata group and begins to watch the cluster map. Errors:
    /// `Invalid` without metadata servers, `TimedOut` if none of them answers, `WrongCluster`.
    pub async fn connect(options: Options) -> Result<Self> {
        if options.metadata.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "no metadata server is named"));
        }
        let rng = Arc::new(Rng::new(options.seed));
        let identity = Identity { name: options.client_name.clone(), cluster: None };
        let peers = Peers::new(options.transport.clone(), identity);
        let map = MapWatch::new();
        let meta = Arc::new(Meta::new(&options, peers.clone(), map.clone(), rng.clone()));
        let deadline = after(options.op_deadline.min(CONNECT));
        let opened = session::open(&meta, None, &options.client_name, &rng, deadline).await?;
        if let (_, Some(cluster)) = opened {
            peers.set_cluster(cluster);
        }
        let timeouts =
            Timeouts { target: options.target_deadline, hedge_floor: options.hedge_floor };
        let writer = meta.sessions.clone();
        let segments = Segments::new(timeouts, peers, map.clone(), rng.clone(), writer);
        let mount = Mount::new(options.clone(), meta, segments);
        let files = Files::new(mount.clone());
        let name = options.client_name.clone();
        let tasks = [
            tokio::spawn(map.clone().follow(options.metadata, options.transport, rng.clone())),
            tokio::spawn(session::keep(mount.clone(), Arc::downgrade(&files), name, rng, opened)),
            tokio::spawn(flusher::run(mount.clone(), Arc::downgrade(&files))),
            tokio::spawn(creates::tell_behind(mount.clone())),
            tokio::spawn(accesses::run(mount.clone(), Arc::downgrade(&files))),
            tokio::spawn(recalls::answer(mount.clone(), Arc::downgrade(&files))),
            tokio::spawn(recalls::return_surplus(mount.clone(), Arc::downgrade(&files))),
            tokio::spawn(forget_in_time(mount.clone(), Arc::downgrade(&files))),
        ];
        let tasks = tasks.iter().map(|task| task.abort_handle()).collect();
        let fs = Self { inner: Arc::new(Inner { mount, files, tasks }) };
        if !map.newer(MapEpoch(0), deadline).await {
            let what = "no metadata server sent the cluster map in time";
            return Err(Error::new(ErrorKind::TimedOut, what));
        }
        info!(session = %fs.session(), "connected");
        Ok(fs)
    }

    /// Commits everything that was written and closes the session. The first error of a file that
    /// could not be committed is answered; the session is closed all the same, and no call waits for the
    /// cluster any more.
    pub async fn shutdown(&self) -> Result<()> {
        let flushed = self.files().flush_all().await;
        self.tell_accesses().await;
        self.inner.tasks.iter().for_each(AbortHandle::abort);
        self.inner.mount.opens.end_with_session();
        let session = self.meta().sessions.current();
        let op = Op::CloseSession(v1::CloseSessionOp {});
        let deadline = after(self.inner.mount.options.op_deadline.min(CLOSE));
        let closed = self.meta().change_in(&session, op, deadline).await;
        self.inner.mount.end();
        match closed {
            Ok(_) => {}
            Err(failed) if failed.error.kind == ErrorKind::SessionExpired => {}
            Err(failed) => {
                warn!(session = %session.id, error = %failed.error, "session not closed; it will expire")
            }
        }
        flushed
    }

    /// What was opened, unless the caller is gone by then.
    async fn opened(
        &self,
        flags: OpenFlags,
        open: impl Future<Output = Result<Entered>> + Send + 'static,
    ) -> Result<Opened> {
        let (files, unwanting) = (self.inner.files.clone(), self.inner.files.clone());
        let open = async move {
            let (handle, attr, keep_cache) = open.await?;
            let entitled = !flags.both || files.map(handle).await;
            let cached = entitled && !flags.append;
            Ok(Opened { handle, attr, keep_cache, cached })
        };
        let unwanted = move |opened: Result<Opened>| async move {
            if let Ok(opened) = opened {
                // Nothing was written by it.
                let _ = unwanting.release(opened.handle).await;
            }
        };
        handing_over(open, unwanted).await
    }

    /// Opens a file. Errors: `NotFound`.
    pub async fn open(&self, ino: InodeId, flags: OpenFlags) -> Result<Opened> {
        let files = self.inner.files.clone();
        self.opened(flags, async move { files.open(ino, flags).await }).await
    }

    /// Makes a regular file and opens it; opens what is there unless `flags.exclusive`.
    pub async fn create(
        &self,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        by: Creator,
        flags: OpenFlags,
    ) -> Result<Opened> {
        let Creator { uid, gid, umask } = by;
        let name = Bytes::copy_from_slice(name);
        let (parent, exclusive) = (parent.0, flags.exclusive);
        let made_ns = (self.inner.mount.options.clock)();
        let of = name.clone();
        let file = File { parent, name: of, mode, uid, gid, umask, made_ns, ..File::default() };
        let alone = (!self.inner.mount.options.dir_sync).then(|| self.files().make(file, flags));
        if let Some(made) = alone.flatten() {
            return self.opened(flags, std::future::ready(made)).await;
        }
        let op = move |open_seq| {
            let op = v1::CreateOp { parent, name, mode, uid, gid, exclusive, open_seq, umask };
            Op::Create(op)
        };
        let files = self.inner.files.clone();
        self.opened(flags, async move { files.create(op, flags).await }).await
    }

    /// Makes a regular file without a name and opens it. It inherits from `parent`, which
    /// [`Self::link`] may name it in; without a name it goes with its last handle.
    pub async fn tmp_file(
        &self,
        parent: InodeId,
        mode: u32,
        by: Creator,
        flags: OpenFlags,
    ) -> Result<Opened> {
        let Creator { uid, gid, umask } = by;
        let parent = parent.0;
        let op =
            move |open_seq| Op::TmpFile(v1::TmpFileOp { parent, mode, uid, gid, open_seq, umask });
        let files = self.inner.files.clone();
        self.opened(flags, async move { files.create(op, flags).await }).await
    }

    /// What `fsync(2)` of a directory does: what was made, moved or removed in it through this mount is
    /// durable. Answers, once, why a file that was made in it and closed since could not be made.
    pub async fn sync_dir(&self, ino: InodeId) -> Result<()> {
        self.meta().settle(&[ino]).await?;
        self.meta().creates.take_lost(Some(ino))
    }

    /// Opens a directory: until [`Self::release`] it outlives its removal, after which it has no names and
    /// takes none (`NotFound`). To list it, it need not be open. Errors: `Stale` if it is gone.
    pub async fn open_dir(&self, ino: InodeId) -> Result<HandleId> {
        let files = self.inner.files.clone();
        let open = async move { (files.open_dir(ino).await, files) };
        let unwanted = |(opened, files): (Result<HandleId>, Arc<Files>)| async move {
            if let Ok(handle) = opened {
                let _ = files.release_dir(handle);
            }
        };
        handing_over(open, unwanted).await.0
    }

    /// What `syncfs(2)` does: everything written through this mount is durable and visible to all.
    /// Answers the first failure; each is also told to the handles of its file, if it has any.
    pub async fn sync(&self) -> Result<()> {
        self.tell_accesses().await;
        self.files().flush_all().await
    }

    /// Without a cluster that answers, nobody waits long for what is no promise.
    async fn tell_accesses(&self) {
        let telling = self.inner.mount.accesses.tell(&self.inner.mount, self.files());
        if timeout(ACCESSES, telling).await.is_err() {
            debug!("access times are not told: no metadata leader answers");
        }
    }

    /// Up to `len` bytes from `off`; fewer only at the end of file. Data written through this mount
    /// is seen at once. Errors: `Io` if bytes cannot be had or verified; never zeros for them (I3).
    pub async fn read(&self, handle: HandleId, off: u64, len: usize) -> Result<ReadData> {
        self.read_via(handle, off, len, Via::Direct).await
    }

    /// [`Self::read`], into a cache above.
    pub async fn read_via(
        &self,
        handle: HandleId,
        off: u64,
        len: usize,
        via: Via,
    ) -> Result<ReadData> {
        let id = handle;
        let handle = self.files().handle(id)?;
        self.locks_hold(handle.file.ino, id)?;
        let file = &handle.file;
        let data = match via {
            Via::Cache if self.inner.mount.content_cache().is_some() => {
                let range = off..off.saturating_add(len as u64);
                let ticket = file.above.begin(range, via, false).await;
                loop {
                    let read = async {
                        file.may_fill(&ticket).await?;
                        file.read(off, len, &handle.ahead, true).await
                    };
                    let data = tokio::select! {
                        biased;
                        data = read => data?,
                        error = ticket.failed() => return Err(error),
                    };
                    if ticket.ends() {
                        break data;
                    }
                }
            }
            _ => file.read(off, len, &handle.ahead, false).await?,
        };
        if !handle.no_atime && !data.is_empty() {
            self.note_access(|| Some(handle.file.attr()));
        }
        Ok(data)
    }

    /// What has these attributes, if they are known, is read.
    pub(crate) fn note_access(&self, attr: impl FnOnce() -> Option<Attr>) {
        let mount = &self.inner.mount;
        if mount.options.access_times
            && let Some(attr) = attr()
        {
            mount.accesses.note(&attr, (mount.options.clock)());
        }
    }

    /// Takes `data` into the write buffer, or commits it if another mount uses the file; answers how much
    /// of it was taken (all, unless an error came in between). With an append handle `off` is ignored.
    /// Answers the failure of an earlier write of the file if this handle was not told yet (I8), but not to the cache
    /// that writes back.
    pub async fn write(&self, handle: HandleId, off: u64, data: &[u8]) -> Result<usize> {
        self.write_via(handle, off, data, Via::Direct).await
    }

    /// [`Self::write`], through a cache above or past it.
    pub async fn write_via(
        &self,
        handle: HandleId,
        off: u64,
        data: &[u8],
        via: Via,
    ) -> Result<usize> {
        let id = handle;
        let handle = self.files().handle(id)?;
        let file = &handle.file;
        let back = via == Via::WriteBack;
        let session = self.inner.mount.meta.sessions.current().id;
        let permitted = || {
            self.locks_hold(file.ino, id)?;
            if back { file.may_write_back(session) } else { Ok(()) }
        };
        // The cache writes pages back through any handle.
        let append = handle.append && !back;
        let past = (via == Via::Direct).then(|| file.write_past());
        let way = match via {
            Via::Direct => Way::Past(past.as_ref()),
            Via::Cache => Way::Along,
            Via::WriteBack => Way::Back,
        };
        let range = off..off.saturating_add(data.len() as u64);
        let ticket = match via {
            Via::Direct => None,
            via => Some(file.above.begin(range.clone(), via, true).await),
        };
        let write = async {
            if let (Via::Cache, Some(ticket)) = (via, &ticket) {
                file.may_fill(ticket).await?;
            }
            if !back {
                handle.failure()?;
            }
            handle.writes();
            let (written, buffered) = file.write(off, data, append, way, permitted).await?;
            match back {
                // Earlier failures are none of what was stored: who writes, syncs or closes is told.
                true if !buffered => file.flush().await?,
                false if handle.sync || !buffered => handle.flush().await?,
                _ => {}
            }
            Ok(written)
        };
        let written = match via {
            Via::WriteBack => tokio::select! {
                biased;
                written = self.write_back_in_doubt(id, off, data, session) => written,
                written = write => written,
            },
            _ => write.await,
        };
        if ticket.is_some_and(|ticket| !ticket.ends()) {
            // The pages that it changed may hold more than that, from before.
            file.forget_behind(range);
        } else if via == Via::Direct
            && let Some(forgotten) = self.written_past(id, off, data.len())
        {
            forgotten.await;
        }
        written
    }

    /// Waits until the session may be over, in which `data` was stored in the cache above, and takes it in as soon as
    /// it need not wait for anything more.
    async fn write_back_in_doubt(
        &self,
        id: HandleId,
        off: u64,
        data: &[u8],
        session: SessionId,
    ) -> Result<usize> {
        let file = self.files().handle(id)?.file.clone();
        loop {
            self.meta().leases.lapsed().await;
            file.may_write_back(session)?;
            if let Some(written) = self.write_now(id, off, data, Via::WriteBack) {
                return written;
            }
            sleep(AGAIN).await;
        }
    }

    /// Bytes were written past the cache above: what that has of them is good no more, and a read
    /// may have filled it meanwhile. Answers when it is gone, before which the write must not be
    /// answered; `None` if nothing is cached.
    fn written_past(
        &self,
        handle: HandleId,
        off: u64,
        len: usize,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let handle = self.files().handle(handle).ok()?;
        let len = len as u64;
        let range = match handle.append {
            // The caller may know of another end than it was when they landed.
            true => off.min(handle.file.size().saturating_sub(len))..u64::MAX,
            false => off..off.saturating_add(len),
        };
        handle.file.forget_written(range)
    }

    /// What is cached above of the content of an inode is good no more: what changes it was
    /// answered before it had an effect.
    pub fn forget_content(&self, ino: InodeId) {
        forget_behind(&self.inner.mount, ino, ALL);
    }

    /// Tells what caches content above this library, before the first open.
    pub fn set_content_cache(&self, above: Arc<dyn ContentCache>) {
        self.inner.mount.set_content_cache(above);
    }

    /// [`Self::write`] if it need not wait: a lease to write, room in the buffer, nothing to send
    /// first, nothing cached that a write past the cache makes old. `None` says that nothing was taken in. Must be called
    /// inside a runtime.
    pub fn write_now(
        &self,
        handle: HandleId,
        off: u64,
        data: &[u8],
        via: Via,
    ) -> Option<Result<usize>> {
        let id = handle;
        let back = via == Via::WriteBack;
        let handle = self.files().handle(id).ok().filter(|handle| !handle.sync || back)?;
        handle.writes();
        let file = &handle.file;
        if via == Via::Cache && (!file.above.is_open() || file.is_cached_alone()) {
            return None;
        }
        let append = handle.append && !back;
        let way = match via {
            Via::Direct => Way::Past(None),
            Via::Cache => Way::Along,
            Via::WriteBack => Way::Back,
        };
        let permitted = || {
            self.locks_hold(file.ino, id)?;
            match back {
                true => file.may_write_back(self.inner.mount.meta.sessions.current().id),
                false => handle.failure(),
            }
        };
        match permitted() {
            Ok(()) => handle.file.write_now(off, data, append, way).map(Ok),
            Err(error) => Some(Err(error)),
        }
    }

    /// [`Self::close`] if there is nothing to do.
    pub fn close_now(&self, handle: HandleId, owner: u64) -> Option<Result<()>> {
        let handle = self.files().handle(handle).ok()?;
        handle.close();
        let idle = !self.has_locks(handle.file.ino, owner) && handle.is_closed();
        idle.then(|| handle.failure_at_close())
    }

    /// What `close(2)` does, each time that a process closes the file: everything written to it is
    /// durable and visible to all, if this handle can write, and the owner of locks of fcntl(2) has none
    /// any more.
    pub async fn close(&self, handle: HandleId, owner: u64) -> Result<()> {
        let (mount, handle) = (self.inner.mount.clone(), self.files().handle(handle)?);
        handle.close();
        to_the_end(async move {
            let flushed = match handle.is_closed() {
                true => handle.failure_at_close(),
                false => handle.flush_at_close().await,
            };
            locks::unlock_owner(&mount, handle.file.ino, owner).await;
            flushed
        })
        .await
    }

    /// Everything written to the file is durable and visible to all.
    pub async fn flush(&self, handle: HandleId) -> Result<()> {
        self.files().handle(handle)?.flush().await
    }

    /// Everything written to the file, and its size, is durable. `data_only` makes no difference
    /// today: one commit carries both.
    pub async fn fsync(&self, handle: HandleId, data_only: bool) -> Result<()> {
        let _ = data_only;
        self.files().handle(handle)?.flush().await
    }

    /// The handle of a file or directory is gone, and locks that were taken through it alone. Errors of
    /// data that was still buffered are answered here last.
    pub async fn release(&self, handle: HandleId) -> Result<()> {
        let ino = match self.files().handle(handle) {
            Ok(open) => open.file.ino,
            Err(_) => return self.files().release_dir(handle),
        };
        let (mount, files) = (self.inner.mount.clone(), self.inner.files.clone());
        to_the_end(async move {
            let released = files.release(handle).await;
            locks::unlock_handle(&mount, ino, handle).await;
            released
        })
        .await
    }

    /// What `fallocate(2)` does with `[off, off+len)`; without `keep_size` the file is at least that long
    /// after it. Errors: `NoSpace` if the cluster has no room for it now. Room is not set aside: what
    /// others write meanwhile may take it.
    pub async fn fallocate(
        &self,
        handle: HandleId,
        off: u64,
        len: u64,
        what: Allocate,
        keep_size: bool,
    ) -> Result<()> {
        let id = handle;
        let handle = self.files().handle(id)?;
        self.locks_hold(handle.file.ino, id)?;
        if what == Allocate::Room {
            let free = self.stat_fs().await?.available_bytes;
            if len > free && handle.file.holes(off, len).await? > free {
                let what = format!("{free} bytes are free in the cluster");
                return Err(Error::new(ErrorKind::NoSpace, what));
            }
        }
        handle.file.allocate(off, len, what, keep_size).await
    }

    /// The first offset from `off` on where there is data, or a hole. Errors: `NoData` if `off` is not
    /// within the file, or no data follows.
    pub async fn seek(&self, handle: HandleId, off: u64, what: Seek) -> Result<u64> {
        self.files().handle(handle)?.file.seek(off, what).await
    }

    /// What `copy_file_range(2)` does: shares what is in the first file with the second, and moves bytes
    /// only where it cannot. Answers how much was copied, which may be less than `len`; 0 only at the end
    /// of the source. Errors: `Invalid` if the ranges overlap in one file.
    pub async fn copy_range(
        &self,
        from: HandleId,
        from_off: u64,
        to: HandleId,
        to_off: u64,
        len: u64,
    ) -> Result<u64> {
        let ids = (from, to);
        let (from, to) = (self.files().handle(from)?, self.files().handle(to)?);
        to.writes();
        let permitted = || {
            self.locks_hold(from.file.ino, ids.0)?;
            self.locks_hold(to.file.ino, ids.1)
        };
        file::copy_range((&from, from_off), (&to, to_off), len, permitted).await
    }

    /// What became of requests so far.
    pub fn counters(&self) -> Counters {
        let counters = self.segments().counters();
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Counters {
            corrupt_chunks: get(&counters.corrupt),
            rebuilt_reads: get(&counters.rebuilt),
            rewritten_segments: get(&counters.rewritten),
            metadata_requests: get(&self.meta().requests),
        }
    }

    /// The newest cluster map that this mount has.
    pub fn cluster_map(&self) -> Arc<v1::ClusterMap> {
        self.segments().map().current().wire.clone()
    }

    /// The session of this mount; it changes if the cluster declared the old one dead.
    pub fn session(&self) -> SessionId {
        self.meta().sessions.current().id
    }

    pub(crate) fn mount(&self) -> &Arc<Mount> {
        &self.inner.mount
    }

    pub(crate) fn meta(&self) -> &Arc<Meta> {
        &self.inner.mount.meta
    }

    pub(crate) fn files(&self) -> &Files {
        &self.inner.files
    }

    pub(crate) fn segments(&self) -> &Arc<Segments> {
        &self.inner.mount.segments
    }
}
