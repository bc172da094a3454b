//! What is done here without asking: each change is made to what is known under the leases, if they
//! allow it, and put into the log.

use super::entries::{Of, Stage, Table, What, touch};
use super::log::{ChangeLog, MAX_PENDING};
use crate::cache::Changed;
use crate::types::{Attr, ModeList};
use bytes::Bytes;
use std::sync::Arc;
use v1::batch_op::{Step, step::Op as Do};
use weft_net::buggify::{self, Point};
use weft_net::sync::MutexGuard;
use weft_proto::{InodeId, v1};

impl ChangeLog {
    /// Makes an inode here, if leases allow that: `op` but for its number. `open` is called with
    /// that before anybody else can see it, if it is a file that is opened. Answers what an open
    /// would.
    pub fn make(
        self: &Arc<Self>,
        mut op: v1::MakeOp,
        now: i64,
        open: Option<&mut dyn FnMut(InodeId)>,
    ) -> Option<v1::OpenReply> {
        self.want_numbers(InodeId(op.parent));
        let mut table = self.begin()?;
        let Some(ino) = table.next().filter(|_| !self.is_low_on_room()) else {
            self.counted(&table);
            return None;
        };
        op.ino = ino.0;
        let Some((reply, at_ns)) = self.group.leases.make(&op, now, table.len()) else {
            self.counted(&table);
            return None;
        };
        table.take();
        let left = open.is_none();
        if let Some(open) = open {
            open(ino);
        }
        table.made.insert(ino, Self::made(left));
        self.push(&mut table, Step { at_ns, op: Some(Do::Make(op)), ..Step::default() });
        Some(reply)
    }

    /// Takes a name from what is no directory, if leases allow that without asking. What the group
    /// has not heard of, and nobody has open (`is_open`), it never hears of: it is in the second
    /// part of the answer.
    pub fn unlink(
        self: &Arc<Self>,
        op: v1::UnlinkOp,
        now: i64,
        is_open: impl Fn(InodeId) -> bool,
    ) -> Option<(InodeId, bool)> {
        self.want_numbers(InodeId(op.parent));
        let mut table = self.begin()?;
        let (leases, dir) = (&self.group.leases, InodeId(op.parent));
        let Some(Changed { ino, at_ns, nlink, .. }) = leases.unlink(dir, &op.name, now) else {
            self.counted(&table);
            return None;
        };
        let gone = nlink == 0 && !is_open(ino);
        if nlink == 0 {
            self.removed(&mut table, ino, gone);
        }
        if gone && self.never_was(&mut table, ino) {
            self.touched(&mut table, dir, at_ns);
            return Some((ino, true));
        }
        let op = Some(Do::Unlink(op));
        self.push(&mut table, Step { at_ns, op, ino: ino.0, replaced: 0 });
        Some((ino, false))
    }

    /// Removes an empty directory, if leases allow that without asking.
    pub fn rm_dir(
        self: &Arc<Self>,
        op: v1::RmDirOp,
        now: i64,
        is_open: impl Fn(InodeId) -> bool,
    ) -> Option<()> {
        self.want_numbers(InodeId(op.parent));
        let mut table = self.begin()?;
        let (leases, dir) = (&self.group.leases, InodeId(op.parent));
        let Some(Changed { ino, at_ns, .. }) = leases.rm_dir(dir, &op.name, now) else {
            self.counted(&table);
            return None;
        };
        let gone = !is_open(ino);
        self.removed(&mut table, ino, gone);
        if gone && self.never_was(&mut table, ino) {
            self.touched(&mut table, dir, at_ns);
            return Some(());
        }
        let op = Some(Do::RmDir(op));
        self.push(&mut table, Step { at_ns, op, ino: ino.0, replaced: 0 });
        Some(())
    }

    /// Moves what is no directory, if leases allow that without asking.
    pub fn rename(self: &Arc<Self>, op: v1::RenameOp, now: i64) -> Option<()> {
        self.want_numbers(InodeId(op.new_parent));
        let mut table = self.begin()?;
        let Some(Changed { ino, at_ns, replaced, .. }) = self.group.leases.rename(&op, now) else {
            self.counted(&table);
            return None;
        };
        let (op, replaced) = (Some(Do::Rename(op)), replaced.map_or(0, |ino| ino.0));
        self.push(&mut table, Step { at_ns, op, ino: ino.0, replaced });
        Some(())
    }

    /// Changes attributes but a size, if leases allow that without asking; `list`: and the
    /// permission bits that it stands for.
    pub fn set_attr(
        &self,
        mut op: v1::SetAttrOp,
        list: Option<ModeList>,
        now: i64,
    ) -> Option<Attr> {
        let mut table = self.begin()?;
        let Some((attr, at_ns)) = self.group.leases.set_attr(&mut op, list, now) else {
            self.counted(&table);
            return None;
        };
        op.atime_ns = op.atime_now.then_some(at_ns).or(op.atime_ns);
        op.mtime_ns = op.mtime_now.then_some(at_ns).or(op.mtime_ns);
        (op.atime_now, op.mtime_now) = (false, false);
        self.push(&mut table, Step { at_ns, op: Some(Do::SetAttr(op)), ..Step::default() });
        Some(attr)
    }

    /// Sets an extended attribute that is no access control list, or removes it without `value`, if
    /// leases allow that without asking; `flags` are those of `setxattr(2)`.
    pub fn set_xattr(
        self: &Arc<Self>,
        ino: InodeId,
        (name, value): (Bytes, Option<Bytes>),
        flags: u32,
        now: i64,
    ) -> Option<()> {
        self.want_numbers(ino);
        let mut table = self.begin()?;
        let may = table.xattrs && (value.is_none() || !self.is_low_on_room());
        let set = || self.group.leases.set_xattr(ino, &name, value.as_deref(), flags, now);
        let Some(at_ns) = may.then(set).flatten() else {
            self.counted(&table);
            return None;
        };
        let ino = ino.0;
        let op = Some(match value {
            Some(value) => Do::SetXattr(v1::SetXattrOp { ino, name, value, ..Default::default() }),
            None => Do::RemoveXattr(v1::RemoveXattrOp { ino, name }),
        });
        self.push(&mut table, Step { at_ns, op, ..Step::default() });
        Some(())
    }

    /// The table, in which something may be pushed. Counted before the leases are looked at:
    /// whoever takes one away looks here next.
    fn begin(&self) -> Option<MutexGuard<'_, Table>> {
        let table = self.table.lock();
        let full = table.len() >= MAX_PENDING || buggify::fires(Point::LogFull);
        // What is done now must not come before content that has no place.
        if full || !table.batches || table.closed || table.sealed || self.owes() {
            return None;
        }
        self.expect(&table);
        Some(table)
    }

    /// Nobody knows an inode any more that may have lost its last name here. Answers whether the
    /// group never hears of it.
    pub fn forgotten(&self, ino: InodeId, is_open: impl Fn(InodeId) -> bool) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut table = self.table.lock();
        let Some(removal) = table.removal_of(ino).filter(|_| !is_open(ino)) else { return false };
        // Its place in the log is that of the time which it left.
        let never_was = self.never_was(&mut table, ino);
        if never_was {
            table.merge_touches(removal);
            self.counted(&table);
        }
        never_was
    }

    fn push(&self, table: &mut Table, step: Step) {
        table.push(What::Step(Box::new(step)), self.group.sessions.current().id);
        self.pushed(table);
    }

    /// Takes all entries of something that was made here out of the log, if the group has not heard
    /// of any and they are about nothing else. A removal leaves its directory the time. Answers
    /// whether it did.
    fn never_was(&self, table: &mut Table, ino: InodeId) -> bool {
        let Some(made) = table.made.get(&ino) else { return false };
        let session = self.group.sessions.current().id;
        let (mut at, mut removals, mut own, mut makes) = (Vec::new(), Vec::new(), true, false);
        for seq in &made.entries {
            // Others were told, or never were themselves.
            let Some(found) = table.find(*seq) else { continue };
            let entry = &table.this[found];
            own &= !entry.sent && entry.session == session;
            own &= match &entry.what {
                What::Content(_, stage) => matches!(stage, Stage::Waiting(_)),
                What::Step(step) => match &step.op {
                    Some(Do::Make(op)) => {
                        makes |= op.ino == ino.0;
                        op.ino == ino.0
                    }
                    Some(Do::SetAttr(_) | Do::SetXattr(_) | Do::RemoveXattr(_)) => true,
                    Some(Do::Unlink(_) | Do::RmDir(_)) if step.ino == ino.0 => {
                        removals.push(found);
                        continue;
                    }
                    _ => false,
                },
            };
            at.push(found);
        }
        if !own || !makes || made.failed.is_some() {
            return false;
        }
        table.forget_all(ino);
        removals.into_iter().for_each(|found| table.leave_time(found));
        for found in at.into_iter().rev() {
            table.remove(Of::This, found);
        }
        table.made.remove(&ino);
        self.group.leases.never_was(ino);
        true
    }

    /// What came and went in a directory leaves its times.
    fn touched(&self, table: &mut Table, dir: InodeId, at_ns: i64) {
        self.push(table, touch(dir, at_ns));
        let newest = table.tail();
        table.merge_touches(newest);
        self.counted(table);
    }
}
