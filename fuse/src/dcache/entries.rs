//! Answers about what was made, or given a name.

use super::Dcache;
use crate::abi::{Answer, Entry, Reply};
use crate::attr::to_kernel;
use crate::reply;
use bytes::Bytes;
use std::time::Duration;
use weft_client::{Attr, Filesystem};
use weft_proto::{InodeId, Result};

impl Dcache {
    /// What a request has made in a directory, or given a name there.
    pub fn made(
        &self,
        fs: &Filesystem,
        dir: InodeId,
        name: Bytes,
        thread: u32,
        made: Result<Attr>,
    ) -> Answer {
        let attr = made.map_err(reply::errno)?;
        Ok(Reply::Entry(self.new_entry(fs, dir, name, thread, &attr)))
    }

    /// The entry of what was made just now.
    pub fn new_entry(
        &self,
        fs: &Filesystem,
        dir: InodeId,
        name: Bytes,
        thread: u32,
        attr: &Attr,
    ) -> Entry {
        self.0.table.lock().tell(attr.ino.0);
        self.entry(thread, attr, self.give_name(fs, dir, name, Some(attr.ino), None))
    }

    /// The entry of what has no name.
    pub fn unnamed(&self, thread: u32, attr: &Attr) -> Entry {
        self.0.table.lock().tell(attr.ino.0);
        self.entry(thread, attr, Duration::ZERO)
    }

    pub(super) fn entry(&self, thread: u32, attr: &Attr, name_ttl: Duration) -> Entry {
        self.told(thread, attr.ino);
        let node = self.0.root.swap(attr.ino.0);
        Entry { node, attr: to_kernel(attr), name_ttl, attr_ttl: Duration::ZERO }
    }
}
