//! Attributes of inodes.

use weft_proto::{Error, ErrorKind, InodeId, Result, v1};

/// What an inode is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A local socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
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

    /// What `st_mode` of `stat(2)` says of it: one of `S_IFREG`, `S_IFDIR`, ...
    pub fn type_bits(self) -> u32 {
        match self {
            Self::Regular => libc::S_IFREG,
            Self::Directory => libc::S_IFDIR,
            Self::Symlink => libc::S_IFLNK,
            Self::Fifo => libc::S_IFIFO,
            Self::Socket => libc::S_IFSOCK,
            Self::CharDevice => libc::S_IFCHR,
            Self::BlockDevice => libc::S_IFBLK,
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
    /// Its number.
    pub ino: InodeId,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits with suid, sgid, sticky: 07777.
    pub mode: u32,
    /// Names that lead to it.
    pub nlink: u32,
    /// Who owns it.
    pub uid: u32,
    /// The group that owns it.
    pub gid: u32,
    /// Of a device: which one.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Allocated, in units of 512 bytes.
    pub blocks: u64,
    /// Nanoseconds since 1970, as are the other times.
    pub atime_ns: i64,
    /// When its content was last changed.
    pub mtime_ns: i64,
    /// When anything of it was last changed.
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

    /// The greater, the newer: a change of attributes alone counts no version.
    pub(crate) fn age(&self) -> (u64, i64) {
        (self.data_version, self.ctime_ns)
    }

    /// With an access that the group was told of.
    pub(crate) fn adopt_atime(&mut self, at: i64) {
        if at >= self.ctime_ns {
            self.atime_ns = self.atime_ns.max(at);
        }
    }
}

impl From<Attr> for v1::Attr {
    fn from(a: Attr) -> Self {
        Self {
            ino: a.ino.0,
            kind: a.kind.to_wire().into(),
            mode: a.mode,
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
            no_xattrs: !a.xattrs,
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
    /// The user.
    pub uid: u32,
    /// The group, unless the directory gives it its own.
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
    /// Permission bits with suid, sgid, sticky.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// Bytes: the file is cut, or extended by a hole.
    pub size: Option<u64>,
    /// When it was read.
    pub atime: Option<SetTime>,
    /// When its content was changed.
    pub mtime: Option<SetTime>,
}
