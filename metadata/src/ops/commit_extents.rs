//! Makes data visible: the one commit that a write ends with.
//!
//! Everything that comes in is checked here, because what is accepted is believed for ever: that
//! segments are new and well formed, that extents lie within them, that they have the redundancy
//! that the file's layout asks for (I1).

mod checks;

pub(super) use checks::check_new_segments;

use super::set_attr;
use crate::operation::{Context, Fault, Operation, Reply, refuse};
use crate::schema::Inode;
use crate::store::{Read, StoreResult, Txn};
use crate::tables::content::Edit;
use crate::tables::inodes;
use weft_proto::mode::SET_IDS;
use weft_proto::planted::{self, Bug};
use weft_proto::{ErrorKind, Layout, v1};

/// A writer whose clock is further from ours than this does not set the change time, which tells
/// others what changed since they looked. Nanoseconds.
const SKEW: u64 = 60_000_000_000;

pub(crate) struct Plan {
    file: Inode,
    /// What the offsets of the extents are relative to.
    base: u64,
}

impl Operation for v1::CommitExtentsOp {
    type Plan = Plan;

    fn check(&self, state: &dyn Read, cx: &Context) -> Result<Plan, Fault> {
        let (file, layout) = inodes::file(state, self.ino)?;
        let base = check_on(self, state, cx, &file, &layout)?;
        Ok(Plan { file, base })
    }

    fn apply(
        &self,
        Plan { file, base }: Plan,
        tx: &mut Txn<'_>,
        cx: &Context,
    ) -> StoreResult<Reply> {
        let overtaken = is_overtaken(self, &file);
        let file = apply_on(self, tx, cx, file, base, overtaken)?;
        let attr = Some(file.attr);
        Ok(Reply::CommitExtents(v1::CommitExtentsReply { attr, base, overtaken }))
    }
}

/// Checks a commit on this file, which may be one that is being made. Answers what the offsets of
/// the extents are relative to.
pub(super) fn check_on(
    op: &v1::CommitExtentsOp,
    state: &dyn Read,
    cx: &Context,
    file: &Inode,
    layout: &Layout,
) -> Result<u64, Fault> {
    if op.append && op.min_size > 0 {
        return refuse(ErrorKind::Invalid, "an append has no minimum size");
    }
    let unguarded = planted::is(Bug::LateCommitUnguarded);
    if op.expect_version.is_some_and(|v| v != file.attr.data_version && !unguarded) {
        return refuse(
            ErrorKind::Stale,
            format!("file {} was changed after this data was buffered", file.ino()),
        );
    }
    if let Some(attr) = &op.attr {
        check_attr(attr, op.ino)?;
    }
    let base = if op.append { file.attr.size } else { 0 };
    checks::check_ranges(&op.extents, base, op.min_size)?;
    let new = checks::check_new_segments(state, &op.segments, cx)?;
    checks::check_sources(state, &op.extents, &new, layout)?;
    checks::check_inline(state, file, &op.extents, base, layout)?;
    Ok(base)
}

/// Carries out what [`check_on`] accepted, and stores the file; without the attributes, if others
/// have changed the file since they were set (`overtaken`).
pub(super) fn apply_on(
    op: &v1::CommitExtentsOp,
    tx: &mut Txn<'_>,
    cx: &Context,
    mut file: Inode,
    base: u64,
    overtaken: bool,
) -> StoreResult<Inode> {
    let grows = op.min_size > file.attr.size;
    if overtaken && !grows && op.extents.is_empty() {
        return Ok(file);
    }
    file.attr.data_version += u64::from(grows || !op.extents.is_empty());
    let mtime = if op.mtime_ns == 0 { cx.now } else { op.mtime_ns };
    file.attr.mtime_ns = if overtaken { mtime.max(file.attr.mtime_ns) } else { mtime };
    // What the writer shows since then, so that a commit behind a reader's back changes no time.
    let changed = believed(op.changed_ns, cx.now);
    file.attr.ctime_ns = changed.map_or(cx.now, |changed| changed.max(file.attr.ctime_ns));
    if let Some(attr) = op.attr.as_ref().filter(|_| !overtaken) {
        set_attr::set_owner_and_mode(attr, &mut file)?;
        file.attr.atime_ns = attr.atime_ns.unwrap_or(file.attr.atime_ns);
    }
    if overtaken && let Some(mode) = op.attr.and_then(|attr| attr.mode) {
        // Whose write takes these bits is not known here.
        file.attr.mode &= mode | !SET_IDS;
    }
    let mut edit = Edit::new(file);
    for e in &op.extents {
        edit.insert(tx, v1::Extent { file_off: base + e.file_off, ..e.clone() })?;
    }
    edit.file.attr.size = edit.file.attr.size.max(op.min_size);
    edit.finish(tx, &op.segments)
}

/// Whether others have set the owner or the mode that this commit sets, since its writer did.
fn is_overtaken(op: &v1::CommitExtentsOp, file: &Inode) -> bool {
    let (Some(set), Some(was), now) = (&op.attr, &op.attr_was, &file.attr) else { return false };
    let differs = |now: u32, was: Option<u32>, set: Option<u32>| {
        set.is_some_and(|set| now != set && was != Some(now))
    };
    let overtaken = differs(now.mode, was.mode, set.mode)
        || differs(now.uid, was.uid, set.uid)
        || differs(now.gid, was.gid, set.gid);
    overtaken && !planted::is(Bug::LateAttrUnguarded)
}

/// When a client did something, if it says so and its clock is about right.
pub(super) fn believed(done: i64, now: i64) -> Option<i64> {
    (done != 0 && now.abs_diff(done) < SKEW).then_some(done)
}

/// Size and modification time are those of what is committed.
fn check_attr(attr: &v1::SetAttrOp, ino: u64) -> Result<(), Fault> {
    let v1::SetAttrOp { mode, uid, gid, atime_ns, .. } = *attr;
    if *attr != (v1::SetAttrOp { ino, mode, uid, gid, atime_ns, ..Default::default() }) {
        let what = "a commit changes owner, mode and access time of its own file only";
        return refuse(ErrorKind::Invalid, what);
    }
    set_attr::check_owner(attr)
}
