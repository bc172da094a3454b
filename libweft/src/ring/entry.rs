//! What is done by a ring.

use crate::error::Failure;
use crate::memory::{self, Buffers, count};
use libc::ssize_t;
use std::sync::Arc;
use weft_client::OpenFile;

/// One entry.
pub struct Entry {
    /// Tells the caller which one it is.
    pub user_data: u64,
    pub file: Arc<OpenFile>,
    pub what: What,
}

/// What it asks for.
pub enum What {
    Read {
        off: u64,
        into: Buffers,
    },
    /// `whole`: as one write, for files that are appended to.
    Write {
        off: u64,
        from: Buffers,
        whole: bool,
    },
    Sync,
}

impl Entry {
    /// Does it, to its end. Answers as the calls of the same kind do.
    pub async fn run(&self) -> Result<ssize_t, Failure> {
        let done = match &self.what {
            What::Read { off, into } => memory::read(&self.file, *off, into).await,
            What::Write { off, from, whole } => memory::write(&self.file, *off, from, *whole).await,
            What::Sync => self.file.sync().await.map(|()| 0),
        };
        done.map(count).map_err(|e| Failure::from(e).at(&format!("inode {}", self.file.ino())))
    }
}
