//! One open of a file.

use super::ahead::ReadAhead;
use super::inode::File;
use super::pattern::WritePattern;
use super::state::State;
use crate::cache::Coherence;
use crate::types::OpenFlags;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_net::sync::Mutex;
use weft_proto::Result;

/// Named by a [`HandleId`](crate::HandleId).
pub(crate) struct Handle {
    pub file: Arc<File>,
    /// It was opened to append, which each write may say otherwise of.
    pub append: bool,
    pub sync: bool,
    pub no_atime: bool,
    /// It is open for writing, or was written through all the same. Changes under the lock of the
    /// file's state, which counts those that write.
    writes: AtomicBool,
    /// Something was written through it.
    wrote: AtomicBool,
    /// It is open for writing.
    writer: bool,
    pub ahead: ReadAhead,
    pub pattern: WritePattern,
    coherence: Arc<Coherence>,
    /// The caller may map the file to write through it.
    pub(super) maps: AtomicBool,
    /// A descriptor of it was closed; there may be no other.
    pub(super) closing: AtomicBool,
    /// It is no more, although some write through it may go on. Changes under that lock, too.
    ended: AtomicBool,
    /// Failures of the file that this handle was told. Locked after the file's state.
    told: Mutex<u64>,
}

impl Handle {
    pub fn new(file: Arc<File>, flags: OpenFlags, coherence: Arc<Coherence>) -> Self {
        let told = {
            let failures = &mut file.state.lock().failures;
            if flags.write {
                failures.begin_to_write();
            }
            Mutex::new(failures.count())
        };
        if flags.write {
            file.writers.fetch_add(1, Ordering::AcqRel);
            file.context.leases.forget_attr_above(file.ino);
        }
        Self {
            file,
            append: flags.append,
            sync: flags.sync,
            no_atime: flags.no_atime,
            writes: AtomicBool::new(flags.write),
            wrote: AtomicBool::new(false),
            writer: flags.write,
            ahead: ReadAhead::default(),
            pattern: WritePattern::default(),
            coherence,
            maps: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            told,
        }
    }

    /// A failure of the file that this handle was not told yet.
    pub fn failure(&self) -> Result<()> {
        self.tell(&mut self.file.state.lock(), &mut self.told.lock())
    }

    fn tell(&self, state: &mut State, seen: &mut u64) -> Result<()> {
        match self.may_write() {
            true => state.failures.tell_writer(seen),
            false => state.failures.since(seen),
        }
    }

    /// [`Self::failure`], which whoever asks next is told again: a process that closes its copy of
    /// a descriptor, as each that is begun does, may not look, and takes nothing from who will. If
    /// something fails from now on that was written so far, it was closed by then.
    pub fn failure_at_close(&self) -> Result<()> {
        let state = &mut *self.file.state.lock();
        self.close_written(state);
        let mut seen = *self.told.lock();
        self.tell(state, &mut seen)
    }

    /// [`Self::failure`] of one that is about to be no more: nobody may hear the answer.
    pub(super) fn failure_at_release(&self) -> Result<()> {
        let state = self.file.state.lock();
        state.failures.since(&mut self.told.lock())
    }

    fn close_written(&self, state: &mut State) {
        // The cache writes back what is stored through a mapping, by whichever handle.
        if self.wrote.load(Ordering::Relaxed) || self.maps.load(Ordering::Relaxed) {
            state.failures.closed(state.dirty.next());
        }
    }

    /// Whether it was told of all failures.
    pub(super) fn was_told(&self) -> bool {
        let failures = self.file.failures();
        *self.told.lock() == failures
    }

    /// It was not told of the failures that there were.
    pub(super) fn forget_told(&self) {
        *self.told.lock() = 0;
    }

    /// Whether its close has to wait for what was written.
    pub(super) fn may_write(&self) -> bool {
        self.writes.load(Ordering::Relaxed)
    }

    /// [`Self::flush`] for a descriptor that is closed.
    pub async fn flush_at_close(&self) -> Result<()> {
        let flushed = self.file.flush().await;
        self.failure_at_close().and(flushed)
    }

    /// Something is written through it.
    pub fn writes(&self) {
        self.wrote.store(true, Ordering::Relaxed);
        if self.may_write() {
            return;
        }
        let failures = &mut self.file.state.lock().failures;
        if self.is_open() && !self.writes.swap(true, Ordering::Relaxed) {
            failures.begin_to_write();
        }
    }

    /// Whether its close has nothing to wait for. What is written through others is theirs to wait
    /// for.
    pub fn is_closed(&self) -> bool {
        !(self.may_write() || self.file.is_new()) || self.file.is_closed()
    }

    /// Its descriptor is in use: the cache above is through with its open.
    pub fn in_use(&self) {
        self.coherence.forgotten();
    }

    /// One of its descriptors is closed.
    pub fn close(&self) {
        self.in_use();
        self.closing.store(true, Ordering::Relaxed);
    }

    /// It is no more: before its file is left.
    pub(super) fn end(&self) {
        let state = &mut *self.file.state.lock();
        if self.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        self.close_written(state);
        if self.may_write() {
            self.file.tell_losses(state);
        }
    }

    /// Whether something may still be written through it.
    pub fn is_open(&self) -> bool {
        !self.ended.load(Ordering::Acquire)
    }

    /// Something was written through it, or `back` by the cache: it is committed if it may not stay
    /// buffered, or is to be durable (`sync`). Earlier failures are none of what the cache writes
    /// back: who writes, syncs or closes is told.
    pub async fn wrote(&self, back: bool, sync: bool, buffered: bool) -> Result<()> {
        match back {
            true if !buffered => self.file.flush().await,
            false if sync || self.sync || !buffered => self.flush().await,
            _ => Ok(()),
        }
    }

    /// As [`Self::flush`], with all that was closed before: it may lose its place in the log
    /// meanwhile.
    pub async fn sync(&self) -> Result<()> {
        let log = &self.file.context.log;
        let before = log.pay().await;
        self.flush().await.and(before)?;
        log.pay().await
    }

    /// Flushes, and answers a failure of this flush or an earlier one.
    pub async fn flush(&self) -> Result<()> {
        let flushed = self.file.flush().await;
        self.failure().and(flushed)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.writer && self.file.writers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.file.context.leases.give_ranges_back(self.file.ino);
        }
    }
}
