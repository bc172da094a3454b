//! Puts pieces on the drive, one after the other.

use crate::index::Index;
use crate::list::{Entry, List, MAX_ENTRIES};
use crate::metrics::METRICS;
use crate::piece::Piece;
use crate::record;
use crate::shared::{Job, Open, Shared, Use};
use crate::store::{REGION, ROOM, Store};
use bytes::Bytes;
use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use weft_proto::{Error, ErrorKind, Result};

/// A store that another process has is asked for so often: that of a mount which was handed over,
/// or has just ended.
const BUSY_INTERVAL: Duration = Duration::from_secs(1);
/// One that cannot be opened for another reason.
const FAILED_INTERVAL: Duration = Duration::from_secs(60);
/// What takes longer hangs, as on a drive that has died or a server that is away: until it ends the
/// drive is left alone. Less than how long that is after each failure.
pub const HANG_TIMEOUT: Duration = Duration::from_secs(5);
/// One that does not fit on the drive is tried ever more seldom, down to this.
const FULL_INTERVAL: Duration = Duration::from_secs(600);

pub struct Writer {
    shared: Arc<Shared>,
    filling: Option<Filling>,
}

/// A region that is being filled.
struct Filling {
    region: u32,
    list: List,
    /// The next record begins at this block.
    at: u32,
}

impl Filling {
    /// The region that was filled last, if there is room in it: who comes after a short-lived mount
    /// goes on there.
    fn last(lists: &[Option<List>]) -> Option<Self> {
        let lists = (0..).zip(lists).filter_map(|(region, list)| Some((region, list.as_ref()?)));
        let (region, list) = lists.max_by_key(|(_, list)| list.generation)?;
        let ends = list.entries.iter().map(|entry| entry.at + record::blocks(entry.len));
        Some(Self { region, at: ends.max().unwrap_or(0), list: list.clone() })
    }
}

impl Writer {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, filling: None }
    }

    /// Opens the store, and writes what comes, to the end.
    pub async fn run(mut self, mut jobs: mpsc::UnboundedReceiver<Job>) {
        let opened = tokio::select! {
            biased;
            store = self.open() => Some(store),
            // Nothing is offered to what is not open.
            job = jobs.recv() => {
                if let Some(Job::Close(done)) = job {
                    let _ = done.send(());
                }
                None
            }
        };
        let Some(store) = opened else { return };
        while let Some(job) = jobs.recv().await {
            match job {
                Job::Put { piece, content, forced, queued, done } => {
                    let kept = self.put(&store, piece, content, forced).await;
                    drop(queued);
                    let _ = done.send(kept);
                }
                Job::Close(done) => {
                    self.close(store).await;
                    let _ = done.send(());
                    return;
                }
            }
        }
        self.close(store).await;
    }

    /// Says what is there, and lets go of the drive: that may hang as well.
    async fn close(mut self, store: Arc<Store>) {
        self.seal(&store).await;
        let open = self.shared.open.lock().take();
        let closed = move || {
            drop((open, store));
            Ok(())
        };
        let _ = self.on_drive(closed).await;
    }

    /// Does something with the drive. While that hangs, reads and puts go past it.
    async fn on_drive<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let mut working = pin!(blocking(work));
        loop {
            match timeout(HANG_TIMEOUT, &mut working).await {
                Ok(done) => return done,
                Err(_) => {
                    let dir = self.shared.options.dir.display();
                    let what = format!("{dir}: a write has not ended for {HANG_TIMEOUT:?}");
                    let error = Error::new(ErrorKind::TimedOut, what);
                    [Use::Read, Use::Write].iter().for_each(|what| self.shared.rest(*what, &error));
                }
            }
        }
    }

    async fn open(&mut self) -> Arc<Store> {
        let (mut told, mut pause) = (false, Duration::ZERO);
        loop {
            let (dir, cluster) = (self.shared.options.dir.clone(), self.shared.cluster);
            let size = self.shared.options.size;
            let opened = blocking(move || {
                let store = Store::open(&dir, cluster, size)?;
                let lists: Vec<_> = (0..store.regions).map(|region| store.list(region)).collect();
                let last = Filling::last(&lists);
                let mut index = Index::new(REGION, lists);
                last.iter().for_each(|last| index.reopen(last.region));
                Ok((store, index, last))
            });
            let error = match opened.await {
                Ok((store, index, last)) => {
                    self.filling = last;
                    let (store, kept) = (Arc::new(store), index.kept());
                    let (size, path) = (u64::from(store.regions) * REGION, store.path().display());
                    tracing::info!("the hot tier {path} has room for {size} bytes and {kept} kept");
                    METRICS.size.set(size as i64);
                    METRICS.kept.set(kept as i64);
                    let (open, pending) = (store.clone(), HashSet::new());
                    *self.shared.open.lock() = Some(Open { store: open, index, pending });
                    return store;
                }
                Err(error) => error,
            };
            let busy = error.kind == ErrorKind::Busy;
            if !std::mem::replace(&mut told, true) {
                let then = if busy { "until it is free" } else { "until it can be opened" };
                tracing::warn!("the mount goes without a hot tier {then}: {error}");
            }
            pause = interval(error.kind, pause);
            sleep(pause).await;
        }
    }

    /// Answers whether the piece is kept.
    async fn put(
        &mut self,
        store: &Arc<Store>,
        piece: Piece,
        content: Bytes,
        forced: bool,
    ) -> bool {
        let written = match self.shared.rests(Use::Write) {
            true => Ok(false),
            false => self.write(store, piece, content, forced).await,
        };
        let mut open = self.shared.open.lock();
        if let Some(open) = open.as_mut() {
            open.pending.remove(&piece);
            METRICS.kept.set(open.index.kept() as i64);
        }
        written.unwrap_or_else(|error| {
            if let (Some(filling), Some(open)) = (self.filling.take(), open.as_mut()) {
                open.index.give_up(filling.region);
            }
            self.shared.rest(Use::Write, &error);
            false
        })
    }

    async fn write(
        &mut self,
        store: &Arc<Store>,
        piece: Piece,
        content: Bytes,
        forced: bool,
    ) -> Result<bool> {
        let len = content.len() as u32;
        let blocks = record::blocks(len);
        let fits = |f: &Filling| f.at + blocks <= ROOM && f.list.entries.len() < MAX_ENTRIES;
        if !self.filling.as_ref().is_some_and(fits) {
            self.seal(store).await;
            let begin = |open: &mut Open| match forced || open.index.may_open() {
                true => open.index.open(),
                false => None,
            };
            let opened = self.shared.open.lock().as_mut().and_then(begin);
            let Some((region, generation)) = opened else { return Ok(false) };
            let list = List { generation, entries: Vec::new() };
            self.filling = Some(Filling { region, list, at: 0 });
            let file = store.clone();
            self.on_drive(move || file.set_list(region, None)).await?;
        }
        if self.shared.open.lock().as_ref().is_some_and(|open| open.index.has(&piece)) {
            return Ok(true);
        }
        let Some((region, at)) = self.filling.as_ref().map(|f| (f.region, f.at)) else {
            return Ok(false);
        };
        let file = store.clone();
        self.on_drive(move || file.write(region, at, &record::encode(piece, &content))).await?;
        let entry = Entry { piece, len, at };
        let Some(filling) = &mut self.filling else { return Ok(false) };
        filling.list.entries.push(entry);
        filling.at += blocks;
        METRICS.written.inc_by(len.into());
        let mut open = self.shared.open.lock();
        let Some(open) = open.as_mut() else { return Ok(false) };
        open.index.insert(region, entry);
        Ok(true)
    }

    /// Says on the drive what is in the region that was filled.
    async fn seal(&mut self, store: &Arc<Store>) {
        let Some(Filling { region, list, .. }) = self.filling.take() else { return };
        let (file, generation) = (store.clone(), list.generation);
        let sealed = self.on_drive(move || file.set_list(region, Some(&list))).await;
        let mut open = self.shared.open.lock();
        let Some(open) = open.as_mut() else { return };
        match sealed {
            Ok(()) => open.index.seal(region, generation),
            Err(error) => {
                open.index.give_up(region);
                self.shared.rest(Use::Write, &error);
            }
        }
    }
}

/// How long a store that cannot be opened is left alone; the last time it was `before`.
fn interval(error: ErrorKind, before: Duration) -> Duration {
    match error {
        ErrorKind::Busy => BUSY_INTERVAL,
        // Where a quota is the limit, each try takes all of it for a moment.
        ErrorKind::NoSpace => (before * 2).clamp(FAILED_INTERVAL, FULL_INTERVAL),
        _ => FAILED_INTERVAL,
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let ended = spawn_blocking(work).await;
    ended.unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "the thread that does it has ended")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_drive_is_tried_ever_more_seldom() {
        let mut pause = Duration::ZERO;
        let mut next = |error| {
            pause = interval(error, pause);
            pause.as_secs()
        };
        assert_eq!([ErrorKind::Busy, ErrorKind::Io].map(&mut next), [1, 60]);
        assert_eq!([ErrorKind::Busy; 2].map(&mut next), [1, 1]);
        assert_eq!([ErrorKind::NoSpace; 6].map(&mut next), [60, 120, 240, 480, 600, 600]);
        assert_eq!([ErrorKind::Io, ErrorKind::Busy].map(&mut next), [60, 1]);
    }
}
