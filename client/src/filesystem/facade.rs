//! One mounted filesystem and its life. Its operations are in the files beside this one.

use super::inner::Inner;
use crate::Options;
use crate::cache::{ALL, ContentCache, NameCache};
use crate::meta::{Group, begin_session};
use crate::namespace::Synced;
use crate::options::after;
use crate::types::{Attr, Counters};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tracing::{debug, info, warn};
use weft_net::{Identity, Peers};
use weft_proto::planted::{self, Bug};
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, MapEpoch, Result, SessionId, Uuid, v1};
use weft_segments::{MapWatch, Rng, Segments, Timeouts};

/// The cluster is told this long that the session ends, which it does by itself else.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// A sync or an unmount waits so long at most for access times to be published.
const ATIME_TIMEOUT: Duration = Duration::from_secs(2);

/// One mounted filesystem; clones share it.
///
/// Calls by inodes and handles check no permissions: they are for who is checked already, as by the
/// kernel above FUSE, between whose check and the call attributes may change, as with NFS. Others
/// call [`Self::as_user`], which says where that is so and where it cannot be.
///
/// A call that is dropped before it ends goes on as far as it has to: what was begun is never cut
/// off, and what nobody is there to take is closed. Every operation ends within
/// [`Options::op_deadline`], a large transfer within that for each of its parts.
///
/// Dropping the last clone without [`Filesystem::shutdown`] loses what was not flushed, as a crash
/// does.
#[derive(Clone)]
pub struct Filesystem {
    pub(super) inner: Arc<Inner>,
}

impl Filesystem {
    /// Opens a session with the metadata group and begins to watch the cluster map. Errors:
    /// `Invalid` without metadata servers, `TimedOut` if none of them answers, `WrongCluster`;
    /// `Busy` if who connects has as many sessions as he may all the time;
    /// `NotFound` and others of a subdirectory that is not there.
    pub async fn connect(options: Options) -> Result<Self> {
        let deadline = after(options.op_deadline.min(options.connect_timeout));
        let fs = Self::new(options, None)?;
        let inner = &fs.inner;
        let (group, name) = (&inner.group, &inner.options.client_name);
        let dead = &inner.options.dead_sessions;
        let (ttl, cluster) = begin_session(group, name, dead, &inner.rng, deadline).await?;
        if let Some(cluster) = cluster {
            inner.peers.set_cluster(cluster);
        }
        inner.has_session(ttl, cluster);
        inner.watch_map();
        inner.start();
        fs.await_map(deadline).await?;
        if let Err(error) = fs.enter(&inner.options.subdir).await {
            // Nobody is to wait for the end of a session that nobody has.
            let _ = fs.shutdown().await;
            return Err(error);
        }
        info!(session = %fs.session(), "connected");
        Ok(fs)
    }

    /// Nothing is begun.
    pub(super) fn new(options: Options, cluster: Option<Uuid>) -> Result<Self> {
        if options.metadata.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "no metadata server is named"));
        }
        let rng = Arc::new(Rng::new(options.seed));
        let identity = Identity { name: options.client_name.clone(), cluster };
        let peers = Peers::new(options.transport.clone(), identity);
        let map = MapWatch::new();
        let group = Arc::new(Group::new(&options, peers.clone(), map.clone(), rng.clone()));
        let timeouts = Timeouts {
            target: options.target_deadline,
            hedge_floor: options.hedge_floor,
            background: false,
        };
        let writer = group.sessions.clone();
        let segments = Segments::new(timeouts, peers.clone(), map, rng.clone(), writer);
        // There are none before.
        let _ = group.tickets.set(segments.tickets().clone());
        Ok(Self { inner: Arc::new(Inner::new(options, peers, group, segments, rng)) })
    }

    pub(super) async fn await_map(&self, deadline: Instant) -> Result<()> {
        if self.inner.segments.map().newer(MapEpoch(0), deadline).await {
            return Ok(());
        }
        let what = "no metadata server sent the cluster map in time";
        Err(Error::new(ErrorKind::TimedOut, what))
    }

    /// Commits everything that was written and closes the session. The first error of a file that
    /// could not be committed is answered; the session is closed all the same, and no call waits
    /// for the cluster any more. Writes fail from the moment on that this is called
    /// (`Disconnected`): none is acknowledged that is not committed.
    pub async fn shutdown(&self) -> Result<()> {
        self.inner.files.close();
        self.inner.log.close();
        let flushed = self.inner.files.flush_all().await;
        self.publish_atimes().await;
        self.inner.supervisor.stop();
        self.inner.opens.end_with_session();
        let session = self.inner.group.sessions.current();
        let op = Op::CloseSession(v1::CloseSessionOp {});
        let deadline = after(self.inner.options.op_deadline.min(CLOSE_TIMEOUT));
        let closed = self.inner.requests.change_in(&session, op, deadline).await;
        self.inner.end();
        self.close_hot().await;
        match closed {
            Ok(_) => {}
            Err(failed) if failed.error.kind == ErrorKind::SessionExpired => {}
            Err(failed) => {
                let (session, error) = (session.id, failed.error);
                warn!(%session, %error, "session not closed; it will expire");
            }
        }
        flushed
    }

    /// The hot tier lets go of its drive: another process may go on with what it has.
    pub async fn close_hot(&self) {
        if let Some(hot) = self.inner.hot.get() {
            hot.close().await;
        }
    }

    /// What `syncfs(2)` does: everything written through this mount is durable and visible to all.
    /// Answers the first failure; each is also told to the handles of its file, if it has any.
    pub async fn sync(&self) -> Result<()> {
        self.publish_atimes().await;
        let flushed = self.inner.files.flush_all().await;
        self.inner.group.sessions.check().and(flushed)
    }

    /// As [`Self::sync`], by anybody: what failed before is told to whoever syncs or unmounts next,
    /// too.
    pub(super) async fn sync_for_any(&self) -> Result<()> {
        self.publish_atimes().await;
        let committed = self.inner.files.commit_all().await;
        self.inner.files.sweep();
        self.inner.group.sessions.check()?;
        self.inner.log.look_at_lost().and(committed)
    }

    /// Without a cluster that answers, nobody waits long for what is no promise.
    pub(super) async fn publish_atimes(&self) {
        let telling = self.inner.atimes.publish();
        if timeout(ATIME_TIMEOUT, telling).await.is_err() {
            debug!("access times are not told: no metadata leader answers");
        }
    }

    /// What `fsync(2)` of a directory does: what was made, moved or removed in it through this
    /// mount is durable, and so is what was closed before. Answers, once, why a file that was made
    /// in it could not be, or why what was written to it is lost.
    pub async fn sync_dir(&self, ino: InodeId) -> Result<()> {
        let Inner { log, group, files, .. } = &*self.inner;
        let settled = match planted::is(Bug::SyncForgetsLog) {
            true => Ok(()),
            false => log.settle_all().await,
        };
        group.sessions.check()?;
        files.sweep();
        log.take_lost(Synced::Dir(ino)).and(settled)
    }

    /// What is cached above of the content of an inode is good no more: what changes it was
    /// answered before it had an effect.
    pub fn forget_content(&self, ino: InodeId) {
        self.inner.pages.forget_behind(ino, ALL);
    }

    /// Tells what caches content above this library, before the first open.
    pub fn set_content_cache(&self, above: Arc<dyn ContentCache>) {
        self.inner.pages.set_cache(above);
    }

    /// Tells what caches names and attributes above this library, before it caches any.
    pub fn set_name_cache(&self, above: Arc<dyn NameCache>) {
        self.inner.group.leases.set_name_cache(above);
    }

    /// What is cached above of the names in a directory, or of all, is good no more: what changes
    /// some was answered before it had an effect. Does not wait until it is gone: who asks may hold
    /// it.
    pub fn forget_names(&self, dir: Option<InodeId>) {
        let leases = &self.inner.group.leases;
        // It is on its way.
        drop(dir.map_or_else(|| leases.forget_all_above(), |dir| leases.forget_above(dir)));
    }

    /// What has these attributes, if they are known, is read.
    pub(super) fn note_access(&self, attr: impl FnOnce() -> Option<Attr>) {
        let options = &self.inner.options;
        if options.access_times
            && !self.is_read_only()
            && let Some(attr) = attr()
        {
            self.inner.atimes.atimes.note(&attr, (options.clock)());
        }
    }

    /// What became of requests so far.
    pub fn counters(&self) -> Counters {
        let counters = self.inner.segments.counters();
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Counters {
            corrupt_chunks: get(&counters.corrupt),
            rebuilt_reads: get(&counters.rebuilt),
            rewritten_segments: get(&counters.rewritten),
            metadata_requests: get(&self.inner.group.requests),
        }
    }

    /// Whether both are clones of one.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The newest cluster map that this mount has.
    pub fn cluster_map(&self) -> Arc<v1::ClusterMap> {
        self.inner.segments.map().current().wire.clone()
    }

    /// Whether there will be no other session: the cluster was restored from a backup since it was
    /// mounted, or this was shut down. Nothing can be done with it any more.
    pub fn has_ended(&self) -> bool {
        self.inner.group.sessions.have_ended()
    }

    /// Returns when that is so.
    pub async fn ended(&self) {
        self.inner.group.sessions.ended().await;
    }

    /// The session of this mount; it changes if the cluster declared the old one dead.
    pub fn session(&self) -> SessionId {
        self.inner.group.sessions.current().id
    }
}
