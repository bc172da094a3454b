//! What is lost, and nobody who wrote or made it can be told any more: who syncs the file, its
//! directory, or everything is told, each in its own way, once.
//!
//! Invariant: however much is lost, what is kept of it is bounded. The oldest makes room, and from
//! then on each sync of the same sort is told of that once, of whatever of these inodes it is, or
//! of one between them; once more, when very many were told. Where nobody knows which are between
//! them, very many are told, and then no more.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::RangeInclusive;
use weft_proto::{Error, InodeId, Result, v1};

/// Files that are told apart, and directories.
pub(super) const MAX_APART: usize = 16_384;

/// What is synced.
#[derive(Clone, Copy)]
pub(crate) enum Synced {
    File(InodeId),
    Dir(InodeId),
    All,
}

/// What was not told yet. Of several failures the first is: the others may follow from it.
#[derive(Clone, Default)]
pub(super) struct Lost {
    files: Apart,
    dirs: Apart,
    all: Option<Error>,
}

/// Of files, or in directories.
#[derive(Clone, Default)]
struct Apart {
    /// Those that are told apart.
    each: HashMap<InodeId, One>,
    /// By their numbers: the oldest first.
    order: BTreeMap<u64, InodeId>,
    last: u64,
    /// How many of them are removed.
    removed: usize,
    others: Option<Others>,
}

#[derive(Clone)]
struct One {
    number: u64,
    error: Error,
    /// It has no name any more, and may be open, or known to who can open it.
    removed: bool,
}

/// Those that had no room.
#[derive(Clone)]
struct Others {
    /// Of the last of them.
    error: Error,
    /// They are among these. `None`, as an older process has said nothing of that: they may be any,
    /// and are forgotten when very many were told.
    inos: Option<RangeInclusive<u64>>,
    /// Those of which syncs were told of it.
    told: HashSet<InodeId>,
}

impl Lost {
    /// Something of these files, or in these directories, is lost. There is no inode 0.
    pub fn lose(
        &mut self,
        files: impl IntoIterator<Item = InodeId>,
        dirs: impl IntoIterator<Item = InodeId>,
        error: &Error,
    ) {
        files.into_iter().for_each(|ino| self.files.lose(ino, error));
        dirs.into_iter().for_each(|ino| self.dirs.lose(ino, error));
        self.all.get_or_insert_with(|| error.clone());
    }

    /// What a sync is told.
    pub fn take(&mut self, of: Synced) -> Result<()> {
        let error = match of {
            // Of attributes it is not known what they are of.
            Synced::File(ino) => {
                self.dirs.forget(ino);
                self.files.take(ino)
            }
            Synced::Dir(ino) => {
                self.files.forget(ino);
                self.dirs.take(ino)
            }
            Synced::All => self.all.take(),
        };
        error.map_or(Ok(()), Err)
    }

    /// An inode is removed, and nobody has it open: nobody can sync it any more.
    pub fn forget(&mut self, ino: InodeId) {
        self.files.forget(ino);
        self.dirs.forget(ino);
    }

    /// An inode is removed that may be open, or known to who can open it: it is to be forgotten
    /// when it is not any more.
    pub fn removed(&mut self, ino: InodeId) {
        self.files.mark(ino);
        self.dirs.mark(ino);
    }

    /// Whether any of those is here that are removed.
    pub fn has_removed(&self) -> bool {
        self.files.removed + self.dirs.removed > 0
    }

    /// An inode is not open, and not known to who could open it without its name.
    pub fn unused(&mut self, ino: InodeId) {
        for of in [&mut self.files, &mut self.dirs] {
            if of.each.get(&ino).is_some_and(|one| one.removed) {
                of.forget(ino);
            }
        }
    }

    /// What a sync of everything would be told.
    pub fn look(&self) -> Result<()> {
        self.all.clone().map_or(Ok(()), Err)
    }

    /// For the next process that serves the mount.
    pub fn hand_over(&self, state: &mut v1::ClientState) {
        let told = |(of, error): (InodeId, &Error), is_file| {
            let (dir, error) = (of.0, Some(error.clone().into()));
            v1::LostFile { dir, error, is_file, is_dir: !is_file }
        };
        let files = self.files.in_order().map(|lost| told(lost, true));
        let dirs = self.dirs.in_order().map(|lost| told(lost, false));
        state.lost = files.chain(dirs).collect();
        state.last_lost = self.all.clone().map(Into::into);
        let others = |of: &Apart| of.others.as_ref().map(|others| others.error.clone().into());
        state.lost_of_other_files = others(&self.files);
        state.lost_in_other_dirs = others(&self.dirs);
        let among = |of: &Apart| {
            let (least, greatest) = of.others.as_ref()?.inos.clone()?.into_inner();
            Some(v1::InodeRange { least, greatest })
        };
        state.other_files = among(&self.files);
        state.other_dirs = among(&self.dirs);
    }

    /// Takes [`Self::hand_over`] over.
    pub fn adopt(state: &mut v1::ClientState) -> Self {
        let mut lost = Self::default();
        let others = |error: Option<v1::ErrorHead>, among: Option<v1::InodeRange>| {
            let inos = among.map(|among| among.least..=among.greatest);
            error.map(|error| Others::new(error.into(), inos))
        };
        // A process that keeps more apart may have left some without room: those join them.
        lost.files.others = others(state.lost_of_other_files.take(), state.other_files.take());
        lost.dirs.others = others(state.lost_in_other_dirs.take(), state.other_dirs.take());
        for v1::LostFile { dir, error, is_file, is_dir } in std::mem::take(&mut state.lost) {
            let Some(error) = error.map(Error::from) else { continue };
            let of = |sort| (sort || is_file == is_dir).then_some(InodeId(dir));
            lost.lose(of(is_file), of(is_dir), &error);
        }
        lost.all = state.last_lost.take().map(Into::into);
        lost
    }
}

impl Apart {
    fn lose(&mut self, ino: InodeId, error: &Error) {
        if let Some(one) = self.each.get_mut(&ino) {
            // It may be that its removal was refused.
            self.removed -= usize::from(std::mem::take(&mut one.removed));
            return;
        }
        if ino.0 == 0 {
            return;
        }
        self.last += 1;
        self.each.insert(ino, One { number: self.last, error: error.clone(), removed: false });
        self.order.insert(self.last, ino);
        if self.each.len() > MAX_APART
            && let Some((_, &oldest)) = self.order.first_key_value()
            && let Some(error) = self.forget(oldest)
        {
            match &mut self.others {
                Some(others) => others.add(oldest, error),
                None => self.others = Some(Others::new(error, Some(oldest.0..=oldest.0))),
            }
        }
    }

    fn mark(&mut self, ino: InodeId) {
        if let Some(one) = self.each.get_mut(&ino) {
            self.removed += usize::from(!std::mem::replace(&mut one.removed, true));
        }
    }

    fn take(&mut self, ino: InodeId) -> Option<Error> {
        let own = self.forget(ino);
        let other = self.others.as_mut().and_then(|others| others.take(ino));
        self.others.take_if(|others| others.are_heard());
        own.or(other)
    }

    fn forget(&mut self, ino: InodeId) -> Option<Error> {
        let One { number, error, removed } = self.each.remove(&ino)?;
        self.removed -= usize::from(removed);
        self.order.remove(&number);
        Some(error)
    }

    fn in_order(&self) -> impl Iterator<Item = (InodeId, &Error)> {
        self.order.values().filter_map(|ino| Some((*ino, &self.each.get(ino)?.error)))
    }
}

impl Others {
    fn new(error: Error, inos: Option<RangeInclusive<u64>>) -> Self {
        Self { error, inos, told: HashSet::new() }
    }

    fn add(&mut self, ino: InodeId, error: Error) {
        self.error = error;
        match &mut self.inos {
            Some(inos) => {
                *inos = *inos.start().min(&ino.0)..=*inos.end().max(&ino.0);
                self.told.remove(&ino);
            }
            // Of this, too, as many are to be told.
            None => self.told.clear(),
        }
    }

    /// Whether so many were told that these are taken to be among them.
    fn are_heard(&self) -> bool {
        self.inos.is_none() && self.told.len() >= MAX_APART
    }

    fn take(&mut self, ino: InodeId) -> Option<Error> {
        if self.inos.as_ref().is_some_and(|inos| !inos.contains(&ino.0)) {
            return None;
        }
        if self.told.len() >= MAX_APART {
            // Twice is better than never.
            self.told.clear();
        }
        self.told.insert(ino).then(|| self.error.clone())
    }
}
