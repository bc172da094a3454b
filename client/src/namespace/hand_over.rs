//! What is open on a mount, and the failures that nobody was told, from one process to the next.

use super::entries::Lost;
use super::log::ChangeLog;
use super::opens::Opens;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_proto::{Error, InodeId, v1};

impl Opens {
    /// The number of the last open, if the leader was told of every close, and what is open is so
    /// by `handles` handles.
    pub fn at_rest(&self, handles: usize) -> Option<u64> {
        let told = Arc::strong_count(&self.telling) == 1;
        let opens = self.table.lock().count();
        (told && opens == handles).then(|| self.last.load(Ordering::Relaxed))
    }

    /// Goes on behind the last number of another process.
    pub fn resume(&self, last: u64) {
        self.last.store(last, Ordering::Relaxed);
    }

    /// An inode is open once more, as the leader may know; and mapped by that, if `maps`. Its
    /// newest open counts as the last of the other process: the leader may have been told of one
    /// that is closed since, and takes no close of an older one.
    pub fn adopt(&self, ino: InodeId, maps: bool) {
        let mut table = self.table.lock();
        table.begin(ino, self.last.load(Ordering::Relaxed));
        table.tell(ino);
        if let Some(open) = table.0.get_mut(&ino).filter(|_| maps) {
            open.both += 1;
        }
    }

    /// Whether this mount has the right to map an inode to write.
    pub fn is_entitled(&self, ino: InodeId) -> bool {
        self.table.lock().0.get(&ino).is_some_and(|open| open.entitled)
    }

    /// This mount has the right to map an inode, which is open, to write.
    pub fn entitle(&self, ino: InodeId) {
        if let Some(open) = self.table.lock().0.get_mut(&ino) {
            open.entitled = open.both > 0;
        }
    }
}

impl ChangeLog {
    /// Failures that nobody was told: the last of each file and directory, and the last anywhere.
    /// `None` while there is something that the group, or a handle, has not heard of.
    pub fn at_rest(&self) -> Option<(Vec<v1::LostFile>, Option<v1::ErrorHead>)> {
        let Lost { of, last } = self.rest()?;
        let told =
            |(of, error): (InodeId, Error)| v1::LostFile { dir: of.0, error: Some(error.into()) };
        Some((of.into_iter().map(told).collect(), last.map(Into::into)))
    }

    /// Takes [`Self::at_rest`] over.
    pub fn adopt(&self, lost: Vec<v1::LostFile>, last: Option<v1::ErrorHead>) {
        let mut table = self.table.lock();
        let of = lost.into_iter().filter_map(|of| Some((InodeId(of.dir), of.error?.into())));
        table.lost.of = of.collect();
        table.lost.last = last.map(Into::into);
    }
}
