//! Writes, and what Linux makes of those past its pages. It goes by where it believes that the file
//! ends, which lags behind what other mounts append.
//!
//! - When a write beyond that end fails, it cuts the file there: all that others wrote behind would
//!   go with it. So whoever was told of a failure cuts nothing with its next request for that,
//!   unless it is known to be the program that cuts.
//! - An asynchronous append that is longer than one request it sends in pieces, all at once, and
//!   they come here in any order. An append goes to the end of file, whatever its offset, so they
//!   land one after the other, each behind the one before, or the call fails.

use crate::abi::{Answer, Errno};
use crate::{proc, reply};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use weft_client::{Filesystem, HandleId, Via, Writing};
use weft_proto::{Error, ErrorKind, InodeId, Result};

/// Threads and handles of which failures are remembered.
const MOST_FAILED: usize = 4096;
/// So long a piece that is meant for beyond the end of file waits for one before it, while none
/// lands. There is none if others have cut the file, and Linux does not know.
const GAP_TIMEOUT: Duration = Duration::from_secs(1);
/// The caller of a write that takes so long may have been let go, as one that failed: it is killed.
const LET_GO_AFTER: Duration = Duration::from_secs(1);

/// One write, without its data.
#[derive(Clone, Copy)]
pub struct Write {
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
}

/// Writes of a mount.
pub struct Writes {
    fs: Filesystem,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    /// Writes past the pages, by handle and thread: those that wait, and have failed.
    direct: BTreeMap<(HandleId, u32), Direct>,
    appends: HashMap<HandleId, Arc<Appends>>,
}

#[derive(Default)]
struct Direct {
    waiting: usize,
    /// One has failed, and nothing was undone since.
    failed: bool,
}

/// A write past the pages, which has failed unless it says otherwise: its caller may be told so
/// before it ends.
struct Begun<'a> {
    writes: &'a Writes,
    by: (HandleId, u32),
    done: bool,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let direct = &mut self.writes.open.lock().direct;
        let Some(of) = direct.get_mut(&self.by) else { return };
        of.waiting -= 1;
        of.failed |= !self.done;
        if of.waiting == 0 && !of.failed {
            direct.remove(&self.by);
        }
        if direct.len() > MOST_FAILED {
            let idle = direct.iter().find(|(_, of)| of.waiting == 0).map(|(by, _)| *by);
            idle.map(|by| direct.remove(&by));
        }
    }
}

/// Appends through one handle. Linux has only one call of a file under way at a time.
#[derive(Default)]
struct Appends {
    /// Held while a piece lands.
    order: tokio::sync::Mutex<Order>,
    landed: Notify,
    /// Pieces that have not landed, by thread and offset.
    waiting: Mutex<BTreeSet<(u32, u64)>>,
}

#[derive(Default)]
struct Order {
    last: Option<Last>,
    /// Pieces that have landed, or failed.
    landings: u64,
    /// A piece of a call of this thread came too late, at that time: what comes behind it fails,
    /// too.
    failed: Option<(u32, Instant)>,
}

/// A piece that has not landed.
struct Waiting<'a> {
    appends: &'a Appends,
    by: (u32, u64),
}

impl<'a> Waiting<'a> {
    fn begin(appends: &'a Appends, write: &Write) -> Self {
        let by = (write.thread, write.offset);
        appends.waiting.lock().insert(by);
        Self { appends, by }
    }

    /// Whether none of its thread that waits comes before it.
    fn is_first(&self) -> bool {
        let (thread, _) = self.by;
        let waiting = self.appends.waiting.lock();
        waiting.range((thread, 0)..).next().is_none_or(|first| *first >= self.by)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.appends.waiting.lock().remove(&self.by);
    }
}

/// The last piece that has landed.
struct Last {
    thread: u32,
    /// Where it ends, as Linux numbers it.
    end: u64,
    /// Size of the file then.
    size: u64,
}

/// Where a piece is, as to the last one.
#[derive(PartialEq, Eq)]
enum Place {
    /// It comes next, as far as can be told.
    Next,
    /// Something is to come before.
    Ahead,
    /// It should have come before, unless the file was cut meanwhile.
    Late,
}

impl Writes {
    pub fn new(fs: Filesystem) -> Arc<Self> {
        Arc::new(Self { fs, open: Mutex::default() })
    }

    /// Writes, if there is nothing to wait for; `None` says that nothing was written.
    pub fn write_now(&self, write: &Write, data: &[u8]) -> Option<Result<usize>> {
        let now = || self.fs.write_now(write.handle, write.offset, data, write.how);
        let written = match write.appends() {
            false => now()?,
            true => {
                let appends = self.appends(write.handle);
                let mut order = appends.order.try_lock().ok()?;
                if self.place(&order, write) != Place::Next {
                    return None;
                }
                let written = now()?;
                self.land(&appends, &mut order, write, data.len(), &written);
                written
            }
        };
        if !is_whole(&written, data.len()) {
            drop(self.begin(write));
        }
        Some(written)
    }

    /// Writes, if `before` succeeds.
    pub async fn write(
        &self,
        write: &Write,
        data: &[u8],
        before: impl Future<Output = Result<()>>,
    ) -> Result<usize> {
        let (mut begun, at) = (self.begin(write), Instant::now());
        let written = match before.await {
            Ok(()) if write.appends() => self.append(write, data).await,
            Ok(()) => self.fs.write_via(write.handle, write.offset, data, write.how).await,
            Err(error) => Err(error),
        };
        if let Some(begun) = &mut begun {
            begun.done = is_whole(&written, data.len()) && at.elapsed() < LET_GO_AFTER;
        }
        written
    }

    async fn append(&self, write: &Write, data: &[u8]) -> Result<usize> {
        let appends = self.appends(write.handle);
        let waits = Waiting::begin(&appends, write);
        // Whether its caller waits for one piece after the other: looked at once, and only if that
        // makes a difference.
        let mut in_order = None;
        // Nothing has landed for long since so much had.
        let mut idle = None;
        loop {
            // Whoever lands from now on wakes it.
            let landed = pin!(appends.landed.notified());
            let mut order = appends.order.lock().await;
            let place = self.place(&order, write);
            let alone = idle == Some(order.landings) && waits.is_first();
            if place == Place::Next || in_order == Some(true) || place == Place::Ahead && alone {
                let Write { handle, offset, how, .. } = *write;
                let written = self.fs.write_via(handle, offset, data, how).await;
                self.land(&appends, &mut order, write, data.len(), &written);
                return written;
            }
            if in_order.is_none() {
                drop(order);
                in_order = Some(self.is_in_order(write).await);
                continue;
            }
            if place == Place::Late {
                // What it was to come before is there: this call fails, and the next begins anew.
                (order.last, order.failed) = (None, Some((write.thread, Instant::now())));
                order.landings += 1;
                appends.landed.notify_waiters();
                let what = "pieces of one asynchronous append came in another order, and others \
                            append to the file: write no more than 1 MiB at a time";
                return Err(Error::new(ErrorKind::Io, what));
            }
            let landings = order.landings;
            drop(order);
            let woken = timeout(GAP_TIMEOUT, landed).await;
            idle = woken.is_err().then_some(landings);
        }
    }

    fn place(&self, order: &Order, write: &Write) -> Place {
        let Order { last, failed, .. } = order;
        if failed.is_some_and(|(thread, at)| thread == write.thread && at.elapsed() < GAP_TIMEOUT) {
            return Place::Late;
        }
        let size = self.fs.size_now(write.handle).unwrap_or(u64::MAX);
        let is_before = |l: &Last| l.thread == write.thread && write.offset < l.end;
        // Whoever has cut the file has Linux begin before that.
        if last.as_ref().is_some_and(|l| is_before(l) && l.size <= size) {
            return Place::Late;
        }
        let follows = last.as_ref().is_some_and(|l| l.end == write.offset);
        match follows || write.offset <= size {
            true => Place::Next,
            false => Place::Ahead,
        }
    }

    /// A piece has landed, or failed: Linux believes in the same end as before then.
    fn land(
        &self,
        appends: &Appends,
        order: &mut Order,
        write: &Write,
        len: usize,
        written: &Result<usize>,
    ) {
        let end = write.offset.saturating_add(len as u64);
        let size = self.fs.size_now(write.handle).unwrap_or(0);
        let landed = Last { thread: write.thread, end, size };
        order.last = is_whole(written, len).then_some(landed);
        order.landings += 1;
        appends.landed.notify_waiters();
    }

    /// Whether the caller is in a call that writes one piece after the other: it waits for each.
    async fn is_in_order(&self, write: &Write) -> bool {
        self.fs.is_append(write.handle) && proc::writes_in_order(write.thread).await
    }

    /// A write begins that Linux undoes if it fails, unless it goes through the pages.
    fn begin(&self, write: &Write) -> Option<Begun<'_>> {
        let by = (write.handle, write.thread);
        write.is_direct().then(|| {
            self.open.lock().direct.entry(by).or_default().waiting += 1;
            Begun { writes: self, by, done: false }
        })
    }

    /// Whether a change of the size through a handle may be Linux undoing a write of this thread.
    pub fn may_undo(&self, handle: HandleId, thread: u32) -> bool {
        let Open { direct, appends } = &mut *self.open.lock();
        // The call is over, and the next goes by what Linux believes still.
        if let Some(order) = appends.get(&handle)
            && let Ok(mut order) = order.order.try_lock()
        {
            (order.last, order.failed) = (None, None);
        }
        let Some(of) = direct.get_mut(&(handle, thread)) else { return false };
        of.failed = false;
        if of.waiting == 0 {
            direct.remove(&(handle, thread));
        }
        true
    }

    /// The answer to what [`Self::may_undo`] says; `None` if a program changes the size.
    pub async fn undo(&self, ino: InodeId, size: u64, thread: u32) -> Option<Answer> {
        if proc::cuts(thread).await {
            return None;
        }
        match self.fs.get_attr(ino).await {
            // Linux makes nothing longer by that.
            Ok(attr) if attr.size < size => None,
            Ok(attr) if attr.size > size => {
                let has = attr.size;
                tracing::info!(%ino, has, "a write failed; not cut to {size} bytes for that");
                Some(Err(Errno(libc::EIO)))
            }
            attr => Some(reply::attr(attr.map(reply::asked_again))),
        }
    }

    /// A handle is no more.
    pub fn released(&self, handle: HandleId) {
        let open = &mut *self.open.lock();
        open.appends.remove(&handle);
        open.direct.retain(|(of, _), _| *of != handle);
    }

    fn appends(&self, handle: HandleId) -> Arc<Appends> {
        self.open.lock().appends.entry(handle).or_default().clone()
    }
}

fn is_whole(written: &Result<usize>, len: usize) -> bool {
    written.as_ref().is_ok_and(|done| *done == len)
}
