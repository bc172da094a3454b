//! Group commit: one thread turns all puts and deletes that wait into one journal record and one
//! flush.
//!
//! While a flush runs, the data of the next puts is being written and their commits gather here, so
//! the more is going on, the fewer flushes each put costs.
//!
//! Invariant: of a session that was fenced off, nothing is committed any more. That is looked at
//! here, where changes have an order, so that a list made after a fence has all that such a session
//! will ever have.

use super::BLOCK;
use super::entry::JournalEntry;
use super::index::{self, Applied};
use super::journal::{self, Change, Ring};
use super::shared::Core;
use super::superblock::MAX_RECORD;
use super::worker::{self, Answer, Worker};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::mpsc;
use std::sync::{Arc, atomic::Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;
use weft_proto::planted::{self, Bug};
use weft_proto::{ChunkId, Error, ErrorKind, Result};

/// At the end of a target its index is waited for no longer than this: its journal is replayed.
const INDEX_TIMEOUT: Duration = Duration::from_secs(30);

/// A change whose data (of a put) has been written.
pub(super) enum Commit {
    Put(ChunkId, Arc<JournalEntry>),
    /// A put, of whatever session.
    Restore(ChunkId, Arc<JournalEntry>),
    /// With the entry that the index has.
    Delete(ChunkId, Arc<JournalEntry>),
}

struct Waiting {
    commits: Vec<Commit>,
    done: oneshot::Sender<Result<()>>,
}

enum Message {
    Commit(Waiting),
    /// These sessions have ended.
    Fence(Vec<RangeInclusive<u64>>, oneshot::Sender<()>),
    /// The index was made durable up to this record.
    Flushed(Result<u64>),
    Close(mpsc::Sender<Result<()>>),
}

pub(super) struct Committer {
    queue: mpsc::Sender<Message>,
    thread: Worker,
    core: Arc<Core>,
    closed: Mutex<bool>,
}

impl Committer {
    /// Starts after journal record `last`.
    pub fn start(core: Arc<Core>, last: u64) -> std::io::Result<Self> {
        let (queue, messages) = mpsc::channel();
        let ring = Ring::new(core.superblock.read().journal_blocks);
        let later = VecDeque::new();
        let thread = Thread { core: core.clone(), ring, last, messages, later, flush: None };
        let own = queue.clone();
        let thread = Worker::start("commit", move || thread.run(&own))?;
        Ok(Self { queue, thread, core, closed: Mutex::default() })
    }

    /// Makes the changes durable, then visible. The order of two calls in flight is not defined.
    pub async fn commit(&self, commits: Vec<Commit>) -> Result<()> {
        let (done, result) = oneshot::channel();
        let sent = self.queue.send(Message::Commit(Waiting { commits, done }));
        sent.map_err(|_| self.ended())?;
        self.core.answer(result).await.unwrap_or_else(|| Err(self.ended()))
    }

    /// Commits no puts of these sessions from now on.
    pub async fn fence(&self, ended: Vec<RangeInclusive<u64>>) -> Result<()> {
        let (done, fenced) = oneshot::channel();
        self.queue.send(Message::Fence(ended, done)).map_err(|_| self.ended())?;
        self.core.answer(fenced).await.ok_or_else(|| self.ended())
    }

    /// Why the thread does not answer. One that has died takes the target out of service.
    fn ended(&self) -> Error {
        if !*self.closed.lock() {
            self.core.fail("the thread that commits has died".into());
        }
        let closing = || Error::new(ErrorKind::Unavailable, "the target is closing");
        self.core.check_writable().err().unwrap_or_else(closing)
    }

    /// Commits what was queued, makes the index durable and ends; only the first call does
    /// anything. Blocks. Errors: those of the index; `TimedOut` when the drive hangs.
    pub fn close(&self) -> Result<()> {
        if std::mem::replace(&mut *self.closed.lock(), true) {
            return Ok(());
        }
        let (done, result) = mpsc::channel();
        if self.queue.send(Message::Close(done)).is_err() {
            return Ok(()); // the thread died
        }
        let stalled = || {
            let index = self.core.flush_waits.longest().max(self.core.index.waits.longest());
            if index >= INDEX_TIMEOUT { Duration::MAX } else { self.core.device.stalled() }
        };
        match worker::answer(&result, stalled) {
            Answer::Came(result) => {
                self.thread.wait(stalled);
                result
            }
            Answer::Gone => Ok(()),
            Answer::Hangs => Err(Error::new(
                ErrorKind::TimedOut,
                format!(
                    "the drive of {} hangs: what was not acknowledged is given up, the journal is \
                     replayed at the next start",
                    self.core.path.display()
                ),
            )),
        }
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        if let Err(e) = self.close() {
            tracing::error!("closing a target: {e}");
        }
    }
}

struct Thread {
    core: Arc<Core>,
    ring: Ring,
    /// Number of the last record written.
    last: u64,
    messages: mpsc::Receiver<Message>,
    /// Taken from the queue, but not in the record that is being made. Never `Flushed`: that is
    /// acted on at once, because `room` waits for it.
    later: VecDeque<Message>,
    /// An index flush that runs.
    flush: Option<JoinHandle<()>>,
}

impl Thread {
    fn run(mut self, own: &mpsc::Sender<Message>) {
        while let Some(message) = self.later.pop_front().or_else(|| self.messages.recv().ok()) {
            match message {
                Message::Commit(first) => {
                    let batch = self.gather(first);
                    self.commit(batch, own);
                }
                Message::Fence(ended, done) => {
                    self.core.fenced.write().extend(ended);
                    let _ = done.send(()); // who asked may be gone
                }
                Message::Flushed(result) => self.flushed(result),
                Message::Close(done) => {
                    let _ = done.send(self.close());
                    return;
                }
            }
        }
    }

    /// All that waits, as far as one record holds it.
    fn gather(&mut self, first: Waiting) -> Vec<Waiting> {
        let mut room = (MAX_RECORD - journal::HEAD).saturating_sub(first.len());
        let mut batch = vec![first];
        while let Some(message) = self.later.pop_front().or_else(|| self.messages.try_recv().ok()) {
            match message {
                Message::Commit(next) if next.len() <= room => {
                    room -= next.len();
                    batch.push(next);
                }
                Message::Flushed(result) => self.flushed(result),
                other => {
                    self.later.push_front(other);
                    break;
                }
            }
        }
        batch
    }

    fn commit(&mut self, batch: Vec<Waiting>, own: &mpsc::Sender<Message>) {
        let (batch, late) = batch.into_iter().partition::<Vec<_>, _>(|w| !self.is_fenced(w));
        late.into_iter().for_each(|waiting| self.refuse(waiting));
        if batch.is_empty() {
            return;
        }
        let result = self.core.check_writable().and_then(|()| {
            self.write(&batch, own).inspect_err(|e| self.core.fail(e.message.clone()))
        });
        for waiting in batch {
            let _ = waiting.done.send(result.clone()); // a caller that left needs no answer
        }
    }

    fn is_fenced(&self, waiting: &Waiting) -> bool {
        let of_ended = |commit: &Commit| match commit {
            Commit::Put(id, _) => self.core.check_fence(*id).is_err(),
            Commit::Restore(..) | Commit::Delete(..) => false,
        };
        waiting.commits.iter().any(of_ended)
    }

    /// Puts of a session that has ended: they never were.
    fn refuse(&self, waiting: Waiting) {
        let mut refusal = Ok(());
        for commit in &waiting.commits {
            if let Commit::Put(id, entry) = commit {
                self.core.discard.give(&entry.place.extents);
                refusal = refusal.and(self.core.check_fence(*id));
            }
        }
        let _ = waiting.done.send(refusal);
    }

    /// One record, one flush, one update of the index. An error means that nobody knows what of it
    /// survives.
    fn write(&mut self, batch: &[Waiting], own: &mpsc::Sender<Message>) -> Result<()> {
        let commits = || batch.iter().flat_map(|w| &w.commits);
        let mut bytes = Vec::new();
        commits().for_each(|c| c.record().encode(&mut bytes));
        if planted::is(Bug::DeleteNotDurable) && commits().all(|c| matches!(c, Commit::Delete(..)))
        {
            let changes: Vec<_> = commits().map(Commit::index).collect();
            let stamp = self.core.stamp.load(Ordering::Relaxed);
            self.core.index.apply(&changes, Applied { record: self.last, stamp })?;
            self.account(commits());
            return Ok(());
        }
        let number = self.last + 1;
        let (salt, journal) = {
            let superblock = self.core.superblock.read();
            (superblock.salt, superblock.journal_block)
        };
        let record = journal::encode(salt, number, commits().count() as u32, &bytes);
        let blocks = record.as_ref().len() as u64 / BLOCK;
        let at = self.room(number, blocks, own)?;
        self.last = number;
        let (to, record) = ((journal + at) * BLOCK, bytes::Bytes::from(record));
        let written = match planted::is(Bug::FlushSkipped) {
            false => self.core.device.commit(to, record),
            true => self.core.device.write(to, vec![record]),
        };
        written.block().map_err(|e| {
            self.core.counters.write_errors.fetch_add(1, Ordering::Relaxed);
            Error::new(ErrorKind::Io, format!("journal of {}: {e}", self.core.path.display()))
        })?;
        self.core.counters.commits.fetch_add(1, Ordering::Relaxed);
        let changes: Vec<_> = commits().map(Commit::index).collect();
        let stamp = self.core.stamp.load(Ordering::Relaxed);
        let applied = self.core.index.apply(&changes, Applied { record: number, stamp });
        self.core.of_index(applied)?;
        self.account(commits());
        if self.ring.half_full() && self.flush.is_none() {
            self.start_flush(own);
        }
        Ok(())
    }

    fn account<'a>(&self, commits: impl Iterator<Item = &'a Commit>) {
        let chunks = &self.core.counters.chunks;
        for commit in commits {
            match commit {
                Commit::Put(..) | Commit::Restore(..) => {
                    chunks.fetch_add(1, Ordering::Relaxed);
                }
                Commit::Delete(id, entry) => {
                    chunks.fetch_sub(1, Ordering::Relaxed);
                    let free = self.core.readers.deleted(*id, entry.place.extents.clone());
                    self.core.discard.give(&free);
                }
            }
        }
    }

    /// Room in the journal; waits for the index to become durable when it is full.
    fn room(&mut self, number: u64, blocks: u64, own: &mpsc::Sender<Message>) -> Result<u64> {
        if let Some(at) = self.ring.reserve(number, blocks) {
            return Ok(at);
        }
        let _wait = self.core.flush_waits.begin();
        loop {
            if let Some(at) = self.ring.reserve(number, blocks) {
                return Ok(at);
            }
            if self.flush.is_none() {
                self.start_flush(own);
                self.core.check_writable()?;
            }
            match self.messages.recv() {
                Ok(Message::Flushed(result)) => self.flushed(result),
                Ok(other) => self.later.push_back(other),
                Err(_) => return Err(Error::new(ErrorKind::Internal, "the commit queue ended")),
            }
            self.core.check_writable()?;
        }
    }

    fn start_flush(&mut self, own: &mpsc::Sender<Message>) {
        // Everything up to `last` has been applied whenever a flush is started.
        let (core, last, own) = (self.core.clone(), self.last, own.clone());
        let flush = move || {
            let result = core.index.flush().map(|()| last);
            drop(core);
            let _ = own.send(Message::Flushed(result)); // the thread ended meanwhile
        };
        match std::thread::Builder::new().name("index flush".into()).spawn(flush) {
            Ok(thread) => self.flush = Some(thread),
            Err(e) => self.core.fail(format!("cannot start a thread: {e}")),
        }
    }

    fn flushed(&mut self, result: Result<u64>) {
        if let Some(thread) = self.flush.take() {
            let _ = thread.join();
        }
        match self.core.of_index(result) {
            Ok(number) => self.ring.release(number),
            Err(e) => self.core.fail(e.message),
        }
    }

    fn close(&mut self) -> Result<()> {
        let _wait = self.core.flush_waits.begin();
        if let Some(thread) = self.flush.take() {
            let _ = thread.join();
        }
        self.core.index.flush()
    }
}

impl Waiting {
    /// Bytes in a record.
    fn len(&self) -> usize {
        self.commits.iter().map(Commit::len).sum()
    }
}

impl Commit {
    fn record(&self) -> Change {
        match self {
            Self::Put(id, entry) | Self::Restore(id, entry) => {
                Change::Put { id: *id, place: entry.place.clone() }
            }
            Self::Delete(id, _) => Change::Delete { id: *id },
        }
    }

    fn index(&self) -> index::Change {
        match self {
            Self::Put(id, entry) | Self::Restore(id, entry) => {
                index::Change::Put(*id, entry.clone())
            }
            Self::Delete(id, _) => index::Change::Delete(*id),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Put(_, entry) | Self::Restore(_, entry) => {
                Change::DELETE_LEN + entry.place.encoded_len()
            }
            Self::Delete(..) => Change::DELETE_LEN,
        }
    }
}

#[cfg(test)]
mod tests;
