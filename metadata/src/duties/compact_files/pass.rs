//! How far a look at a file has come.

use crate::compaction::Seats;
use weft_proto::Error;

/// A look at a whole file, some of it at a time: others have their turn meanwhile.
#[derive(Default)]
pub(super) struct Pass {
    /// Where it goes on; `None`: it came to the end.
    pub from: Option<u64>,
    /// Of the content that it began with.
    pub version: Option<u64>,
    /// Some was written again: the file is looked at once more.
    pub again: bool,
    /// Some waits for other targets to take data than these, or for their room to be another.
    pub waits: Option<Seats>,
    pub failed: Option<Error>,
}

impl Pass {
    /// A look that begins.
    pub fn new() -> Self {
        Self { from: Some(0), ..Self::default() }
    }
}
