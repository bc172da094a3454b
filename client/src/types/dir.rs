//! Directories.

use super::attr::{Attr, FileKind};
use bytes::Bytes;
use weft_proto::InodeId;

/// One name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name itself.
    pub name: Bytes,
    /// The inode that it leads to.
    pub ino: InodeId,
    /// What that is.
    pub kind: FileKind,
    /// Where to go on: entries after this one are those with a greater cookie.
    pub cookie: u64,
    /// When attributes were asked for.
    pub attr: Option<Attr>,
}

/// A piece of a directory; `.` and `..` are not among the entries, cookies start at 3.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirPage {
    /// Names, by growing cookies.
    pub entries: Vec<DirEntry>,
    /// Nothing comes after these.
    pub end: bool,
    /// The directory that this one is in.
    pub parent: InodeId,
    /// Names that are made after this was answered have this cookie or a greater one.
    pub next_cookie: u64,
}

impl DirPage {
    /// Leaves out the names from cookie `end` on.
    pub fn end_at(&mut self, end: u64) {
        let kept = self.entries.partition_point(|entry| entry.cookie < end);
        self.end |= kept < self.entries.len();
        self.entries.truncate(kept);
    }
}
