//! What is answered without asking.

use super::leases::Leases;
use super::recall::MAX_NAMES;
use super::table::Mode;
use super::xattrs::ACLS;
use crate::types::{Attr, DirPage};
use bytes::Bytes;
use std::sync::Arc;
use weft_proto::{Error, ErrorKind, InodeId, Result, v1};

impl Leases {
    /// The attributes that a name leads to, if that is known.
    pub fn lookup(&self, parent: InodeId, name: &[u8]) -> Option<Result<Attr>> {
        let table = self.table.lock();
        let dir = table.inodes.get(&parent).filter(|_| !table.is_name_in_flight(parent, name))?;
        let found = match dir.names.get(name) {
            Some(Some(ino)) => Ok(table.attr(*ino)?),
            None if !dir.complete => return None,
            _ => Err(Error::new(ErrorKind::NotFound, "no such name")),
        };
        drop(table);
        self.live().then_some(found)
    }

    /// What a name leads to, if that is known.
    pub fn child(&self, parent: InodeId, name: &[u8]) -> Option<InodeId> {
        let table = self.table.lock();
        table.inodes.get(&parent)?.names.get(name).copied().flatten()
    }

    /// Whether what a name leads to can be opened without asking.
    pub fn has_content(&self, parent: InodeId, name: &[u8]) -> bool {
        self.child(parent, name).is_some_and(|ino| self.content(ino).is_some())
    }

    /// A piece of a directory, without attributes.
    pub fn page(&self, ino: InodeId, cookie: u64, limit: usize) -> Option<DirPage> {
        let mut table = self.table.lock();
        if table.is_in_flight(ino) {
            return None;
        }
        let listing = table.inodes.get_mut(&ino)?.listing.as_mut()?;
        let page = listing.page(cookie, limit)?;
        if !page.entries.is_empty() {
            listing.note_listed();
        }
        drop(table);
        self.live().then_some(page)
    }

    /// What to ask beside a name that nothing is known of, so that more names of the directory are
    /// known, or all.
    pub fn names_ahead(&self, dir: InodeId, name: &[u8]) -> Option<v1::ReadDirOp> {
        if !self.live() {
            return None;
        }
        let mut table = self.table.lock();
        // What is answered while it changes would not be believed; and for a guess nothing is
        // given back.
        if table.is_in_flight(dir) || table.names > MAX_NAMES / 2 {
            return None;
        }
        let held = table.inodes.get_mut(&dir).filter(|held| !held.complete)?;
        let (cookie, limit) = match held.names.get(name) {
            Some(_) => return None,
            None => held.sought.page(held.listing.as_ref())?,
        };
        Some(v1::ReadDirOp { ino: dir.0, cookie, limit, attrs: false })
    }

    /// The listing of a directory is there because of [`Self::names_ahead`].
    pub fn note_sought(&self, dir: InodeId) {
        let mut table = self.table.lock();
        let held = table.inodes.get_mut(&dir);
        if let Some(listing) = held.and_then(|held| held.listing.as_mut()) {
            listing.note_sought();
        }
    }

    /// What to ask in place of a name of which nothing but that it is there is known, to know
    /// the attributes of those after it too.
    pub fn attrs_ahead(&self, parent: InodeId, name: &[u8]) -> Option<v1::ReadDirOp> {
        let mut table = self.table.lock();
        let led_to = table.led_to(parent, name);
        if table.is_name_in_flight(parent, name) || led_to.is_some_and(|to| table.is_in_flight(to))
        {
            return None;
        }
        let held = table.inodes.get_mut(&parent)?;
        // Each name of the listing is among these.
        held.names.get(name)?.as_ref()?;
        let (cookie, limit) = held.listing.as_mut()?.ahead(name)?;
        Some(v1::ReadDirOp { ino: parent.0, cookie, limit, attrs: true })
    }

    /// A name is going to be taken away or moved, in a directory that only this mount changes.
    /// Answers on which inodes to ask for leases, so that this and the next can be done here.
    pub fn write_ahead(&self, dir: InodeId, name: &[u8]) -> Vec<InodeId> {
        let mut table = self.table.lock();
        let held = table.inodes.get_mut(&dir).filter(|held| held.mode == Mode::Write);
        let Some(listing) = held.and_then(|held| held.listing.as_mut()) else { return Vec::new() };
        let mut ahead = listing.write_ahead(name);
        let writes =
            |ino: &InodeId| table.inodes.get(ino).is_some_and(|held| held.mode == Mode::Write);
        ahead.retain(|ino| !writes(ino));
        ahead
    }

    pub fn attr(&self, ino: InodeId) -> Option<Attr> {
        let attr = self.table.lock().attr(ino);
        attr.filter(|_| self.live())
    }

    /// The version of the content that all see, if this mount is not changing it.
    pub fn version(&self, ino: InodeId) -> Option<u64> {
        let table = self.table.lock();
        let attr = table.attr(ino).filter(|_| !table.is_changing(ino));
        drop(table);
        attr.filter(|_| self.live()).map(|attr| attr.data_version)
    }

    /// [`Self::attr`], but for what changes of this mount do that are under way.
    pub fn attr_before_changes(&self, ino: InodeId) -> Option<Attr> {
        let attr = self.table.lock().inodes.get(&ino)?.attr;
        attr.filter(|_| self.live())
    }

    /// Attributes that a server told, or those of what only this mount changes, which it knows
    /// better.
    pub fn newest(&self, told: Attr) -> Attr {
        let table = self.table.lock();
        let own = table.inodes.get(&told.ino).filter(|held| held.mode == Mode::Write);
        let newer =
            |own: &Attr| (told.is_dir() || own.data_version >= told.data_version) && self.live();
        own.and_then(|held| held.attr).filter(newer).unwrap_or(told)
    }

    /// The value of an extended attribute, or `NoAttribute`, if it is known. The kernel asks for
    /// access control lists to decide who may do something, and those who list a directory for all
    /// sorts of labels.
    pub fn xattr(&self, ino: InodeId, name: &[u8]) -> Option<Result<Bytes>> {
        let table = self.table.lock();
        let held = table.inodes.get(&ino).filter(|_| !table.is_in_flight(ino))?;
        let has_some = held
            .attr
            .is_none_or(|attr| if name.starts_with(ACLS) { attr.acls } else { attr.xattrs });
        let value = if has_some { held.xattrs.get(name)? } else { None };
        drop(table);
        let absent = || Error::new(ErrorKind::NoAttribute, "no such attribute");
        self.live().then(|| value.ok_or_else(absent))
    }

    /// Whether the group has not heard of all changes of an inode's extended attributes.
    pub fn has_xattr_steps(&self, ino: InodeId) -> bool {
        self.table.lock().xattr_steps.contains_key(&ino)
    }

    /// The names of all extended attributes, if they are known.
    pub fn xattr_names(&self, ino: InodeId) -> Option<Vec<Bytes>> {
        let table = self.table.lock();
        let held = table.inodes.get(&ino).filter(|_| !table.is_in_flight(ino))?;
        let none = held.attr.is_some_and(|attr| !attr.acls && !attr.xattrs);
        let names = if none { Vec::new() } else { held.xattrs.names()? };
        drop(table);
        self.live().then_some(names)
    }

    /// The group was told of an access.
    pub fn published_atime(&self, ino: InodeId, at: i64) {
        if let Some(held) = self.table.lock().inodes.get_mut(&ino)
            && let Some(attr) = &mut held.attr
        {
            attr.adopt_atime(at);
        }
    }

    /// What an open would answer, and whether writes may be buffered.
    pub fn content(&self, ino: InodeId) -> Option<(Arc<v1::OpenReply>, Mode)> {
        let table = self.table.lock();
        let held = table.inodes.get(&ino).filter(|_| !table.is_in_flight(ino))?;
        let content = (held.content.clone()?, held.mode);
        drop(table);
        self.live().then_some(content)
    }
}
