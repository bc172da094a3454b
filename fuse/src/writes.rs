//! Writes, and what Linux makes of those past its pages. It goes by where it believes that the file
//! ends, which lags behind what other mounts append.
//!
//! - When a write beyond that end fails, it cuts the file there: all that others wrote behind would
//!   go with it. So whoever was told of a failure cuts nothing with its next request for that,
//!   unless it is known to be the program that cuts, or nobody else can have written (`undone`).
//! - An asynchronous append it sends in pieces, which are put in order (`appends`).

use crate::abi::{Answer, Errno};
use crate::appends::{Appends, GAP_TIMEOUT, Piece, Place};
use crate::copies::{Copied, Copies};
use crate::handler::Waiter;
use crate::undone::{By, Ends, Failures};
use crate::{proc, reply};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use tokio::time::timeout;
use weft_client::{Alone, Filesystem, HandleId, Via, Writing};
use weft_proto::{Error, InodeId, Result};

/// One write, without its data.
#[derive(Clone, Copy)]
pub struct Write {
    pub ino: InodeId,
    pub handle: HandleId,
    pub offset: u64,
    pub how: Writing,
    /// Who sends it: all pieces of one call come from one thread.
    pub thread: u32,
}

impl Write {
    fn is_direct(&self) -> bool {
        self.how.via == Via::Direct
    }

    fn appends(&self) -> bool {
        self.is_direct() && self.how.append == Some(true)
    }

    fn piece(&self, len: usize) -> Piece {
        Piece { thread: self.thread, offset: self.offset, len }
    }
}

/// Writes of a mount.
pub struct Writes {
    fs: Filesystem,
    copies: Copies,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    failures: Failures,
    ends: Ends<Alone>,
    appends: HashMap<HandleId, Arc<Appends>>,
}

/// A write past the pages, which has failed unless it says otherwise: its caller may be told so
/// before it ends.
struct Begun<'a> {
    writes: &'a Writes,
    by: By,
    done: bool,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.writes.open.lock().failures.ends(self.by, !self.done);
    }
}

impl Writes {
    pub fn new(fs: Filesystem) -> Arc<Self> {
        Arc::new(Self { fs, copies: Copies::new(), open: Mutex::default() })
    }

    /// The data of a write that may have to wait. Pages that Linux writes back are bounded by
    /// Linux, and other callers wait for each write.
    pub fn copy(&self, write: &Write, data: &[u8]) -> (Copied, Result<()>) {
        match write.is_direct() {
            true => self.copies.of(data),
            false => (Copied::unbounded(data), Ok(())),
        }
    }

    /// Writes, if there is nothing to wait for; `None` says that nothing was written.
    pub fn write_now(&self, write: &Write, data: &[u8]) -> Option<Result<usize>> {
        self.note_end(write, data.len());
        let now = || self.fs.write_now(write.handle, write.offset, data, write.how);
        let written = match write.appends() {
            false => now()?,
            true => {
                let (appends, piece) = (self.appends(write.handle), write.piece(data.len()));
                let mut order = appends.order.try_lock().ok()?;
                if appends.place(&order, &piece, self.size(write, u64::MAX)) != Place::Next {
                    return None;
                }
                let written = now()?;
                appends.land(&mut order, &piece, self.size(write, 0), &written);
                written
            }
        };
        if !is_whole(&written, data.len()) {
            drop(self.begin(write));
        }
        Some(written)
    }

    /// Writes, if `before` succeeds and `waiter` still waits.
    pub async fn write(
        &self,
        write: &Write,
        data: &[u8],
        before: impl Future<Output = Result<()>>,
        waiter: &Waiter,
    ) -> Result<usize> {
        let mut begun = self.begin(write);
        let written = match before.await {
            Ok(()) if write.appends() => self.append(write, data, waiter).await,
            Ok(()) => self.write_while(write, data, waiter).await,
            Err(error) => Err(self.refuse(write, data.len(), error).await),
        };
        if let Some(begun) = &mut begun {
            begun.done = is_whole(&written, data.len()) && waiter.answered();
        }
        written
    }

    async fn write_while(&self, write: &Write, data: &[u8], waiter: &Waiter) -> Result<usize> {
        self.note_end(write, data.len());
        let Write { handle, offset, how, .. } = *write;
        self.fs.write_while(handle, offset, data, how, || waiter.waits()).await
    }

    /// A write has failed before it began. Other pieces of an append do not wait for it.
    async fn refuse(&self, write: &Write, len: usize, error: Error) -> Error {
        if write.appends() {
            let (appends, failed) = (self.appends(write.handle), Err(error.clone()));
            let mut order = appends.order.lock().await;
            appends.land(&mut order, &write.piece(len), self.size(write, 0), &failed);
        }
        error
    }

    async fn append(&self, write: &Write, data: &[u8], waiter: &Waiter) -> Result<usize> {
        let (appends, piece) = (self.appends(write.handle), write.piece(data.len()));
        let waits = appends.wait(&piece);
        // Whether its caller waits for one piece after the other: looked at once, and only if that
        // makes a difference.
        let mut in_order = None;
        // Nothing has landed for long since so much had.
        let mut idle = None;
        loop {
            // Whoever lands from now on wakes it.
            let landed = pin!(appends.landed.notified());
            let mut order = appends.order.lock().await;
            let place = appends.place(&order, &piece, self.size(write, u64::MAX));
            let alone = idle == Some(order.landings) && appends.is_first(&piece);
            if place == Place::Next || in_order == Some(true) || place == Place::Ahead && alone {
                // Those that it wakes when it has landed come behind it.
                drop(waits);
                let written = self.write_while(write, data, waiter).await;
                appends.land(&mut order, &piece, self.size(write, 0), &written);
                return written;
            }
            if in_order.is_none() {
                drop(order);
                in_order = Some(self.is_in_order(write).await);
                continue;
            }
            if place == Place::Late {
                return Err(appends.refuse(&mut order, &piece));
            }
            let landings = order.landings;
            drop(order);
            let woken = timeout(GAP_TIMEOUT, landed).await;
            idle = woken.is_err().then_some(landings);
        }
    }

    /// Size of the file, if that is known.
    fn size(&self, write: &Write, unknown: u64) -> u64 {
        self.fs.size_now(write.handle).unwrap_or(unknown)
    }

    /// Whether the caller is in a call that writes one piece after the other: it waits for each.
    async fn is_in_order(&self, write: &Write) -> bool {
        self.fs.is_append(write.handle) && proc::writes_in_order(write.thread).await
    }

    /// A write begins that Linux undoes if it fails, unless it goes through the pages.
    fn begin(&self, write: &Write) -> Option<Begun<'_>> {
        let by = (write.handle, write.thread);
        write.is_direct().then(|| {
            self.open.lock().failures.begins(by);
            Begun { writes: self, by, done: false }
        })
    }

    /// Notes where the file ends before a write that Linux undoes if it fails.
    fn note_end(&self, write: &Write, len: usize) {
        let range = write.offset..write.offset.saturating_add(len as u64);
        let append = write.how.append == Some(true);
        if append || write.is_direct() && range.end > self.size(write, 0) {
            let now = self.fs.size_alone(write.handle);
            self.open.lock().ends.before(write.ino, &range, append, now);
        }
    }

    /// Whether a change of the size through a handle may be Linux undoing a write of this thread.
    pub fn may_undo(&self, handle: HandleId, thread: u32) -> bool {
        let open = &mut *self.open.lock();
        // The call is over.
        if let Some(appends) = open.appends.get(&handle) {
            appends.begin_anew();
        }
        open.failures.undo((handle, thread))
    }

    /// Whether the size is to be changed as [`Self::may_undo`] says, and as long as this mount has
    /// which right alone; or what is answered without that.
    pub async fn undo(&self, ino: InodeId, by: By, size: u64) -> Result<Option<Alone>, Answer> {
        let (handle, thread) = by;
        let cuts = proc::cuts(thread).await;
        if cuts == Some(true) {
            return Ok(None);
        }
        match self.fs.get_attr(ino).await {
            // A program makes it longer. Linux would, too, where others have cut the file.
            Ok(attr) if attr.size < size && cuts.is_none() => Ok(None),
            Ok(attr) if attr.size > size => {
                self.alone(ino, handle, size).map(Some).ok_or_else(|| {
                    let has = attr.size;
                    tracing::info!(%ino, has, "a write failed; not cut to {size} bytes for that");
                    Err(Errno(libc::EIO))
                })
            }
            attr => Err(reply::attr(attr.map(reply::asked_again))),
        }
    }

    /// The right by which nothing lies behind `end` but what failed.
    fn alone(&self, ino: InodeId, handle: HandleId, end: u64) -> Option<Alone> {
        let (alone, _) = self.fs.size_alone(handle)?;
        self.open.lock().ends.is_last(ino, end, alone).then_some(alone)
    }

    /// A handle is no more.
    pub fn released(&self, ino: InodeId, handle: HandleId) {
        let open = &mut *self.open.lock();
        open.appends.remove(&handle);
        open.ends.forget(ino);
        open.failures.forget(handle);
    }

    fn appends(&self, handle: HandleId) -> Arc<Appends> {
        self.open.lock().appends.entry(handle).or_default().clone()
    }
}

fn is_whole(written: &Result<usize>, len: usize) -> bool {
    written.as_ref().is_ok_and(|done| *done == len)
}
