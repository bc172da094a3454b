//! Makes files that a session of an older version has made on its own, with their first content:
//! newer ones tell of all that they do in batches ([`super::batch`]).
//!
//! What the session shows of them already is what they become: their numbers, times, owner and
//! mode.

use super::commit_extents::{self, believed};
use crate::operation::{Change, Context, Fault, Reply, attempt, refuse};
use crate::schema::Inode;
use crate::store::{Read, Txn};
use crate::tables::inodes::{self, Wanted};
use crate::tables::names::{self, Place};
use crate::tables::numbers::Known;
use v1::FileKind;
use v1::make_files_op::File;
use v1::make_files_reply::Made;
use weft_proto::{ErrorKind, InodeId, SessionId, v1};

/// Most files in one request.
const MAX_FILES: usize = 4096;

/// Makes each file or refuses it.
impl Change for v1::MakeFilesOp {
    fn run(&self, tx: &mut Txn<'_>, cx: &Context) -> Result<Reply, Fault> {
        if self.files.len() > MAX_FILES {
            let what = format!("{} files in one request, over {MAX_FILES}", self.files.len());
            return refuse(ErrorKind::Invalid, what);
        }
        let mut files = Vec::with_capacity(self.files.len());
        let mut known = Known::default();
        for file in &self.files {
            let made = match attempt(tx, |tx| make(file, tx, cx, &mut known)) {
                Ok(attr) => {
                    Made { attr: file.content.is_some().then_some(attr), ..Default::default() }
                }
                Err(fault) => {
                    let e = fault.refusal()?;
                    Made { error: e.kind.code(), message: e.message, attr: None }
                }
            };
            files.push(made);
        }
        Ok(Reply::MakeFiles(v1::MakeFilesReply { files }))
    }
}

struct Plan {
    file: Inode,
    /// Where it is to get its name; `None` if it was made before.
    place: Option<Place>,
    /// What the offsets of the content are relative to.
    base: u64,
}

fn make(op: &File, tx: &mut Txn<'_>, cx: &Context, known: &mut Known) -> Result<v1::Attr, Fault> {
    let made = believed(op.made_ns, cx.now).unwrap_or(cx.now);
    let Plan { mut file, place, base } = check(op, tx.state(), cx, made, known)?;
    if let Some(Place { dir, name, .. }) = place {
        tx.edit_counters(|c| c.inodes += 1)?;
        // Files may be told in another order than they were made in.
        let changed = made.max(dir.attr.ctime_ns);
        names::add(tx, dir, &name, file.ino(), FileKind::Regular, changed)?;
        tx.put_inode(&file)?;
    }
    if let Some(content) = &op.content {
        file = commit_extents::apply_on(content, tx, cx, file, base, false)?;
    }
    Ok(file.attr)
}

fn check(
    op: &File,
    state: &dyn Read,
    cx: &Context,
    made: i64,
    known: &mut Known,
) -> Result<Plan, Fault> {
    let place = Place::find(state, op.parent, &op.name)?;
    let (file, place) = match &place.found {
        Some(found) if found.ino == op.ino => (inodes::existing(state, op.ino)?, None),
        Some(_) => return refuse(ErrorKind::Exists, format!("{place} exists")),
        None => (describe(op, state, cx, &place, made, known)?, Some(place)),
    };
    let mut base = 0;
    if let Some(content) = &op.content {
        let Some(layout) = file.checked_layout()?.filter(|_| file.kind() == FileKind::Regular)
        else {
            return refuse(ErrorKind::Invalid, format!("inode {} is no file", file.ino()));
        };
        if content.ino != op.ino {
            return refuse(ErrorKind::Invalid, "a file is made with the content of another");
        }
        base = commit_extents::check_on(content, state, cx, &file, &layout)?;
    }
    Ok(Plan { file, place, base })
}

/// The file as it begins.
fn describe(
    op: &File,
    state: &dyn Read,
    cx: &Context,
    place: &Place,
    made: i64,
    known: &mut Known,
) -> Result<Inode, Fault> {
    let ino = InodeId(op.ino);
    let owner = if op.session == 0 { cx.session } else { SessionId(op.session) };
    super::make::check_number(ino, owner, state, cx, place, known)?;
    let wanted = Wanted {
        kind: FileKind::Regular,
        mode: op.mode,
        umask: op.umask,
        uid: op.uid,
        gid: op.gid,
        rdev: 0,
    };
    Ok(inodes::describe(&place.dir, &wanted, ino, made)?)
}
