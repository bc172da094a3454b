//! Answers about what was made, or given a name.

use super::Dcache;
use crate::abi::{Answer, Entry, Reply};
use crate::attr::to_kernel;
use crate::reply;
use bytes::Bytes;
use std::time::Duration;
use weft_client::{Access, Attr, FileKind, Filesystem, OpenFlags, Opened, allows_in_any_group};
use weft_proto::{ErrorKind, InodeId, Result};

/// What became of a name that could not be made, since it was there.
pub enum Elsewhere {
    Opened(Box<(Opened, Entry)>),
    /// It is not there any more.
    Gone,
    /// The kernel has to look for itself. It does so once.
    MayNot,
}

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
    /// no permissions of what a CREATE opens.
    pub async fn open_new_elsewhere(
        &self,
        fs: &Filesystem,
        (dir, name): (InodeId, &Bytes),
        (thread, uid): (u32, u32),
        flags: i32,
    ) -> Elsewhere {
        let opened = match self.open_if_allowed(fs, dir, name, uid, flags).await {
            Ok(Some(opened)) => opened,
            Ok(None) => return Elsewhere::MayNot,
            Err(e) if matches!(e.kind, ErrorKind::NotFound | ErrorKind::Stale) => {
                return Elsewhere::Gone;
            }
            Err(_) => return Elsewhere::MayNot,
        };
        let ino = opened.attr.ino;
        if self.0.table.lock().tell(ino.0) {
            // By another name, meanwhile: what it knows may be newer than what it would be told.
            let _ = fs.release(opened.handle).await;
            if self.forgotten(ino.0, 1) {
                fs.forgotten(ino);
            }
            return Elsewhere::MayNot;
        }
        let name_ttl = self.give_name(fs, dir, name.clone(), Some(ino), None);
        let entry = self.entry(thread, &opened.attr, name_ttl);
        Elsewhere::Opened(Box::new((opened, entry)))
    }

    async fn open_if_allowed(
        &self,
        fs: &Filesystem,
        dir: InodeId,
        name: &[u8],
        uid: u32,
        flags: i32,
    ) -> Result<Option<Opened>> {
        let attr = fs.lookup(dir, name).await?;
        let wanted = OpenFlags::from_bits(flags);
        let want = match flags & libc::O_ACCMODE {
            libc::O_RDONLY if !wanted.truncate => Access::READ,
            libc::O_WRONLY => Access::WRITE,
            _ => Access::READ | Access::WRITE,
        };
        let may = attr.kind == FileKind::Regular
            && allows_in_any_group(&attr, uid, want)
            && (!wanted.no_atime || uid == attr.uid)
            && !self.0.table.lock().may_know(attr.ino.0);
        // The kernel may protect who opens what others have made in a sticky directory.
        let may = may && (uid == attr.uid || fs.get_attr(dir).await?.mode & libc::S_ISVTX == 0);
        match may {
            true => fs.open(attr.ino, wanted).await.map(Some),
            false => Ok(None),
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
