//! What the log does not tell any more: an entry that a drive or a memory has damaged.

use weft_proto::Error;

/// An entry that the log should have and that is missing or does not read.
#[derive(Debug)]
pub struct Unread {
    pub index: u64,
    pub why: Error,
}

impl From<Unread> for Error {
    fn from(Unread { index, why }: Unread) -> Self {
        Self::new(why.kind, format!("log entry {index}: {}", why.message))
    }
}
