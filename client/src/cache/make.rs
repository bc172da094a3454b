//! What is made, moved, taken away and changed here, under leases to write all that it is about.
//!
//! Each answers `None`, with nothing changed, unless all is known and held that the metadata group
//! would look at: then only that can say what becomes of it. Times are set here, so that those of
//! an inode grow.

use super::leases::Leases;
use super::table::{Held, Mode, Start, Table};
use super::xattrs::Xattrs;
use crate::types::{Attr, ModeList};
use bytes::Bytes;
use v1::FileKind;
use weft_proto::mode::{MODE_MASK, SETGID, mode_after, mode_of_new};
use weft_proto::rename::NOREPLACE;
use weft_proto::{InodeId, v1};

/// What `stat` answers as the size of a directory.
const DIR_SIZE: u64 = 4096;
/// Stands for "no user" in Linux's calls and cannot own anything.
const NOBODY: u32 = u32::MAX;

/// What a change was about.
pub(crate) struct Changed {
    /// What the name led to.
    pub ino: InodeId,
    /// When, as it is shown.
    pub at_ns: i64,
    /// Names that it has left.
    pub nlink: u32,
    /// What a moved name led to before.
    pub replaced: Option<InodeId>,
}

impl Table {
    /// The attributes of an inode that may be changed here.
    fn writable(&self, ino: InodeId) -> Option<Attr> {
        let held = self.inodes.get(&ino).filter(|held| held.mode == Mode::Write)?;
        held.attr
    }

    /// The directory, in which names may be changed.
    fn writable_dir(&self, ino: InodeId) -> Option<Attr> {
        self.writable(ino).filter(|dir| dir.is_dir() && dir.nlink > 0)
    }

    /// What a name in a directory leads to, if that is known.
    fn name(&self, dir: InodeId, name: &[u8]) -> Option<Option<InodeId>> {
        let held = self.inodes.get(&dir)?;
        held.names.get(name).copied().or(held.complete.then_some(None))
    }

    /// Lets a name lead elsewhere.
    fn point(&mut self, dir: InodeId, name: &Bytes, ino: Option<InodeId>) {
        let Some(held) = self.inodes.get_mut(&dir) else { return };
        match (ino, &mut held.listing) {
            (None, Some(listing)) => listing.remove(name),
            _ => held.listing = None,
        }
        let before = held.names.len();
        match ino {
            None if held.complete => drop(held.names.remove(name)),
            _ => drop(held.names.insert(name.clone(), ino)),
        }
        self.names = self.names + held.names.len() - before;
    }
}

impl Leases {
    /// Changes the attributes of an inode that is held.
    fn edit(&self, table: &mut Table, ino: InodeId, edit: impl FnOnce(&mut Attr)) {
        table.change(ino);
        self.forget_attr_above(ino);
        let Some(held) = table.inodes.get_mut(&ino) else { return };
        if let Some(attr) = &mut held.attr {
            edit(attr);
        }
        // It would answer an open with what was before.
        held.content = None;
    }

    /// Makes an inode in a directory, if its name is free and all is known that it inherits.
    /// Answers what an open would, and when it was made. `pending` changes wait to be told.
    pub fn make(&self, op: &v1::MakeOp, now: i64, pending: usize) -> Option<(v1::OpenReply, i64)> {
        let table = &mut *self.table.lock();
        let (parent, ino) = (InodeId(op.parent), InodeId(op.ino));
        let above = table.writable_dir(parent)?;
        let free = table.name(parent, &op.name)?.is_none();
        let held = table.inodes.get(&parent)?;
        let (layout, quota) = (held.layout.filter(|_| free && self.live())?, held.quota);
        // A list that is inherited is the group's to make something of.
        let is_dir = op.kind() == FileKind::Directory;
        // And whether this mount may make what is root's.
        let of_root = above.mode & SETGID != 0 && above.gid == 0 && op.gid != 0;
        if above.acls || of_root || above.nlink == u32::MAX || !is_name(&op.name) {
            return None;
        }
        let now = now.max(above.ctime_ns.saturating_add(1));
        let inherits = above.mode & SETGID != 0;
        let gid = if inherits { above.gid } else { op.gid };
        if !self.quotas.may_make(quota, (op.uid, gid), pending) {
            return None;
        }
        let mode = match op.kind() {
            FileKind::Symlink => 0o777,
            FileKind::Directory if inherits => mode_of_new(op.mode, op.umask) | SETGID,
            _ => mode_of_new(op.mode, op.umask),
        };
        let attr = v1::Attr {
            ino: op.ino,
            kind: op.kind,
            mode: mode & MODE_MASK,
            nlink: if is_dir { 2 } else { 1 },
            uid: op.uid,
            gid,
            rdev: op.rdev,
            size: if is_dir { DIR_SIZE } else { op.target.len() as u64 },
            atime_ns: now,
            mtime_ns: now,
            ctime_ns: now,
            btime_ns: now,
            no_xattrs: true,
            ..Default::default()
        };
        table.point(parent, &op.name, Some(ino));
        self.edit(table, parent, |dir| {
            (dir.mtime_ns, dir.ctime_ns) = (now, now);
            dir.nlink += u32::from(is_dir);
        });
        let extents = Some(v1::ExtentsReply { attr: Some(attr), ..Default::default() });
        let reply = v1::OpenReply { attr: Some(attr), layout: Some(layout), extents, owes: false };
        let is_file = op.kind() == FileKind::Regular;
        let (since, layout) = (table.epoch, is_dir.then_some(layout));
        let held = Held::new(Mode::Write);
        let (locks, maps, complete) = (is_file, is_file, is_dir);
        let held = Held { locks, maps, since, complete, layout, quota, ..held };
        table.inodes.insert(ino, held);
        match is_file {
            true => table.learn_content(Start(table.epoch), &reply),
            false => table.learn_attr(Start(table.epoch), Some(&attr)),
        }
        self.shrink(table);
        Some((reply, now))
    }

    /// Takes a name from what is no directory.
    pub fn unlink(&self, dir: InodeId, name: &Bytes, now: i64) -> Option<Changed> {
        let table = &mut *self.table.lock();
        let above = table.writable_dir(dir)?;
        let ino = table.name(dir, name)??;
        let attr = table.writable(ino).filter(|attr| !attr.is_dir() && self.live())?;
        let now = later(now, &[above, attr]);
        table.point(dir, name, None);
        self.edit(table, dir, |dir| (dir.mtime_ns, dir.ctime_ns) = (now, now));
        Some(self.drop_name(table, attr, now))
    }

    fn drop_name(&self, table: &mut Table, attr: Attr, now: i64) -> Changed {
        let nlink = attr.nlink.saturating_sub(1);
        self.edit(table, attr.ino, |gone| (gone.nlink, gone.ctime_ns) = (nlink, now));
        Changed { ino: attr.ino, at_ns: now, nlink, replaced: None }
    }

    /// Removes a directory in which there is nothing.
    pub fn rm_dir(&self, dir: InodeId, name: &Bytes, now: i64) -> Option<Changed> {
        let table = &mut *self.table.lock();
        let above = table.writable_dir(dir)?;
        let ino = table.name(dir, name)??;
        let attr = table.writable_dir(ino).filter(|_| self.live())?;
        let held = table.inodes.get(&ino)?;
        if !held.complete || held.names.values().any(Option::is_some) {
            return None;
        }
        let now = later(now, &[above, attr]);
        table.point(dir, name, None);
        self.edit(table, dir, |dir| {
            (dir.mtime_ns, dir.ctime_ns) = (now, now);
            dir.nlink = dir.nlink.saturating_sub(1);
        });
        self.edit(table, ino, |gone| (gone.nlink, gone.ctime_ns) = (0, now));
        Some(Changed { ino, at_ns: now, nlink: 0, replaced: None })
    }

    /// Moves a name of what is no directory, to one that is free or leads to no directory.
    pub fn rename(&self, op: &v1::RenameOp, now: i64) -> Option<Changed> {
        let table = &mut *self.table.lock();
        let (from, to) = (InodeId(op.parent), InodeId(op.new_parent));
        let above = [table.writable_dir(from)?, table.writable_dir(to)?];
        let ino = table.name(from, &op.name)??;
        let target = table.name(to, &op.new_name)?;
        let attr = table.writable(ino).filter(|attr| !attr.is_dir() && self.live())?;
        // What moves to another quota may be refused.
        let quota = |ino: &InodeId| table.inodes.get(ino).map(|held| held.quota);
        let moves = quota(&from) != quota(&to) || quota(&ino) != quota(&to);
        if self.quotas.are_on() && moves {
            return None;
        }
        // Two names of one inode both stay.
        let simple = op.flags & !NOREPLACE == 0 && target != Some(ino) && is_name(&op.new_name);
        if !simple || (target.is_some() && op.flags != 0) {
            return None;
        }
        let replaced = match target {
            Some(target) => Some(table.writable(target).filter(|attr| !attr.is_dir())?),
            None => None,
        };
        let mut now = later(now, &[above[0], above[1], attr]);
        if let Some(replaced) = replaced {
            now = later(now, &[replaced]);
        }
        table.point(from, &op.name, None);
        table.point(to, &op.new_name, Some(ino));
        for dir in [from, to] {
            self.edit(table, dir, |dir| (dir.mtime_ns, dir.ctime_ns) = (now, now));
        }
        self.edit(table, ino, |moved| moved.ctime_ns = now);
        if let Some(replaced) = replaced {
            self.drop_name(table, replaced, now);
        }
        Some(Changed { ino, at_ns: now, nlink: attr.nlink, replaced: target })
    }

    /// Whether it is known that an inode has no access control lists.
    pub fn has_no_lists(&self, ino: InodeId) -> bool {
        let table = self.table.lock();
        let attr = table.inodes.get(&ino).and_then(|held| held.attr);
        attr.is_some_and(|attr| !attr.acls && !table.is_changing(ino)) && self.live()
    }

    /// Changes attributes but a size; `list`: and permissions, which are put into `op`. Answers the
    /// attributes, and when.
    pub fn set_attr(
        &self,
        op: &mut v1::SetAttrOp,
        list: Option<ModeList>,
        now: i64,
    ) -> Option<(Attr, i64)> {
        let table = &mut *self.table.lock();
        let ino = InodeId(op.ino);
        let before = table.writable(ino).filter(|attr| !attr.acls && self.live())?;
        if let Some(list) = list {
            // A list that says more may be on its way.
            op.mode = (!table.is_changing(ino)).then(|| list.mode_after(before.mode));
            op.mode?;
        }
        let owner = [op.uid, op.gid];
        let chowned = owner != [None, None] && self.quotas.have_owners();
        if op.size.is_some() || owner.contains(&Some(NOBODY)) || chowned {
            return None;
        }
        let now = later(now, &[before]);
        self.edit(table, ino, |attr| {
            let (is_dir, chowned) = (attr.is_dir(), owner != [None, None]);
            attr.mode = mode_after(attr.mode, is_dir, op.mode, chowned);
            attr.uid = op.uid.unwrap_or(attr.uid);
            attr.gid = op.gid.unwrap_or(attr.gid);
            let pick = |given: Option<i64>, is_now| if is_now { Some(now) } else { given };
            attr.atime_ns = pick(op.atime_ns, op.atime_now).unwrap_or(attr.atime_ns);
            attr.mtime_ns = pick(op.mtime_ns, op.mtime_now).unwrap_or(attr.mtime_ns);
            attr.ctime_ns = now;
        });
        Some((table.writable(ino)?, now))
    }

    /// Sets an extended attribute that is no access control list, or removes it without `value`;
    /// `flags` are those of `setxattr(2)`. Answers when, as it is shown; `None`, with nothing
    /// changed, unless all that there are are known, and held.
    pub fn set_xattr(
        &self,
        ino: InodeId,
        name: &[u8],
        value: Option<&[u8]>,
        flags: u32,
        now: i64,
    ) -> Option<i64> {
        let table = &mut *self.table.lock();
        let changing = table.is_changing(ino);
        let before = table.writable(ino).filter(|_| self.live() && !changing)?;
        let mut xattrs = match before.acls || before.xattrs {
            true => table.inodes.get(&ino)?.xattrs.clone(),
            false => Xattrs::none(),
        };
        let some = xattrs.change(name, value, flags)?;
        let now = later(now, &[before]);
        self.edit(table, ino, |attr| (attr.ctime_ns, attr.xattrs) = (now, some));
        table.edit_xattrs(ino, |known| *known = xattrs);
        *table.xattr_steps.entry(ino).or_default() += 1;
        Some(now)
    }
}

/// A time at which all of these were changed at the latest.
fn later(now: i64, attrs: &[Attr]) -> i64 {
    attrs.iter().map(|attr| attr.ctime_ns.saturating_add(1)).fold(now, i64::max)
}

/// The group says what is wrong with others.
fn is_name(name: &[u8]) -> bool {
    let special = name.is_empty() || name == b"." || name == b"..";
    !special && name.len() <= 255 && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}
