//! Answers about what was made, or given a name.

use super::Dcache;
use crate::abi::{Answer, Entry, Reply};
use crate::reply;
use bytes::Bytes;
use std::time::Duration;
use weft_client::{Attr, Filesystem};
use weft_proto::{InodeId, Result};

impl Dcache {
    /// What a request of this thread has made in a directory.
    pub async fn made(
        &self,
        fs: &Filesystem,
        dir: InodeId,
        name: Bytes,
        thread: u32,
        made: Result<Attr>,
    ) -> Answer {
        let attr = made.map_err(reply::errno)?;
        self.followed(&[dir]).await;
        self.0.table.lock().tell(attr.ino.0);
        let name_ttl = self.give_name(fs, dir, name, Some(attr.ino), None);
        let (attr, attr_ttl) = self.give_attr(attr, thread, || fs.attr_to_cache(attr.ino));
        Ok(Reply::Entry(self.entry(&attr, name_ttl, attr_ttl)))
    }

    /// What a request has given one more name in a directory.
    pub fn linked(
        &self,
        fs: &Filesystem,
        dir: InodeId,
        name: Bytes,
        linked: Result<Attr>,
    ) -> Answer {
        let attr = linked.map_err(reply::errno)?;
        self.0.table.lock().tell(attr.ino.0);
        let name_ttl = self.give_name(fs, dir, name, Some(attr.ino), None);
        Ok(Reply::Entry(self.entry(&attr, name_ttl, Duration::ZERO)))
    }

    /// The entry of a file that was made and opened just now.
    pub fn new_entry(
        &self,
        fs: &Filesystem,
        dir: InodeId,
        name: Bytes,
        thread: u32,
        attr: &Attr,
    ) -> Entry {
        self.0.table.lock().tell(attr.ino.0);
        let name_ttl = self.give_name(fs, dir, name, Some(attr.ino), None);
        let (attr, attr_ttl) = self.give_attr(*attr, thread, || fs.attr_of_new(attr.ino));
        self.entry(&attr, name_ttl, attr_ttl)
    }

    /// The entry of what has no name.
    pub fn unnamed(&self, attr: &Attr) -> Entry {
        self.0.table.lock().tell(attr.ino.0);
        self.entry(attr, Duration::ZERO, Duration::ZERO)
    }
}
