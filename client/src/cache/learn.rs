//! What answers teach: those to reads, and those to changes of this mount.

use super::leases::Leases;
use super::named::Named;
use super::table::{Mode, Start, Table};
use super::xattrs::Xattrs;
use crate::types::Attr;
use bytes::Bytes;
use std::collections::BTreeSet;
use v1::batch_op::step::Op as Do;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Footprint, InodeId, v1};

impl Leases {
    /// Takes in what a read answered.
    pub fn learn(&self, start: Start, op: &Op, reply: &v1::MetaReply) {
        let table = &mut *self.table.lock();
        let writes = |ino| table.inodes.get(&ino).is_some_and(|held| held.mode == Mode::Write);
        // What was done to these here may not be told yet.
        let known: Vec<_> = match &reply.result {
            Some(Reply::LeaseMany(found)) => {
                found.attrs.iter().map(|attr| writes(InodeId(attr.ino))).collect()
            }
            _ => Vec::new(),
        };
        for grant in &reply.grants {
            match op {
                Op::Lease(v1::LeaseOp { records: Some(asked), .. }) if grant.records > 0 => {
                    let mode = match &reply.result {
                        Some(Reply::Open(found)) => found.attr.map(|attr| attr.mode),
                        _ => None,
                    };
                    self.hold_ranges(table, start, grant, (asked, mode));
                }
                _ => table.hold(start, grant),
            }
        }
        table.learn_zones(start, reply);
        match (op, &reply.result) {
            (Op::Lookup(op), Some(Reply::Attr(attr))) => {
                table.learn_named(start, Named::Attr(attr));
                table.learn_name(start, op.parent, &op.name, Some(InodeId(attr.ino)));
            }
            (Op::Lookup(op), Some(Reply::Open(found))) => {
                table.learn_named(start, Named::Content(found));
                let ino = found.attr.map(|a| InodeId(a.ino));
                table.learn_name(start, op.parent, &op.name, ino);
            }
            (Op::Lookup(op), Some(Reply::Missing(_))) => {
                table.learn_name(start, op.parent, &op.name, None);
            }
            (Op::LookupMany(op), Some(Reply::LookupMany(found))) => {
                table.learn_many(start, op, found);
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
            (Op::LeaseMany(_), Some(Reply::LeaseMany(found))) => {
                let new = found.attrs.iter().zip(known).filter(|(_, known)| !known);
                new.for_each(|(attr, _)| table.learn_attr(start, Some(attr)));
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
        if let Op::Batch(op) = op {
            return self.published(start, op, reply);
        }
        let table = &mut *self.table.lock();
        table.changes_zones(start, op, reply);
        let made = made(reply);
        let values = values(table, op, made);
        let Footprint { names, changes, .. } = op.footprint();
        let dirs = names.iter().map(|(dir, _)| *dir);
        // What the change names, and what the leader found behind its names.
        let touched =
            dirs.chain(changes.iter().copied()).chain(reply.touched.iter().copied().map(InodeId));
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
            table.may_change_mode(op, ino);
            let has_steps = table.xattr_steps.contains_key(&ino);
            if let Some(held) = table.inodes.get_mut(&ino) {
                // Others may have changed it since, and the lease came with what they made of it.
                // Nor has the group heard of all that was done here.
                let known = held.attr.map_or(0, |known| known.data_version);
                let attr =
                    attr_of(reply, ino).filter(|a| alone && !has_steps && a.data_version >= known);
                (held.attr, held.content) = (attr, None);
                // A name that goes leaves the others where they are. What is moved is elsewhere.
                let keeps = alone && names.iter().any(|(dir, ..)| *dir == ino);
                held.listing = held.listing.take().filter(|_| keeps);
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
                _ if changes.contains(&ino) => table.edit_xattrs(ino, Xattrs::forget_acls),
                _ => {}
            }
        }
        let now = Start(table.epoch);
        for ((dir, name, known), value) in names.iter().zip(values) {
            match value {
                Some(value) if *known => {
                    if value.is_some()
                        && let Some(held) = table.inodes.get_mut(dir)
                    {
                        held.listing = None;
                    }
                    table.learn_name(now, dir.0, name, value);
                }
                _ => table.forget_name(*dir, name),
            }
        }
        table.learn_made(start, op, reply, made);
        if matches!(op, Op::Unlink(_) | Op::RmDir(_)) {
            let gone =
                reply.touched.iter().filter(|ino| names.iter().all(|(dir, ..)| dir.0 != **ino));
            // It may be open here and have been written to: it is held until that was looked after.
            for ino in gone.map(|ino| InodeId(*ino)) {
                if let Some(seq) = table.newest_grant(ino) {
                    self.release_later(ino, seq);
                }
            }
        }
        self.shrink(table);
    }

    /// The group was told of what was done here.
    fn published(&self, start: Start, op: &v1::BatchOp, reply: &v1::MetaReply) {
        let Some(Reply::Batch(told)) = &reply.result else { return };
        let table = &mut *self.table.lock();
        table.learn_zones(start, reply);
        for grant in &reply.grants {
            // The lease was held all along, whatever was done under it since.
            if let Some(held) = table.inodes.get_mut(&InodeId(grant.ino))
                && held.mode == Mode::Write
            {
                held.seq = held.seq.max(grant.seq);
                held.quota = grant.quota;
            }
        }
        if op.session != 0 || !reply.touched.is_empty() || told.other_times {
            // It was not done under leases that are held, or otherwise than it is shown.
            self.forget_told(table, op);
        }
        let mut xattrs_told = Vec::new();
        for (step, done) in op.steps.iter().zip(&told.done) {
            match &step.op {
                Some(Do::Commit(op)) => table.published(start, InodeId(op.ino), done.attr),
                Some(Do::Unlink(_) | Do::RmDir(_)) => self.removed(table, step.ino),
                Some(Do::Rename(_)) => self.removed(table, step.replaced),
                Some(Do::SetAttr(op)) => table.forget_older(InodeId(op.ino), step.at_ns),
                Some(Do::SetXattr(v1::SetXattrOp { ino, .. }))
                | Some(Do::RemoveXattr(v1::RemoveXattrOp { ino, .. })) => {
                    let last = table.xattr_step_ended(InodeId(*ino));
                    xattrs_told.extend(last.then_some(InodeId(*ino)));
                    table.forget_older(InodeId(*ino), step.at_ns);
                }
                _ => {}
            }
        }
        // Content of the same batch was learned before.
        xattrs_told.into_iter().for_each(|ino| table.xattrs_told(ino));
    }

    /// What a batch was about is to be asked for.
    fn forget_told(&self, table: &mut Table, op: &v1::BatchOp) {
        let Footprint { names, changes, .. } = Op::Batch(op.clone()).footprint();
        for (dir, name) in &names {
            table.forget_name(*dir, name);
        }
        let dirs: BTreeSet<_> = names.into_iter().map(|(dir, _)| dir).collect();
        for ino in dirs.into_iter().chain(changes) {
            table.mark(ino);
            // It goes on by itself.
            drop(self.forget_above(ino));
            table.edit_xattrs(ino, |known| *known = Xattrs::default());
            if let Some(held) = table.inodes.get_mut(&ino) {
                (held.attr, held.content, held.listing) = (None, None, None);
            }
        }
    }

    /// The group has taken a name from this inode. If it was the last, it may be open here and have
    /// been written to: it is held until that was looked after.
    fn removed(&self, table: &Table, ino: u64) {
        let held = table.inodes.get(&InodeId(ino));
        if let Some(held) = held.filter(|held| held.attr.is_none_or(|attr| attr.nlink == 0)) {
            self.release_later(InodeId(ino), held.seq);
        }
    }

    /// A change of this mount was refused: nothing happened, but what is known of its names is not
    /// relied on.
    pub fn refused(&self, op: &Op) {
        let table = &mut *self.table.lock();
        // What was done here is so still.
        let names = match op {
            Op::Batch(_) => Vec::new(),
            op => op.footprint().names,
        };
        for (dir, name) in names {
            table.forget_name(dir, &name);
        }
    }
}

impl Table {
    /// What is known from before a change that is told by now is not good.
    fn forget_older(&mut self, ino: InodeId, at_ns: i64) {
        if let Some(held) = self.inodes.get_mut(&ino)
            && held.attr.is_some_and(|attr| attr.ctime_ns < at_ns)
        {
            (held.attr, held.content) = (None, None);
            self.edit_xattrs(ino, |known| *known = Xattrs::default());
        }
    }

    /// Content was committed: what it made of the file, with what was done to that here since.
    fn published(&mut self, start: Start, ino: InodeId, told: Option<v1::Attr>) {
        let alone = self.holds_since(start, ino);
        let has_xattrs = self.xattr_steps.contains_key(&ino);
        let Some(held) = self.inodes.get_mut(&ino) else { return };
        let told = told.and_then(|attr| Attr::try_from(attr).ok());
        held.attr = told.filter(|_| alone).map(|told| match held.attr {
            Some(Attr { nlink, ctime_ns, xattrs, .. }) => {
                Attr { nlink, xattrs, ctime_ns: told.ctime_ns.max(ctime_ns), ..told }
            }
            None => Attr { xattrs: told.xattrs || has_xattrs, ..told },
        });
        // Who asks about it asks after this: no older answer is under way.
        held.content = None;
    }

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
