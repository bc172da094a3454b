//! Reads, and what else is done with the content of an open file but writes.

use super::facade::Filesystem;
use crate::file::{self, End};
use crate::namespace::Synced;
use crate::types::{Allocate, HandleId, Placed, ReadData, Seek, Via, Warmed};
use std::sync::Arc;
use weft_net::DeviceMemory;
use weft_proto::planted::{self, Bug};
use weft_proto::{Error, ErrorKind, InodeId, Result};

/// A read that fills the cache is repeated so often for writes of the same bytes.
const MAX_REPEATS: usize = 3;

impl Filesystem {
    /// Up to `len` bytes from `off`; fewer only at the end of file. Data written through this mount
    /// is seen at once. Errors: `Io` if bytes cannot be had or verified; never zeros for them (I3).
    pub async fn read(&self, handle: HandleId, off: u64, len: usize) -> Result<ReadData> {
        self.read_via(handle, off, len, Via::Direct).await
    }

    /// [`Self::read`], into a cache above.
    pub async fn read_via(
        &self,
        handle: HandleId,
        off: u64,
        len: usize,
        via: Via,
    ) -> Result<ReadData> {
        let id = handle;
        let handle = self.inner.files.handle(id)?;
        self.inner.locks.hold(handle.file.ino, id)?;
        let file = &handle.file;
        let data = match via {
            Via::Cache if self.inner.pages.cache().is_some() => {
                handle.in_use();
                let range = off..off.saturating_add(len as u64);
                let ticket = file.above.begin(range.clone(), via, false).await;
                let mut repeats = 0;
                loop {
                    file.may_fill(&ticket, None).await?;
                    let data = file.read(off, len, &handle.ahead, true).await?;
                    match ticket.ends(repeats < MAX_REPEATS) {
                        End::Good => break data,
                        End::Again => repeats += 1,
                        End::Stale => {
                            file.forget_behind(range);
                            break data;
                        }
                    }
                }
            }
            _ => file.read(off, len, &handle.ahead, false).await?,
        };
        if !handle.no_atime && !data.is_empty() {
            self.note_access(|| Some(handle.file.attr()));
        }
        Ok(data)
    }

    /// As [`Self::read`], into the memory of a device from `at` on, as far as bytes can go there by
    /// themselves; which did, and what is to be copied there. `None`: they are to be read as usual.
    /// Also then, and on an error, any part of the memory may have been written.
    pub async fn read_placed(
        &self,
        handle: HandleId,
        off: u64,
        len: usize,
        into: (&Arc<DeviceMemory>, usize),
    ) -> Result<Option<Vec<Placed>>> {
        let id = handle;
        let handle = self.inner.files.handle(id)?;
        self.inner.locks.hold(handle.file.ino, id)?;
        let placed = handle.file.read_placed(off, len, into).await?;
        if !handle.no_atime && placed.as_ref().is_some_and(|placed| !placed.is_empty()) {
            self.note_access(|| Some(handle.file.attr()));
        }
        Ok(placed)
    }

    /// Has the hot tier keep `len` bytes of a file from `off` on, as far as they are committed, and
    /// answers when they are there. Errors: `NotSupported` without one
    /// ([`Options::hot`](crate::Options::hot)), `Busy` while its drive cannot be used, `Invalid` if
    /// nobody has the file open.
    pub async fn warm(&self, ino: InodeId, off: u64, len: u64) -> Result<Warmed> {
        let Some(file) = self.inner.files.get(ino) else {
            return Err(Error::new(ErrorKind::Invalid, "open the file first, and keep it open"));
        };
        file.warm(off..off.saturating_add(len)).await
    }

    /// Everything written to the file is durable and visible to all.
    pub async fn flush(&self, handle: HandleId) -> Result<()> {
        let flushed = self.inner.files.handle(handle)?.sync().await;
        self.inner.group.sessions.check().and(flushed)
    }

    /// Everything written to the file, and its size, is durable. `data_only` makes no difference
    /// today: one commit carries both.
    pub async fn fsync(&self, handle: HandleId, data_only: bool) -> Result<()> {
        let _ = data_only;
        let handle = self.inner.files.handle(handle)?;
        if planted::is(Bug::SyncBeforeCommit) {
            handle.file.flush_behind();
            return self.inner.group.sessions.check();
        }
        let flushed = handle.sync().await;
        // What was closed before, and nobody was told of, too. It is told first: what else failed
        // fails again, or is the handle's.
        let lost = self.inner.log.take_lost(Synced::File(handle.file.ino));
        self.inner.group.sessions.check().and(lost).and(flushed)
    }

    /// What `fallocate(2)` does with `[off, off+len)`; without `keep_size` the file is at least
    /// that long after it. Errors: `NoSpace` if the cluster has no room for it now. Room is not set
    /// aside: what others write meanwhile may take it.
    pub async fn fallocate(
        &self,
        handle: HandleId,
        off: u64,
        len: u64,
        what: Allocate,
        keep_size: bool,
    ) -> Result<()> {
        let id = handle;
        let handle = self.inner.files.handle(id)?;
        self.inner.locks.hold(handle.file.ino, id)?;
        if what == Allocate::Room {
            let free = self.stat_fs().await?.available_bytes;
            if len > free && handle.file.holes(off, len).await? > free {
                let what = format!("{free} bytes are free in the cluster");
                return Err(Error::new(ErrorKind::NoSpace, what));
            }
        }
        handle.file.allocate(off, len, what, keep_size).await
    }

    /// The first offset from `off` on where there is data, or a hole. Errors: `NoData` if `off` is
    /// not within the file, or no data follows.
    pub async fn seek(&self, handle: HandleId, off: u64, what: Seek) -> Result<u64> {
        self.inner.files.handle(handle)?.file.seek(off, what).await
    }

    /// What `copy_file_range(2)` does: shares what is in the first file with the second, and moves
    /// bytes only where it cannot. Answers how much was copied, which may be less than `len`; 0
    /// only at the end of the source. Errors: `Invalid` if the ranges overlap in one file.
    pub async fn copy_range(
        &self,
        from: HandleId,
        from_off: u64,
        to: HandleId,
        to_off: u64,
        len: u64,
    ) -> Result<u64> {
        let ids = (from, to);
        let (from, to) = (self.inner.files.handle(from)?, self.inner.files.handle(to)?);
        to.writes();
        let permitted = || {
            self.inner.locks.hold(from.file.ino, ids.0)?;
            self.inner.locks.hold(to.file.ino, ids.1)
        };
        file::copy_range((&from, from_off), (&to, to_off), len, permitted).await
    }
}
