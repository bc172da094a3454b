//! Pending creates: the table of files that were made on this mount and that the metadata group has
//! not heard of yet.

use crate::meta::Failed;
use crate::types::Attr;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::warn;
use v1::make_files_op::File;
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId, v1};

/// Files in one request, and about how many bytes of content.
const MAX_BATCH: usize = 256;
const MAX_BATCH_BYTES: usize = 1 << 20;

/// What became of a file, with its attributes if there was content to change them.
pub(super) type Published = Result<Option<Attr>, Failed>;

pub(super) struct Made {
    pub(super) file: File,
    pub(super) session: SessionId,
    pub(super) at: Instant,
    pub(super) stage: Stage,
    /// It has no handles any more.
    pub(super) left: bool,
}

/// Of which session a file is. Those of an earlier one are told apart: without a lease on their
/// directory they wait for whoever changes it, who may wait for others to be told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    This,
    Earlier,
}

impl Of {
    pub(super) const ALL: [Self; 2] = [Self::This, Self::Earlier];
}

impl Made {
    /// Whose turn it is, or was when it was sent, to tell of it.
    pub(super) fn of(&self, session: SessionId) -> Of {
        match self.stage {
            Stage::Leaving(Some(of)) => of,
            _ if self.session == session => Of::This,
            _ => Of::Earlier,
        }
    }
}

pub(super) enum Stage {
    /// Nobody else knows of it.
    Here,
    /// In the queue, or, in this turn, on its way.
    Leaving(Option<Of>),
    /// It could not be made, which its handles have to be told.
    Failed(Error),
}

/// A file that somebody wants to be told.
pub(super) struct Wanted {
    pub(super) ino: InodeId,
    pub(super) content: Option<Content>,
    pub(super) told: oneshot::Sender<Published>,
}

/// The first content of a file, and the session that its segments are of.
pub(super) struct Content(pub(super) v1::CommitExtentsOp, pub(super) SessionId);

#[derive(Default)]
pub(super) struct Table {
    pub(super) files: BTreeMap<InodeId, Made>,
    pub(super) queue: VecDeque<Wanted>,
    pub(super) numbers: VecDeque<Range<u64>>,
    pub(super) reserving: bool,
    pub(super) lost: Lost,
    /// Sessions that have ended.
    pub(super) ended: u64,
}

/// Files that could not be made, after they were closed.
#[derive(Default)]
pub(super) struct Lost {
    /// The last in each directory, which was not synced since.
    pub(super) dirs: HashMap<InodeId, Error>,
    /// The last anywhere since the filesystem was synced.
    pub(super) last: Option<Error>,
}

impl Table {
    /// Nobody can be told of this file's failure any more but who syncs.
    pub(super) fn lose(&mut self, ino: InodeId) {
        let Some(Made { file, stage: Stage::Failed(error), .. }) = self.files.remove(&ino) else {
            return;
        };
        warn!(%ino, %error, "a new file that was closed already is lost");
        self.lost.last = Some(error.clone());
        self.lost.dirs.insert(InodeId(file.parent), error);
    }

    /// The failure of files in a directory, or anywhere, that were closed before it was known; told
    /// once.
    pub(super) fn take_lost(&mut self, dir: Option<InodeId>) -> Result<()> {
        let error = match dir {
            Some(dir) => self.lost.dirs.remove(&dir),
            None => self.lost.last.take(),
        };
        error.map_or(Ok(()), Err)
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

    /// Has a file told, if that is not under way.
    pub(super) fn want(&mut self, ino: InodeId, content: Option<Content>) -> Option<Answer> {
        let made = self.files.get_mut(&ino)?;
        if !matches!(made.stage, Stage::Here) {
            return None;
        }
        made.stage = Stage::Leaving(None);
        let (told, answer) = oneshot::channel();
        self.queue.push_back(Wanted { ino, content, told });
        Some(answer)
    }

    /// Files that the group has not heard of: these, and those in these directories, or all.
    /// Answers the failure of one of these themselves.
    pub(super) fn concerned(&self, inos: Option<&[InodeId]>) -> Result<Vec<InodeId>> {
        let mut concerned = Vec::new();
        for (ino, made) in &self.files {
            let parent = InodeId(made.file.parent);
            let named = inos.is_some_and(|inos| inos.contains(ino));
            match &made.stage {
                Stage::Failed(error) if named => return Err(error.clone()),
                Stage::Failed(_) => {}
                _ if named || inos.is_none_or(|inos| inos.contains(&parent)) => {
                    concerned.push(*ino);
                }
                _ => {}
            }
        }
        Ok(concerned)
    }

    /// Whose turn it is when these are to be told: those of this session wait for nobody else.
    pub(super) fn turn_for(&self, inos: &[InodeId], session: SessionId) -> Of {
        let of = |ino| self.files.get(ino).map(|made| made.of(session));
        if inos.iter().any(|ino| of(ino) == Some(Of::This)) { Of::This } else { Of::Earlier }
    }

    /// What goes in the next request of these.
    pub(super) fn batch(&mut self, session: SessionId, of: Of) -> (Vec<Wanted>, Vec<File>) {
        let (mut batch, mut files, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut others = VecDeque::new();
        while batch.len() < MAX_BATCH && bytes < MAX_BATCH_BYTES {
            let Some(wanted) = self.queue.pop_front() else { break };
            let Some(made) = self.files.get_mut(&wanted.ino) else { continue };
            if made.of(session) != of {
                others.push_back(wanted);
                continue;
            }
            let content = match &wanted.content {
                // It has to be written again.
                Some(Content(_, of)) if *of != session => {
                    made.stage = Stage::Here;
                    let error = ErrorKind::SessionExpired.into();
                    let _ = wanted.told.send(Err(Failed { error, ambiguous: false }));
                    continue;
                }
                content => content.as_ref().map(|Content(op, _)| op.clone()),
            };
            made.stage = Stage::Leaving(Some(of));
            let session = if of == Of::This { 0 } else { made.session.0 };
            bytes += content.as_ref().map_or(0, prost::Message::encoded_len);
            files.push(File { content, session, ..made.file.clone() });
            batch.push(wanted);
        }
        others.append(&mut self.queue);
        self.queue = others;
        (batch, files)
    }
}

pub(super) type Answer = oneshot::Receiver<Published>;
