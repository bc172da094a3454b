//! Changes attributes: mode, owner, times, size. What Linux does to set-id bits and to the change
//! time is done here too, for callers that have no kernel in front of them.

use crate::operation::{Context, Fault, Operation, Reply, refuse};
use crate::schema::{self, Inode};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::acl;
use crate::tables::content::STEP;
use crate::tables::content::{self, Edit, MAX_FILE};
use crate::tables::inodes::{self, Wanted};
use v1::FileKind;
use weft_proto::mode::mode_after;
use weft_proto::planted::{self, Bug};
use weft_proto::{ErrorKind, InodeId, v1};

/// Stands for "no user" in Linux's calls and cannot own anything.
const NOBODY: u32 = u32::MAX;

pub(crate) struct Plan {
    inode: Inode,
    /// Truncation to nothing of more extents than one entry should delete.
    hand_over: bool,
}

impl Operation for v1::SetAttrOp {
    type Plan = Plan;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Plan, Fault> {
        let inode = inodes::existing(state, self.ino)?;
        check_owner(self)?;
        let mut hand_over = false;
        if let Some(size) = self.size {
            match inode.kind() {
                FileKind::Regular => {}
                FileKind::Directory => {
                    return refuse(
                        ErrorKind::IsDirectory,
                        format!("directory {} has no size to set", inode.ino()),
                    );
                }
                _ => {
                    return refuse(
                        ErrorKind::Invalid,
                        format!("inode {} is no file and has no size to set", inode.ino()),
                    );
                }
            }
            if size > MAX_FILE {
                return refuse(
                    ErrorKind::TooLarge,
                    format!("{size} bytes are over the longest file, {MAX_FILE}"),
                );
            }
            hand_over = size == 0 && content::has_more_than(state, &inode, STEP)?;
        }
        Ok(Plan { inode, hand_over })
    }

    fn apply(&self, plan: Plan, tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply> {
        let mut inode = plan.inode;
        set_owner_and_mode(self, &mut inode)?;
        if let Some(size) = self.size {
            inode = match plan.hand_over {
                true => truncate_by_orphan(tx, inode, cx)?,
                false => truncate(tx, inode, size)?,
            };
            inode.attr.mtime_ns = cx.now;
        }
        set_times(self, &mut inode, cx.now);
        if *self != (v1::SetAttrOp { ino: self.ino, ..Default::default() }) {
            inode.attr.ctime_ns = cx.now;
            tx.put_inode(&inode)?;
        }
        Ok(Reply::Attr(inode.attr))
    }
}

pub(super) fn check_owner(op: &v1::SetAttrOp) -> Result<(), Fault> {
    if op.uid == Some(NOBODY) || op.gid == Some(NOBODY) {
        return refuse(ErrorKind::Invalid, "user or group id out of range");
    }
    Ok(())
}

pub(super) fn set_owner_and_mode(op: &v1::SetAttrOp, inode: &mut Inode) -> StoreResult<()> {
    let is_dir = inode.is_dir();
    let attr = &mut inode.attr;
    attr.mode = mode_after(attr.mode, is_dir, op.mode, op.uid.is_some() || op.gid.is_some());
    attr.uid = op.uid.unwrap_or(attr.uid);
    attr.gid = op.gid.unwrap_or(attr.gid);
    acl::follow_mode(inode)
}

fn set_times(op: &v1::SetAttrOp, inode: &mut Inode, now: i64) {
    let pick = |given: Option<i64>, is_now: bool, old: i64| match (is_now, given) {
        (true, _) => now,
        (false, Some(time)) => time,
        (false, None) => old,
    };
    inode.attr.atime_ns = pick(op.atime_ns, op.atime_now, inode.attr.atime_ns);
    inode.attr.mtime_ns = pick(op.mtime_ns, op.mtime_now, inode.attr.mtime_ns);
}

/// Cuts off or extends by a hole.
fn truncate(tx: &mut Txn<'_>, mut inode: Inode, size: u64) -> StoreResult<Inode> {
    let old = inode.attr.size;
    inode.attr.size = size;
    // Also if nothing changed: whoever finds the version one higher takes that for its own doing.
    inode.attr.data_version += 1;
    if size >= old || planted::is(Bug::TruncateKeepsData) {
        return Ok(inode);
    }
    let mut edit = Edit::new(inode);
    edit.clear(tx, size, old, STEP)?;
    edit.finish(tx, &[])
}

/// Empties a file of very many extents at once: an orphan gets them and is purged step by step.
fn truncate_by_orphan(tx: &mut Txn<'_>, mut inode: Inode, cx: &Context) -> StoreResult<Inode> {
    let wanted = Wanted {
        kind: FileKind::Regular,
        mode: 0,
        umask: 0,
        uid: inode.attr.uid,
        gid: inode.attr.gid,
        rdev: 0,
    };
    let mut heir = inodes::make(tx, &inode, &wanted, cx.now)?;
    heir.attr.nlink = 0;
    content::hand_over(tx, &mut inode, &mut heir);
    inode.attr.size = 0;
    inode.attr.data_version += 1;
    tx.put_bytes(schema::orphan(InodeId(heir.attr.ino)), Default::default());
    tx.put_inode(&heir)?;
    Ok(inode)
}
