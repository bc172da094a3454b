//! The state machine under Raft: the namespace, extents, sessions and the cluster map of one
//! metadata shard, in one store.
//!
//! Invariants:
//! - applying the same entries in the same order gives the same state and the same answers on
//!   every replica, however the entries are cut into batches;
//! - a batch takes effect as a whole, together with the index of its last entry;
//! - a request of a session takes effect once (I4), and never after the session ended (I5).
//!
//! One writer, the node; any number of readers, which never wait for it.

mod apply;
mod found;
mod groups;
mod looks;
mod paths;
mod quotas;
mod requests;
mod set_aside;
mod unwanted;

#[cfg(test)]
pub(crate) use apply::apply as apply_entry;
pub(crate) use found::{Founding, Skip, check_number};
pub use groups::Damaged;
pub(crate) use quotas::Counting;
pub use unwanted::Unwanted;

use crate::compaction::{self, Page, Seats};
use crate::known::Known;
use crate::operation::Fault;
use crate::ops;
pub use crate::ops::SESSION_TTL_MS;
use crate::read_locked::ReadLocked;
use crate::schema::{self, Tag};
use crate::soft::sessions::Client;
use crate::store::{Changes, Memory, Read, Store, StoreError, StoreResult, Told, Txn, Unreadable};
use crate::tables::members::Membership;
use crate::tables::{cluster, locks};
use crate::upgrade;
use parking_lot::Mutex;
use set_aside::SetAside;
use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weft_proto::planted::{self, Bug};
use weft_proto::{Error, ErrorKind, InodeId, Result, SegmentId, SessionId, v1};

/// Default size of RocksDB's block cache, in bytes.
const DEFAULT_CACHE: usize = 128 << 20;

/// The replicated state of one metadata shard. See the module's documentation.
pub struct StateMachine {
    store: Store,
    /// Raft index of the last entry whose effect is in the store.
    applied: AtomicU64,
    /// Held by whoever changes the store.
    writer: Mutex<()>,
    /// Counts batches of entries that put something on the list of orphans, on that of garbage, on
    /// that of files to trim, on that of ended sessions, and on that of files to be compacted.
    orphaned: AtomicU64,
    discarded: AtomicU64,
    cut: AtomicU64,
    ended: AtomicU64,
    scattered: AtomicU64,
    /// The same of what is to be counted for quotas.
    to_count: AtomicU64,
    /// Whether a quota was ever set.
    quotas: AtomicBool,
    /// Counts batches after which tenants may have something else.
    qos: AtomicU64,
    /// The same of the cluster map.
    maps: AtomicU64,
    /// Numbers that are set aside.
    set_aside: SetAside,
    read_locked: Arc<ReadLocked>,
    /// Why a reader could not read what is here.
    failure: Mutex<Option<Error>>,
}

impl StateMachine {
    /// Opens the state in `dir`, creating it if it does not exist. Nothing else may live there.
    pub fn open(dir: &Path) -> Result<Self> {
        Self::open_with_cache(dir, DEFAULT_CACHE)
    }

    /// As [`Self::open`], with the given size of the block cache in bytes.
    pub fn open_with_cache(dir: &Path, cache_bytes: usize) -> Result<Self> {
        Self::over(Store::open(dir, cache_bytes)?)
    }

    /// A state that lives in memory only, for tests and simulation.
    pub fn open_in_memory() -> Self {
        Self::at(Store::Memory(Memory::default()), 0, false)
    }

    fn over(store: Store) -> Result<Self> {
        let applied = store.newest(accept)?;
        upgrade::run(&store)?;
        let quotas = store.newest(has_quotas)?;
        Ok(Self::at(store, applied, quotas))
    }

    fn at(store: Store, applied: u64, quotas: bool) -> Self {
        Self {
            store,
            applied: AtomicU64::new(applied),
            writer: Mutex::new(()),
            orphaned: AtomicU64::new(0),
            discarded: AtomicU64::new(0),
            cut: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            scattered: AtomicU64::new(0),
            to_count: AtomicU64::new(0),
            quotas: AtomicBool::new(quotas),
            qos: AtomicU64::new(1),
            maps: AtomicU64::new(0),
            set_aside: SetAside::default(),
            read_locked: Arc::default(),
            failure: Mutex::new(None),
        }
    }

    /// Raft index of the last entry that was applied; 0: none.
    pub fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// Grows with the list of orphans. Who has seen that empty need not look again before: a look
    /// passes over all that was taken off the list since the store was last compacted.
    pub fn orphaned(&self) -> u64 {
        self.orphaned.load(Ordering::Acquire)
    }

    /// As [`Self::orphaned`], of the list of garbage.
    pub fn discarded(&self) -> u64 {
        self.discarded.load(Ordering::Acquire)
    }

    /// As [`Self::orphaned`], of the list of files to trim.
    pub fn cut(&self) -> u64 {
        self.cut.load(Ordering::Acquire)
    }

    /// As [`Self::orphaned`], of the list of ended sessions of which something is left.
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    /// As [`Self::orphaned`], of the list of files to be compacted.
    pub fn scattered(&self) -> u64 {
        self.scattered.load(Ordering::Acquire)
    }

    /// Grows, from 1 on, with each change of what tenants may have.
    pub fn qos_changes(&self) -> u64 {
        self.qos.load(Ordering::Acquire)
    }

    /// Grows with each batch of entries that has changed the cluster map.
    pub fn map_changes(&self) -> u64 {
        self.maps.load(Ordering::Acquire)
    }

    /// Records that entries up to `index` that change no state (empty ones) are applied.
    pub fn set_applied(&self, index: u64) -> Result<()> {
        let _writer = self.writer.lock();
        let index = index.max(self.applied());
        let changes = self.store.newest(|base| {
            let mut tx = Txn::new(base);
            tx.put_number(schema::APPLIED, index);
            tx.put_number(schema::FORMAT_NAME, schema::FORMAT);
            tx.into_changes()
        });
        self.store.write(changes)?;
        self.applied.store(index, Ordering::Release);
        Ok(())
    }

    /// Who belongs to the Raft group as of the last entry that was applied; `None` before that is
    /// recorded, with the cluster.
    pub fn membership(&self) -> Result<Option<Membership>> {
        Ok(self.read_by(self.store.newest(|s| s.cluster()))?.and_then(Membership::of))
    }

    /// Makes everything applied so far durable, and answers its index. The Raft log must keep
    /// every entry above the index that the last call answered: what a power cut takes from the
    /// state is replayed from there.
    pub fn sync(&self) -> Result<u64> {
        let applied = self.applied();
        self.store.sync()?;
        Ok(applied)
    }

    /// Why a reader could not read what is here, if one could not: this server's disk or memory has
    /// done something to it, and the other replicas have it whole. To apply entries goes on.
    pub fn failure(&self) -> Option<Error> {
        self.failure.lock().clone()
    }

    /// Passes on what a reader was answered, and notes if the store failed. Nothing that was asked
    /// for can be taken for that: it is refused, or not found.
    fn read_by<T>(&self, answer: Result<T, impl Into<Fault>>) -> Result<T> {
        answer.map_err(|fault| {
            let fault = fault.into();
            if let Fault::Store(e) = &fault
                && !e.is_of_content()
            {
                tracing::error!("the state cannot be read: {e}");
                self.failure.lock().get_or_insert_with(|| e.0.clone());
            }
            fault.into()
        })
    }

    /// Answers a read ([`weft_proto::Kind::Read`]) from one moment of the state. `stat_fs`
    /// fills in the inodes only: capacities are not replicated state.
    pub fn read(&self, request: &v1::MetaRequest) -> Result<v1::MetaReply> {
        let op = request.op.as_ref();
        let answer = if ops::is_single_read(op) {
            self.store.newest(|s| ops::query(op, s))
        } else {
            self.store.view(|s| ops::query(op, s))
        };
        Ok(v1::MetaReply { result: Some(self.read_by(answer)?), ..Default::default() })
    }

    /// The inode behind a name, if there is one.
    pub fn child(&self, parent: InodeId, name: &[u8]) -> Result<Option<InodeId>> {
        let dentry = self.read_by(self.store.newest(|s| s.dentry(parent, name)))?;
        Ok(dentry.map(|d| InodeId(d.ino)))
    }

    /// Attributes of an inode, if it is there.
    pub fn attr(&self, ino: InodeId) -> Result<Option<v1::Attr>> {
        Ok(self.read_by(self.store.newest(|s| s.inode(ino)))?.map(|inode| inode.attr))
    }

    /// Extended attributes of an inode, if they are short enough to be sent unasked.
    pub fn short_xattrs(&self, ino: InodeId) -> Result<Option<v1::Xattrs>> {
        self.read_by(self.store.view(|s| ops::short_xattrs(s, ino)))
    }

    /// How files made in a directory are laid out.
    pub fn layout(&self, dir: InodeId) -> Result<Option<v1::LayoutInfo>> {
        Ok(self.read_by(self.store.newest(|s| s.inode(dir)))?.and_then(|inode| inode.layout))
    }

    /// What an open answers: attributes, effective layout and the first extents.
    pub fn open_reply(&self, ino: InodeId) -> Result<v1::OpenReply> {
        self.read_by(self.store.view(|s| ops::open_reply(s, ino)))
    }

    /// The same without extents.
    pub fn bare_open_reply(&self, ino: InodeId) -> Result<v1::OpenReply> {
        self.read_by(self.store.view(|s| ops::bare_open_reply(s, ino)))
    }

    /// A lock of another owner that stands against `lock` of `session`.
    pub fn lock_conflict(&self, session: SessionId, lock: &v1::Lock) -> Result<Option<v1::Lock>> {
        self.read_by(self.store.view(|s| locks::conflict(s, None, session, lock)))
    }

    /// How many locks a session holds, counted up to `limit`: those of each owner on an inode are
    /// one.
    pub fn count_locks(&self, session: SessionId, limit: usize) -> Result<usize> {
        self.read_by(self.store.newest(|s| locks::count(s, session, limit)))
    }

    /// Whether another session holds any lock on the inode.
    pub fn others_hold_locks(&self, session: SessionId, ino: InodeId) -> Result<bool> {
        self.read_by(self.store.newest(|s| locks::others_hold(s, session, ino)))
    }

    /// All locks on an inode: those of flock(2), or those of fcntl(2).
    pub fn locks_of(&self, ino: InodeId, flock: bool) -> Result<Vec<v1::Lock>> {
        self.read_by(self.store.view(|s| locks::of_inode(s, ino, flock)))
    }

    /// The cluster map; [`ErrorKind::Unavailable`] before the cluster is initialised.
    pub fn cluster_map(&self) -> Result<v1::ClusterMap> {
        self.read_by(self.store.view(cluster::cluster_map))
    }

    /// Every live session of a client with the name that this gave. One whose record does not read
    /// is there, too: it must be heard of to be ended.
    pub fn clients(&self) -> Result<Vec<(SessionId, Client)>> {
        let clients = self.sessions()?.into_iter().filter(|(_, session)| !session.leaders);
        let client = |s: schema::Session| Client { name: s.client, owner: s.owner };
        Ok(clients.map(|(id, session)| (id, client(session))).collect())
    }

    /// The live sessions of leaders, this one and those before it.
    pub fn writers(&self) -> Result<Vec<SessionId>> {
        let leaders = self.sessions()?.into_iter().filter(|(_, session)| session.leaders);
        Ok(leaders.map(|(id, _)| id).collect())
    }

    /// Every session that lives.
    pub fn live_sessions(&self) -> Result<BTreeSet<SessionId>> {
        Ok(self.sessions()?.into_iter().map(|(id, _)| id).collect())
    }

    fn sessions(&self) -> Result<Vec<(SessionId, schema::Session)>> {
        let mut sessions = Vec::new();
        let (from, to) = schema::all(Tag::Session);
        let scanned = self.store.view(|s| {
            s.scan(&from, &to, &mut |key, value| {
                let session = schema::decode(key, value).unwrap_or_else(|e| {
                    tracing::error!("a session cannot be read: {e}");
                    schema::Session { client: "(unreadable)".into(), ..Default::default() }
                });
                sessions.push((SessionId(schema::number_at(key, schema::HEAD)?), session));
                Ok(true)
            })
        });
        self.read_by(scanned)?;
        Ok(sessions)
    }

    /// The number that the next session will get; they are given in order.
    pub fn next_session(&self) -> Result<u64> {
        // None are counted before the cluster is initialised, and 0 is no session.
        Ok(self.read_by(self.store.newest(|s| s.counters()))?.next_session.max(1))
    }

    pub fn session_exists(&self, id: SessionId) -> Result<bool> {
        Ok(self.read_by(self.store.newest(|s| s.get(&schema::session(id))))?.is_some())
    }

    /// The session that was opened with a nonce, if it lives.
    pub fn session_of(&self, nonce: &[u8]) -> Result<Option<SessionId>> {
        let key = schema::nonce(nonce);
        let Some(owner) = self.read_by(self.store.newest(|s| s.get(&key)))? else {
            return Ok(None);
        };
        let owner: schema::NonceOwner = self.read_by(schema::decode(&key, owner))?;
        Ok(Some(SessionId(owner.session)))
    }

    /// The shard of the namespace that this group owns.
    fn shard(&self) -> Result<u16> {
        self.read_by(self.store.newest(|s| s.shard()))
    }

    /// Inodes without a name, after `after`, in order: to be purged once nobody has them open.
    pub fn orphans(&self, after: InodeId, limit: usize) -> Result<Vec<InodeId>> {
        let (first, to) = schema::all_in(self.shard()?, Tag::Orphan);
        let from = schema::orphan(InodeId(after.0.saturating_add(1))).max(first);
        self.list_keys((from, to), limit, schema::ino_of)
    }

    /// Inodes that are made from now on have no number below this one, but for those that sessions
    /// have reserved.
    pub fn next_inode(&self) -> Result<u64> {
        Ok(self.read_by(self.store.newest(|s| s.counters()))?.next_inode)
    }

    /// Files with extents that they do not show any more, after `after`, in order: to be trimmed.
    pub fn to_trim(&self, after: InodeId, limit: usize) -> Result<Vec<InodeId>> {
        let (first, to) = schema::all_in(self.shard()?, Tag::Trim);
        let from = schema::trim(InodeId(after.0.saturating_add(1))).max(first);
        self.list_keys((from, to), limit, schema::ino_of)
    }

    /// Files of which some may be worth being put together, after `after`, in order.
    pub fn to_compact(&self, after: InodeId, limit: usize) -> Result<Vec<InodeId>> {
        let (first, to) = schema::all_in(self.shard()?, Tag::Scattered);
        let from = schema::scattered(InodeId(after.0.saturating_add(1))).max(first);
        self.list_keys((from, to), limit, schema::ino_of)
    }

    /// What of a file is worth being put together ([`crate::compaction`]), from `from` on: some of
    /// it. `None` if the file is no more.
    pub(crate) fn compaction(&self, ino: InodeId, from: u64, seats: Seats) -> Result<Option<Page>> {
        self.read_by(self.store.view(|s| compaction::page(s, ino, from, seats)))
    }

    /// The first session after `after` that has ended and has left more than one entry deletes: to
    /// be declared dead again.
    pub fn ended_session(&self, after: SessionId) -> Result<Option<SessionId>> {
        let (_, to) = schema::all(Tag::Ended);
        let from = schema::ended(SessionId(after.0.saturating_add(1)));
        let first = self
            .list_keys((from, to), 1, |key| schema::number_at(key, schema::HEAD).map(SessionId))?;
        Ok(first.first().copied())
    }

    /// The placement groups that any segment names.
    pub fn groups_in_use(&self) -> Result<HashSet<u32>> {
        let mut used = HashSet::new();
        let listed = self.store.view(|s| {
            s.records(schema::all(schema::Tag::Group), |_, group: schema::Group| {
                used.extend((group.segments > 0).then_some(group.info.id));
                Ok(true)
            })
        });
        self.read_by(listed)?;
        Ok(used)
    }

    /// The record of a segment, if it is committed.
    pub fn segment(&self, id: SegmentId) -> Result<Option<v1::SegmentInfo>> {
        let found = self.store.newest(|s| s.load::<schema::Segment>(&schema::segment(id)));
        Ok(self.read_by(found)?.map(|segment| segment.info))
    }

    /// The first committed segment whose id is this one or a later one.
    pub fn segment_from(&self, id: SegmentId) -> Result<Option<v1::SegmentInfo>> {
        let range = (schema::segment(id), schema::all(Tag::Segment).1);
        let first = self.list(range, 1, |_, record: schema::Segment| Ok(record.info))?;
        Ok(first.into_iter().next())
    }

    /// The first committed segment of this session whose number is this one or a later one.
    pub fn segment_of(&self, session: SessionId, seq: u64) -> Result<Option<v1::SegmentInfo>> {
        let from = schema::segment(SegmentId { session, seq });
        let mut to = schema::segment(SegmentId { session, seq: u64::MAX });
        to.push(0);
        let first = self.list((from, to), 1, |_, record: schema::Segment| Ok(record.info))?;
        Ok(first.into_iter().next())
    }

    /// Whether the segment is committed, and shown by a file.
    pub fn is_committed(&self, id: SegmentId) -> Result<bool> {
        Ok(self.read_by(self.store.newest(|s| s.get(&schema::segment(id))))?.is_some())
    }

    /// Writes a copy of one moment of the state to `dir`, which must not exist, on the same
    /// filesystem; answers the applied index of the copy and who belongs to the group as of it.
    pub fn checkpoint(&self, dir: &Path) -> Result<(u64, Option<Membership>)> {
        Ok(self.copy(dir)?)
    }

    /// The same, which says whether it is damage that keeps it from that.
    pub(crate) fn copy(&self, dir: &Path) -> Result<(u64, Option<Membership>), Unreadable> {
        let keys = [schema::meta(schema::APPLIED), schema::meta(schema::CLUSTER)];
        let [index, cluster] = self.store.checkpoint(dir, [&keys[0], &keys[1]])?;
        let index = index.map(|value| schema::decode::<schema::Number>(&keys[0], value));
        let cluster = cluster.map(|value| schema::decode::<schema::Cluster>(&keys[1], value));
        let damaged = |e: StoreError| Unreadable { error: e.into(), is_damage: true };
        Ok((
            index.transpose().map_err(damaged)?.map_or(0, |index| index.value),
            cluster.transpose().map_err(damaged)?.and_then(Membership::of),
        ))
    }

    /// Reads all of a copy that was made of this state. Answers what is damaged of it, and so of
    /// the state, since they share files. Error: it cannot be read now, or `told` has had enough.
    pub(crate) fn verify_copy(&self, dir: &Path, told: &mut Told<'_>) -> Result<Option<Error>> {
        Ok(self.store.verify_copy(dir, told)?.map(Error::from))
    }

    /// Replaces the whole state by a checkpoint of another replica. `dir`, on the same filesystem
    /// as the state, is moved. A crash leaves the old state or the new one; so does an error.
    /// Readers that are under way finish on the old state.
    pub fn replace(&self, dir: &Path) -> Result<()> {
        let _writer = self.writer.lock();
        self.store.replace(dir, &|new| accept(new).map(|_| ()))?;
        if planted::is(Bug::SnapshotForgetsSessions) {
            let ((from, to), mut gone) = (schema::all(Tag::Session), Changes::new());
            let mut note = |key: &[u8], _: &[u8]| {
                gone.insert(key.to_vec(), None);
                Ok(true)
            };
            self.store.newest(|state| state.scan(&from, &to, &mut note))?;
            self.store.write(gone)?;
        }
        upgrade::run(&self.store)?;
        let applied = self.store.newest(accept)?;
        self.quotas.store(self.store.newest(has_quotas)?, Ordering::Release);
        self.orphaned.fetch_add(1, Ordering::Release);
        self.applied.store(applied, Ordering::Release);
        self.qos.fetch_add(1, Ordering::Release);
        self.maps.fetch_add(1, Ordering::Release);
        self.set_aside.forget();
        self.read_locked.forget();
        *self.failure.lock() = None;
        Ok(())
    }

    /// What a defect or a drive does to the store.
    #[cfg(test)]
    pub(crate) fn damage(&self, key: Vec<u8>, value: Option<bytes::Bytes>) {
        self.store.write([(key, value)].into()).unwrap();
    }

    /// Every key and value, in order: for comparing replicas in tests.
    pub fn dump(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut all = Vec::new();
        self.store.view(|s| {
            s.scan(&[], &[u8::MAX; 8], &mut |k, v| {
                all.push((k.to_vec(), v.to_vec()));
                Ok(true)
            })
        })?;
        Ok(all)
    }

    /// Of records that say nothing but that they are there.
    fn list_keys<T>(
        &self,
        (from, to): (Vec<u8>, Vec<u8>),
        limit: usize,
        item: impl Fn(&[u8]) -> StoreResult<T>,
    ) -> Result<Vec<T>> {
        let mut items = Vec::new();
        if limit > 0 {
            let listed = self.store.view(|s| {
                s.scan(&from, &to, &mut |key, _| {
                    items.push(item(key)?);
                    Ok(items.len() < limit)
                })
            });
            self.read_by(listed)?;
        }
        Ok(items)
    }

    fn list<R: prost::Message + Default, T>(
        &self,
        range: (Vec<u8>, Vec<u8>),
        limit: usize,
        item: impl Fn(&[u8], R) -> StoreResult<T>,
    ) -> Result<Vec<T>> {
        let mut items = Vec::new();
        if limit > 0 {
            let listed = self.store.view(|s| {
                s.records(range, |key, record| {
                    items.push(item(key, record)?);
                    Ok(items.len() < limit)
                })
            });
            self.read_by(listed)?;
        }
        Ok(items)
    }
}

/// Whether a quota was ever set.
fn has_quotas(store: &dyn Read) -> StoreResult<bool> {
    Ok(store.get(&schema::accounting())?.is_some())
}

/// Refuses a store of a format that this version does not read; answers its applied index.
fn accept(store: &dyn Read) -> StoreResult<u64> {
    match store.number(schema::FORMAT_NAME)? {
        None | Some(upgrade::FROM | schema::FORMAT) => {
            let known = ops::known_level(store)?;
            if known > Known::NEWEST {
                let what = format!(
                    "the metadata state may have what versions of level {known} know, and this \
                     version of weft knows level {}: start the newer version that wrote it",
                    Known::NEWEST
                );
                return Err(StoreError(Error::new(ErrorKind::NotSupported, what)));
            }
            Ok(store.number(schema::APPLIED)?.unwrap_or(0))
        }
        Some(format) => Err(StoreError(Error::new(
            ErrorKind::NotSupported,
            format!(
                "the metadata state has format {format}, and this version of weft reads {} and \
                 {}: {}",
                upgrade::FROM,
                schema::FORMAT,
                if format > schema::FORMAT {
                    "start the newer version that wrote it"
                } else {
                    "start the version that wrote it, copy what is needed out of the cluster, and \
                     make a new cluster with this one"
                }
            ),
        ))),
    }
}

#[cfg(test)]
mod tests;
