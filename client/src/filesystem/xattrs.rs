//! Extended attributes, stored and virtual.

use super::facade::Filesystem;
use super::names::name_of;
use super::{layout_xattr, quota_xattr};
use crate::cache::ACLS;
use crate::meta::unexpected;
use crate::types::{ModeList, Warmed, is_list};
use bytes::Bytes;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Result, v1};

/// A virtual attribute of every inode: the mount's [`crate::Counters`].
const STATS: &[u8] = b"user.weft.stats";
/// Reading this one of any inode does what `syncfs(2)` would do, which the kernel tells no mount of
/// FUSE. Reading, since who may not write may sync too.
const SYNC: &[u8] = b"user.weft.sync";
/// The same by root, as the kernel makes sure: what failed before is told once.
const SYNC_BY_ROOT: &[u8] = b"trusted.weft.sync";

/// Reading this one of a file that is open, followed by `OFF.LEN`, has the hot tier keep that part
/// of it; by who may read it. The value is what became of it, as JSON.
const WARM: &[u8] = b"user.weft.warm.";

impl Filesystem {
    /// The value of an extended attribute. Errors: `NoAttribute`.
    pub async fn get_xattr(&self, ino: InodeId, name: &[u8]) -> Result<Bytes> {
        check_xattr(name)?;
        if name == STATS {
            return Ok(self.counters().to_json().into());
        }
        if name == SYNC {
            return self.sync_for_any().await.map(|()| Bytes::new());
        }
        if name == SYNC_BY_ROOT {
            return self.sync().await.map(|()| Bytes::new());
        }
        if let Some(range) = name.strip_prefix(WARM) {
            let Some((off, len)) = part(range) else {
                return Err(Error::new(ErrorKind::Invalid, "write user.weft.warm.OFF.LEN"));
            };
            let Warmed { wanted, kept, room } = self.warm(ino, off, len).await?;
            return Ok(format!(r#"{{"wanted":{wanted},"kept":{kept},"room":{room}}}"#).into());
        }
        if name == layout_xattr::NAME {
            return Ok(layout_xattr::print(&self.get_layout(ino).await?).into());
        }
        if let Some(key) = quota_xattr::asks(name, quota_xattr::NAME) {
            return Ok(quota_xattr::print(&self.quotas(ino, key?).await?, false));
        }
        if let Some(after) = quota_xattr::asks(name, quota_xattr::ALL) {
            let (quotas, more) = self.all_quotas(after?).await?;
            return Ok(quota_xattr::print(&quotas, more));
        }
        if let Some(known) = self.inner.group.leases.xattr(ino, name) {
            return known;
        }
        let op = v1::GetXattrOp { ino: ino.0, name: name_of(name) };
        match self.inner.requests.ask(Op::GetXattr(op)).await? {
            Reply::Data(value) => Ok(value),
            _ => Err(unexpected("an extended attribute")),
        }
    }

    /// Sets an extended attribute; `flags` are those of `setxattr(2)`. Setting `user.weft.layout`
    /// sets the layout, and `trusted.weft.quota` a quota; setting an access control list sets the
    /// mode, and takes the set-group-id bit if `clear_setgid`, as is due if the caller is not of
    /// the group.
    pub async fn set_xattr(
        &self,
        ino: InodeId,
        name: &[u8],
        value: &[u8],
        flags: u32,
        clear_setgid: bool,
    ) -> Result<()> {
        self.may_change()?;
        check_xattr(name)?;
        self.may_plant(name.starts_with(b"security."))?;
        if name == layout_xattr::NAME {
            let layout = layout_xattr::parse(value, &self.get_layout(ino).await?)?;
            return self.set_layout(ino, layout).await;
        }
        if name == quota_xattr::SET {
            return self.set_quota(quota_xattr::parse(value, ino.0)?).await;
        }
        if let Some(list) = ModeList::read(name, value, clear_setgid)
            && self.set_list(ino, list).await?
        {
            return Ok(());
        }
        let (name, value) = (name_of(name), name_of(value));
        if self.change_here(ino, (name.clone(), Some(value.clone())), flags).await {
            return Ok(());
        }
        self.settle_mode(ino, &name).await?;
        let op = v1::SetXattrOp { ino: ino.0, name, value, flags, clear_setgid };
        self.inner.requests.change(Op::SetXattr(op)).await.map(drop)
    }

    /// Names of stored attributes; the layout is not among them, so that copies of a file do not
    /// carry it along.
    pub async fn list_xattr(&self, ino: InodeId) -> Result<Vec<Bytes>> {
        if let Some(known) = self.inner.group.leases.xattr_names(ino) {
            return Ok(known);
        }
        match self.inner.requests.ask(Op::ListXattr(v1::ListXattrOp { ino: ino.0 })).await? {
            Reply::ListXattr(reply) => Ok(reply.names),
            _ => Err(unexpected("an extended attribute")),
        }
    }

    /// Removes an extended attribute. Errors: `NoAttribute`.
    pub async fn remove_xattr(&self, ino: InodeId, name: &[u8]) -> Result<()> {
        self.may_change()?;
        check_xattr(name)?;
        if name == layout_xattr::NAME {
            let what = "a layout can be changed and not removed";
            return Err(Error::new(ErrorKind::NotPermitted, what));
        }
        // There is nothing to remove, and that is no error.
        if is_list(name) && self.inner.group.leases.has_no_lists(ino) {
            return Ok(());
        }
        let name = name_of(name);
        if self.change_here(ino, (name.clone(), None), 0).await {
            return Ok(());
        }
        self.settle_mode(ino, &name).await?;
        let op = v1::RemoveXattrOp { ino: ino.0, name };
        self.inner.requests.change(Op::RemoveXattr(op)).await.map(drop)
    }

    /// Sets the permission bits that a list stands for here, as `chmod` does. Answers whether it
    /// did: otherwise the group has to, which knows of a list that has to go.
    async fn set_list(&self, ino: InodeId, list: ModeList) -> Result<bool> {
        let inner = &self.inner;
        let set = match inner.files.get(ino) {
            Some(file) => file.set_list(list).await?,
            None => {
                let op = v1::SetAttrOp { ino: ino.0, ..Default::default() };
                inner.log.set_attr(op, Some(list), (inner.options.clock)())
            }
        };
        if set.is_some() {
            // The kernel takes an answer in that was on its way.
            inner.group.leases.forget_attr_settled(ino).await;
        }
        Ok(set.is_some())
    }

    /// Sets an extended attribute, or removes it without a value, without asking, if leases allow
    /// that. What was written to the file through this mount before is committed no later.
    async fn change_here(&self, ino: InodeId, xattr: (Bytes, Option<Bytes>), flags: u32) -> bool {
        let inner = &self.inner;
        let file = inner.files.get(ino);
        // A list is another change of the mode.
        if xattr.0.starts_with(ACLS) || file.as_ref().is_some_and(|file| !file.defer()) {
            return false;
        }
        let set = inner.log.set_xattr(ino, xattr, flags, (inner.options.clock)());
        if set.is_some() {
            if let Some(file) = file {
                file.adopt_known(|leases| leases.attr_before_changes(ino));
            }
            // The kernel takes an answer in that was on its way.
            inner.group.leases.forget_attr_settled(ino).await;
        }
        set.is_some()
    }

    /// An access control list and the mode change each other: in the order of the calls.
    async fn settle_mode(&self, ino: InodeId, xattr: &[u8]) -> Result<()> {
        match self.inner.files.get(ino).filter(|file| xattr.starts_with(ACLS) && file.has_waiting())
        {
            Some(file) => file.flush().await,
            None => Ok(()),
        }
    }
}

/// `OFF.LEN`.
fn part(text: &[u8]) -> Option<(u64, u64)> {
    let (off, len) = std::str::from_utf8(text).ok()?.split_once('.')?;
    Some((off.parse().ok()?, len.parse().ok()?))
}

/// Of the attributes that mean something to the kernel (`system.*`), access control lists are
/// known.
fn check_xattr(name: &[u8]) -> Result<()> {
    if name.starts_with(b"system.") && !name.starts_with(ACLS) {
        let what = format!("{} attributes are not supported", String::from_utf8_lossy(name));
        return Err(Error::new(ErrorKind::NotSupported, what));
    }
    Ok(())
}
