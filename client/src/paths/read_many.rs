//! Many small reads together, as a loader of samples makes them.
//!
//! Invariants: each read is answered once; what has been read and is not taken yet, or is being
//! read, is no more than [`MAX_BYTES`], or one read that is longer.

use super::caller::Caller;
use super::open_file::OpenFile;
use crate::types::{OpenFlags, ReadData};
use bytes::Bytes;
use futures_util::future::{join, join_all};
use futures_util::stream::{self, FuturesUnordered, StreamExt};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::iter::Peekable;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use weft_net::trace::carried;
use weft_proto::{Error, ErrorKind, Result};
use weft_segments::coalesce;

/// Files of one batch that are open at a time, and that are read by one task, whose small reads of
/// one target go in one request.
const MAX_OPEN: usize = 128;
const LANE: usize = 32;
/// Bytes of one batch that are kept here.
const MAX_BYTES: usize = 64 << 20;
/// Reads of more bytes are tasks of their own.
const MAX_SMALL: usize = 256 << 10;
/// Files that are looked up together: few at first, for until then nothing is read.
const GROUP: usize = 128;
const FIRST_GROUP: usize = 32;
/// Most reads of a group, and bytes that they ask for. Those of one file are begun together.
const GROUP_READS: usize = 512;
const GROUP_BYTES: usize = 8 << 20;
/// Reads of one file count as one more open file for each so many.
const READS_OF_OPEN: usize = 16;

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

/// A read that is over.
struct Done {
    at: usize,
    data: Result<ReadData>,
    room: Room,
}

/// What a read takes up of the bytes of its batch that may be held here, until this is dropped.
pub struct Room(#[allow(dead_code, reason = "held")] Option<OwnedSemaphorePermit>);

/// What the reads of one batch share.
#[derive(Clone)]
struct Batch {
    caller: Caller,
    open: Arc<Semaphore>,
    room: Arc<Semaphore>,
    done: mpsc::UnboundedSender<Done>,
}

/// Reads of one file, and their places in the batch.
type OfFile = Vec<(usize, ReadItem)>;

impl Caller {
    /// Opens, reads and closes many files, as [`Self::open`] and [`OpenFile::read`] do, many at a
    /// time and with few requests; a file that is named more than once is not opened for each.
    /// `take` is given each read, by its place in `items`, as soon as it is there: in any order,
    /// and each once. What of it fails fails alone.
    pub async fn read_many(
        &self,
        items: Vec<ReadItem>,
        mut take: impl FnMut(usize, Result<ReadData>),
    ) {
        self.read_many_held(items, |at, data, _| take(at, data)).await;
    }

    /// The same for who holds on to what was read: with its room. No more is read while all room is
    /// taken.
    pub async fn read_many_held(
        &self,
        items: Vec<ReadItem>,
        mut take: impl FnMut(usize, Result<ReadData>, Room),
    ) {
        let mut answered = vec![false; items.len()];
        let (done, mut reads) = mpsc::unbounded_channel();
        let batch = Batch {
            caller: self.clone(),
            open: Arc::new(Semaphore::new(MAX_OPEN)),
            room: Arc::new(Semaphore::new(MAX_BYTES)),
            done,
        };
        let taking = async {
            while let Some(Done { at, data, room }) = reads.recv().await {
                answered[at] = true;
                take(at, data, room);
            }
        };
        join(batch.begin(items), taking).await;
        let stopped = || Error::new(ErrorKind::Internal, "a read ended without an answer");
        let left = answered.iter().enumerate().filter(|(_, answered)| !**answered);
        left.for_each(|(at, _)| take(at, Err(stopped()), Room(None)));
    }
}

impl Batch {
    /// Begins all reads, as soon as there is room for each.
    async fn begin(self, items: Vec<ReadItem>) {
        let mut items = items.into_iter().enumerate().peekable();
        let lens = std::iter::successors(Some(FIRST_GROUP), |len| Some((len * 2).min(GROUP)));
        let groups = lens.map(|len| next_group(&mut items, len));
        let groups = groups.take_while(|group| !group.is_empty()).map(|group| {
            let batch = self.clone();
            async move {
                batch.look_ahead(&group).await;
                group
            }
        });
        // While one group is read, the next is looked up. Who gives up all of it ends its tasks.
        let mut groups = std::pin::pin!(stream::iter(groups).buffered(2));
        let mut lanes = JoinSet::new();
        while let Some(mut files) = groups.next().await {
            while !files.is_empty() {
                let lane: Vec<_> = files.drain(..files.len().min(LANE)).collect();
                // It is never closed.
                let reads = lane.iter().map(Vec::len).sum::<usize>();
                let wanted = lane.len().max(reads / READS_OF_OPEN).min(MAX_OPEN);
                let open = self.open.clone().acquire_many_owned(wanted as u32).await.ok();
                let batch = self.clone();
                lanes.spawn(coalesce(async move { batch.read_files(lane, open).await }));
                while lanes.try_join_next().is_some() {}
            }
        }
        while lanes.join_next().await.is_some() {}
    }

    /// Has what is about to be read known here. What fails of it fails when it is read.
    async fn look_ahead(&self, group: &[OfFile]) {
        let caller = &self.caller;
        let split = |path: &Bytes| match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (path.slice(..slash + 1), path.slice(slash + 1..)),
            None => (Bytes::from_static(b"."), path.clone()),
        };
        let paths = group.iter().filter_map(|file| file.first()).map(|(_, item)| &item.path);
        let names: BTreeMap<_, _> = paths.map(|path| (path, split(path))).collect();
        let dirs: HashSet<&Bytes> = names.values().map(|(dir, _)| dir).collect();
        let dirs = dirs.into_iter().map(|dir| async move { (dir, caller.lookup(dir).await.ok()) });
        let dirs: HashMap<_, _> = join_all(dirs).await.into_iter().collect();
        let found = |dir: &Bytes| dirs.get(dir).copied().flatten();
        let names = names.values().filter(|(_, name)| !name.is_empty());
        let names = names.filter_map(|(dir, name)| Some((found(dir)?, name.clone())));
        caller.fs.look_ahead(names).await;
    }

    /// All reads of these files; each gives back its part of `open`.
    async fn read_files(&self, files: Vec<OfFile>, mut open: Option<OwnedSemaphorePermit>) {
        let read = files.into_iter().map(|file| {
            let open = open.as_mut().and_then(|open| open.split(1));
            async move {
                self.read(file).await;
                drop(open);
            }
        });
        read.collect::<FuturesUnordered<_>>().collect::<()>().await;
    }

    /// All reads of one file.
    async fn read(&self, file: OfFile) {
        let Some((_, ReadItem { path, .. })) = file.first() else { return };
        let opened = match self.caller.open(path, OpenFlags::default()).await {
            // What it grows by meanwhile was not asked for.
            Ok(open) => open.stat().await.map(|attr| (Arc::new(open), attr.size)),
            Err(error) => Err(error),
        };
        match opened {
            Ok((open, size)) => {
                let reads = file.iter().map(|(at, item)| self.read_of(&open, size, *at, item));
                join_all(reads).await;
                // It was not written to. Without this it is closed when it is dropped.
                if let Some(open) = Arc::into_inner(open) {
                    let _ = open.close().await;
                }
            }
            Err(error) => {
                for (at, _) in file {
                    self.tell(Done { at, data: Err(error.clone()), room: Room(None) });
                }
            }
        }
    }

    async fn read_of(&self, file: &Arc<OpenFile>, size: u64, at: usize, item: &ReadItem) {
        let left = usize::try_from(size.saturating_sub(item.off)).unwrap_or(usize::MAX);
        let len = item.len.map_or(left, |len| len.min(left));
        let wanted = u32::try_from(len.min(MAX_BYTES)).unwrap_or(u32::MAX);
        let room = self.room.clone().acquire_many_owned(wanted).await.ok();
        let data = if len <= MAX_SMALL {
            file.read(item.off, len).await
        } else {
            // In a task of its own: to check much takes long.
            let (file, off) = (file.clone(), item.off);
            let mut apart = JoinSet::new();
            apart.spawn(carried(async move { file.read(off, len).await }));
            let stopped = || Error::new(ErrorKind::Internal, "a read ended without an answer");
            apart.join_next().await.and_then(|read| read.ok()).unwrap_or_else(|| Err(stopped()))
        };
        self.tell(Done { at, data, room: Room(room) });
    }

    fn tell(&self, done: Done) {
        // Nobody is there to take it if the batch was given up.
        let _ = self.done.send(done);
    }
}

/// The reads of the next `len` files, or as many as may be begun together, file after file in the
/// order in which they were first named.
fn next_group(
    items: &mut Peekable<impl Iterator<Item = (usize, ReadItem)>>,
    len: usize,
) -> Vec<OfFile> {
    let mut files: Vec<OfFile> = Vec::new();
    let mut known = HashMap::new();
    let mut bytes = 0usize;
    for _ in 0..GROUP_READS {
        let fits = |(_, item): &(_, ReadItem)| {
            bytes < GROUP_BYTES && (files.len() < len || known.contains_key(&item.path))
        };
        let Some((at, item)) = items.next_if(fits) else { break };
        bytes = bytes.saturating_add(item.len.unwrap_or(0));
        let file = *known.entry(item.path.clone()).or_insert_with(|| {
            files.push(Vec::new());
            files.len() - 1
        });
        files[file].push((at, item));
    }
    files
}
