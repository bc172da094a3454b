//! The entries of the log: what was done on this mount and the metadata group has not heard of yet.

use super::lost::Lost;
use crate::meta::Failed;
use crate::types::Attr;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::warn;
use v1::batch_op::{Step, step::Op as Do};
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId, v1};

/// Why a name was not taken away.
const NOT_REMOVED: &str = "the cluster declared this mount dead before it was told that a name was \
                           taken away; others may have written to the file since: it stays";

/// Has a file fill its place, which has this number and is of this session, in a task of its own.
pub(crate) type Call = Box<dyn FnOnce(u64, SessionId) + Send>;

/// What became of content: the attributes of the file with it.
pub(super) type Published = Result<Attr, Failed>;

/// Of which session an entry is. Those of an earlier one are told apart: without leases they wait
/// for whoever changes the same, who may wait for others to be told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    This,
    Earlier,
}

/// One thing that was done here.
pub(super) struct Entry {
    pub(super) seq: u64,
    pub(super) session: SessionId,
    pub(super) at: Instant,
    pub(super) what: What,
    /// It is in the request that is under way.
    pub(super) sent: bool,
}

pub(super) enum What {
    Step(Box<Step>),
    /// The content of a file, which its file has to give.
    Content(InodeId, Stage),
}

pub(super) enum Stage {
    /// It is asked for when it is its turn.
    Waiting(Call),
    /// The file was asked.
    Called,
    Ready(Box<v1::CommitExtentsOp>, oneshot::Sender<Published>),
}

impl Entry {
    /// The inodes that it is about; 0 for none.
    pub(super) fn concerns(&self) -> [InodeId; 4] {
        let step = match &self.what {
            What::Content(ino, _) => return [*ino, InodeId(0), InodeId(0), InodeId(0)],
            What::Step(step) => step,
        };
        let inos = match &step.op {
            Some(Do::Make(op)) => [op.ino, op.parent, 0, 0],
            Some(Do::Unlink(op)) => [op.parent, step.ino, 0, 0],
            Some(Do::RmDir(op)) => [op.parent, step.ino, 0, 0],
            Some(Do::Rename(op)) => [op.parent, op.new_parent, step.ino, step.replaced],
            Some(Do::SetAttr(op)) => [op.ino, 0, 0, 0],
            Some(Do::SetXattr(op)) => [op.ino, 0, 0, 0],
            Some(Do::RemoveXattr(op)) => [op.ino, 0, 0, 0],
            Some(Do::Commit(op)) => [op.ino, 0, 0, 0],
            None => [0; 4],
        };
        inos.map(InodeId)
    }
}

/// What was made here.
pub(super) struct Made {
    /// Entries about it, some of which may be told or dropped since.
    pub(super) entries: Vec<u64>,
    /// It could not be made, which its handles have to be told.
    pub(super) failed: Option<Error>,
    /// It has no handles.
    pub(super) left: bool,
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) this: VecDeque<Entry>,
    pub(super) earlier: VecDeque<Entry>,
    last_seq: u64,
    /// The last entry about each inode.
    last: HashMap<InodeId, u64>,
    pub(super) made: HashMap<InodeId, Made>,
    pub(super) numbers: VecDeque<Range<u64>>,
    pub(super) reserving: bool,
    /// While the group does not know all that this client does, it is asked again from then on, and
    /// then after so long.
    pub(super) asks_again: Option<(Instant, Duration)>,
    /// The group knows batches.
    pub(super) batches: bool,
    /// And such that change extended attributes.
    pub(super) xattrs: bool,
    /// The mount is ending: what is done waits for the group.
    pub(super) closed: bool,
    /// The mount is at rest, or about to be: another process may go on with it.
    pub(super) sealed: bool,
    pub(super) lost: Lost,
    /// Sessions that have ended.
    pub(super) ended: u64,
}

/// The change of a directory's times alone.
pub(super) fn touch(dir: InodeId, at_ns: i64) -> Step {
    let op = v1::SetAttrOp { ino: dir.0, mtime_ns: Some(at_ns), ..Default::default() };
    Step { at_ns, op: Some(Do::SetAttr(op)), ..Step::default() }
}

/// What a step was, for people.
pub(super) fn describe(step: &Step) -> String {
    let name = |dir: u64, name: &[u8]| {
        format!("{:?} in directory {}", String::from_utf8_lossy(name), InodeId(dir))
    };
    let xattr = |ino: u64, name: &[u8]| {
        let name = String::from_utf8_lossy(name);
        format!("a change of extended attribute {name:?} of inode {}", InodeId(ino))
    };
    match &step.op {
        Some(Do::Make(op)) => format!("the making of {}", name(op.parent, &op.name)),
        Some(Do::Unlink(op)) => format!("the removal of {}", name(op.parent, &op.name)),
        Some(Do::RmDir(op)) => format!("the removal of {}", name(op.parent, &op.name)),
        Some(Do::Rename(op)) => {
            let (from, to) = (name(op.parent, &op.name), name(op.new_parent, &op.new_name));
            format!("the move of {from} to {to}")
        }
        Some(Do::SetAttr(op)) => format!("a change of attributes of inode {}", InodeId(op.ino)),
        Some(Do::SetXattr(op)) => xattr(op.ino, &op.name),
        Some(Do::RemoveXattr(op)) => xattr(op.ino, &op.name),
        Some(Do::Commit(_)) | None => "a change".into(),
    }
}

impl Table {
    pub(super) fn queue(&mut self, of: Of) -> &mut VecDeque<Entry> {
        match of {
            Of::This => &mut self.this,
            Of::Earlier => &mut self.earlier,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.this.len() + self.earlier.len()
    }

    /// The newest entry.
    pub(super) fn tail(&self) -> u64 {
        self.last_seq
    }

    pub(super) fn push(&mut self, what: What, session: SessionId) -> u64 {
        self.last_seq += 1;
        let seq = self.last_seq;
        let entry = Entry { seq, session, at: Instant::now(), what, sent: false };
        for ino in entry.concerns() {
            self.note(ino, seq);
        }
        self.this.push_back(entry);
        seq
    }

    fn note(&mut self, ino: InodeId, seq: u64) {
        if ino.0 != 0 {
            self.last.insert(ino, seq);
            if let Some(made) = self.made.get_mut(&ino) {
                made.entries.push(seq);
            }
        }
    }

    /// Where an entry is in the queue of this session.
    pub(super) fn find(&self, seq: u64) -> Option<usize> {
        self.this.binary_search_by_key(&seq, |entry| entry.seq).ok()
    }

    /// Takes an entry out, which was told or is not to be.
    pub(super) fn remove(&mut self, of: Of, at: usize) -> Option<Entry> {
        let entry = self.queue(of).remove(at)?;
        self.forget(&entry);
        Some(entry)
    }

    /// An entry is not there any more.
    pub(super) fn forget(&mut self, entry: &Entry) {
        for ino in entry.concerns() {
            if self.last.get(&ino) != Some(&entry.seq) {
                continue;
            }
            match self.last_before(ino, entry.seq) {
                Some(seq) => self.last.insert(ino, seq),
                None => self.last.remove(&ino),
            };
        }
    }

    fn last_before(&self, ino: InodeId, seq: u64) -> Option<u64> {
        let before = self.this.partition_point(|entry| entry.seq < seq);
        let mut entries = self.this.range(..before).rev().chain(self.earlier.iter().rev());
        entries.find(|entry| entry.concerns().contains(&ino)).map(|entry| entry.seq)
    }

    /// All entries about this inode are about to be removed.
    pub(super) fn forget_all(&mut self, ino: InodeId) {
        self.last.remove(&ino);
    }

    /// Whether this is the last entry about an inode.
    pub(super) fn is_last(&self, ino: InodeId, seq: u64) -> bool {
        self.last.get(&ino) == Some(&seq)
    }

    /// What is not of this session any more, and not under way, is told apart. Content is not: its
    /// file sends it again in the next session. Nor is what would take away what others may have
    /// written since the session ended. Answers whether content has lost its place.
    pub(super) fn part(&mut self, session: SessionId) -> bool {
        if self.this.front().is_none_or(|entry| entry.session == session || entry.sent) {
            return false;
        }
        let (mut stay, mut dropped, mut owes) = (VecDeque::new(), Vec::new(), false);
        for entry in std::mem::take(&mut self.this) {
            match &entry.what {
                _ if entry.session == session || entry.sent => stay.push_back(entry),
                What::Step(step) if self.takes_away(step) => {
                    let error = Error::new(ErrorKind::Io, NOT_REMOVED);
                    warn!(%error, "what was done here is lost: {}", describe(step));
                    self.lose(step, &error);
                    dropped.push(entry);
                }
                What::Step(_) => self.earlier.push_back(entry),
                What::Content(..) => {
                    owes = true;
                    dropped.push(entry);
                }
            }
        }
        self.this = stay;
        dropped.iter().for_each(|entry| self.forget(entry));
        owes
    }

    /// Whether content of this session waits, or is under way.
    pub(super) fn has_content(&self) -> bool {
        self.this.iter().any(|entry| matches!(entry.what, What::Content(..)))
    }

    /// Whether a step takes a name from what others know: they may write to it as soon as the
    /// session has ended.
    fn takes_away(&self, step: &Step) -> bool {
        let gone = match &step.op {
            Some(Do::Unlink(_)) => step.ino,
            Some(Do::Rename(_)) => step.replaced,
            _ => 0,
        };
        gone != 0 && !self.made.contains_key(&InodeId(gone))
    }

    /// The last entry of each queue that these, or all, wait for. Answers the failure of one of
    /// these that was made here.
    pub(super) fn concerned(&self, inos: Option<&[InodeId]>) -> Result<[Option<u64>; 2]> {
        let last = match inos {
            None => Some(self.last_seq),
            Some(inos) => {
                let failure = |ino| self.made.get(ino).and_then(|made| made.failed.clone());
                if let Some(error) = inos.iter().find_map(failure) {
                    return Err(error);
                }
                inos.iter().filter_map(|ino| self.last.get(ino).copied()).max()
            }
        };
        Ok(last.map_or([None; 2], |last| {
            let holds = |queue: &VecDeque<Entry>| {
                queue.front().is_some_and(|entry| entry.seq <= last).then_some(last)
            };
            [holds(&self.this), holds(&self.earlier)]
        }))
    }

    /// A step was not taken, of which nobody can be told any more but who syncs.
    pub(super) fn lose(&mut self, step: &Step, error: &Error) {
        let none = [0; 2];
        let (files, dirs) = match &step.op {
            Some(Do::Make(op)) if op.kind() == v1::FileKind::Directory => {
                (none, [op.parent, op.ino])
            }
            Some(Do::Make(op)) => ([op.ino, 0], [op.parent, 0]),
            Some(Do::Unlink(op)) => ([step.ino, 0], [op.parent, 0]),
            Some(Do::RmDir(op)) => (none, [op.parent, step.ino]),
            Some(Do::Rename(op)) => ([step.ino, step.replaced], [op.parent, op.new_parent]),
            // Of either.
            Some(Do::SetAttr(v1::SetAttrOp { ino, .. }))
            | Some(Do::SetXattr(v1::SetXattrOp { ino, .. }))
            | Some(Do::RemoveXattr(v1::RemoveXattrOp { ino, .. })) => ([*ino, 0], [*ino, 0]),
            Some(Do::Commit(op)) => ([op.ino, 0], none),
            None => (none, none),
        };
        self.lost.lose(files.map(InodeId), dirs.map(InodeId), error);
    }

    pub(super) fn next(&self) -> Option<InodeId> {
        self.numbers.front().map(|range| InodeId(range.start))
    }

    pub(super) fn take(&mut self) {
        if let Some(range) = self.numbers.front_mut() {
            range.start += 1;
            if range.is_empty() {
                self.numbers.pop_front();
            }
        }
    }
}
