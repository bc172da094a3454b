//! Carries out a piece of the log of what a session has done on its own: steps in order, up to the
//! first that is refused. What comes after that one would have been done on another state than its
//! session saw.

use super::commit_extents::believed;
use super::make;
use crate::operation::{Change, Context, Fault, Reply, attempt, refuse};
use crate::schema::Dentry;
use crate::store::{Read, StoreResult, Txn};
use crate::tables::acl::Which;
use crate::tables::names::Place;
use crate::tables::numbers::Known;
use bytes::Bytes;
use std::collections::BTreeMap;
use v1::FileKind;
use v1::batch_op::{Step, step::Op};
use v1::batch_reply::Done;
use weft_proto::rename::NOREPLACE;
use weft_proto::{ErrorKind, InodeId, SessionId, v1};

/// Most steps in one request.
pub(crate) const MAX_STEPS: usize = 4096;

impl Change for v1::BatchOp {
    fn run(&self, tx: &mut Txn<'_>, cx: &Context) -> Result<Reply, Fault> {
        if self.steps.len() > MAX_STEPS {
            let what = format!("{} steps in one request, over {MAX_STEPS}", self.steps.len());
            return refuse(ErrorKind::Invalid, what);
        }
        let of = if self.session == 0 { cx.session } else { SessionId(self.session) };
        let (mut known, mut own) = (Known::default(), BTreeMap::new());
        let mut reply = v1::BatchReply::default();
        for step in &self.steps {
            let late = self.late && of != cx.session;
            let said = said(late, step.at_ns, cx.now);
            let now = said.max(latest(tx.state(), step, self.own_times)?);
            let (later, since) = match self.own_times {
                true => (later(tx.state(), step, now, late.then_some(said))?, said),
                false => (Vec::new(), i64::MAX),
            };
            reply.other_times |= step.at_ns != 0 && now != step.at_ns;
            // What others have done to its directory since is not done to what is made.
            let made_ns = if late { said } else { now };
            let cx = Context { now, ..cx.clone() };
            let guarded = self.guarded && of != cx.session;
            let foreign =
                if guarded { foreign(tx.state(), step, since, &own)? } else { Vec::new() };
            let taken = attempt(tx, |tx| match guarded && overtaken(tx.state(), step, &own)? {
                true => Ok(Done::default()),
                false => take(step, of, tx, (&cx, made_ns), &mut known),
            });
            match taken {
                Ok(done) => {
                    reply.done.push(done);
                    for (ino, ctime_ns) in later {
                        tx.edit_inode(ino, |inode| inode.attr.ctime_ns = ctime_ns)?;
                    }
                    if guarded {
                        note_own(&mut own, tx.state(), step, &foreign)?;
                    }
                }
                Err(fault) => {
                    let error = fault.refusal()?;
                    (reply.error, reply.message) = (error.kind.code(), error.message);
                    break;
                }
            }
        }
        Ok(Reply::Batch(reply))
    }
}

/// When a step was taken, as its session says. One that is told late may have been taken long ago:
/// by a time of now, what follows in the next batch would seem to be older than it.
fn said(late: bool, at_ns: i64, now: i64) -> i64 {
    match late && (1..=now).contains(&at_ns) {
        true => at_ns,
        false => believed(at_ns, now).unwrap_or(now),
    }
}

/// Inodes that are there and that a step touches, directories of names first; 0: none.
fn touched(step: &Step) -> [u64; 4] {
    match &step.op {
        Some(Op::Make(op)) => [op.parent, 0, 0, 0],
        Some(Op::Unlink(op)) => [op.parent, 0, step.ino, 0],
        Some(Op::RmDir(op)) => [op.parent, 0, step.ino, 0],
        Some(Op::Rename(op)) => [op.parent, op.new_parent, step.ino, step.replaced],
        Some(Op::SetAttr(op)) => [op.ino, 0, 0, 0],
        Some(Op::SetXattr(op)) => [op.ino, 0, 0, 0],
        Some(Op::RemoveXattr(op)) => [op.ino, 0, 0, 0],
        Some(Op::Commit(_)) | None => [0; 4],
    }
}

/// When the inodes of a step changed last: their times do not go back. With their own times, those
/// that are changed at the time of the step: directories, and what it sets attributes of.
fn latest(state: &dyn Read, step: &Step, own_times: bool) -> StoreResult<i64> {
    let mut latest = i64::MIN;
    let among = if own_times { 2 } else { usize::MAX };
    for ino in touched(step).into_iter().take(among).filter(|ino| *ino != 0) {
        if let Some(inode) = state.inode(InodeId(ino))? {
            latest = latest.max(inode.attr.ctime_ns);
        }
    }
    Ok(latest)
}

/// What names lead to and was changed after this step, and when: content is committed with all that
/// was written by then, also after its name went. And what is told late was changed when it was
/// (`said`), and not when others changed the directory.
fn later(
    state: &dyn Read,
    step: &Step,
    now: i64,
    said: Option<i64>,
) -> StoreResult<Vec<(InodeId, i64)>> {
    let mut later = Vec::new();
    for ino in touched(step).into_iter().skip(2).filter(|ino| *ino != 0).map(InodeId) {
        let Some(inode) = state.inode(ino)? else { continue };
        let changed = inode.attr.ctime_ns.max(said.unwrap_or(i64::MIN));
        if said.is_some() || changed > now {
            later.push((ino, changed));
        }
    }
    Ok(later)
}

/// What others have changed since a step was taken: it is not the batch's own after it, either.
fn foreign(
    state: &dyn Read,
    step: &Step,
    since: i64,
    own: &BTreeMap<u64, i64>,
) -> StoreResult<Vec<u64>> {
    let mut foreign = Vec::new();
    for ino in touched(step).into_iter().filter(|ino| *ino != 0) {
        let changed = state.inode(InodeId(ino))?.map(|inode| inode.attr.ctime_ns);
        if changed.is_some_and(|changed| changed > since && own.get(&ino) != Some(&changed)) {
            foreign.push(ino);
        }
    }
    Ok(foreign)
}

/// What a batch itself has changed is as it left that.
fn note_own(
    own: &mut BTreeMap<u64, i64>,
    state: &dyn Read,
    step: &Step,
    foreign: &[u64],
) -> StoreResult<()> {
    let made = match &step.op {
        Some(Op::Make(op)) => op.ino,
        _ => 0,
    };
    let changed = touched(step).into_iter().chain([made]);
    for ino in changed.filter(|ino| *ino != 0 && !foreign.contains(ino)) {
        if let Some(inode) = state.inode(InodeId(ino))? {
            own.insert(ino, inode.attr.ctime_ns);
        }
    }
    Ok(())
}

fn take(
    step: &Step,
    of: SessionId,
    tx: &mut Txn<'_>,
    (cx, made_ns): (&Context, i64),
    known: &mut Known,
) -> Result<Done, Fault> {
    let change: &dyn Change = match &step.op {
        Some(Op::Make(op)) => {
            make::run(op, of, tx, (cx, made_ns), known)?;
            return Ok(Done::default());
        }
        Some(Op::Commit(op)) => op,
        Some(Op::Unlink(op)) => {
            leads_to(tx.state(), op.parent, &op.name, step.ino)?;
            op
        }
        Some(Op::RmDir(op)) => {
            leads_to(tx.state(), op.parent, &op.name, step.ino)?;
            op
        }
        Some(Op::Rename(op)) => {
            let state = tx.state();
            let moved = leads_to(state, op.parent, &op.name, step.ino)?;
            if moved.is_some_and(|moved| moved.kind() == FileKind::Directory) {
                return refuse(ErrorKind::Invalid, "a batch moves no directories");
            }
            if op.flags & !NOREPLACE != 0 {
                return refuse(ErrorKind::Invalid, "a batch only moves");
            }
            leads_to(state, op.new_parent, &op.new_name, step.replaced)?;
            op
        }
        Some(Op::SetAttr(op)) if op.size.is_some() => {
            return refuse(ErrorKind::Invalid, "a batch changes no sizes");
        }
        Some(Op::SetAttr(op)) => op,
        Some(Op::SetXattr(op)) => {
            no_list(&op.name)?;
            op
        }
        Some(Op::RemoveXattr(op)) => {
            no_list(&op.name)?;
            op
        }
        None => return refuse(ErrorKind::Protocol, "a step of an unknown kind"),
    };
    Ok(match change.run(tx, cx)? {
        Reply::CommitExtents(done) => Done { attr: done.attr },
        _ => Done::default(),
    })
}

/// Refuses to change an access control list, which is another change of the mode.
fn no_list(xattr: &[u8]) -> Result<(), Fault> {
    match Which::named(xattr) {
        Some(_) => refuse(ErrorKind::Invalid, "a batch changes no access control lists"),
        None => Ok(()),
    }
}

/// Refuses what a session that is over did to an inode before others changed it: it would undo
/// that. Answers whether it is of no use any more: what came and went left the time of its
/// directory, which is later by now. That is told by clocks: a change is taken for a later one if
/// its time is, of what this batch has not changed itself (`own`: since when).
fn overtaken(state: &dyn Read, step: &Step, own: &BTreeMap<u64, i64>) -> Result<bool, Fault> {
    let ino = match &step.op {
        Some(Op::SetAttr(op)) => op.ino,
        Some(Op::SetXattr(op)) => op.ino,
        Some(Op::RemoveXattr(op)) => op.ino,
        _ => return Ok(false),
    };
    let Some(inode) = state.inode(InodeId(ino))? else { return Ok(false) };
    let changed = inode.attr.ctime_ns;
    if changed <= step.at_ns || own.get(&ino) == Some(&changed) {
        return Ok(false);
    }
    let mtime_ns = Some(step.at_ns);
    let touches = Op::SetAttr(v1::SetAttrOp { ino, mtime_ns, ..Default::default() });
    if step.op == Some(touches) && mtime_ns <= Some(inode.attr.mtime_ns) {
        return Ok(true);
    }
    let what = format!("inode {ino} was changed by others when that session was over");
    refuse(ErrorKind::Stale, what)
}

/// Refuses if a name leads elsewhere; 0: it is free.
fn leads_to(
    state: &dyn Read,
    parent: u64,
    name: &Bytes,
    ino: u64,
) -> Result<Option<Dentry>, Fault> {
    let mut place = Place::find(state, parent, name)?;
    let found = place.found.take();
    if found.as_ref().map_or(0, |found| found.ino) != ino {
        return refuse(ErrorKind::Stale, format!("{place} leads to another inode"));
    }
    Ok(found)
}
