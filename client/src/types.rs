//! What callers of the facade give and get: attributes, handles, flags. Plain values, no wire types.

use bytes::Bytes;
use weft_proto::{Error, ErrorKind, InodeId, Result, v1};

/// Names an open file or directory of this mount; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HandleId(pub u64);

/// What an inode is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

impl FileKind {
    /// The kind that a mode's `S_IFMT` bits name; no type bits mean a regular file.
    pub fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & 0o170000 {
            0 | 0o100000 => Self::Regular,
            0o040000 => Self::Directory,
            0o120000 => Self::Symlink,
            0o010000 => Self::Fifo,
            0o140000 => Self::Socket,
            0o020000 => Self::CharDevice,
            0o060000 => Self::BlockDevice,
            _ => return None,
        })
    }

    pub(crate) fn to_wire(self) -> v1::FileKind {
        match self {
            Self::Regular => v1::FileKind::Regular,
            Self::Directory => v1::FileKind::Directory,
            Self::Symlink => v1::FileKind::Symlink,
            Self::Fifo => v1::FileKind::Fifo,
            Self::Socket => v1::FileKind::Socket,
            Self::CharDevice => v1::FileKind::CharDevice,
            Self::BlockDevice => v1::FileKind::BlockDevice,
        }
    }

    pub(crate) fn from_wire(kind: v1::FileKind) -> Result<Self> {
        Ok(match kind {
            v1::FileKind::Regular => Self::Regular,
            v1::FileKind::Directory => Self::Directory,
            v1::FileKind::Symlink => Self::Symlink,
            v1::FileKind::Fifo => Self::Fifo,
            v1::FileKind::Socket => Self::Socket,
            v1::FileKind::CharDevice => Self::CharDevice,
            v1::FileKind::BlockDevice => Self::BlockDevice,
            v1::FileKind::Unknown => {
                return Err(Error::new(
                    ErrorKind::Protocol,
                    "inode of a kind unknown to this client",
                ));
            }
        })
    }
}

/// Attributes of an inode as this mount sees them: data that was written here and is not committed
/// yet is in `size` and `mtime_ns`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    pub ino: InodeId,
    pub kind: FileKind,
    /// Permission bits with suid, sgid, sticky: 07777.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Allocated, in units of 512 bytes.
    pub blocks: u64,
    /// Nanoseconds since 1970, as are the other times.
    pub atime_ns: i64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    /// When it was made; 0 if that was not noted.
    pub btime_ns: i64,
    /// Grows with every committed change of content or size.
    pub data_version: u64,
    /// Bytes of the content that live in metadata.
    pub inline_bytes: u64,
    /// It has an access control list, or one that its children inherit.
    pub acls: bool,
    /// It may have extended attributes beside those lists.
    pub xattrs: bool,
}

impl Attr {
    pub(crate) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// With an access that the group was told of.
    pub(crate) fn adopt_atime(&mut self, at: i64) {
        if at >= self.ctime_ns {
            self.atime_ns = self.atime_ns.max(at);
        }
    }
}

impl TryFrom<v1::Attr> for Attr {
    type Error = Error;
    fn try_from(a: v1::Attr) -> Result<Self> {
        Ok(Self {
            ino: InodeId(a.ino),
            kind: FileKind::from_wire(a.kind())?,
            mode: a.mode & 0o7777,
            nlink: a.nlink,
            uid: a.uid,
            gid: a.gid,
            rdev: a.rdev,
            size: a.size,
            blocks: a.blocks,
            atime_ns: a.atime_ns,
            mtime_ns: a.mtime_ns,
            ctime_ns: a.ctime_ns,
            btime_ns: a.btime_ns,
            data_version: a.data_version,
            inline_bytes: a.inline_bytes,
            acls: a.acls,
            xattrs: !a.no_xattrs,
        })
    }
}

/// Who makes an inode.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Creator {
    pub uid: u32,
    pub gid: u32,
    /// Taken off the mode, unless the directory has an access control list to inherit.
    pub umask: u32,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The metadata server's clock.
    Now,
    /// Nanoseconds since 1970.
    At(i64),
}

/// Which attributes to change; what is `None` stays.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
}

/// What `fallocate(2)` does with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocate {
    /// There is room for it; the content stays as it is.
    Room,
    /// It becomes a hole, which reads as zeros.
    Hole,
}

/// What `lseek(2)` looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    Data,
    /// Behind the last byte there is one.
    Hole,
}

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OpenFlags {
    /// Writes go to the end of file, wherever it is when they are committed.
    pub append: bool,
    /// Cut the file to nothing.
    pub truncate: bool,
    /// With create: refuse a name that exists.
    pub exclusive: bool,
    /// Every write is durable and visible before it returns.
    pub sync: bool,
    /// The handle is going to be written to.
    pub write: bool,
    /// The handle is going to be read from and written to, as one that a file is mapped through to
    /// write.
    pub both: bool,
    /// Reads leave the access time as it is.
    pub no_atime: bool,
}

impl OpenFlags {
    /// From the flags of `open(2)` (Linux).
    pub fn from_bits(flags: i32) -> Self {
        Self {
            append: flags & 0o2000 != 0,
            truncate: flags & 0o1000 != 0,
            exclusive: flags & 0o200 != 0,
            // O_DSYNC; O_SYNC contains it.
            sync: flags & 0o10000 != 0,
            write: flags & 0o3 != 0,
            both: flags & 0o3 == 2,
            no_atime: flags & 0o1_000_000 != 0,
        }
    }
}

/// What a cache above this library, such as the kernel's pages, has to do with a read or a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Via {
    /// Nothing: it goes past the cache.
    Direct,
    /// A read fills it, a write is filed there; the caller holds these pages until it is answered.
    Cache,
    /// The cache writes what was stored in it through mappings. Whoever takes the pages back may
    /// wait for it.
    WriteBack,
}

/// An open that succeeded.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    pub handle: HandleId,
    pub attr: Attr,
    /// What the caller (the kernel) has cached of the content is still good.
    pub keep_cache: bool,
    /// The caller may cache what it reads and writes through this handle, mappings aside, which it always may.
    /// Not for an append, which lands where the group says, and not to read and write while another mount
    /// may map it to write.
    pub cached: bool,
}

/// One name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    pub name: Bytes,
    pub ino: InodeId,
    pub kind: FileKind,
    /// Where to go on: entries after this one are those with a greater cookie.
    pub cookie: u64,
    /// When attributes were asked for.
    pub attr: Option<Attr>,
}

/// A piece of a directory; `.` and `..` are not among the entries, cookies start at 3.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirPage {
    pub entries: Vec<DirEntry>,
    /// Nothing comes after these.
    pub end: bool,
    pub parent: InodeId,
    /// Names that are made after this was answered have this cookie or a greater one.
    pub next_cookie: u64,
}

impl DirPage {
    /// Leaves out the names from cookie `end` on.
    pub(crate) fn end_at(&mut self, end: u64) {
        let kept = self.entries.partition_point(|entry| entry.cookie < end);
        self.end |= kept < self.entries.len();
        self.entries.truncate(kept);
    }
}

/// Room in the filesystem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatFs {
    /// User data that the filesystem could hold when empty, bytes.
    pub capacity_bytes: u64,
    pub free_bytes: u64,
    /// Of the free ones, those that can be written before the targets are full.
    pub available_bytes: u64,
    pub inodes: u64,
}

/// Bytes that a read answered: a few slices in file order, not copied on their way from the socket.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ReadData {
    parts: Vec<Bytes>,
    len: usize,
}

impl ReadData {
    pub(crate) fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.len += part.len();
            self.parts.push(part);
        }
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// One slice; copies only if there is more than one part.
    pub fn into_bytes(mut self) -> Bytes {
        match self.parts.len() {
            0 => Bytes::new(),
            1 => self.parts.swap_remove(0),
            _ => self.parts.concat().into(),
        }
    }
}

/// What a mount did since it was connected.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Answers that did not match their checksums.
    pub corrupt_chunks: u64,
    /// Reads for which shards were rebuilt from others.
    pub rebuilt_reads: u64,
    /// Segments that were written again, on other targets or in another session.
    pub rewritten_segments: u64,
    /// Requests to the metadata group that operations had to make.
    pub metadata_requests: u64,
}

impl Counters {
    /// As a JSON object, which the virtual attribute `user.weft.stats` shows.
    pub fn to_json(&self) -> String {
        let Self { corrupt_chunks, rebuilt_reads, rewritten_segments, metadata_requests } = self;
        format!(
            r#"{{"corrupt_chunks":{corrupt_chunks},"rebuilt_reads":{rebuilt_reads},"rewritten_segments":{rewritten_segments},"metadata_requests":{metadata_requests}}}"#
        )
    }
}

/// What a lock allows its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockKind {
    /// Nothing: to unlock.
    None,
    Read,
    Write,
}

impl LockKind {
    /// Whether it is for writing; `None`: to unlock.
    pub(crate) fn write(self) -> Option<bool> {
        match self {
            Self::None => None,
            Self::Read => Some(false),
            Self::Write => Some(true),
        }
    }
}

/// A lock of fcntl(2) or, `flock`, of flock(2), of the bytes from `start` to `end`, that one included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    pub flock: bool,
    /// Whose it is, of all on this mount: a process, or an open file.
    pub owner: u64,
    pub kind: LockKind,
    pub start: u64,
    pub end: u64,
    /// The process that took it; 0 if it runs on another mount.
    pub pid: u32,
}
