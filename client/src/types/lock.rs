//! Locks of files.

/// What a lock allows its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockKind {
    /// Nothing: to unlock.
    None,
    /// Others may have locks to read beside it.
    Read,
    /// Nobody else has one.
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

/// A lock of fcntl(2) or, `flock`, of flock(2), of the bytes from `start` to `end`, that one
/// included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Of flock(2), which covers the whole file.
    pub flock: bool,
    /// Whose it is, of all on this mount: a process, or an open file.
    pub owner: u64,
    /// What it allows.
    pub kind: LockKind,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// The process that took it; 0 if it runs on another mount.
    pub pid: u32,
}
