//! Answers about what was made, or given a name.

use super::Dcache;
use crate::abi::{Answer, Entry, Reply};
use crate::attr::to_kernel;
use crate::reply;
use bytes::Bytes;
use std::time::Duration;
use weft_client::{Access, Attr, FileKind, Filesystem, OpenFlags, Opened, allows_in_any_group};
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

    /// Opens what another mount has made after the kernel was told that there is no such name, if
    /// that is not to be told apart from what is made now: the kernel does not know it, and checks
    /// no permissions of what a CREATE opens. `None`: it has to come again, and look. It does that
    /// once, so that who opens a name that comes and goes elsewhere would get ESTALE.
    pub async fn open_new_elsewhere(
        &self,
        fs: &Filesystem,
        dir: InodeId,
        name: &[u8],
        uid: u32,
        flags: i32,
    ) -> Option<Opened> {
        let attr = fs.lookup(dir, name).await.ok()?;
        let is_known = self.0.table.lock().may_know(attr.ino.0);
        let wanted = OpenFlags::from_bits(flags);
        let want = match flags & libc::O_ACCMODE {
            libc::O_RDONLY if !wanted.truncate => Access::READ,
            libc::O_WRONLY => Access::WRITE,
            _ => Access::READ | Access::WRITE,
        };
        let may = attr.kind == FileKind::Regular
            && allows_in_any_group(&attr, uid, want)
            && (!wanted.no_atime || uid == attr.uid);
        match may && !is_known {
            true => fs.open(attr.ino, wanted).await.ok(),
            false => None,
        }
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
