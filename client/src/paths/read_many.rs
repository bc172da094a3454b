//! Many small reads together, as a loader of samples makes them.

use super::caller::Caller;
use crate::types::{OpenFlags, ReadData};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use weft_proto::{Error, ErrorKind, Result};

/// Reads of one batch that are under way at a time.
const DEPTH: usize = 64;

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
        let reads = items.into_iter().enumerate().map(|(at, item)| {
            let caller = self.clone();
            let read = tokio::spawn(async move { caller.read_one(&item).await });
            async move { (at, read.await.unwrap_or_else(|e| Err(stopped(&e)))) }
        });
        // Begun when it is their turn.
        let mut reads = stream::iter(reads).buffer_unordered(DEPTH);
        while let Some((at, read)) = reads.next().await {
            take(at, read);
        }
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
