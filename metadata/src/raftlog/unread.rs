//! What the log does not tell any more: an entry that a drive or a memory has damaged.

use crate::folder::MOVE_AWAY;
use weft_proto::Error;

/// An entry that the log should have and that is missing or does not read.
#[derive(Debug)]
pub struct Unread {
    pub index: u64,
    pub why: Error,
}

impl Unread {
    /// The error of a server that cannot go on without it.
    pub fn at_the_start(self) -> Error {
        let Error { kind, message, .. } = self.into();
        let what = "this server cannot go on without it; if that stays so";
        Error::new(kind, format!("{message}; {what}, {MOVE_AWAY}"))
    }
}

impl From<Unread> for Error {
    fn from(Unread { index, why }: Unread) -> Self {
        Self::new(why.kind, format!("log entry {index}: {}", why.message))
    }
}
