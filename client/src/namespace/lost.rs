//! What is lost, and nobody who wrote or made it can be told any more: who syncs the file, its
//! directory, or everything is told, each in its own way, once.
//!
//! Invariant: however much is lost, what is kept of it is bounded. Of what comes beyond that every
//! sync of the same sort is told once, whatever it is of.

use std::collections::{HashMap, HashSet};
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
    each: HashMap<InodeId, Error>,
    /// The last of more, and those of which syncs were told of it.
    others: Option<(Error, HashSet<InodeId>)>,
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
            Synced::File(ino) => self.files.take(ino),
            Synced::Dir(ino) => self.dirs.take(ino),
            Synced::All => self.all.take(),
        };
        error.map_or(Ok(()), Err)
    }

    /// What a sync of everything would be told.
    pub fn look(&self) -> Result<()> {
        self.all.clone().map_or(Ok(()), Err)
    }

    /// For the next process that serves the mount.
    pub fn hand_over(&self, state: &mut v1::ClientState) {
        let told = |(of, error): (&InodeId, &Error), is_file| {
            let (dir, error) = (of.0, Some(error.clone().into()));
            v1::LostFile { dir, error, is_file, is_dir: !is_file }
        };
        let files = self.files.each.iter().map(|lost| told(lost, true));
        let dirs = self.dirs.each.iter().map(|lost| told(lost, false));
        state.lost = files.chain(dirs).collect();
        state.last_lost = self.all.clone().map(Into::into);
        let others = |of: &Apart| of.others.as_ref().map(|(error, _)| error.clone().into());
        state.lost_of_other_files = others(&self.files);
        state.lost_in_other_dirs = others(&self.dirs);
    }

    /// Takes [`Self::hand_over`] over.
    pub fn adopt(state: &mut v1::ClientState) -> Self {
        let mut lost = Self::default();
        for v1::LostFile { dir, error, is_file, is_dir } in std::mem::take(&mut state.lost) {
            let Some(error) = error.map(Error::from) else { continue };
            let of = |sort| (sort || is_file == is_dir).then_some(InodeId(dir));
            lost.lose(of(is_file), of(is_dir), &error);
        }
        let others = |error: Option<v1::ErrorHead>| Some((error?.into(), HashSet::new()));
        lost.files.others = others(state.lost_of_other_files.take());
        lost.dirs.others = others(state.lost_in_other_dirs.take());
        lost.all = state.last_lost.take().map(Into::into);
        lost
    }
}

impl Apart {
    fn lose(&mut self, ino: InodeId, error: &Error) {
        if ino.0 == 0 || self.each.contains_key(&ino) {
            return;
        }
        if self.each.len() < MAX_APART {
            self.each.insert(ino, error.clone());
        } else {
            self.others = Some((error.clone(), HashSet::new()));
        }
    }

    fn take(&mut self, ino: InodeId) -> Option<Error> {
        let own = self.each.remove(&ino);
        let (error, told) = match &mut self.others {
            Some((error, told)) => (told.insert(ino).then(|| error.clone()), told.len()),
            None => (None, 0),
        };
        if told >= MAX_APART {
            // By now nobody can have missed it.
            self.others = None;
        }
        own.or(error)
    }
}
