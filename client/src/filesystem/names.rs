//! Names: what makes them, moves them and takes them away.

use super::facade::Filesystem;
use crate::meta::unexpected;
use crate::types::{Attr, Creator, FileKind};
use bytes::Bytes;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{InodeId, Result, v1};

pub(super) fn name_of(name: &[u8]) -> Bytes {
    Bytes::copy_from_slice(name)
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
        let (parent, name) = (parent.0, name_of(name));
        let Creator { uid, gid, umask } = by;
        let kind = kind.to_wire().into();
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
        let Creator { uid, gid, umask } = by;
        let op = v1::MkDirOp { parent: parent.0, name: name_of(name), mode, uid, gid, umask };
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
        let Creator { uid, gid, .. } = by;
        let target = name_of(target);
        let op = v1::SymLinkOp { parent: parent.0, name: name_of(name), target, uid, gid };
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
        let op = v1::LinkOp { ino: ino.0, parent: parent.0, name: name_of(name) };
        self.change_attr(Op::Link(op)).await
    }

    /// Takes away a name of what is no directory.
    pub async fn unlink(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        let op = v1::UnlinkOp { parent: parent.0, name: name_of(name) };
        self.change(Op::Unlink(op)).await
    }

    /// Removes an empty directory.
    pub async fn rm_dir(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        let op = v1::RmDirOp { parent: parent.0, name: name_of(name) };
        self.change(Op::RmDir(op)).await
    }

    /// Moves a name. `flags` are those of `renameat2(2)`.
    pub async fn rename(
        &self,
        parent: InodeId,
        name: &[u8],
        new_parent: InodeId,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        let op = v1::RenameOp {
            parent: parent.0,
            name: name_of(name),
            new_parent: new_parent.0,
            new_name: name_of(new_name),
            flags,
        };
        self.change(Op::Rename(op)).await
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
