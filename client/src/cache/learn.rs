//! What answers teach: those to reads, and those to changes of this mount.

use super::leases::Leases;
use super::table::{Start, Table};
use super::xattrs::Xattrs;
use crate::types::Attr;
use bytes::Bytes;
use std::collections::BTreeSet;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Footprint, InodeId, v1};

impl Leases {
    /// Takes in what a read answered.
    pub fn learn(&self, start: Start, op: &Op, reply: &v1::MetaReply) {
        let table = &mut *self.table.lock();
        reply.grants.iter().for_each(|grant| table.hold(start, grant));
        match (op, &reply.result) {
            (Op::Lookup(op), Some(Reply::Attr(attr))) => {
                table.learn_attr(start, Some(attr));
                table.learn_name(start, op.parent, &op.name, Some(InodeId(attr.ino)));
            }
            (Op::Lookup(op), Some(Reply::Open(found))) => {
                table.learn_content(start, found);
                let ino = found.attr.map(|a| InodeId(a.ino));
                table.learn_name(start, op.parent, &op.name, ino);
            }
            (Op::Lookup(op), Some(Reply::Missing(_))) => {
                table.learn_name(start, op.parent, &op.name, None);
            }
            (Op::ReadDir(op), Some(Reply::ReadDir(page))) => table.learn_page(start, op, page),
            (Op::GetAttr(_), Some(Reply::Attr(attr))) => table.learn_attr(start, Some(attr)),
            (Op::GetXattr(op), Some(Reply::Data(value))) => {
                table.learn_xattrs(start, op.ino, |known| known.learn(&op.name, value));
            }
            (Op::GetExtents(_), Some(Reply::Extents(found))) => {
                table.learn_attr(start, found.attr.as_ref());
            }
            (Op::Open(_) | Op::Lease(_), Some(Reply::Open(found))) => {
                table.learn_content(start, found);
            }
            _ => {}
        }
        for told in &reply.xattrs {
            table.learn_xattrs(start, told.ino, |known| *known = Xattrs::all(told));
        }
        self.shrink(table);
    }

    /// Takes in what a change of this mount answered.
    pub fn changed(&self, start: Start, op: &Op, reply: &v1::MetaReply) {
        if let Op::MakeFiles(op) = op {
            return self.published(start, op, reply);
        }
        let table = &mut *self.table.lock();
        let made = made(reply);
        let values = values(table, op, made);
        let Footprint { names, changes, .. } = op.footprint();
        let dirs = names.iter().map(|(dir, _)| *dir);
        // What the change names, and what the leader found behind its names.
        let touched = dirs.chain(changes).chain(reply.touched.iter().copied().map(InodeId));
        let touched: BTreeSet<_> = touched.collect();
        let with_lease = |(dir, name)| (dir, name, table.holds_since(start, dir));
        let names: Vec<_> = names.into_iter().map(with_lease).collect();
        for ino in touched {
            let alone = table.holds_since(start, ino);
            for grant in reply.grants.iter().filter(|grant| alone && grant.ino == ino.0) {
                table.hold(start, grant);
            }
            table.change(ino);
            self.forget_attr_above(ino);
            if let Some(held) = table.inodes.get_mut(&ino) {
                let attr = attr_of(reply, ino).filter(|_| alone);
                (held.attr, held.content, held.listing) = (attr, None, None);
                if matches!(op, Op::SetLayout(_)) {
                    held.layout = None;
                }
            }
            match op {
                Op::SetXattr(_) | Op::RemoveXattr(_) => {
                    table.edit_xattrs(ino, |known| *known = Xattrs::default());
                }
                // A list follows the mode. Names that come and go in a directory leave its own as
                // it is.
                _ if changes == Some(ino) => table.edit_xattrs(ino, Xattrs::forget_acls),
                _ => {}
            }
        }
        let now = Start(table.epoch);
        for ((dir, name, known), value) in names.iter().zip(values) {
            match value {
                Some(value) if *known => table.learn_name(now, dir.0, name, value),
                _ => table.forget_name(*dir, name),
            }
        }
        table.learn_made(start, op, reply, made);
        if matches!(op, Op::Unlink(_) | Op::RmDir(_)) {
            let gone =
                reply.touched.iter().filter(|ino| names.iter().all(|(dir, ..)| dir.0 != **ino));
            // It may be open here and have been written to: it is held until that was looked after.
            for ino in gone.map(|ino| InodeId(*ino)) {
                if let Some(held) = table.inodes.get(&ino) {
                    self.release_later(ino, held.seq);
                }
            }
        }
        self.shrink(table);
    }

    /// The group was told of files that were made here.
    fn published(&self, start: Start, op: &v1::MakeFilesOp, reply: &v1::MetaReply) {
        let Some(Reply::MakeFiles(made)) = &reply.result else { return };
        let table = &mut *self.table.lock();
        for (file, made) in op.files.iter().zip(&made.files) {
            let ino = InodeId(file.ino);
            let alone = table.holds_since(start, ino);
            for grant in reply.grants.iter().filter(|grant| grant.ino == file.ino) {
                table.hold(start, grant);
            }
            if file.content.is_some()
                && let Some(held) = table.inodes.get_mut(&ino)
            {
                let attr = made.attr.filter(|_| alone).and_then(|attr| attr.try_into().ok());
                // Who asks about it asks after this: no older answer is under way.
                (held.attr, held.content) = (attr, None);
            }
        }
    }

    /// A change of this mount was refused: nothing happened, but what is known of its names is not
    /// relied on.
    pub fn refused(&self, op: &Op) {
        let table = &mut *self.table.lock();
        // A file that was made here is here still.
        let names = match op {
            Op::MakeFiles(_) => Vec::new(),
            op => op.footprint().names,
        };
        for (dir, name) in names {
            table.forget_name(dir, &name);
        }
    }
}

impl Table {
    /// The inode that a change made, or gave a name to.
    fn learn_made(&mut self, start: Start, op: &Op, reply: &v1::MetaReply, made: Option<InodeId>) {
        let Some(ino) = made.filter(|ino| !reply.touched.contains(&ino.0)) else { return };
        for grant in reply.grants.iter().filter(|grant| grant.ino == ino.0) {
            self.hold(start, grant);
        }
        match &reply.result {
            Some(Reply::Open(found)) => self.learn_content(start, found),
            Some(Reply::Attr(attr)) => self.learn_attr(start, Some(attr)),
            _ => {}
        }
        if matches!(op, Op::MkDir(_))
            && let Some(held) = self.inodes.get_mut(&ino)
        {
            held.complete = true;
        }
    }
}

/// The inode that a change made, or gave a name to.
fn made(reply: &v1::MetaReply) -> Option<InodeId> {
    match &reply.result {
        Some(Reply::Attr(attr)) => Some(InodeId(attr.ino)),
        Some(Reply::Open(found)) => found.attr.map(|a| InodeId(a.ino)),
        _ => None,
    }
}

/// Attributes of an inode that a change answered.
fn attr_of(reply: &v1::MetaReply, ino: InodeId) -> Option<Attr> {
    let attr = match &reply.result {
        Some(Reply::Attr(attr)) => Some(*attr),
        Some(Reply::CommitExtents(done)) => done.attr,
        Some(Reply::CopyRange(done)) => done.attr,
        _ => None,
    };
    let mut all = attr.into_iter().chain(reply.dirs.iter().copied());
    all.find(|attr| attr.ino == ino.0)?.try_into().ok()
}

/// What each of the names of a change leads to now, if that is known: nowhere, or to an inode.
fn values(table: &Table, op: &Op, made: Option<InodeId>) -> Vec<Option<Option<InodeId>>> {
    match op {
        Op::Unlink(_) | Op::RmDir(_) => vec![Some(None)],
        Op::Rename(op)
            if op.flags == 0 && (op.parent, &op.name) != (op.new_parent, &op.new_name) =>
        {
            let known = |dir: u64, name: &Bytes| {
                let dir = table.inodes.get(&InodeId(dir))?;
                dir.names.get(name).copied().or(dir.complete.then_some(None))
            };
            let moved = known(op.parent, &op.name).flatten();
            // Two names of one inode both stay.
            let gone = match known(op.new_parent, &op.new_name) {
                Some(None) => true,
                Some(replaced) => moved.is_some() && replaced != moved,
                None => false,
            };
            vec![gone.then_some(None), moved.map(Some)]
        }
        Op::Rename(_) => vec![None, None],
        _ => vec![made.map(Some)],
    }
}
