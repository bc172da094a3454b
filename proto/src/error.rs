//! Error kinds that cross the wire, and their one mapping to errno.
//!
//! Rooms have rich errors of their own; what leaves a room for another machine is a kind and a
//! sentence that says what happened, to what, and what to do.

use std::fmt;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal => $errno:literal),* $(,)?) => {
        /// What went wrong, as seen by a peer. The numbers are wire format: never reuse one.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u32)]
        pub enum ErrorKind { $($(#[$doc])* $name = $code),* }

        impl ErrorKind {
            /// Decodes a wire code; an unknown one (from a newer peer) reads as `Internal`.
            pub fn from_code(code: u32) -> Self {
                match code { $($code => Self::$name,)* _ => Self::Internal }
            }

            /// The wire code.
            pub fn code(self) -> u32 { self as u32 }

            /// What it is called, for people and for what is counted.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }

            /// The errno (Linux) that an application sees.
            pub fn errno(self) -> i32 { match self { $(Self::$name => $errno),* } }

            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}

kinds! {
    /// The caller may not do this.
    NotPermitted = 1 => 1,
    /// No such name, inode, chunk or attribute holder.
    NotFound = 2 => 2,
    /// A signal ended the wait.
    Interrupted = 4 => 4,
    /// Data could not be read or written, or would be wrong.
    Io = 5 => 5,
    /// There is no data at or behind the offset.
    NoData = 6 => 6,
    /// Another holds a lock that stands against this one.
    WouldBlock = 11 => 11,
    /// There is no memory for it now.
    NoMemory = 12 => 12,
    /// Permissions of the file or of a directory above it forbid it.
    AccessDenied = 13 => 13,
    /// It is in use in a way that stands against this.
    Busy = 16 => 16,
    /// The name, or a chunk with other content, is there.
    Exists = 17 => 17,
    /// What is named lies in two filesystems.
    CrossDevice = 18 => 18,
    /// A directory was needed.
    NotDirectory = 20 => 20,
    /// A directory is the wrong thing here.
    IsDirectory = 21 => 21,
    /// The request makes no sense.
    Invalid = 22 => 22,
    /// As many files are open as may be.
    TooManyOpen = 23 => 23,
    /// The file, or a value, would be longer than it may be.
    TooLarge = 27 => 27,
    /// There is no room for it.
    NoSpace = 28 => 28,
    /// The client may only read.
    ReadOnly = 30 => 30,
    /// The inode has as many names as it may have.
    TooManyLinks = 31 => 31,
    /// A number or a length is beyond its bounds.
    OutOfRange = 34 => 34,
    /// To wait for the lock would be to wait for oneself.
    Deadlock = 35 => 35,
    /// A name is over 255 bytes, or a path over 4096.
    NameTooLong = 36 => 36,
    /// No more locks can be had.
    NoLocks = 37 => 37,
    /// The directory has names in it.
    NotEmpty = 39 => 39,
    /// Directories are nested too deeply.
    TooDeep = 40 => 40,
    /// There is no such extended attribute.
    NoAttribute = 61 => 61,
    /// This is not done here.
    NotSupported = 95 => 95,
    /// The quota of a user, a group or a tree is used up.
    Quota = 122 => 122,
    /// The inode is gone (removed, and not open by this session).
    Stale = 116 => 116,

    // Kinds that Weft's own code reacts to; an application sees them only when retries end.
    /// This metadata server does not lead, and did nothing; the reply names the leader if it knows
    /// one.
    NotLeader = 1001 => 5,
    /// The session was declared dead (I5). The client must open a new one; what was not
    /// committed is lost to it.
    SessionExpired = 1002 => 5,
    /// The sender's cluster map is older than the receiver needs; refresh and retry.
    StaleMap = 1003 => 5,
    /// The peer is starting, stopping, or lost its quorum or its lead; what was asked for may take
    /// effect. Retry until the deadline.
    Unavailable = 1004 => 5,
    /// The deadline of the request passed.
    TimedOut = 1005 => 110,
    /// Bytes do not match their checksum. Never answered with data (I3).
    Corrupt = 1006 => 5,
    /// Unknown protocol version, operation or malformed message.
    Protocol = 1007 => 71,
    /// The peer belongs to another cluster.
    WrongCluster = 1008 => 5,
    /// Inline data would exceed the inline limit of the file: write a segment instead.
    InlineFull = 1009 => 5,
    /// A defect in Weft.
    Internal = 1010 => 5,
    /// A new segment lies in a placement group that is no more: nobody would find it. Write the
    /// data again, to another.
    Misplaced = 1011 => 5,
    /// What is asked of a storage daemon needs a ticket of the metadata group that this one is not,
    /// or not any more, or not yet known to the daemon. Ask the group anew.
    NoTicket = 1013 => 13,
    /// The connection was closed, or belongs to the process that this one was forked from. Never
    /// crosses the wire.
    Disconnected = 1012 => 107,
}

/// A failure with its kind and a sentence for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// What went wrong.
    pub kind: ErrorKind,
    /// What happened, to what, and what to do.
    pub message: String,
    /// For [`ErrorKind::NotLeader`] and [`ErrorKind::Unavailable`]: the leader's address, for
    /// [`ErrorKind::NoSpace`] of a target: the longest chunk that it has room for, in bytes. Empty
    /// if not known.
    pub hint: String,
}

impl Error {
    /// An error without a hint.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: String::new() }
    }

    /// The errno (Linux) that an application sees.
    pub fn errno(&self) -> i32 {
        self.kind.errno()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message.is_empty() {
            write!(f, "{:?}", self.kind)
        } else {
            f.write_str(&self.message)
        }
    }
}

impl std::error::Error for Error {}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self { kind, message: String::new(), hint: String::new() }
    }
}

/// Result of anything that a peer may refuse.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip_and_unknown_codes_are_internal() {
        for &kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_code(kind.code()), kind);
            assert!(kind.errno() > 0);
        }
        assert_eq!(ErrorKind::from_code(999_999), ErrorKind::Internal);
    }
}
