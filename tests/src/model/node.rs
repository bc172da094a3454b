//! What the tree of the model consists of, and what it answers.

use super::content::Content;
use std::collections::{BTreeMap, BTreeSet};

/// Names an inode of the model; never used again.
pub type Id = u64;
pub const ROOT: Id = 0;

/// What an operation that succeeds tells its caller.
#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    Done,
    Bytes(Vec<u8>),
    Count(u64),
    Text(String),
    Names(BTreeSet<String>),
    Attr(Attr),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    File,
    Directory,
    Link,
    Fifo,
}

/// What `stat` tells, but for the number of the inode and times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    pub kind: Kind,
    /// Without the type.
    pub mode: u32,
    pub nlink: u64,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    /// 0 for a directory, whatever it has.
    pub size: u64,
}

/// What became of a time of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Time {
    Same,
    Later,
    /// Nobody says.
    Any,
    /// Nanoseconds since 1970.
    At(i64),
}

impl Time {
    /// First this, then `next`.
    pub fn then(self, next: Self) -> Self {
        match (self, next) {
            (_, Self::Same) => self,
            (_, Self::At(_)) | (Self::Same, _) | (Self::Later, Self::Later) => next,
            _ => Self::Any,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    pub mtime: Time,
    pub ctime: Time,
}

impl Times {
    pub const SAME: Self = Self { mtime: Time::Same, ctime: Time::Same };
    pub const BOTH: Self = Self { mtime: Time::Later, ctime: Time::Later };
    pub const CTIME: Self = Self { mtime: Time::Same, ctime: Time::Later };
    pub const CTIME_ANY: Self = Self { mtime: Time::Same, ctime: Time::Any };
    pub const ANY: Self = Self { mtime: Time::Any, ctime: Time::Any };

    pub fn then(self, next: Self) -> Self {
        Self { mtime: self.mtime.then(next.mtime), ctime: self.ctime.then(next.ctime) }
    }
}

#[derive(Clone, Debug)]
pub enum Body {
    File(Content),
    /// The root's parent is itself; one that was removed has none.
    Directory {
        names: BTreeMap<String, Id>,
        parent: Option<Id>,
    },
    Link(String),
    Fifo,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub body: Body,
    pub mode: u32,
    /// Names.
    pub nlink: u64,
    pub uid: u32,
    pub gid: u32,
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

impl Node {
    pub fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory { .. })
    }

    /// Fifos and links have no attributes of a user's own.
    pub fn has_xattrs(&self) -> bool {
        matches!(self.body, Body::File(_) | Body::Directory { .. })
    }
}

/// An open file.
#[derive(Clone, Copy, Debug)]
pub struct Handle {
    pub node: Id,
    pub read: bool,
    pub write: bool,
    pub append: bool,
}
