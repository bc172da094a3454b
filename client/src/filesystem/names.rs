//! Names: what makes them, moves them and takes them away.

use super::facade::Filesystem;
use crate::meta::unexpected;
use crate::types::{Attr, Creator, FileKind};
use bytes::Bytes;
use std::time::Duration;
use tokio::time::timeout;
use weft_net::trace::carried;
use weft_proto::mode::{SET_IDS, SETUID};
use weft_proto::rename::EXCHANGE;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{ErrorKind, InodeId, Result, v1};

pub(super) fn name_of(name: &[u8]) -> Bytes {
    Bytes::copy_from_slice(name)
}

/// Longest target of a symbolic link, in bytes: Linux's PATH_MAX less the closing NUL.
const MAX_TARGET: usize = 4095;

/// Leases that are not granted by then are of no use to who waits.
const LEASES_TIMEOUT: Duration = Duration::from_secs(1);

fn made_by(by: Creator) -> v1::MakeOp {
    let Creator { uid, gid, umask } = by;
    v1::MakeOp { uid, gid, umask, ..Default::default() }
}

impl Filesystem {
    /// Makes an inode of any kind but a directory or a symbolic link.
    pub async fn mk_nod(
        &self,
        parent: InodeId,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: u64,
        by: Creator,
    ) -> Result<Attr> {
        let by = self.may_make(by)?;
        let (parent, name) = (parent.0, name_of(name));
        let Creator { uid, gid, umask } = by;
        let of_kind = kind;
        let kind = kind.to_wire().into();
        let node = !matches!(of_kind, FileKind::Directory | FileKind::Symlink);
        let is_device = matches!(of_kind, FileKind::CharDevice | FileKind::BlockDevice);
        self.may_plant(is_device || mode & SET_IDS != 0)?;
        let shown = if is_device { rdev } else { 0 };
        let of = v1::MakeOp { parent, name: name.clone(), kind, mode, rdev: shown, ..made_by(by) };
        if node && let Some(made) = self.make_here(of) {
            return made;
        }
        let op = v1::MkNodOp { parent, name, kind, mode, uid, gid, rdev, umask };
        self.change_attr(Op::MkNod(op)).await
    }

    /// Makes a directory.
    pub async fn mk_dir(
        &self,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        by: Creator,
    ) -> Result<Attr> {
        let by = self.may_make(by)?;
        self.may_plant(mode & SETUID != 0)?;
        let Creator { uid, gid, umask } = by;
        let (parent, name) = (parent.0, name_of(name));
        let kind = v1::FileKind::Directory.into();
        let of = v1::MakeOp { parent, name: name.clone(), kind, mode, ..made_by(by) };
        if let Some(made) = self.make_here(of) {
            return made;
        }
        let op = v1::MkDirOp { parent, name, mode, uid, gid, umask };
        self.change_attr(Op::MkDir(op)).await
    }

    /// Makes a symbolic link to `target`.
    pub async fn sym_link(
        &self,
        parent: InodeId,
        name: &[u8],
        target: &[u8],
        by: Creator,
    ) -> Result<Attr> {
        let by = self.may_make(by)?;
        let Creator { uid, gid, .. } = by;
        let (parent, name, target) = (parent.0, name_of(name), name_of(target));
        if !target.is_empty() && target.len() <= MAX_TARGET && !target.contains(&0) {
            let (name, target, kind) = (name.clone(), target.clone(), v1::FileKind::Symlink.into());
            let of = v1::MakeOp { parent, name, kind, target, ..made_by(by) };
            if let Some(made) = self.make_here(of) {
                return made;
            }
        }
        let op = v1::SymLinkOp { parent, name, target, uid, gid };
        self.change_attr(Op::SymLink(op)).await
    }

    /// Where a symbolic link leads. Errors: `Invalid` of what is none.
    pub async fn read_link(&self, ino: InodeId) -> Result<Bytes> {
        self.note_access(|| self.inner.group.leases.attr(ino));
        match self.inner.requests.ask(Op::ReadLink(v1::ReadLinkOp { ino: ino.0 })).await? {
            Reply::Data(target) => Ok(target),
            _ => Err(unexpected("reading a link")),
        }
    }

    /// Gives an inode one more name. Errors: `Exists`, and what the kinds of inodes forbid.
    pub async fn link(&self, ino: InodeId, parent: InodeId, name: &[u8]) -> Result<Attr> {
        self.may_change()?;
        let op = v1::LinkOp { ino: ino.0, parent: parent.0, name: name_of(name) };
        self.change_attr(Op::Link(op)).await
    }

    /// Takes away a name of what is no directory.
    pub async fn unlink(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        self.may_change()?;
        let op = v1::UnlinkOp { parent: parent.0, name: name_of(name) };
        let here = || self.inner.log.unlink(op.clone(), self.now_here()?, self.is_open());
        if let Some((ino, never_was)) = self.try_here(parent, name, here).await {
            if never_was {
                self.inner.files.never_was(ino);
            }
            return Ok(());
        }
        self.change(Op::Unlink(op)).await
    }

    /// Removes an empty directory.
    pub async fn rm_dir(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        self.may_change()?;
        let op = v1::RmDirOp { parent: parent.0, name: name_of(name) };
        let here = || self.inner.log.rm_dir(op.clone(), self.now_here()?, self.is_open());
        match self.try_here(parent, name, here).await {
            Some(()) => Ok(()),
            None => self.change(Op::RmDir(op)).await,
        }
    }

    /// Moves a name. `flags` are those of `renameat2(2)`. What was written to a file through this
    /// mount before is committed no later.
    pub async fn rename(
        &self,
        parent: InodeId,
        name: &[u8],
        new_parent: InodeId,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        self.may_change()?;
        let op = v1::RenameOp {
            parent: parent.0,
            name: name_of(name),
            new_parent: new_parent.0,
            new_name: name_of(new_name),
            flags,
        };
        self.write_moved(parent, name).await?;
        if flags & EXCHANGE != 0 {
            // That one gets another name, too, and outlives this.
            self.write_moved(new_parent, new_name).await?;
        }
        let here = || self.inner.log.rename(op.clone(), self.now_here()?);
        match self.try_here(parent, name, here).await {
            Some(()) => Ok(()),
            None => self.change(Op::Rename(op)).await,
        }
    }

    /// What was written so far to what has this name is in the log, or committed, before the name
    /// is moved.
    async fn write_moved(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        let moved = match self.inner.group.leases.child(parent, name) {
            Some(ino) => Some(ino),
            // It may be one of which something waits here.
            None => match self.lookup(parent, name).await {
                Ok(attr) => Some(attr.ino),
                Err(e) if matches!(e.kind, ErrorKind::TimedOut | ErrorKind::Unavailable) => {
                    return Err(e);
                }
                Err(_) => None,
            },
        };
        if moved.is_none() {
            // It may be any still.
            self.inner.files.write_ranges_back().await?;
        }
        if let Some(file) = moved.and_then(|ino| self.inner.files.get(ino))
            && !file.defer()
        {
            // Its failure is its handles'; but what waits still must not come after the name.
            let written = file.write_back().await;
            if file.owes() {
                written?;
            }
        }
        Ok(())
    }

    /// Takes a name away or moves it, if leases allow that without asking. Who takes one name of a
    /// directory away takes more: leases on what they lead to are asked for, and waited for only if
    /// this one needs them.
    async fn try_here<T>(
        &self,
        dir: InodeId,
        name: &[u8],
        attempt: impl Fn() -> Option<T>,
    ) -> Option<T> {
        // Before it is gone, its place tells what comes after it.
        let ahead = match self.inner.options.dir_sync {
            true => Vec::new(),
            false => self.inner.group.leases.write_ahead(dir, name),
        };
        let done = attempt();
        if ahead.is_empty() {
            return done;
        }
        let (requests, inos) = (self.inner.requests.clone(), ahead.into_iter().map(|ino| ino.0));
        let op = Op::LeaseMany(v1::LeaseManyOp { inos: inos.collect() });
        let asking = tokio::spawn(carried(async move {
            // Without them the group is asked about each name.
            let _ = timeout(LEASES_TIMEOUT, requests.ask(op)).await;
        }));
        if done.is_some() {
            return done;
        }
        let _ = asking.await;
        attempt()
    }

    /// The time of what is done here without asking, unless each name is to wait for the group.
    fn now_here(&self) -> Option<i64> {
        (!self.inner.options.dir_sync).then(|| (self.inner.options.clock)())
    }

    /// Whether an inode is open here, or may be without its name.
    fn is_open(&self) -> impl Fn(InodeId) -> bool + '_ {
        |ino| self.inner.opens.is_open(ino) || self.inner.group.leases.is_known_above(ino)
    }

    /// What caches names above this library ([`crate::NameCache`]) does not know an inode any more,
    /// nor has what caches content any of it. If that was made here and lost its last name, before
    /// the group has heard of it, it never will.
    pub fn forgotten(&self, ino: InodeId) {
        self.inner.files.not_cached(ino);
        if self.inner.log.forgotten(ino, self.is_open()) {
            self.inner.files.never_was(ino);
        }
        self.inner.log.unused(ino, self.is_open());
    }

    /// Makes what is not opened without asking, if leases allow that.
    fn make_here(&self, op: v1::MakeOp) -> Option<Result<Attr>> {
        let made = self.inner.log.make(op, self.now_here()?, None)?.attr?;
        Some(made.try_into().map(|attr| self.inner.files.view(attr)))
    }

    /// A change that answers attributes.
    async fn change_attr(&self, op: Op) -> Result<Attr> {
        self.attr(self.inner.requests.change(op).await?)
    }

    /// A change that answers nothing.
    async fn change(&self, op: Op) -> Result<()> {
        self.inner.requests.change(op).await.map(drop)
    }
}
