//! Many small reads together, as a loader of samples makes them.

use super::caller::Caller;
use crate::types::{OpenFlags, ReadData};
use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use std::collections::{HashMap, HashSet};
use std::pin::pin;
use weft_proto::{Error, ErrorKind, Result};

/// Reads of one batch that are under way at a time.
const DEPTH: usize = 64;
/// Files that are looked up together.
const GROUP: usize = 128;

/// What to read of one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadItem {
    /// Where it is.
    pub path: Bytes,
    /// First byte.
    pub off: u64,
    /// How many bytes at most; `None`: to the end of the file.
    pub len: Option<usize>,
}

impl ReadItem {
    /// All of a file.
    pub fn whole(path: impl Into<Bytes>) -> Self {
        Self { path: path.into(), off: 0, len: None }
    }
}

impl Caller {
    /// Opens, reads and closes many files, as [`Self::open`] and [`OpenFile::read`] do, many at a
    /// time and with few requests. `take` is given each, by its place in `items`, as soon as it is
    /// there: in any order, and each once. What of it fails fails alone.
    ///
    /// [`OpenFile::read`]: super::OpenFile::read
    pub async fn read_many(
        &self,
        items: Vec<ReadItem>,
        mut take: impl FnMut(usize, Result<ReadData>),
    ) {
        let items: Vec<_> = items.into_iter().enumerate().collect();
        let groups = items.chunks(GROUP).map(|group| {
            let (caller, group) = (self.clone(), group.to_vec());
            async move {
                caller.look_ahead(&group).await;
                stream::iter(group)
            }
        });
        // While one group is read, the next is looked up.
        let known = stream::iter(groups).buffered(2).flatten();
        let reads = known.map(|(at, item)| {
            let caller = self.clone();
            let read = tokio::spawn(async move { caller.read_one(&item).await });
            async move { (at, read.await.unwrap_or_else(|e| Err(stopped(&e)))) }
        });
        let mut reads = pin!(reads.buffer_unordered(DEPTH));
        while let Some((at, read)) = reads.next().await {
            take(at, read);
        }
    }

    /// Has what is about to be read known here. What fails of it fails when it is read.
    async fn look_ahead(&self, group: &[(usize, ReadItem)]) {
        let split = |path: &Bytes| match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (path.slice(..slash + 1), path.slice(slash + 1..)),
            None => (Bytes::from_static(b"."), path.clone()),
        };
        let names: Vec<_> = group.iter().map(|(_, item)| split(&item.path)).collect();
        let dirs: HashSet<&Bytes> = names.iter().map(|(dir, _)| dir).collect();
        let dirs = dirs.into_iter().map(|dir| async move { (dir, self.lookup(dir).await.ok()) });
        let dirs: HashMap<_, _> = join_all(dirs).await.into_iter().collect();
        let found = |dir: &Bytes| dirs.get(dir).copied().flatten();
        let names = names.iter().filter(|(_, name)| !name.is_empty());
        let names = names.filter_map(|(dir, name)| Some((found(dir)?, name.clone())));
        self.fs.look_ahead(names).await;
    }

    async fn read_one(&self, item: &ReadItem) -> Result<ReadData> {
        let file = self.open(&item.path, OpenFlags::default()).await?;
        let len = match item.len {
            Some(len) => len,
            None => {
                let left = file.stat().await?.size.saturating_sub(item.off);
                usize::try_from(left).unwrap_or(usize::MAX)
            }
        };
        let data = file.read(item.off, len).await;
        // It was not written to.
        let _ = file.close().await;
        data
    }
}

fn stopped(error: &tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Disconnected, format!("a read was ended: {error}"))
}
