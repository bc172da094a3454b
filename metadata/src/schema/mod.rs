//! Keys and records of the state: what lies where in the store.
//!
//! A key is the shard (2 bytes), a tag (1 byte), and numbers in big-endian order, so that byte
//! order is the order of meaning. A record is a protobuf message. Tags and field numbers are disk
//! format: never reuse one.
//!
//! | tag | key | record |
//! |---|---|---|
//! | meta | name | applied index, format, counters, cluster, whether batches are known |
//! | inode | ino | [`Inode`] |
//! | dentry | parent, name | [`Dentry`] |
//! | index | parent, cookie | [`IndexEntry`] |
//! | extent | content, end of the extent | [`v1::Extent`] |
//! | xattr | ino, name | the value |
//! | orphan | ino | empty |
//! | trim | ino | empty: extents that the file does not show any more are to be deleted |
//! | scattered | ino | empty: some of the file may be worth being put together in new segments |
//! | lock | ino, sort, session, owner | [`weft_proto::locks::Ranges`]: what one owner holds |
//! | lock_of | session, key of the lock | empty |
//! | segment, garbage | session, seq | [`Segment`], [`v1::SegmentInfo`] |
//! | session, nonce | session / nonce | [`Session`], [`NonceOwner`] |
//! | reply | session, number | [`v1::StoredReply`] |
//! | reserved | session, end of the range | [`Numbers`] |
//! | dead | time of death, session | empty: what is reserved for it is kept |
//! | ended | session | empty: some of what it has left is yet to be deleted |
//! | member | group, session, seq | empty: the segment names the placement group |
//! | event | number | [`v1::Event`], the newest [`crate::tables::events::KEPT`] |
//! | quota | kind, id | [`Quota`]: limits, and what is used |
//! | quota_walk | root, directory | [`Number`]: the cookie from which on it is to be marked |
//! | accounting | | [`Accounting`]; absent: usage is not counted |
//! | qos | tenant | [`v1::QosRule`] |
//! | forgotten | uuid of a target | [`Number`]: the id that it had |
//! | target, pool, group | id | [`v1::TargetInfo`], [`Pool`], [`Group`] |
//!
//! Extents are keyed by where they *end*: one seek to `off + 1` finds the first extent that reaches
//! beyond `off`.

mod quotas;
mod records;

pub(crate) use quotas::*;
pub(crate) use records::*;

use crate::store::{Read, StoreError, StoreResult, Txn, after};
use prost::Message;
use weft_proto::{InodeId, SegmentId, SessionId, v1};

/// Version of the disk format that this build writes. It also reads the one before
/// ([`crate::upgrade`]).
pub(crate) const FORMAT: u64 = 4;

/// In place of a shard, what belongs to the group and to no inode: sessions, segments, the cluster
/// map.
const GROUP: u16 = 0;

pub(crate) const APPLIED: &str = "applied";
pub(crate) const FORMAT_NAME: &str = "format";
/// Present once every server of the group has known batches.
pub(crate) const BATCHES: &str = "batches";
/// What every server of the group has known once, since this is kept: [`crate::known::Known`].
pub(crate) const KNOWN: &str = "known";
const COUNTERS: &str = "counters";
pub(crate) const CLUSTER: &str = "cluster";

/// What a key names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Tag {
    Meta = 0x01,
    Inode = 0x10,
    Dentry = 0x11,
    Index = 0x12,
    Extent = 0x13,
    Xattr = 0x14,
    Orphan = 0x15,
    Trim = 0x16,
    Scattered = 0x17,
    Lock = 0x1a,
    Segment = 0x20,
    Garbage = 0x21,
    Session = 0x30,
    Reply = 0x31,
    Nonce = 0x32,
    // 0x33 was another record of what is reserved.
    Dead = 0x34,
    Reserved = 0x35,
    Ended = 0x36,
    LockOf = 0x3a,
    Target = 0x40,
    Pool = 0x41,
    Group = 0x42,
    Member = 0x43,
    Forgotten = 0x44,
    Event = 0x50,
    Quota = 0x60,
    QuotaWalk = 0x61,
    Accounting = 0x62,
    Qos = 0x64,
}

/// Length of shard and tag.
pub(crate) const HEAD: usize = 3;

fn key(shard: u16, tag: Tag, parts: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::with_capacity(HEAD + parts.iter().map(|p| p.len()).sum::<usize>());
    key.extend_from_slice(&shard.to_be_bytes());
    key.push(tag as u8);
    parts.iter().for_each(|p| key.extend_from_slice(p));
    key
}

fn by_ino(tag: Tag, ino: InodeId, rest: &[u8]) -> Vec<u8> {
    key(ino.shard(), tag, &[&ino.0.to_be_bytes(), rest])
}

pub(crate) fn meta(name: &str) -> Vec<u8> {
    key(GROUP, Tag::Meta, &[name.as_bytes()])
}

pub(crate) fn inode(ino: InodeId) -> Vec<u8> {
    by_ino(Tag::Inode, ino, &[])
}

pub(crate) fn dentry(parent: InodeId, name: &[u8]) -> Vec<u8> {
    by_ino(Tag::Dentry, parent, name)
}

pub(crate) fn index(parent: InodeId, cookie: u64) -> Vec<u8> {
    by_ino(Tag::Index, parent, &cookie.to_be_bytes())
}

pub(crate) fn extent(content: InodeId, end: u64) -> Vec<u8> {
    by_ino(Tag::Extent, content, &end.to_be_bytes())
}

pub(crate) fn xattr(ino: InodeId, name: &[u8]) -> Vec<u8> {
    by_ino(Tag::Xattr, ino, name)
}

pub(crate) fn orphan(ino: InodeId) -> Vec<u8> {
    by_ino(Tag::Orphan, ino, &[])
}

pub(crate) fn trim(ino: InodeId) -> Vec<u8> {
    by_ino(Tag::Trim, ino, &[])
}

pub(crate) fn scattered(ino: InodeId) -> Vec<u8> {
    by_ino(Tag::Scattered, ino, &[])
}

/// The locks of one owner on an inode, those of flock(2) or those of fcntl(2).
pub(crate) fn lock(ino: InodeId, flock: bool, session: SessionId, owner: u64) -> Vec<u8> {
    let (sort, session) = ([u8::from(flock)], session.0.to_be_bytes());
    by_ino(Tag::Lock, ino, &[&sort[..], &session, &owner.to_be_bytes()].concat())
}

/// Leads from a session to a lock of its own.
pub(crate) fn lock_of(session: SessionId, lock: &[u8]) -> Vec<u8> {
    key(GROUP, Tag::LockOf, &[&session.0.to_be_bytes(), lock])
}

/// All keys that lead from a session to its locks: `[from, to)`.
pub(crate) fn locks_of(session: SessionId) -> (Vec<u8>, Vec<u8>) {
    let from = lock_of(session, &[]);
    let to = after(&from).unwrap_or_default();
    (from, to)
}

/// The key of a lock that a key of [`lock_of`] ends with.
pub(crate) fn lock_in(key: &[u8]) -> StoreResult<&[u8]> {
    key.get(HEAD + 8..)
        .filter(|lock| lock.len() == HEAD + 8 + 1 + 8 + 8)
        .ok_or_else(|| StoreError::corrupt(format!("key {key:02x?} leads to no lock")))
}

/// Whose a lock is: of flock(2), session, owner.
pub(crate) fn holder_of(key: &[u8]) -> StoreResult<(bool, SessionId, u64)> {
    const SORT: usize = HEAD + 8;
    let flock = key.get(SORT).is_some_and(|&sort| sort != 0);
    Ok((flock, SessionId(number_at(key, SORT + 1)?), number_at(key, SORT + 9)?))
}

pub(crate) fn segment(id: SegmentId) -> Vec<u8> {
    key(GROUP, Tag::Segment, &[&id.to_bytes()])
}

pub(crate) fn garbage(id: SegmentId) -> Vec<u8> {
    key(GROUP, Tag::Garbage, &[&id.to_bytes()])
}

pub(crate) fn session(id: SessionId) -> Vec<u8> {
    key(GROUP, Tag::Session, &[&id.0.to_be_bytes()])
}

/// A session that has ended, and of which records are left to be deleted.
pub(crate) fn ended(id: SessionId) -> Vec<u8> {
    key(GROUP, Tag::Ended, &[&id.0.to_be_bytes()])
}

pub(crate) fn reply(id: SessionId, number: u64) -> Vec<u8> {
    key(GROUP, Tag::Reply, &[&id.0.to_be_bytes(), &number.to_be_bytes()])
}

/// Numbers that were set aside for a session, by the first behind them.
pub(crate) fn reserved(id: SessionId, end: u64) -> Vec<u8> {
    key(GROUP, Tag::Reserved, &[&id.0.to_be_bytes(), &end.to_be_bytes()])
}

/// Where the range of numbers ends that a session took some from last. No range ends here.
pub(crate) fn newest_reserved(id: SessionId) -> Vec<u8> {
    reserved(id, 0)
}

/// All numbers that were set aside for a session: `[from, to)`.
pub(crate) fn all_reserved(id: SessionId) -> (Vec<u8>, Vec<u8>) {
    let from = key(GROUP, Tag::Reserved, &[&id.0.to_be_bytes()]);
    let to = after(&from).unwrap_or_default();
    (from, to)
}

/// A session that was declared dead at this time, in nanoseconds since 1970; 0: it was closed, and
/// what is left of it is of no use.
pub(crate) fn dead(time_ns: u64, id: SessionId) -> Vec<u8> {
    key(GROUP, Tag::Dead, &[&time_ns.to_be_bytes(), &id.0.to_be_bytes()])
}

/// The time that a key of [`dead`] names.
pub(crate) fn death_of(key: &[u8]) -> StoreResult<u64> {
    number_at(key, HEAD)
}

/// The session that a key of [`dead`] names.
pub(crate) fn dead_of(key: &[u8]) -> StoreResult<SessionId> {
    number_at(key, HEAD + 8).map(SessionId)
}

pub(crate) fn nonce(nonce: &[u8]) -> Vec<u8> {
    key(GROUP, Tag::Nonce, &[nonce])
}

pub(crate) fn target(id: u32) -> Vec<u8> {
    key(GROUP, Tag::Target, &[&id.to_be_bytes()])
}

/// A target that was forgotten.
pub(crate) fn forgotten(uuid: &[u8]) -> Vec<u8> {
    key(GROUP, Tag::Forgotten, &[uuid])
}

pub(crate) fn pool(id: u32) -> Vec<u8> {
    key(GROUP, Tag::Pool, &[&id.to_be_bytes()])
}

pub(crate) fn group(id: u32) -> Vec<u8> {
    key(GROUP, Tag::Group, &[&id.to_be_bytes()])
}

pub(crate) fn event(number: u64) -> Vec<u8> {
    key(GROUP, Tag::Event, &[&number.to_be_bytes()])
}

/// Limits and usage.
pub(crate) fn quota(of: v1::QuotaKey) -> Vec<u8> {
    key(GROUP, Tag::Quota, &[&(of.kind as u32).to_be_bytes(), &of.id.to_be_bytes()])
}

/// What a key of [`quota`] names.
pub(crate) fn quota_of(key: &[u8]) -> StoreResult<v1::QuotaKey> {
    let kind = key.get(HEAD..HEAD + 4).and_then(|b| b.try_into().ok()).map(u32::from_be_bytes);
    let what = || StoreError::corrupt(format!("key {key:02x?} is too short"));
    Ok(v1::QuotaKey { kind: kind.ok_or_else(what)? as i32, id: number_at(key, HEAD + 4)? })
}

/// A directory that is to be marked with the quota of another above it; 0 and 0: inodes are to be
/// counted for their owners.
pub(crate) fn quota_walk(root: InodeId, dir: InodeId) -> Vec<u8> {
    key(GROUP, Tag::QuotaWalk, &[&root.0.to_be_bytes(), &dir.0.to_be_bytes()])
}

/// All directories that are to be marked with the quota of one: `[from, to)`.
pub(crate) fn quota_walks(root: InodeId) -> (Vec<u8>, Vec<u8>) {
    let from = key(GROUP, Tag::QuotaWalk, &[&root.0.to_be_bytes()]);
    let to = after(&from).unwrap_or_default();
    (from, to)
}

pub(crate) fn accounting() -> Vec<u8> {
    key(GROUP, Tag::Accounting, &[])
}

/// What a tenant may have.
pub(crate) fn qos(tenant: &str) -> Vec<u8> {
    key(GROUP, Tag::Qos, &[tenant.as_bytes()])
}

/// A segment, committed or garbage, that names this placement group.
pub(crate) fn member(pg: u32, segment: SegmentId) -> Vec<u8> {
    key(GROUP, Tag::Member, &[&pg.to_be_bytes(), &segment.to_bytes()])
}

/// The segments that name a placement group, after `after`: `[from, to)`.
pub(crate) fn members(pg: u32, after: Option<SegmentId>) -> (Vec<u8>, Vec<u8>) {
    let all = key(GROUP, Tag::Member, &[&pg.to_be_bytes()]);
    let to = self::after(&all).unwrap_or_default();
    let from = after.map_or(all, |after| {
        let mut key = member(pg, after);
        key.push(0);
        key
    });
    (from, to)
}

/// The segment that a key of [`member`] names.
pub(crate) fn member_of(key: &[u8]) -> StoreResult<SegmentId> {
    Ok(SegmentId { session: SessionId(number_at(key, HEAD + 4)?), seq: number_at(key, HEAD + 12)? })
}

/// The placement group that a key of [`member`] begins with.
pub(crate) fn group_listing(key: &[u8]) -> StoreResult<u32> {
    key.get(HEAD..HEAD + 4)
        .and_then(|b| b.try_into().ok())
        .map(u32::from_be_bytes)
        .ok_or_else(|| StoreError::corrupt(format!("key {key:02x?} is too short")))
}

/// All keys with this tag that belong to no inode: `[from, to)`.
pub(crate) fn all(tag: Tag) -> (Vec<u8>, Vec<u8>) {
    all_in(GROUP, tag)
}

/// All keys with this tag that belong to inodes of this shard: `[from, to)`.
pub(crate) fn all_in(shard: u16, tag: Tag) -> (Vec<u8>, Vec<u8>) {
    let from = key(shard, tag, &[]);
    let to = after(&from).unwrap_or_default();
    (from, to)
}

/// All keys with this tag that belong to this inode: `[from, to)`.
pub(crate) fn all_of(tag: Tag, ino: InodeId) -> (Vec<u8>, Vec<u8>) {
    let from = by_ino(tag, ino, &[]);
    let to = after(&from).unwrap_or_default();
    (from, to)
}

/// All stored replies of a session: `[from, to)`.
pub(crate) fn replies(id: SessionId) -> (Vec<u8>, Vec<u8>) {
    let from = key(GROUP, Tag::Reply, &[&id.0.to_be_bytes()]);
    let to = after(&from).unwrap_or_default();
    (from, to)
}

/// Whether a key has this tag, of whatever shard.
pub(crate) fn has_tag(key: &[u8], tag: Tag) -> bool {
    key.get(HEAD - 1) == Some(&(tag as u8))
}

/// Whether the key begins with an inode.
pub(crate) fn is_of_inode(key: &[u8]) -> bool {
    let tags = [
        Tag::Inode,
        Tag::Dentry,
        Tag::Index,
        Tag::Extent,
        Tag::Xattr,
        Tag::Orphan,
        Tag::Trim,
        Tag::Scattered,
        Tag::Lock,
    ];
    tags.iter().any(|tag| has_tag(key, *tag))
}

/// The 8-byte number at `at` in a key.
pub(crate) fn number_at(key: &[u8], at: usize) -> StoreResult<u64> {
    key.get(at..at + 8)
        .and_then(|b| b.try_into().ok())
        .map(u64::from_be_bytes)
        .ok_or_else(|| StoreError::corrupt(format!("key {key:02x?} is too short")))
}

/// The inode that an inode-owned key begins with.
pub(crate) fn ino_of(key: &[u8]) -> StoreResult<InodeId> {
    number_at(key, HEAD).map(InodeId)
}

/// The segment that a segment or garbage key names.
pub(crate) fn segment_of(key: &[u8]) -> StoreResult<SegmentId> {
    Ok(SegmentId { session: SessionId(number_at(key, HEAD)?), seq: number_at(key, HEAD + 8)? })
}

/// Whether the record that lies at a segment's key is that segment's.
pub(crate) fn is_named(info: &v1::SegmentInfo, id: SegmentId) -> bool {
    info.id.map(SegmentId::from) == Some(id)
}

/// As [`is_named`], and well formed.
pub(crate) fn is_of(info: &v1::SegmentInfo, id: SegmentId) -> bool {
    is_named(info, id) && info.geometry().is_ok()
}

/// Decodes a record; `key` is for the error, which stops the replica.
pub(crate) fn decode<R: Message + Default>(key: &[u8], value: impl bytes::Buf) -> StoreResult<R> {
    R::decode(value).map_err(|e| StoreError::damaged(format!("record {key:02x?}: {e}")))
}

impl dyn Read + '_ {
    pub(crate) fn load<R: Message + Default>(&self, key: &[u8]) -> StoreResult<Option<R>> {
        self.get(key)?.map(|value| decode(key, value)).transpose()
    }

    pub(crate) fn inode(&self, ino: InodeId) -> StoreResult<Option<Inode>> {
        self.load(&inode(ino))
    }

    /// An inode that some other record says exists.
    pub(crate) fn inode_that_exists(&self, ino: InodeId) -> StoreResult<Inode> {
        self.inode(ino)?.ok_or_else(|| StoreError::corrupt(format!("inode {ino} is missing")))
    }

    pub(crate) fn dentry(&self, parent: InodeId, name: &[u8]) -> StoreResult<Option<Dentry>> {
        self.load(&dentry(parent, name))
    }

    pub(crate) fn session(&self, id: SessionId) -> StoreResult<Option<Session>> {
        self.load(&session(id))
    }

    /// Whether the session has not ended.
    pub(crate) fn has_session(&self, id: SessionId) -> StoreResult<bool> {
        Ok(self.get(&session(id))?.is_some())
    }

    pub(crate) fn counters(&self) -> StoreResult<Counters> {
        Ok(self.load(&meta(COUNTERS))?.unwrap_or_default())
    }

    pub(crate) fn cluster(&self) -> StoreResult<Option<Cluster>> {
        self.load(&meta(CLUSTER))
    }

    /// The shard of the namespace that this group owns.
    pub(crate) fn shard(&self) -> StoreResult<u16> {
        let shard = self.cluster()?.map_or(0, |cluster| cluster.shard);
        let what = || StoreError::corrupt(format!("there is no shard {shard}"));
        u16::try_from(shard).map_err(|_| what())
    }

    pub(crate) fn number(&self, name: &str) -> StoreResult<Option<u64>> {
        Ok(self.load::<Number>(&meta(name))?.map(|n| n.value))
    }

    /// Visits the records of `[from, to)` in order until `visit` answers false.
    pub(crate) fn records<R: Message + Default>(
        &self,
        (from, to): (Vec<u8>, Vec<u8>),
        mut visit: impl FnMut(&[u8], R) -> StoreResult<bool>,
    ) -> StoreResult<()> {
        self.scan(&from, &to, &mut |key, value| visit(key, decode(key, value)?))
    }
}

impl Txn<'_> {
    pub(crate) fn edit_counters<T>(
        &mut self,
        change: impl FnOnce(&mut Counters) -> T,
    ) -> StoreResult<T> {
        let mut counters = self.state().counters()?;
        let answer = change(&mut counters);
        self.put(meta(COUNTERS), &counters);
        Ok(answer)
    }

    /// A segment names a placement group from now on. Said by whoever puts its record first.
    pub(crate) fn enter_group(&mut self, pg: u32, segment: SegmentId) -> StoreResult<()> {
        self.put_bytes(member(pg, segment), Default::default());
        self.count_in_group(pg, 1)
    }

    /// A segment is no more, neither committed nor garbage.
    pub(crate) fn leave_group(&mut self, pg: u32, segment: SegmentId) -> StoreResult<()> {
        self.delete(member(pg, segment));
        self.count_in_group(pg, -1)
    }

    fn count_in_group(&mut self, pg: u32, change: i64) -> StoreResult<()> {
        let key = group(pg);
        // A check finds segments without one.
        let Some(mut record) = self.state().load::<Group>(&key)? else { return Ok(()) };
        record.segments = record.segments.saturating_add_signed(change);
        self.put(key, &record);
        Ok(())
    }

    pub(crate) fn put_cluster(&mut self, cluster: &Cluster) {
        self.put(meta(CLUSTER), cluster);
    }

    pub(crate) fn put_number(&mut self, name: &str, value: u64) {
        self.put(meta(name), &Number { value });
    }
}
