//! The records. Field numbers are disk format.

use crate::store::{StoreError, StoreResult};
use bytes::Bytes;
use prost::Message;
use weft_proto::{InodeId, Layout, v1};

/// An inode of any kind.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Inode {
    #[prost(message, required, tag = "1")]
    pub attr: v1::Attr,
    /// Of a file: how its data is laid out. Of a directory: what its new children inherit.
    #[prost(message, optional, tag = "2")]
    pub layout: Option<v1::LayoutInfo>,
    /// The directory that it was last named in; 0: that is not known, of what is no directory. The
    /// root names itself.
    #[prost(uint64, tag = "3")]
    pub parent: u64,
    /// Of a directory: the cookie of the next new name.
    #[prost(uint64, tag = "4")]
    pub next_cookie: u64,
    /// Of a directory: names in it.
    #[prost(uint64, tag = "5")]
    pub entries: u64,
    /// Of a symbolic link: where it points.
    #[prost(bytes = "bytes", tag = "6")]
    pub target: Bytes,
    /// Of a file: the number that its extents are stored under; 0: the inode's own. A truncation
    /// of many extents hands them to an orphan by giving the file another number.
    #[prost(uint64, tag = "7")]
    pub content: u64,
    /// Of a file: sum of its extents' lengths, in bytes.
    #[prost(uint64, tag = "8")]
    pub allocated: u64,
    /// Names and values of its extended attributes, in bytes; and the list of the names, each of
    /// which a NUL ends.
    #[prost(uint64, tag = "9")]
    pub xattr_bytes: u64,
    #[prost(uint64, tag = "17")]
    pub xattr_list: u64,
    /// Of a file: it was made without a name and has not got one yet. A link may give it one; to
    /// what lost its last name none may.
    #[prost(bool, tag = "14")]
    pub nameless: bool,
    /// Its access control list and, of a directory, the one that new children inherit, as Linux's
    /// attributes have them; empty: none.
    #[prost(bytes = "bytes", tag = "15")]
    pub access_acl: Bytes,
    #[prost(bytes = "bytes", tag = "16")]
    pub default_acl: Bytes,
    /// Of a file: ranges that read as zeros although extents lie there still, more than one entry
    /// of the log should delete. In order and apart; each extent lies within one or outside of all.
    #[prost(message, repeated, tag = "20")]
    pub cut: Vec<Span>,
    /// The directory whose quota it counts for; 0: none. Things that are made in a directory count
    /// for its own quota, if it has one ([`Self::zone`]), and for that of this directory if not.
    #[prost(uint64, tag = "21")]
    pub quota: u64,
    /// Of a directory: it has a quota.
    #[prost(bool, tag = "22")]
    pub has_quota: bool,
}

/// The bytes `[from, to)` of a file.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Span {
    #[prost(uint64, tag = "1")]
    pub from: u64,
    #[prost(uint64, tag = "2")]
    pub to: u64,
}

/// First cookie of a directory: 1 and 2 are for "." and "..", which the client makes.
pub(crate) const FIRST_COOKIE: u64 = 3;

impl Inode {
    pub(crate) fn ino(&self) -> InodeId {
        InodeId(self.attr.ino)
    }

    pub(crate) fn kind(&self) -> v1::FileKind {
        self.attr.kind()
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == v1::FileKind::Directory
    }

    /// The directory whose quota that counts for which is made in this one; 0: none.
    pub(crate) fn zone(&self) -> u64 {
        if self.has_quota { self.attr.ino } else { self.quota }
    }

    /// The number that its extents are stored under.
    pub(crate) fn content_id(&self) -> InodeId {
        InodeId(if self.content == 0 { self.attr.ino } else { self.content })
    }

    /// Its checked layout; `None` for what holds no data.
    pub(crate) fn checked_layout(&self) -> StoreResult<Option<Layout>> {
        self.layout
            .map(Layout::try_from)
            .transpose()
            .map_err(|e| StoreError::corrupt(format!("layout of inode {}: {e}", self.ino())))
    }

    /// Accounts for a change of how many bytes its extents cover.
    pub(crate) fn set_allocated(&mut self, bytes: u64) {
        self.allocated = bytes;
        self.attr.blocks = bytes.div_ceil(512);
    }
}

/// What a name in a directory stands for.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Dentry {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(enumeration = "v1::FileKind", tag = "2")]
    pub kind: i32,
    #[prost(uint64, tag = "3")]
    pub cookie: u64,
}

/// The same name in the order in which directories are read.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct IndexEntry {
    #[prost(bytes = "bytes", tag = "1")]
    pub name: Bytes,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    #[prost(enumeration = "v1::FileKind", tag = "3")]
    pub kind: i32,
}

/// A committed segment.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Segment {
    #[prost(message, required, tag = "1")]
    pub info: v1::SegmentInfo,
    /// Sum of the lengths of the extents that point at it; never 0.
    #[prost(uint64, tag = "2")]
    pub live_bytes: u64,
    /// A confined client has stored it, and may delete it as long as it has a ticket: who trusts it
    /// with nothing else shares nothing with it.
    #[prost(bool, tag = "3")]
    pub confined: bool,
}

/// A live session.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Session {
    #[prost(string, tag = "1")]
    pub client: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub nonce: Bytes,
    /// Replies to numbers below are forgotten.
    #[prost(uint64, tag = "3")]
    pub acked_below: u64,
    /// The highest number that was applied.
    #[prost(uint64, tag = "4")]
    pub highest: u64,
    /// It is a leader's, in which storage daemons write for it: it has no client and holds nothing.
    #[prost(bool, tag = "5")]
    pub leaders: bool,
    /// Who was proved to have opened it; only he uses it. Empty: nobody had to.
    #[prost(string, tag = "6")]
    pub owner: String,
    /// He is confined to a part of the filesystem, or in what he may do.
    #[prost(bool, tag = "7")]
    pub confined: bool,
}

/// Numbers of inodes that were set aside for a session.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Numbers {
    #[prost(uint64, tag = "1")]
    pub first: u64,
    #[prost(uint64, tag = "2")]
    pub count: u64,
    /// As many behind them are kept for the session, which has not asked for them yet.
    #[prost(uint64, tag = "3")]
    pub room: u64,
    /// Who was proved to have opened the session; empty: nobody had to.
    #[prost(string, tag = "4")]
    pub owner: String,
}

impl Numbers {
    /// The first number behind them.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.count
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NonceOwner {
    #[prost(uint64, tag = "1")]
    pub session: u64,
}

/// The next numbers to give out, and how many inodes there are.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Counters {
    #[prost(uint64, tag = "1")]
    pub next_inode: u64,
    #[prost(uint64, tag = "2")]
    pub next_session: u64,
    #[prost(uint32, tag = "3")]
    pub next_target: u32,
    #[prost(uint64, tag = "4")]
    pub inodes: u64,
    /// No placement group has had this id or one above it.
    #[prost(uint32, tag = "5")]
    pub next_pg: u32,
}

/// The cluster map but for targets, pools and placement groups.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Cluster {
    #[prost(bytes = "bytes", tag = "1")]
    pub id: Bytes,
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    #[prost(message, repeated, tag = "3")]
    pub members: Vec<v1::NodeInfo>,
    /// The shard of the namespace that this group owns.
    #[prost(uint32, tag = "4")]
    pub shard: u32,
    /// The servers that the group began with; empty: those that are its members still.
    #[prost(uint64, repeated, tag = "5")]
    pub founders: Vec<u64>,
    /// Servers that have left the group. Their numbers are never given again.
    #[prost(uint64, repeated, tag = "6")]
    pub removed: Vec<u64>,
    /// Until then, in nanoseconds since 1970, nothing is deleted from targets: the group was begun
    /// anew from a backup, and what it does not know may be wanted.
    #[prost(int64, tag = "7")]
    pub held_until_ns: i64,
    /// Which restore from a backup the group was begun anew with, in seconds since 1970 and above
    /// that before; 0: none.
    #[prost(uint64, tag = "8")]
    pub incarnation: u64,
    /// Numbers of sessions that restores have skipped: from one to before the next, in pairs.
    #[prost(uint64, repeated, tag = "9")]
    pub session_gaps: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Pool {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, required, tag = "2")]
    pub profile: v1::ProfileInfo,
}

/// A placement group and the pool that it belongs to.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Group {
    #[prost(uint32, tag = "1")]
    pub pool: u32,
    #[prost(message, required, tag = "2")]
    pub info: v1::PgInfo,
    /// Segments that name it, committed ones and garbage: without it their chunks are not found.
    #[prost(uint64, tag = "3")]
    pub segments: u64,
    /// A seat of it was or is being given away: it takes no new segments, whoever wrote them.
    #[prost(bool, tag = "4")]
    pub sealed: bool,
}

/// A number stored under a name.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Number {
    #[prost(uint64, tag = "1")]
    pub value: u64,
}
