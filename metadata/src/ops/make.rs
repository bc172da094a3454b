//! Makes an inode of any kind that a session has made on its own, under a number that was set aside
//! for it: a step of a batch ([`super::batch`]).
//!
//! What the session shows of it already is what it becomes: its number, times, owner and mode.

use super::sym_link;
use crate::operation::{Context, Fault, refuse};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::inodes::{self, Wanted};
use crate::tables::names::{self, Place};
use crate::tables::numbers::Known;
use v1::FileKind;
use weft_proto::{ErrorKind, InodeId, SessionId, v1};

/// Makes it, unless that was done before. It has the time `made_ns`, and its directory that of now.
pub(super) fn run(
    op: &v1::MakeOp,
    of: SessionId,
    tx: &mut Txn<'_>,
    (cx, made_ns): (&Context, i64),
    known: &mut Known,
) -> Result<(), Fault> {
    match check(op, of, tx.state(), cx, known)? {
        Some(place) => Ok(apply(op, place, tx, cx, made_ns)?),
        None => Ok(()),
    }
}

/// Where it is to get its name; `None` if it was made before.
fn check(
    op: &v1::MakeOp,
    of: SessionId,
    state: &dyn Read,
    cx: &Context,
    known: &mut Known,
) -> Result<Option<Place>, Fault> {
    let place = Place::find(state, op.parent, &op.name)?;
    match &place.found {
        Some(found) if found.ino == op.ino => return Ok(None),
        Some(_) => return refuse(ErrorKind::Exists, format!("{place} exists")),
        None => {}
    }
    check_number(InodeId(op.ino), of, state, cx, &place, known)?;
    match op.kind() {
        FileKind::Directory => place.takes_directory()?,
        FileKind::Symlink => sym_link::check_target(&op.target)?,
        FileKind::Regular
        | FileKind::Fifo
        | FileKind::Socket
        | FileKind::CharDevice
        | FileKind::BlockDevice => {}
        FileKind::Unknown => return refuse(ErrorKind::Invalid, "an inode of an unknown kind"),
    }
    Ok(Some(place))
}

/// Whether the number was set aside for session `of`, which asks or was declared dead, and is free.
pub(super) fn check_number(
    ino: InodeId,
    of: SessionId,
    state: &dyn Read,
    cx: &Context,
    place: &Place,
    known: &mut Known,
) -> Result<(), Fault> {
    // Nobody uses the numbers of another that lives.
    let foreign = of != cx.session && state.session(of)?.is_some();
    let reserved = !foreign && known.is_reserved(state, of, ino.0)?;
    if !reserved || ino.shard() != place.dir.ino().shard() {
        let what = format!("inode number {ino} was not set aside for session {}", cx.session);
        return refuse(ErrorKind::Invalid, what);
    }
    if state.inode(ino)?.is_some() {
        return refuse(ErrorKind::Exists, format!("inode {ino} exists under another name"));
    }
    Ok(())
}

fn apply(
    op: &v1::MakeOp,
    place: Place,
    tx: &mut Txn<'_>,
    cx: &Context,
    made_ns: i64,
) -> StoreResult<()> {
    let kind = op.kind();
    let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
    let wanted = Wanted {
        kind,
        mode: if kind == FileKind::Symlink { 0o777 } else { op.mode },
        umask: op.umask,
        uid: op.uid,
        gid: op.gid,
        rdev: if is_device { op.rdev } else { 0 },
    };
    let mut inode = inodes::describe(&place.dir, &wanted, InodeId(op.ino), made_ns)?;
    if kind == FileKind::Symlink {
        inode.attr.size = op.target.len() as u64;
        inode.target = op.target.clone();
    }
    tx.edit_counters(|c| c.inodes += 1)?;
    names::add(tx, place.dir, &place.name, inode.ino(), kind, cx.now)?;
    tx.put_inode(&inode)?;
    Ok(())
}
