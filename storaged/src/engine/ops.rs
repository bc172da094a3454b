//! What a target does for others: put, get, delete, fence, list.
//!
//! Invariant: a put or delete that began runs to its end, even when its caller is gone, so that no
//! space is lost.

use super::commit::Commit;
use super::device::Done;
use super::entry::{Extent, JournalEntry, Place, header_blocks};
use super::shared::Core;
use super::unread::of_medium;
use super::{BLOCK, Engine, header, superblock};
use bytes::Bytes;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weft_net::AlignedBuf;
use weft_proto::planted::{self, Bug};
use weft_proto::{ChunkId, Error, ErrorKind, Result, SessionId, layout};

/// Most chunks in one journal record of deletes.
const DELETE_BATCH: usize = 1000;
/// Places that are tried for a chunk, of which some cannot be written or do not read back.
pub(super) const MAX_PLACES: usize = 4;

/// A range of a chunk.
#[derive(Debug)]
pub struct Range {
    /// CRC-32 of each 4096-byte block, as it was put.
    pub checksums: Vec<u32>,
    /// The bytes, in pieces; not verified.
    pub data: Vec<Bytes>,
}

/// Where a range of a chunk is on the drive, as offsets and lengths.
struct Located {
    checksums: Vec<u32>,
    places: Vec<(u64, usize)>,
}

/// A part of the list of chunks.
#[derive(Debug)]
pub struct ListPage {
    /// Chunks and their lengths in bytes, in id order.
    pub items: Vec<(ChunkId, u64)>,
    /// There are chunks after the last item.
    pub more: bool,
}

impl Engine {
    /// Stores a chunk durably. `data` is a multiple of 4096 bytes, with a CRC-32 for each block; it
    /// is written without a copy if it starts 4096-aligned. The same chunk again is fine. Errors:
    /// `Corrupt` (checksums do not match the data), `Exists` (with other checksums), `NoSpace`
    /// (with what there is room for, where that is known), `SessionExpired` (its session is fenced
    /// off), `Invalid`, `Io`.
    pub async fn put(&self, id: ChunkId, data: Bytes, checksums: Vec<u32>) -> Result<()> {
        self.put_in_turn(id, data, checksums, ()).await
    }

    /// As [`Self::put`]. `turn` is dropped when the data is written: what is left then, one commit
    /// does for all that wait.
    pub async fn put_in_turn(
        &self,
        id: ChunkId,
        data: Bytes,
        checksums: Vec<u32>,
        turn: impl Send + 'static,
    ) -> Result<()> {
        check_payload(id, &data, &checksums)?;
        self.core.check_writable()?;
        let engine = self.clone();
        run_to_end(async move { engine.put_checked(id, data, checksums, turn).await }).await
    }

    /// As [`Self::put`], of a chunk that was made of the others of its segment: its session may
    /// have ended long ago.
    pub async fn restore(&self, id: ChunkId, data: Bytes, checksums: Vec<u32>) -> Result<()> {
        self.restore_in(id, data, checksums, false).await
    }

    /// As [`Self::restore`], of a chunk that should be here: it may take of what is kept back from
    /// puts, as one that is damaged may.
    pub async fn put_back(&self, id: ChunkId, data: Bytes, checksums: Vec<u32>) -> Result<()> {
        self.restore_in(id, data, checksums, true).await
    }

    async fn restore_in(
        &self,
        id: ChunkId,
        data: Bytes,
        checksums: Vec<u32>,
        reserve: bool,
    ) -> Result<()> {
        check_payload(id, &data, &checksums)?;
        self.core.check_writable()?;
        let engine = self.clone();
        let commit = Commit::Restore;
        let store = async move { engine.store(id, data, checksums, reserve, (), commit).await };
        run_to_end(store).await
    }

    /// Whether the chunk is here.
    pub async fn has(&self, id: ChunkId) -> Result<bool> {
        Ok(self.core.newest(id).await?.is_some())
    }

    /// Bytes of the chunk; `None` if it is not here.
    pub async fn length(&self, id: ChunkId) -> Result<Option<u64>> {
        Ok(self.core.newest(id).await?.map(|entry| entry.place.length))
    }

    async fn put_checked(
        &self,
        id: ChunkId,
        data: Bytes,
        checksums: Vec<u32>,
        turn: impl Send,
    ) -> Result<()> {
        // Also looked at by the committer; who is told so here has written nothing for that.
        if self.core.lookup(id).await?.is_none() {
            self.core.check_fence(id)?;
        }
        self.store(id, data, checksums, false, turn, Commit::Put).await
    }

    async fn store(
        &self,
        id: ChunkId,
        data: Bytes,
        checksums: Vec<u32>,
        reserve: bool,
        turn: impl Send,
        commit: fn(ChunkId, Arc<JournalEntry>) -> Commit,
    ) -> Result<()> {
        let core = &self.core;
        let _hold = core.busy.hold(vec![id]).await;
        let here = match core.lookup(id).await? {
            // It may have been deleted just now.
            Some(_) => core.newest(id).await?,
            None => None,
        };
        if let Some(entry) = here {
            return if entry.checksums == checksums {
                Ok(())
            } else {
                Err(core.error(ErrorKind::Exists, id, "is stored with other contents"))
            };
        }
        if !reserve {
            core.check_room().await?;
        }
        let entry = self.write_new(id, data, checksums, reserve).await?;
        drop(turn);
        self.committer.commit(vec![commit(id, entry)]).await
    }

    /// Writes header and data somewhere free, which may be what is kept back (`reserve`) from
    /// puts. Nobody knows of it until it is committed. A place that cannot be written is given to
    /// nobody until the target is opened anew, and another is tried.
    pub(super) async fn write_new(
        &self,
        id: ChunkId,
        data: Bytes,
        mut checksums: Vec<u32>,
        reserve: bool,
    ) -> Result<Arc<JournalEntry>> {
        let core = &self.core;
        let mut others = 1..MAX_PLACES;
        loop {
            let entry = Arc::new(core.place(id, data.len() as u64, checksums, reserve)?);
            if planted::is(Bug::RecordBeforeData) && !reserve {
                let (core, behind) = (core.clone(), entry.clone());
                tokio::spawn(async move { core.write(id, &behind, data).await });
                return Ok(entry);
            }
            let extents = &entry.place.extents;
            let Err(e) = core.write(id, &entry, data.clone()).await else { return Ok(entry) };
            if matches!(e.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) {
                core.discard.give(extents);
                let what = format!("does not fit: no space where the target lies: {e}");
                return Err(core.error(ErrorKind::NoSpace, id, &what));
            }
            core.counters.write_errors.fetch_add(1, Ordering::Relaxed);
            tracing::error!(target = %core.path.display(), chunk = %id, "write: {e}");
            core.after_error(&e).await;
            let is_there = of_medium(&e) && core.check_writable().is_ok();
            let kept_out = is_there && core.allocator.lock().keep_out(extents);
            if !kept_out {
                core.discard.give(extents);
            }
            if !kept_out || others.next().is_none() {
                return Err(core.error(ErrorKind::Io, id, &format!("could not be written: {e}")));
            }
            checksums = Arc::unwrap_or_clone(entry).checksums;
        }
    }

    /// Reads `[off, off + len)` of a chunk, in multiples of 4096 bytes. The data is not verified
    /// here: the reader does, with the checksums. Errors: `NotFound`, `Invalid`, `Io`.
    pub async fn get(&self, id: ChunkId, off: u64, len: u64) -> Result<Range> {
        self.core.get(id, off, len).await
    }

    /// As [`Self::get`], of many ranges at once: all of them, or what the first that cannot be read
    /// meets, and its place. Nothing is read if one of them is not there.
    pub async fn get_many(
        &self,
        ranges: &[(ChunkId, u64, u64)],
    ) -> Result<Vec<Range>, (usize, Error)> {
        self.core.get_many(ranges).await
    }

    /// Deletes chunks durably and answers how many there were.
    pub async fn delete(&self, mut ids: Vec<ChunkId>) -> Result<u64> {
        self.core.check_writable()?;
        ids.sort_unstable();
        ids.dedup();
        let engine = self.clone();
        run_to_end(async move {
            let mut deleted = 0;
            for batch in ids.chunks(DELETE_BATCH) {
                deleted += engine.delete_batch(batch.to_vec()).await?;
            }
            Ok(deleted)
        })
        .await
    }

    async fn delete_batch(&self, ids: Vec<ChunkId>) -> Result<u64> {
        let _hold = self.core.busy.hold(ids.clone()).await;
        let core = self.core.clone();
        let find = move || -> Result<Vec<Commit>> {
            let found = ids.into_iter().map(|id| {
                let entry = core.index.get_newest(id)?;
                Ok(entry.map(|entry| Commit::Delete(id, entry)))
            });
            found.filter_map(Result::transpose).collect()
        };
        let commits = self.core.blocking(find).await?;
        let deleted = commits.len() as u64;
        if deleted > 0 {
            self.committer.commit(commits).await?;
        }
        Ok(deleted)
    }

    /// Looks how much room the index has, if that is due: without puts nobody else does.
    pub async fn look_at_room(&self) {
        if let Err(e) = self.core.look_at_room().await {
            tracing::warn!("how much room an index has left is not known: {e}");
        }
    }

    /// Error: `SessionExpired`, the chunk's session is fenced off.
    pub fn check_fence(&self, id: ChunkId) -> Result<()> {
        self.core.check_fence(id)
    }

    /// Refuses the chunks of these sessions (by id) from now on, until the target is closed: when
    /// this is answered, a put of theirs has been committed and is listed, or is refused. Not
    /// durable: the metadata group fences a target that was opened anew, and then looks at all of
    /// it, so that what came between is found.
    pub async fn fence(&self, ended: Vec<RangeInclusive<u64>>) -> Result<()> {
        self.committer.fence(ended).await
    }

    /// Up to `limit` chunks in id order, after `after`, of one session or of all.
    pub async fn list(
        &self,
        after: Option<ChunkId>,
        session: Option<SessionId>,
        limit: usize,
    ) -> Result<ListPage> {
        let core = self.core.clone();
        let list = move || core.index.list(after, session, limit);
        let (items, more) = self.core.blocking(list).await?;
        Ok(ListPage { items, more })
    }
}

impl Core {
    pub(super) async fn lookup(self: &Arc<Self>, id: ChunkId) -> Result<Option<Arc<JournalEntry>>> {
        match self.of_index(self.index.get_cached(id))? {
            Some(found) => Ok(found),
            None => {
                let core = self.clone();
                self.blocking(move || core.index.get(id)).await
            }
        }
    }

    /// As [`Self::lookup`], of each of these; what is not at hand is looked for in one go.
    async fn lookup_many(
        self: &Arc<Self>,
        ids: impl Iterator<Item = ChunkId> + Clone,
    ) -> Vec<Result<Option<Arc<JournalEntry>>>> {
        let mut found: Vec<_> =
            ids.clone().map(|id| (id, self.index.get_cached(id).transpose())).collect();
        let missed = |(_, entry): &(ChunkId, Option<_>)| entry.is_none();
        if found.iter().any(missed) {
            let core = self.clone();
            let look = move || {
                for (id, entry) in found.iter_mut().filter(|one| missed(one)) {
                    *entry = Some(core.index.get(*id));
                }
                Ok(found)
            };
            found = match self.blocking(look).await {
                Ok(found) => found,
                // Of all of them alike.
                Err(e) => return ids.map(|_| Err(e.clone())).collect(),
            };
        }
        found.into_iter().filter_map(|(_, entry)| Some(self.of_index(entry?))).collect()
    }

    /// As [`Self::lookup`], for who changes the chunk or says that it is here: not of the cache,
    /// which may have for a moment what was replaced or deleted.
    pub(super) async fn newest(self: &Arc<Self>, id: ChunkId) -> Result<Option<Arc<JournalEntry>>> {
        let core = self.clone();
        self.blocking(move || core.index.get_newest(id)).await
    }

    /// Space for header and data; what waits to be discarded counts when there is no other.
    fn take_space(&self, length: u64, reserve: bool) -> Option<Vec<Extent>> {
        let head = header_blocks(length);
        let take = || self.allocator.lock().take(head + length / BLOCK, head, reserve);
        take().or_else(|| if self.discard.hurry() { take() } else { None })
    }

    /// Whether the index may grow. Error: `NoSpace`.
    async fn check_room(self: &Arc<Self>) -> Result<()> {
        self.look_at_room().await?;
        self.index.room.check()
    }

    /// Looks how much room the index has, if that is due.
    async fn look_at_room(self: &Arc<Self>) -> Result<()> {
        if self.device.is_simulated() {
            return Ok(());
        }
        let Some(due) = self.index.room.due() else { return Ok(()) };
        let look = move || {
            due.look();
            Ok(())
        };
        self.blocking(look).await
    }

    /// Bytes that are free, and the longest chunk that can be put in them.
    fn room(&self) -> (u64, u64) {
        let allocator = self.allocator.lock();
        let free = allocator.capacity().saturating_sub(allocator.used()) * BLOCK;
        let blocks = allocator.longest().min(layout::MAX_CHUNK / BLOCK);
        let chunk = blocks.saturating_sub(header_blocks(blocks * BLOCK)) * BLOCK;
        (free, chunk)
    }

    pub(super) async fn get(self: &Arc<Self>, id: ChunkId, off: u64, len: u64) -> Result<Range> {
        let _reading = Reading::enter(self, id);
        let entry = self.lookup(id).await?;
        let Located { checksums, places } = self.locate(entry, id, off, len)?;
        let reads = self.device.read_many(&places);
        let data = self.finish(id, off, len, reads.into_iter()).await?;
        Ok(Range { checksums, data })
    }

    async fn get_many(
        self: &Arc<Self>,
        ranges: &[(ChunkId, u64, u64)],
    ) -> Result<Vec<Range>, (usize, Error)> {
        let _reading: Vec<_> = ranges.iter().map(|&(id, ..)| Reading::enter(self, id)).collect();
        let entries = self.lookup_many(ranges.iter().map(|(id, ..)| *id)).await;
        let (mut found, mut places) = (Vec::with_capacity(ranges.len()), Vec::new());
        for (i, (&(id, off, len), entry)) in ranges.iter().zip(entries).enumerate() {
            let located = entry.and_then(|entry| self.locate(entry, id, off, len));
            let located = located.map_err(|e| (i, e))?;
            found.push((located.checksums, located.places.len()));
            places.extend(located.places);
        }
        let mut reads = self.device.read_many(&places).into_iter();
        let mut answers = Vec::with_capacity(ranges.len());
        for (i, (&(id, off, len), (checksums, count))) in ranges.iter().zip(found).enumerate() {
            let mine = reads.by_ref().take(count);
            let data = self.finish(id, off, len, mine).await.map_err(|e| (i, e))?;
            answers.push(Range { checksums, data });
        }
        Ok(answers)
    }

    /// Checksums of a range of a chunk, and where it is on the drive.
    fn locate(
        &self,
        entry: Option<Arc<JournalEntry>>,
        id: ChunkId,
        off: u64,
        len: u64,
    ) -> Result<Located> {
        let entry = entry.ok_or_else(|| self.missing(id))?;
        let length = entry.place.length;
        let sound = len > 0 && off.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK);
        if !sound || off.checked_add(len).is_none_or(|end| end > length) {
            let what = format!("of {length} bytes has no range of {len} bytes at {off}");
            return Err(self.error(ErrorKind::Invalid, id, &what));
        }
        let blocks = (off / BLOCK) as usize..((off + len) / BLOCK) as usize;
        let places = entry.place.locate(off, len).into_iter();
        Ok(Located {
            checksums: entry.checksums[blocks].to_vec(),
            places: places.map(|(at, len)| (at, len as usize)).collect(),
        })
    }

    /// What reads of a range answer.
    async fn finish(
        self: &Arc<Self>,
        id: ChunkId,
        off: u64,
        len: u64,
        reads: impl ExactSizeIterator<Item = Done<AlignedBuf>>,
    ) -> Result<Vec<Bytes>> {
        let mut data = Vec::with_capacity(reads.len());
        for read in reads {
            match read.wait().await {
                Ok(buffer) => data.push(buffer.into()),
                Err(e) => {
                    self.after_error(&e).await;
                    return Err(self.read_failed(id, off, len, &e));
                }
            }
        }
        Ok(data)
    }

    /// Writes header and data into the extents of `entry`.
    async fn write(&self, id: ChunkId, entry: &JournalEntry, data: Bytes) -> io::Result<()> {
        let salt = self.superblock.read().salt;
        let mut pieces = [Bytes::from(header::encode(salt, id, entry)), aligned(data)];
        let mut writes = Vec::with_capacity(entry.place.extents.len());
        for extent in &entry.place.extents {
            let mut left = extent.blocks as usize * BLOCK as usize;
            let mut run = Vec::with_capacity(2);
            for piece in &mut pieces {
                let part = piece.split_to(left.min(piece.len()));
                left -= part.len();
                if !part.is_empty() {
                    run.push(part);
                }
            }
            writes.push(self.start_write(extent.block * BLOCK, run).await);
        }
        // All must have ended before the space may be given back.
        let mut result = Ok(());
        for write in writes {
            result = result.and(write.wait().await);
        }
        result
    }

    /// Queues a write.
    async fn start_write(&self, off: u64, run: Vec<Bytes>) -> Done<()> {
        if !self.device.takes_long(run.iter().map(Bytes::len).sum()) {
            return self.device.write(off, run);
        }
        let device = self.device.clone();
        let queued = tokio::task::spawn_blocking(move || device.write(off, run)).await;
        // A runtime that ends takes nothing any more.
        queued.unwrap_or_else(|_| Done::channel().1)
    }

    pub(super) fn missing(&self, id: ChunkId) -> Error {
        self.error(ErrorKind::NotFound, id, "is not here")
    }

    pub(super) fn error(&self, kind: ErrorKind, id: ChunkId, what: &str) -> Error {
        Error::new(kind, format!("chunk {id} {what} ({})", self.path.display()))
    }

    /// Where a new chunk is to lie.
    fn place(
        &self,
        id: ChunkId,
        length: u64,
        checksums: Vec<u32>,
        reserve: bool,
    ) -> Result<JournalEntry> {
        let extents = self.take_space(length, reserve).ok_or_else(|| {
            let (free, chunk) = self.room();
            let what = format!(
                "of {length} bytes does not fit: the target has {free} bytes free, in pieces that \
                 hold a chunk of {chunk}"
            );
            Error { hint: chunk.to_string(), ..self.error(ErrorKind::NoSpace, id, &what) }
        })?;
        let stamp = self.stamp.fetch_add(1, Ordering::Relaxed);
        Ok(JournalEntry { place: Place { stamp, length, extents }, checksums })
    }

    /// Tells a drive that failed once from one that is gone or takes no writes any more: the latter
    /// counts as failed, so that the cluster goes round it.
    pub(super) async fn after_error(&self, e: &io::Error) {
        if matches!(e.raw_os_error(), Some(libc::EROFS | libc::EPERM)) {
            return self.fail(format!("the drive is read-only: {e}"));
        }
        let size = self.superblock.read().size;
        if let Err(e) = superblock::read_any(&*self.device, size).await {
            self.fail(format!("the drive is gone: its superblock cannot be read: {e}"));
        }
    }

    fn read_failed(&self, id: ChunkId, off: u64, len: u64, e: &io::Error) -> Error {
        self.counters.read_errors.fetch_add(1, Ordering::Relaxed);
        tracing::error!(target = %self.path.display(), chunk = %id, off, len, "read: {e}");
        self.error(ErrorKind::Io, id, &format!("could not be read: {e}"))
    }
}

/// Keeps the chunk's space from being reused.
pub(super) struct Reading<'a> {
    core: &'a Core,
    id: ChunkId,
}

impl<'a> Reading<'a> {
    pub(super) fn enter(core: &'a Core, id: ChunkId) -> Self {
        core.readers.enter(id);
        Self { core, id }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let free = self.core.readers.leave(self.id);
        if !free.is_empty() {
            self.core.discard.give(&free);
        }
    }
}

pub(super) fn check_payload(id: ChunkId, data: &[u8], checksums: &[u32]) -> Result<()> {
    let bad = |what: String| Err(Error::new(ErrorKind::Invalid, format!("chunk {id}: {what}")));
    let len = data.len() as u64;
    if len == 0 || len > layout::MAX_CHUNK || !len.is_multiple_of(BLOCK) {
        let max = layout::MAX_CHUNK;
        return bad(format!("{len} bytes are not a multiple of {BLOCK} from {BLOCK} to {max}"));
    }
    if checksums.len() as u64 != len / BLOCK {
        return bad(format!("{} checksums for {} blocks", checksums.len(), len / BLOCK));
    }
    weft_erasure::verify_blocks(data, checksums).map_err(|block| {
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "chunk {id}: block {block} does not match its checksum; it was damaged on its way"
            ),
        )
    })
}

/// The same bytes at an address that O_DIRECT takes. Frames arrive so; others are copied.
fn aligned(data: Bytes) -> Bytes {
    if data.as_ptr().addr().is_multiple_of(BLOCK as usize) {
        return data;
    }
    static COPIES: AtomicU64 = AtomicU64::new(0);
    if COPIES.fetch_add(1, Ordering::Relaxed) == 0 {
        tracing::debug!("payload is not aligned and is copied");
    }
    let mut buffer = AlignedBuf::take(data.len());
    buffer.as_mut_slice().copy_from_slice(&data);
    buffer.into()
}

pub(super) async fn run_to_end<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::spawn(work).await.unwrap_or_else(|e| Err(Error::new(ErrorKind::Internal, e.to_string())))
}
