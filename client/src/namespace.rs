//! Names, attributes and extended attributes: what goes straight to the metadata group.

use crate::filesystem::Filesystem;
use crate::to_the_end::to_the_end;
use crate::types::{Attr, Creator, DirEntry, DirPage, FileKind, SetAttr, StatFs};
use crate::xattrs::ACLS;
use crate::{HandleId, file, layout_xattr};
use bytes::Bytes;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Layout, Result, v1};

/// A virtual attribute of every inode: the mount's [`crate::Counters`].
const STATS: &[u8] = b"user.weft.stats";

/// Longest name, in bytes. No longer one exists, which under a lease nobody else is asked.
const NAME_MAX: usize = 255;

fn other<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Protocol, "a metadata server answered another kind of reply"))
}

fn name_of(name: &[u8]) -> Bytes {
    Bytes::copy_from_slice(name)
}

impl Filesystem {
    /// The name `.` leads to any inode, whatever it is, that has a name; `..` to the directory that a
    /// directory is in. Errors: `NotFound`, `NotDirectory`; `Stale` of what has no name any more.
    pub async fn lookup(&self, parent: InodeId, name: &[u8]) -> Result<Attr> {
        match name {
            b"." => return self.named(parent).await,
            b".." => return self.named(self.parent_of(parent).await?).await,
            _ => {}
        }
        if let Some(known) = self.lookup_now(parent, name) {
            return known;
        }
        if let Some(ahead) = self.meta().leases.ahead(parent, name)
            && self.meta().ask(Op::ReadDir(ahead)).await.is_ok()
            && let Some(known) = self.lookup_now(parent, name)
        {
            return known;
        }
        let op = v1::LookupOp { parent: parent.0, name: name_of(name) };
        match self.meta().ask(Op::Lookup(op)).await? {
            Reply::Missing(_) => Err(Error::new(ErrorKind::NotFound, "no such name")),
            Reply::Attr(attr) | Reply::Open(v1::OpenReply { attr: Some(attr), .. }) => {
                match self.files().get(InodeId(attr.ino)).filter(|file| file.is_dirty()) {
                    Some(file) => self.get_attr(file.ino, None).await,
                    None => Ok(self.files().view(attr.try_into()?)),
                }
            }
            _ => other(),
        }
    }

    /// Attributes of an inode that has a name.
    async fn named(&self, ino: InodeId) -> Result<Attr> {
        let attr = self.get_attr(ino, None).await?;
        match attr.nlink {
            0 => Err(Error::new(ErrorKind::Stale, format!("inode {ino} has no name any more"))),
            _ => Ok(attr),
        }
    }

    /// The directory that a directory is in; the root is in itself.
    async fn parent_of(&self, dir: InodeId) -> Result<InodeId> {
        // What follows the last name is known or asked for, and tells it too.
        if let Some(page) = self.meta().leases.page(dir, u64::MAX, 1) {
            return Ok(page.parent);
        }
        let op = v1::ReadDirOp { ino: dir.0, cookie: u64::MAX, limit: 1, attrs: true };
        match self.meta().ask(Op::ReadDir(op)).await? {
            Reply::ReadDir(page) => Ok(InodeId(page.parent)),
            _ => other(),
        }
    }

    /// [`Self::lookup`] of a name in a directory if a lease answers it.
    pub fn lookup_now(&self, parent: InodeId, name: &[u8]) -> Option<Result<Attr>> {
        if name.len() > NAME_MAX {
            let what = format!("a name of {} bytes is over {NAME_MAX}", name.len());
            return Some(Err(Error::new(ErrorKind::NameTooLong, what)));
        }
        let known = self.meta().leases.lookup(parent, name)?;
        Some(known.map(|attr| self.files().view(attr)))
    }

    /// Attributes as this mount sees them. A handle makes no difference but that it keeps the inode.
    pub async fn get_attr(&self, ino: InodeId, _handle: Option<HandleId>) -> Result<Attr> {
        if let Some(attr) = self.get_attr_now(ino) {
            return Ok(attr);
        }
        if let Some(file) = self.files().get(ino) {
            file.settle().await;
        }
        self.attr(self.meta().ask(Op::GetAttr(v1::GetAttrOp { ino: ino.0 })).await?)
    }

    /// [`Self::get_attr`] if a lease answers it.
    pub fn get_attr_now(&self, ino: InodeId) -> Option<Attr> {
        Some(self.files().view(self.meta().leases.attr(ino)?))
    }

    /// Changes attributes, in order with what was written here. Errors: `Io` if the size is to be changed
    /// through a handle whose locks were lost.
    pub async fn set_attr(
        &self,
        ino: InodeId,
        handle: Option<HandleId>,
        change: SetAttr,
    ) -> Result<Attr> {
        if let Some(handle) = handle.filter(|_| change.size.is_some()) {
            self.locks_hold(ino, handle)?;
        }
        match self.files().get(ino) {
            Some(file) => file.set_attr(change).await,
            None => file::set_attr(self.meta(), ino, change).await,
        }
    }

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
        self.attr(self.meta().change(Op::MkNod(op)).await?)
    }

    pub async fn mk_dir(
        &self,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        by: Creator,
    ) -> Result<Attr> {
        let Creator { uid, gid, umask } = by;
        let op = v1::MkDirOp { parent: parent.0, name: name_of(name), mode, uid, gid, umask };
        self.attr(self.meta().change(Op::MkDir(op)).await?)
    }

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
        self.attr(self.meta().change(Op::SymLink(op)).await?)
    }

    pub async fn read_link(&self, ino: InodeId) -> Result<Bytes> {
        self.note_access(|| self.meta().leases.attr(ino));
        match self.meta().ask(Op::ReadLink(v1::ReadLinkOp { ino: ino.0 })).await? {
            Reply::Data(target) => Ok(target),
            _ => other(),
        }
    }

    pub async fn link(&self, ino: InodeId, parent: InodeId, name: &[u8]) -> Result<Attr> {
        let op = v1::LinkOp { ino: ino.0, parent: parent.0, name: name_of(name) };
        self.attr(self.meta().change(Op::Link(op)).await?)
    }

    pub async fn unlink(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        let op = v1::UnlinkOp { parent: parent.0, name: name_of(name) };
        self.meta().change(Op::Unlink(op)).await.map(drop)
    }

    pub async fn rm_dir(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        let op = v1::RmDirOp { parent: parent.0, name: name_of(name) };
        self.meta().change(Op::RmDir(op)).await.map(drop)
    }

    /// `flags` are those of `renameat2(2)`.
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
        self.meta().change(Op::Rename(op)).await.map(drop)
    }

    /// Up to `limit` entries with cookies greater than `cookie` (0: from the start); if `attrs`, with the
    /// attributes of those that no other mount is changing.
    pub async fn read_dir(
        &self,
        ino: InodeId,
        cookie: u64,
        limit: u32,
        attrs: bool,
    ) -> Result<DirPage> {
        if cookie == 0 {
            self.note_access(|| self.meta().leases.attr(ino));
        }
        if !attrs && let Some(known) = self.meta().leases.page(ino, cookie, limit as usize) {
            return Ok(known);
        }
        let op = v1::ReadDirOp { ino: ino.0, cookie, limit, attrs };
        let Reply::ReadDir(page) = self.meta().ask(Op::ReadDir(op)).await? else { return other() };
        let entries = page.entries.into_iter().map(|entry| {
            let attr = entry.attr.map(Attr::try_from).transpose()?;
            Ok(DirEntry {
                kind: FileKind::from_wire(entry.kind())?,
                name: entry.name,
                ino: InodeId(entry.ino),
                cookie: entry.cookie,
                attr: attr.map(|attr| self.files().view(attr)),
            })
        });
        Ok(DirPage {
            entries: entries.collect::<Result<_>>()?,
            end: page.end,
            parent: InodeId(page.parent),
            next_cookie: page.next_cookie,
        })
    }

    /// [`Self::read_dir`] of an open directory, without attributes: names that were made since it was last
    /// read from the start are left out, so that reading it ends whatever is made or moved meanwhile.
    pub async fn read_open_dir(
        &self,
        handle: HandleId,
        cookie: u64,
        limit: u32,
    ) -> Result<DirPage> {
        let ino = self.files().directory(handle)?;
        let mut page = self.read_dir(ino, cookie, limit, false).await?;
        page.end_at(self.files().end_of(handle, cookie, page.next_cookie)?);
        Ok(page)
    }

    /// Errors: `NoAttribute`.
    pub async fn get_xattr(&self, ino: InodeId, name: &[u8]) -> Result<Bytes> {
        check_xattr(name)?;
        if name == STATS {
            return Ok(self.counters().to_json().into());
        }
        if name == layout_xattr::NAME {
            return Ok(layout_xattr::print(&self.get_layout(ino).await?).into());
        }
        if let Some(known) = self.meta().leases.xattr(ino, name) {
            return known;
        }
        let op = v1::GetXattrOp { ino: ino.0, name: name_of(name) };
        match self.meta().ask(Op::GetXattr(op)).await? {
            Reply::Data(value) => Ok(value),
            _ => other(),
        }
    }

    /// `flags` are those of `setxattr(2)`. Setting `user.weft.layout` sets the layout; setting an access
    /// control list sets the mode, and takes the set-group-id bit if `clear_setgid`, as is due if the
    /// caller is not of the group.
    pub async fn set_xattr(
        &self,
        ino: InodeId,
        name: &[u8],
        value: &[u8],
        flags: u32,
        clear_setgid: bool,
    ) -> Result<()> {
        check_xattr(name)?;
        if name == layout_xattr::NAME {
            let layout = layout_xattr::parse(value, &self.get_layout(ino).await?)?;
            return self.set_layout(ino, layout).await;
        }
        self.settle_mode(ino, name).await?;
        let (ino, name, value) = (ino.0, name_of(name), name_of(value));
        let op = v1::SetXattrOp { ino, name, value, flags, clear_setgid };
        self.meta().change(Op::SetXattr(op)).await.map(drop)
    }

    /// Names of stored attributes; the layout is not among them, so that copies of a file do not
    /// carry it along.
    pub async fn list_xattr(&self, ino: InodeId) -> Result<Vec<Bytes>> {
        if let Some(known) = self.meta().leases.xattr_names(ino) {
            return Ok(known);
        }
        match self.meta().ask(Op::ListXattr(v1::ListXattrOp { ino: ino.0 })).await? {
            Reply::ListXattr(reply) => Ok(reply.names),
            _ => other(),
        }
    }

    pub async fn remove_xattr(&self, ino: InodeId, name: &[u8]) -> Result<()> {
        check_xattr(name)?;
        if name == layout_xattr::NAME {
            let what = "a layout can be changed and not removed";
            return Err(Error::new(ErrorKind::NotPermitted, what));
        }
        self.settle_mode(ino, name).await?;
        let op = v1::RemoveXattrOp { ino: ino.0, name: name_of(name) };
        self.meta().change(Op::RemoveXattr(op)).await.map(drop)
    }

    /// An access control list and the mode change each other: in the order of the calls.
    async fn settle_mode(&self, ino: InodeId, xattr: &[u8]) -> Result<()> {
        match self.files().get(ino).filter(|file| xattr.starts_with(ACLS) && file.has_waiting()) {
            Some(file) => file.flush().await,
            None => Ok(()),
        }
    }

    pub async fn stat_fs(&self) -> Result<StatFs> {
        match self.meta().ask(Op::StatFs(v1::StatFsOp {})).await? {
            Reply::StatFs(s) => Ok(StatFs {
                capacity_bytes: s.capacity_bytes,
                free_bytes: s.free_bytes,
                available_bytes: s.available_bytes.unwrap_or(s.free_bytes),
                inodes: s.inodes,
            }),
            _ => other(),
        }
    }

    /// How new data of the file, or of files made in the directory, is laid out.
    pub async fn get_layout(&self, ino: InodeId) -> Result<Layout> {
        match self.meta().ask(Op::GetLayout(v1::GetLayoutOp { ino: ino.0 })).await? {
            Reply::Layout(layout) => layout.try_into(),
            _ => other(),
        }
    }

    /// Sets how new data will be laid out; what is written already stays where it is.
    pub async fn set_layout(&self, ino: InodeId, layout: Layout) -> Result<()> {
        layout.validate()?;
        let (meta, file) = (self.meta().clone(), self.files().get(ino));
        to_the_end(async move {
            if let Some(file) = &file {
                file.flush().await?;
            }
            let op = v1::SetLayoutOp { ino: ino.0, layout: Some(layout.into()) };
            meta.change(Op::SetLayout(op)).await?;
            if let Some(file) = file {
                file.set_layout(layout);
            }
            Ok(())
        })
        .await
    }

    fn attr(&self, reply: Reply) -> Result<Attr> {
        match reply {
            Reply::Attr(attr) => Ok(self.files().view(attr.try_into()?)),
            _ => other(),
        }
    }
}

/// Of the attributes that mean something to the kernel (`system.*`), access control lists are known.
fn check_xattr(name: &[u8]) -> Result<()> {
    if name.starts_with(b"system.") && !name.starts_with(ACLS) {
        let what = format!("{} attributes are not supported", String::from_utf8_lossy(name));
        return Err(Error::new(ErrorKind::NotSupported, what));
    }
    Ok(())
}
