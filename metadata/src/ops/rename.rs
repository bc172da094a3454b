//! Moves a name, with the flags of Linux's `renameat2`. Refusals come in the order in which Linux
//! makes them.

use crate::operation::{Context, EMPTY, Fault, Operation, Reply, refuse};
use crate::schema::{Dentry, Inode};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::inodes::{self, Wanted};
use crate::tables::names::{self, Place};
use crate::tables::quotas::{self, Marking};
use v1::FileKind;
use weft_proto::planted::{self, Bug};
use weft_proto::rename::{EXCHANGE, NOREPLACE, WHITEOUT};
use weft_proto::{ErrorKind, InodeId, v1};

/// Most directories above one that a directory is moved into, or from in place of another: a move
/// walks up to the root to see that nothing becomes its own ancestor, on every replica. That is
/// twice as deep as a path of Linux's can say; deeper trees can be made step by step, and
/// everything can be moved out of them.
const MAX_DEPTH: usize = 4096;

pub(crate) enum Plan {
    /// Both names stand for the same inode: POSIX says to do nothing.
    Nothing,
    Move {
        from: Place,
        source: Dentry,
        to: Place,
        target: Option<Dentry>,
    },
    Exchange {
        from: Place,
        source: Dentry,
        to: Place,
        target: Dentry,
    },
}

impl Operation for v1::RenameOp {
    type Plan = Plan;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Plan, Fault> {
        let exchange = self.flags & EXCHANGE != 0;
        if self.flags & !(NOREPLACE | EXCHANGE | WHITEOUT) != 0
            || exchange && self.flags != EXCHANGE
        {
            return refuse(ErrorKind::Invalid, format!("rename with flags {:#x}", self.flags));
        }
        let (from, source) = Place::taken(state, self.parent, &self.name)?;
        let mut to = Place::find(state, self.new_parent, &self.new_name)?;
        let target = to.found.take();
        if target.is_some() && self.flags & NOREPLACE != 0 {
            return refuse(ErrorKind::Exists, format!("{to} exists"));
        }
        if target.is_none() && exchange {
            return refuse(ErrorKind::NotFound, format!("{to} does not exist"));
        }
        check_ancestry(state, &from, &source, &to, target.as_ref(), exchange)?;
        check_quota(state, &source, &from, &to)?;
        let Some(target) = target else { return Ok(Plan::Move { from, source, to, target: None }) };
        if source.ino == target.ino {
            return Ok(Plan::Nothing);
        }
        if exchange {
            check_quota(state, &target, &to, &from)?;
            return Ok(Plan::Exchange { from, source, to, target });
        }
        check_replaceable(state, &source, &to, &target)?;
        Ok(Plan::Move { from, source, to, target: Some(target) })
    }

    fn apply(&self, plan: Plan, tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply> {
        match plan {
            Plan::Nothing => {}
            Plan::Move { from, source, to, target } => {
                vacate(tx, &from, &source, self.flags & WHITEOUT != 0, cx.now)?;
                match target {
                    Some(target) => {
                        settle(tx, &to, &target, &source, cx.now)?;
                        if !planted::is(Bug::RenameLosesInode) {
                            inodes::drop_name(tx, InodeId(target.ino), cx.now)?;
                        }
                    }
                    None => {
                        let dir = tx.state().inode_that_exists(to.dir.ino())?;
                        let ino = InodeId(source.ino);
                        names::add(tx, dir, &to.name, ino, source.kind(), cx.now)?;
                        arrive(tx, &source, &to.dir, cx.now)?;
                    }
                }
            }
            Plan::Exchange { from, source, to, target } => {
                settle(tx, &from, &source, &target, cx.now)?;
                settle(tx, &to, &target, &source, cx.now)?;
            }
        }
        Ok(EMPTY)
    }
}

/// Takes the old name away, or leaves a whiteout there: a character device 0/0, which an overlay
/// reads as "removed".
fn vacate(
    tx: &mut Txn<'_>,
    from: &Place,
    source: &Dentry,
    whiteout: bool,
    now: i64,
) -> StoreResult<()> {
    let dir = from.dir.ino();
    if !whiteout {
        return names::remove(tx, dir, &from.name, source, now);
    }
    let kind = FileKind::CharDevice;
    let wanted = Wanted { kind, mode: 0, umask: 0, uid: 0, gid: 0, rdev: 0 };
    let node = inodes::make(tx, &from.dir, &wanted, now)?;
    tx.put_inode(&node)?;
    names::replace(tx, dir, &from.name, source, node.attr.ino, kind, now)
}

/// Lets the taken name at `place` stand for `moved` instead of `old`.
fn settle(
    tx: &mut Txn<'_>,
    place: &Place,
    old: &Dentry,
    moved: &Dentry,
    now: i64,
) -> StoreResult<()> {
    names::replace(tx, place.dir.ino(), &place.name, old, moved.ino, moved.kind(), now)?;
    arrive(tx, moved, &place.dir, now)
}

/// What moves learns so: it has a new parent, a new change time, and the quota of where it is.
fn arrive(tx: &mut Txn<'_>, moved: &Dentry, dir: &Inode, now: i64) -> StoreResult<()> {
    let (ino, zone) = (InodeId(moved.ino), dir.zone());
    let inode = tx.edit_inode(ino, |inode| {
        inode.attr.ctime_ns = now;
        inode.parent = dir.attr.ino;
        if !inode.is_dir() {
            inode.quota = zone;
        }
    })?;
    // The walk that is under way may have passed its new place already.
    match Marking::now(tx.state())?.filter(|walk| walk.marks(inode.quota, zone)) {
        Some(walk) => quotas::mark(tx, walk, ino),
        None => Ok(()),
    }
}

/// Refuses to move a directory, or one of several names of a file, to where it would count for
/// another quota: what has more to it than one inode is copied. Between two directories of one
/// quota all is moved, also what is yet to be marked.
fn check_quota(state: &dyn Read, moved: &Dentry, from: &Place, to: &Place) -> Result<(), Fault> {
    let inode = state.inode_that_exists(InodeId(moved.ino))?;
    let same = from.dir.zone() == to.dir.zone();
    if inode.quota == to.dir.zone() || same || !inode.is_dir() && inode.attr.nlink < 2 {
        return Ok(());
    }
    refuse(ErrorKind::CrossDevice, format!("{to} counts for another quota: copy it"))
}

/// Refuses to make a directory its own descendant, or to put something in place of its ancestor.
fn check_ancestry(
    state: &dyn Read,
    from: &Place,
    source: &Dentry,
    to: &Place,
    target: Option<&Dentry>,
    exchange: bool,
) -> Result<(), Fault> {
    if from.dir.ino() == to.dir.ino() {
        return Ok(());
    }
    if source.kind() == FileKind::Directory && is_within(state, to.dir.ino(), source.ino)? {
        return refuse(ErrorKind::Invalid, format!("{from} cannot be moved below itself"));
    }
    if let Some(target) = target
        && target.kind() == FileKind::Directory
        && is_within(state, from.dir.ino(), target.ino)?
    {
        let kind = if exchange { ErrorKind::Invalid } else { ErrorKind::NotEmpty };
        return refuse(kind, format!("{to} contains what is to be moved there"));
    }
    Ok(())
}

/// Whether `dir` is `top` or lies below it. [`ErrorKind::TooDeep`] if that takes too long to find
/// out.
fn is_within(state: &dyn Read, dir: InodeId, top: u64) -> Result<bool, Fault> {
    let mut at = dir;
    for _ in 0..MAX_DEPTH {
        if at.0 == top {
            return Ok(true);
        }
        if at.is_root() {
            return Ok(false);
        }
        at = InodeId(state.inode_that_exists(at)?.parent);
    }
    refuse(ErrorKind::TooDeep, format!("directory {dir} lies over {MAX_DEPTH} directories deep"))
}

/// Refuses to replace a directory by something else, or one that is not empty.
fn check_replaceable(
    state: &dyn Read,
    source: &Dentry,
    to: &Place,
    target: &Dentry,
) -> Result<(), Fault> {
    let is_dir = |d: &Dentry| d.kind() == FileKind::Directory;
    match (is_dir(source), is_dir(target)) {
        (true, false) => refuse(ErrorKind::NotDirectory, format!("{to} is not a directory")),
        (false, true) => refuse(ErrorKind::IsDirectory, format!("{to} is a directory")),
        (true, true) if state.inode_that_exists(InodeId(target.ino))?.entries > 0 => {
            refuse(ErrorKind::NotEmpty, format!("{to} is not empty"))
        }
        _ => Ok(()),
    }
}
