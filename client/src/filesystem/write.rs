//! Writes, through a cache above and past it.

use super::facade::Filesystem;
use crate::cache::Right;
use crate::file::{End, Fate, File, Handle, Ticket, Way, WritePast, Written};
use crate::types::{HandleId, Via, Writing};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use weft_proto::{Error, ErrorKind, Result, SessionId, v1};

/// Pause before what the cache above writes back while the leases are over is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A write is answered after so long although a page that it changed may hold what was there
/// before: a read of it has no answer.
const FORGET_TIMEOUT: Duration = Duration::from_secs(5);

/// The right of this mount alone to change a file, from when it got it until it gives that back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alone(Right);

/// What is written through a handle, and is going to be. Where an append lands nobody knows before,
/// and what a cache writes back tells nothing.
fn expected(handle: &Handle, range: &Range<u64>, other: bool) -> Option<v1::Records> {
    let positioned = !other && !range.is_empty();
    positioned.then(|| handle.pattern.note(range.clone()))
}

/// Where something was written that was meant for `range`, or at the end of file if `append`.
fn landed(file: &File, range: Range<u64>, append: bool) -> Range<u64> {
    match append {
        // The caller may know of another end than it was when they landed.
        true => range.start.min(file.size().saturating_sub(range.end - range.start))..u64::MAX,
        false => range,
    }
}

/// What was there before in `range` is forgotten: before the write past it is answered, unless its
/// caller holds pages there.
async fn forget_old(file: &Arc<File>, via: Via, range: Range<u64>, past: WritePast) {
    if via == Via::Cache {
        return file.forget_misfiled(range, past);
    }
    if let Some(forgotten) = file.forget_written(range) {
        forgotten.await;
    }
    drop(past);
}

impl Filesystem {
    /// Takes `data` into the write buffer, or commits it if another mount uses the file; answers
    /// how much of it was taken (all, unless an error came in between). With an append handle `off`
    /// is ignored. Answers the failure of an earlier write of the file if this handle was not told
    /// yet (I8), but not to the cache that writes back.
    pub async fn write(&self, handle: HandleId, off: u64, data: &[u8]) -> Result<usize> {
        self.write_via(handle, off, data, Via::Direct).await
    }

    /// [`Self::write`], through a cache above or past it.
    pub async fn write_via(
        &self,
        handle: HandleId,
        off: u64,
        data: &[u8],
        how: impl Into<Writing>,
    ) -> Result<usize> {
        self.write_while(handle, off, data, how, || true).await
    }

    /// [`Self::write_via`] for a caller that may be answered without it, as one that is killed.
    /// `waits` says whether it still waits: no more from before the file may be closed for it,
    /// which releases the locks under which it wrote. Nothing is taken in after that
    /// (`Interrupted`), but for what the cache writes back. It is asked right before something is
    /// taken in, and not if nothing is.
    pub async fn write_while(
        &self,
        id: HandleId,
        off: u64,
        data: &[u8],
        how: impl Into<Writing>,
        waits: impl Fn() -> bool,
    ) -> Result<usize> {
        self.write_known(id, off, data, how.into(), None, waits).await
    }

    /// [`Self::write_while`] for a caller that wants to know what becomes of it.
    pub(crate) async fn write_known(
        &self,
        id: HandleId,
        off: u64,
        data: &[u8],
        how: Writing,
        fate: Option<&Fate>,
        waits: impl Fn() -> bool,
    ) -> Result<usize> {
        let handle = self.inner.files.handle(id)?;
        let Writing { via, append, sync } = how;
        let file = &handle.file;
        let back = via == Via::WriteBack;
        let session = self.inner.group.sessions.current().id;
        let permitted = || self.permit(id, &handle, back.then_some(session), &waits);
        // The cache writes pages back through any handle.
        let append = append.unwrap_or(handle.append) && !back;
        let range = off..off.saturating_add(data.len() as u64);
        // What is appended through the cache that has where the caller believes that the file ends.
        let misfiled = (append && via == Via::Cache).then(|| range.clone());
        let past = (append || via == Via::Direct).then(|| file.write_past(misfiled));
        let records = expected(&handle, &range, append || back);
        let ticket = match via {
            Via::Direct => None,
            via => Some(file.above.begin(range.clone(), via, true).await),
        };
        let way = match via {
            Via::WriteBack => Way::Back,
            _ if past.is_some() => Way::Past(past.as_ref()),
            _ => Way::Along(ticket.as_ref()),
        };
        let was_covered = file.is_covered(&range);
        let write = async {
            if let Way::Along(Some(ticket)) = way {
                file.may_fill(ticket, records).await?;
            }
            if !back {
                handle.failure()?;
            }
            handle.writes();
            let written = Written { off, data, append, way, fate };
            let (written, buffered) = file.write(written, records, permitted).await?;
            handle.wrote(back, sync, buffered).await?;
            Ok((written, buffered))
        };
        let written = match via {
            Via::WriteBack => tokio::select! {
                biased;
                written = self.write_back_in_doubt(id, off, data, session) => {
                    written.map(|written| (written, true))
                }
                written = write => written,
            },
            _ => write.await,
        };
        let fills = ticket.as_ref().filter(|_| via == Via::Cache);
        self.forget_filled(file, fills).await;
        // No recall would find them, or found them before what was written was there.
        let is_alone = matches!(written, Ok((_, false)));
        let uncovered = is_alone && via == Via::Cache && !(was_covered && file.is_covered(&range));
        let is_stale = ticket.is_some_and(|ticket| ticket.ends(false) != End::Good);
        match past {
            Some(past) => forget_old(file, via, landed(file, range, append), past).await,
            // The pages that it changed may hold more than that, from before.
            None if is_stale || uncovered => file.forget_behind(range),
            None => {}
        }
        written.map(|(written, _)| written)
    }

    /// Whether something may be written still: for who waits for it, or to write `back` what was
    /// stored in the cache in that session.
    fn permit(
        &self,
        id: HandleId,
        handle: &Handle,
        back: Option<SessionId>,
        waits: impl Fn() -> bool,
    ) -> Result<()> {
        self.inner.locks.hold(handle.file.ino, id)?;
        match back {
            Some(session) => handle.file.may_write_back(session),
            None if handle.is_open() && waits() => Ok(()),
            // Others may hold the locks by now, and have written under them.
            None => {
                let what = "nobody waits for the write, or the file was closed meanwhile";
                Err(Error::new(ErrorKind::Interrupted, what))
            }
        }
    }

    /// Who fills pages may have read before what was written was there to be read: forgets them.
    async fn forget_filled(&self, file: &File, ticket: Option<&Ticket<'_>>) {
        let Some((ticket, cache)) = ticket.zip(self.inner.pages.cache()) else { return };
        for range in ticket.wrote() {
            let forgotten = cache.forget(file.ino, range);
            // Whoever takes back what is cached may wait for this write, and takes these as well.
            let forgotten = async {
                tokio::select! {
                    () = forgotten => {}
                    () = file.above.closed() => {}
                }
            };
            let _ = timeout(FORGET_TIMEOUT, forgotten).await;
        }
    }

    /// Waits until the session may be over, in which `data` was stored in the cache above, and
    /// takes it in as soon as it need not wait for anything more.
    async fn write_back_in_doubt(
        &self,
        id: HandleId,
        off: u64,
        data: &[u8],
        session: SessionId,
    ) -> Result<usize> {
        let file = self.inner.files.handle(id)?.file.clone();
        loop {
            self.inner.group.leases.lapsed().await;
            file.may_write_back(session)?;
            if let Some(written) = self.write_now(id, off, data, Via::WriteBack) {
                return written;
            }
            sleep(RETRY_INTERVAL).await;
        }
    }

    /// The size of an open file, with what is not committed yet, if this mount alone may change it.
    /// As long as this answers the same right nobody else has.
    pub fn size_alone(&self, handle: HandleId) -> Option<(Alone, u64)> {
        let (right, size) = self.inner.files.handle(handle).ok()?.file.size_alone()?;
        Some((Alone(right), size))
    }

    /// The length of a segment of an open file: of what is appended no more is in one.
    pub(crate) fn segment_len(&self, handle: HandleId) -> Result<u64> {
        Ok(self.inner.files.handle(handle)?.file.segment_len())
    }

    /// [`Self::write`] if it need not wait: a lease to write, room in the buffer, nothing to send
    /// first, nothing cached that a write past the cache makes old. `None` says that nothing was
    /// taken in. Must be called inside a runtime.
    pub fn write_now(
        &self,
        handle: HandleId,
        off: u64,
        data: &[u8],
        how: impl Into<Writing>,
    ) -> Option<Result<usize>> {
        self.write_known_now(handle, off, data, how.into(), None)
    }

    /// [`Self::write_now`] for a caller that wants to know what becomes of it.
    pub(crate) fn write_known_now(
        &self,
        id: HandleId,
        off: u64,
        data: &[u8],
        how: Writing,
        fate: Option<&Fate>,
    ) -> Option<Result<usize>> {
        let Writing { via, append, sync } = how;
        let back = via == Via::WriteBack;
        let handle = self.inner.files.handle(id).ok()?;
        if (sync || handle.sync) && !back {
            return None;
        }
        handle.writes();
        let file = &handle.file;
        let append = append.unwrap_or(handle.append) && !back;
        let misfiled = append && via == Via::Cache;
        if via == Via::Cache && (misfiled || !file.above.is_open() || file.is_cached_alone()) {
            return None;
        }
        expected(&handle, &(off..off.saturating_add(data.len() as u64)), append || back);
        let way = match via {
            Via::Direct => Way::Past(None),
            Via::Cache => Way::Along(None),
            Via::WriteBack => Way::Back,
        };
        let permitted = || {
            self.inner.locks.hold(file.ino, id)?;
            match back {
                true => file.may_write_back(self.inner.group.sessions.current().id),
                false => handle.failure(),
            }
        };
        match permitted() {
            Ok(()) => {
                let written = Written { off, data, append, way, fate };
                handle.file.write_now(written).map(Ok)
            }
            Err(error) => Some(Err(error)),
        }
    }
}
