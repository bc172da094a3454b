//! The directories that are open on this mount.

use crate::types::HandleId;
use std::collections::HashMap;
use weft_net::sync::Mutex;
use weft_proto::{Error, ErrorKind, InodeId, Result, v1};

/// One open of a directory.
struct Directory {
    ino: InodeId,
    /// The first cookie of a name that was made after it began to be read; 0: it has not been read.
    end: u64,
}

#[derive(Default)]
pub(super) struct Directories(Mutex<HashMap<HandleId, Directory>>);

impl Directories {
    pub fn insert(&self, id: HandleId, ino: InodeId, end: u64) {
        self.0.lock().insert(id, Directory { ino, end });
    }

    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// All, for the next process that serves the mount.
    pub fn hand_over(&self) -> Vec<v1::OpenDirectory> {
        let open = |(id, of): (&HandleId, &Directory)| v1::OpenDirectory {
            number: id.0,
            ino: of.ino.0,
            end: of.end,
        };
        self.0.lock().iter().map(open).collect()
    }

    pub fn ino(&self, id: HandleId) -> Result<InodeId> {
        self.0.lock().get(&id).map(|open| open.ino).ok_or_else(|| not_open(id))
    }

    /// The cookie at which an open directory ends that is read after `cookie`. It is `next_cookie`,
    /// that of the next new name (0: not known), when it is read from the start, or for the first
    /// time.
    pub fn end_of(&self, id: HandleId, cookie: u64, next_cookie: u64) -> Result<u64> {
        let mut directories = self.0.lock();
        let open = directories.get_mut(&id).ok_or_else(|| not_open(id))?;
        if cookie == 0 || open.end == 0 {
            open.end = if next_cookie == 0 { u64::MAX } else { next_cookie };
        }
        Ok(open.end)
    }

    pub fn remove(&self, id: HandleId) -> Result<InodeId> {
        self.0.lock().remove(&id).map(|open| open.ino).ok_or_else(|| not_open(id))
    }
}

pub(super) fn not_open(id: HandleId) -> Error {
    Error::new(ErrorKind::Invalid, format!("handle {} is not open", id.0))
}
