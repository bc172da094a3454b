//! Verifies the namespace against itself at one moment: every invariant that the records of this
//! state must keep among each other; and plans what mends those that do not.
//!
//! Invariants of a plan:
//! - no content is deleted by it, or shown as zeros, and no directory: what lost its name gets one
//!   in `/lost+found`, what lost its inode gets a new one, and content that is gone is read as an
//!   error;
//! - what it changes of a file's content has a new version, so that nobody goes on with what he
//!   knew;
//! - each fix stands on records as this look found them, and is not carried out
//!   ([`crate::ops`], `mend`) if one of them has changed since;
//! - fixes of one look are of one [`Stage`]: what is wrong because something else is, is seen by
//!   the next look.

mod accounts;
mod counted;
mod extents;
mod inodes;
mod locks;
mod missing;
mod names;
mod plan;
mod segments;
mod tree;
mod usage;

pub(crate) use plan::{Mend, Stage};

use crate::operation::{BRIEF, Fault, Query, Reply};
use crate::schema::{self, Tag};
use crate::store::{Read, StoreResult};
use crate::tables::xattrs::Room;
use counted::Counted;
use plan::Draft;
use std::collections::HashMap;
use weft_proto::v1;

/// Most problems in one answer; more are only counted.
const MAX_PROBLEMS: usize = 1000;
/// One that names a name takes no more, in bytes.
const PROBLEM: usize = 1200;
/// No answer is longer, in bytes.
pub(crate) const LONGEST: usize = BRIEF + MAX_PROBLEMS * PROBLEM;
/// Most mends that one look plans.
const MAX_MENDS: usize = 10_000;

impl Query for v1::CheckOp {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault> {
        Ok(Reply::Check(look(state)?.0))
    }

    fn longest(&self) -> usize {
        LONGEST
    }
}

/// What is wrong, and what mends the first stage of it.
pub(crate) fn look(state: &dyn Read) -> StoreResult<(v1::CheckReply, Vec<Mend>)> {
    let mut check = Check {
        state,
        shard: state.shard()?,
        report: v1::CheckReply::default(),
        untold: 0,
        unsure: 0,
        malformed: 0,
        stage: None,
        mends: Vec::new(),
        counted: Counted::new(state)?,
    };
    let names = check.names()?;
    let extents = check.extents()?;
    let xattrs = check.xattrs()?;
    check.inodes(&names, &extents, &xattrs)?;
    check.tree(&names)?;
    check.segments(&extents)?;
    check.owned(Tag::Xattr)?;
    check.owned(Tag::Orphan)?;
    check.owned(Tag::Trim)?;
    check.locks()?;
    check.usage()?;
    if check.untold > 0 {
        check.report.problems.push(format!("and {} more problems", check.untold));
    }
    Ok((check.report, check.mends))
}

struct Check<'a> {
    state: &'a dyn Read,
    shard: u16,
    report: v1::CheckReply,
    untold: u64,
    /// Records that make no sense, and so may be those of others, and files that account for
    /// content of which there is no extent: as long as there are some, nothing is deleted.
    unsure: u64,
    /// Of them, those of segments.
    malformed: u64,
    /// Of the mends.
    stage: Option<Stage>,
    mends: Vec<Mend>,
    /// What inodes come to, if that is counted.
    counted: Option<Counted>,
}

impl Check<'_> {
    /// Something that is wrong, and that nothing here mends.
    fn problem(&mut self, what: String) {
        if self.report.problems.len() < MAX_PROBLEMS {
            self.report.problems.push(what);
        } else {
            self.untold += 1;
        }
    }

    /// Something that is wrong, and what mends it.
    fn mend(
        &mut self,
        stage: Stage,
        what: String,
        draw: impl FnOnce(&mut Draft<'_>) -> StoreResult<()>,
    ) -> StoreResult<()> {
        self.plan(stage, &what, draw)?;
        self.problem(what);
        Ok(())
    }

    /// Plans what mends something, unless something else comes before.
    fn plan(
        &mut self,
        stage: Stage,
        what: &str,
        draw: impl FnOnce(&mut Draft<'_>) -> StoreResult<()>,
    ) -> StoreResult<()> {
        if self.stage.is_some_and(|first| first < stage) {
            return Ok(());
        }
        let earlier = self.stage.is_none_or(|first| stage < first);
        if !earlier && self.mends.len() >= MAX_MENDS {
            return Ok(());
        }
        let mut draft = Draft::new(self.state);
        draw(&mut draft)?;
        let Some(mend) = draft.done(what) else { return Ok(()) };
        if earlier {
            self.mends.clear();
            self.stage = Some(stage);
        }
        self.mends.push(mend);
        Ok(())
    }

    /// What the extended attributes of each inode take.
    fn xattrs(&mut self) -> StoreResult<HashMap<u64, Room>> {
        let mut taken: HashMap<u64, Room> = HashMap::new();
        let (from, to) = schema::all_in(self.shard, Tag::Xattr);
        self.state.scan(&from, &to, &mut |key, value| {
            let ino = schema::ino_of(key)?;
            let of_inode = taken.entry(ino.0).or_default();
            *of_inode = of_inode.with(Room::of(&key[schema::HEAD + 8..], value));
            Ok(true)
        })?;
        Ok(taken)
    }

    /// Records that belong to an inode: it exists.
    fn owned(&mut self, tag: Tag) -> StoreResult<()> {
        let state = self.state;
        let (from, to) = schema::all_in(self.shard, tag);
        state.scan(&from, &to, &mut |key, _| {
            let ino = schema::ino_of(key)?;
            let inode = schema::inode(ino);
            if state.get(&inode)?.is_none() {
                let what = format!("{tag:?} record of inode {ino}, which does not exist");
                self.mend(Stage::Others, what, |draft| {
                    draft.keep(inode)?;
                    draft.delete(key.to_vec())
                })?;
            }
            Ok(true)
        })
    }
}

#[cfg(test)]
mod mending;
#[cfg(test)]
mod tests;
