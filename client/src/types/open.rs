//! Handles, and what is done through them.

use super::attr::Attr;

/// Names an open file or directory of this mount; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HandleId(pub u64);

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
    /// Of a path: refuse a symbolic link at its end.
    pub no_follow: bool,
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
            no_follow: flags & libc::O_NOFOLLOW != 0,
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

/// How a write comes. Of a [`Via`] alone: as its handle was opened to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Writing {
    /// What a cache above has to do with it.
    pub via: Via,
    /// Whether it goes to the end of file; `None` as the handle was opened. Programs change that of
    /// what they have open (`F_SETFL`).
    pub append: Option<bool>,
    /// It is durable and visible before it is answered, however the handle was opened.
    pub sync: bool,
}

impl From<Via> for Writing {
    fn from(via: Via) -> Self {
        Self { via, append: None, sync: false }
    }
}

/// An open that succeeded.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// Names the open file.
    pub handle: HandleId,
    /// Its attributes.
    pub attr: Attr,
    /// What the caller (the kernel) has cached of the content is still good.
    pub keep_cache: bool,
    /// The caller may cache what it reads and writes through this handle, mappings aside, which it
    /// always may. Not for an append, which lands where the group says, and not to read and write
    /// while another mount may map it to write.
    pub cached: bool,
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
    /// Bytes that were written.
    Data,
    /// Behind the last byte there is one.
    Hole,
}
