//! The index `chunk → place, length, checksums`: RocksDB without a log of its own (the journal on
//! the target is its log), and a bounded cache of decoded entries in front.
//!
//! Invariants: each batch of changes carries the number of its journal record, in one atomic write,
//! so that what survives a crash says itself from where to replay. An entry in the cache equals the
//! one in RocksDB, but for a moment after a delete, when a lookup was under way: see
//! [`Index::get_newest`].

use super::entry::{JournalEntry, Place, take_u64};
use super::room::Room;
use super::scrub::Scrub;
use super::waits::Waits;
use quick_cache::{Weighter, sync::Cache};
use rocksdb::{
    BlockBasedOptions, Cache as BlockCache, DB, Direction, ErrorKind as Kind, IteratorMode,
    LogLevel, Options, ReadOptions, ReadTier, WriteBatch, WriteOptions,
};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weft_proto::{ChunkId, Error, ErrorKind, Result, SegmentId, SessionId, Uuid};

/// Uuid of the target. Written last when the index is made, so that a half-made one is noticed.
const TARGET: &[u8] = b"m/target";
/// Last journal record that the index holds, and the greatest stamp in it: u64 each, little-endian.
const APPLIED: &[u8] = b"m/applied";
/// Blocks that the drive cannot read: u64 each, little-endian, ascending.
const UNREADABLE: &[u8] = b"m/unreadable";
/// How far a scrub has come: [`Scrub::encode`].
const SCRUB: &[u8] = b"m/scrub";
/// Chunks that are damaged, as far as they were met.
const DAMAGED: &[u8] = b"m/damaged";
/// It is there if the drive could not make durable what this index was made of.
const UNFLUSHED: &[u8] = b"m/unflushed";
const CHUNK: u8 = b'c';
/// The file that names the one with which the index begins.
const CURRENT: &str = "CURRENT";
const BLOCK_CACHE: usize = 32 << 20;
const ENTRY_CACHE: u64 = 32 << 20;

pub(super) struct Index {
    db: DB,
    cache: Cache<ChunkId, Arc<JournalEntry>, Weight>,
    /// Grows with each delete; tells a lookup that what it read may be stale.
    deletes: AtomicU64,
    path: String,
    /// Who waits for its drive, which need not be the target's own.
    pub waits: Arc<Waits>,
    pub room: Arc<Room>,
}

/// Distance by which put numbers jump at each start, durably: more than the puts that can be under
/// way at a crash.
pub(super) const STAMP_JUMP: u64 = 1 << 20;

/// How far the index has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Applied {
    pub record: u64,
    pub stamp: u64,
}

/// A change of the index.
pub(super) enum Change {
    Put(ChunkId, Arc<JournalEntry>),
    Delete(ChunkId),
}

pub(super) enum Opened {
    Ready(Box<Index>, Applied),
    /// There is none, or only a part: it must be rebuilt.
    Lost,
}

#[derive(Clone)]
struct Weight;
impl Weighter<ChunkId, Arc<JournalEntry>> for Weight {
    fn weight(&self, _: &ChunkId, entry: &Arc<JournalEntry>) -> u64 {
        entry.weight()
    }
}

impl Index {
    /// Opens the index of target `uuid`; one that is damaged counts as lost. Errors: it is another
    /// target's, in use, or unreadable.
    pub fn open(path: &Path, uuid: Uuid) -> Result<Opened> {
        match Self::open_whole(path, uuid) {
            Err(e) if e.kind == ErrorKind::Corrupt => {
                tracing::error!("{e}");
                Ok(Opened::Lost)
            }
            opened => opened,
        }
    }

    fn open_whole(path: &Path, uuid: Uuid) -> Result<Opened> {
        if !exists(path)? {
            return Ok(Opened::Lost);
        }
        let db =
            DB::open(&options(false), path).map_err(|e| failed(&path.to_string_lossy(), &e))?;
        let index = Self::with(db, path);
        let Some(owner) = index.meta(TARGET)? else { return Ok(Opened::Lost) };
        if owner != uuid.0 {
            let owner = Uuid::from_slice(&owner).unwrap_or_default();
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "index {} belongs to target {owner}, not to {uuid}; give each target its own, \
                     or remove it to have it rebuilt",
                    path.display()
                ),
            ));
        }
        let applied = index.meta(APPLIED)?;
        match applied.as_deref().and_then(decode_applied) {
            Some(applied) => Ok(Opened::Ready(Box::new(index), applied)),
            None => Ok(Opened::Lost),
        }
    }

    /// The target whose index is there. `None`: there is none, or one that counts as lost.
    pub fn owner(path: &Path) -> Result<Option<Uuid>> {
        if !exists(path)? {
            return Ok(None);
        }
        // Without its lock: a daemon may have it open.
        let look = || DB::open_for_read_only(&options(false), path, false)?.get(TARGET);
        match look() {
            Ok(owner) => Ok(owner.and_then(|uuid| Uuid::from_slice(&uuid))),
            Err(e) if e.kind() == Kind::Corruption => Ok(None),
            Err(e) => Err(failed(&path.to_string_lossy(), &e)),
        }
    }

    /// Makes an empty index; what was there, and is lost, is removed. It counts as lost until
    /// [`Self::seal`].
    pub fn create(path: &Path) -> Result<Self> {
        let name = path.to_string_lossy();
        let io = |e| Error::new(ErrorKind::Io, format!("index {name}: {e}"));
        // First and durably: of one that is removed in part nobody could say whether it is whole.
        match fs::remove_file(path.join(CURRENT)) {
            Ok(()) => File::open(path).and_then(|folder| folder.sync_all()).map_err(io)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(io(e)),
        }
        Self::remove(path)?;
        let db = DB::open(&options(true), path).map_err(|e| failed(&name, &e))?;
        // RocksDB syncs what is in the folder: one that is gone after a power cut would be waited
        // for, as one whose filesystem is not mounted yet.
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        File::open(above.unwrap_or(Path::new(".")))
            .and_then(|folder| folder.sync_all())
            .map_err(io)?;
        Ok(Self::with(db, path))
    }

    /// Removes an index, or what is left of one.
    pub fn remove(path: &Path) -> Result<()> {
        let name = path.to_string_lossy();
        let there = path.try_exists();
        if !there.map_err(|e| Error::new(ErrorKind::Io, format!("index {name}: {e}")))? {
            return Ok(());
        }
        DB::destroy(&Options::default(), path).map_err(|e| {
            let why = failed(&name, &e);
            let what =
                format!("{}; a storage daemon that has it open is to be stopped", why.message);
            Error::new(why.kind, what)
        })
    }

    fn with(db: DB, path: &Path) -> Self {
        Self {
            db,
            cache: Cache::with_weighter(64 << 10, ENTRY_CACHE, Weight),
            deletes: AtomicU64::new(0),
            path: path.to_string_lossy().into_owned(),
            waits: Arc::default(),
            room: Arc::new(Room::new(path)),
        }
    }

    /// Marks a new index as complete, durably.
    pub fn seal(&self, uuid: Uuid, applied: Applied) -> Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(APPLIED, encode_applied(applied));
        batch.put(TARGET, uuid.0);
        self.write(batch)?;
        self.flush()
    }

    /// Blocks of the drive that could not be read when this index was made or brought up to date.
    /// They are used no more.
    pub fn unreadable(&self) -> Result<BTreeSet<u64>> {
        let found = self.meta(UNREADABLE)?.unwrap_or_default();
        let (blocks, rest) = found.as_chunks();
        if !rest.is_empty() {
            let what = format!("index {}: its list of bad blocks is damaged", self.path);
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        Ok(blocks.iter().map(|&block| u64::from_le_bytes(block)).collect())
    }

    /// Sets what [`Self::unreadable`] answers; durable with the next changes that are.
    pub fn set_unreadable(&self, blocks: &BTreeSet<u64>) -> Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(
            UNREADABLE,
            blocks.iter().flat_map(|block| block.to_le_bytes()).collect::<Vec<_>>(),
        );
        self.write(batch)
    }

    /// Whether this index was made of what the drive may have lost since.
    pub fn is_unflushed(&self) -> Result<bool> {
        Ok(self.meta(UNFLUSHED)?.is_some())
    }

    /// Has [`Self::is_unflushed`] say so; durable with the next changes that are.
    pub fn note_unflushed(&self) -> Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(UNFLUSHED, []);
        self.write(batch)
    }

    /// How far a scrub has come. What cannot be understood, as of a later version, begins anew.
    pub fn scrub(&self) -> Result<Scrub> {
        Ok(self.meta(SCRUB)?.and_then(|found| Scrub::decode(&found)).unwrap_or_default())
    }

    /// What was damaged when that was put down.
    pub fn damaged(&self) -> Result<Vec<ChunkId>> {
        let found = self.meta(DAMAGED)?.unwrap_or_default();
        // Of what cannot be understood nothing is known.
        Ok(found.as_chunks().0.iter().map(ChunkId::from_bytes).collect())
    }

    /// Sets what [`Self::scrub`] and [`Self::damaged`] answer; durable with the next changes that
    /// are.
    pub fn set_scrub(&self, scrub: Scrub, damaged: &[ChunkId]) -> Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(SCRUB, scrub.encode());
        batch.put(DAMAGED, damaged.iter().flat_map(|id| id.to_bytes()).collect::<Vec<_>>());
        self.write(batch)
    }

    /// Makes changes visible; durable only after [`Self::flush`].
    pub fn apply(&self, changes: &[Change], applied: Applied) -> Result<()> {
        let mut batch = WriteBatch::default();
        for change in changes {
            match change {
                Change::Put(id, entry) => batch.put(key(*id), entry.encode()),
                Change::Delete(id) => batch.delete(key(*id)),
            }
        }
        batch.put(APPLIED, encode_applied(applied));
        self.write(batch)?;
        for change in changes {
            match change {
                Change::Put(id, entry) => self.cache.insert(*id, entry.clone()),
                Change::Delete(id) => {
                    self.deletes.fetch_add(1, Ordering::SeqCst);
                    self.cache.remove(id);
                }
            }
        }
        Ok(())
    }

    /// Makes everything applied so far durable. Blocks.
    pub fn flush(&self) -> Result<()> {
        self.db.flush().map_err(|e| failed(&self.path, &e))
    }

    /// Looks a chunk up without waiting for the disk: `None` if that is not possible.
    pub fn get_cached(&self, id: ChunkId) -> Result<Option<Option<Arc<JournalEntry>>>> {
        if let Some(entry) = self.cache.get(&id) {
            return Ok(Some(Some(entry)));
        }
        let mut tier = ReadOptions::default();
        tier.set_read_tier(ReadTier::BlockCache);
        match self.read(id, &tier) {
            Ok(found) => found.map(Some),
            Err(e) if e.kind() == Kind::Incomplete => Ok(None),
            Err(e) => Err(failed(&self.path, &e)),
        }
    }

    /// Looks a chunk up in the database itself, for who must not be told of what was deleted just
    /// now. May block on the disk.
    pub fn get_newest(&self, id: ChunkId) -> Result<Option<Arc<JournalEntry>>> {
        let _wait = self.waits.begin();
        self.read(id, &ReadOptions::default()).map_err(|e| failed(&self.path, &e))?
    }

    /// Looks a chunk up. May block on the disk.
    pub fn get(&self, id: ChunkId) -> Result<Option<Arc<JournalEntry>>> {
        if let Some(entry) = self.cache.get(&id) {
            return Ok(Some(entry));
        }
        self.get_newest(id)
    }

    fn read(
        &self,
        id: ChunkId,
        options: &ReadOptions,
    ) -> Result<Result<Option<Arc<JournalEntry>>>, rocksdb::Error> {
        let deletes = self.deletes.load(Ordering::SeqCst);
        let Some(value) = self.db.get_pinned_opt(key(id), options)? else { return Ok(Ok(None)) };
        let Some(entry) = JournalEntry::decode(&value) else {
            return Ok(Err(self.damaged_entry(id)));
        };
        let entry = Arc::new(entry);
        self.cache.insert(id, entry.clone());
        if self.deletes.load(Ordering::SeqCst) != deletes {
            self.cache.remove(&id);
        }
        Ok(Ok(Some(entry)))
    }

    /// Calls `each` for all chunks in id order until it fails. Entries that cannot be read are an
    /// error. Blocks.
    pub fn each(&self, mut each: impl FnMut(ChunkId, Place) -> Result<()>) -> Result<()> {
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        options.set_readahead_size(2 << 20);
        let from = [CHUNK];
        let start = IteratorMode::From(&from, Direction::Forward);
        for item in self.db.iterator_opt(start, options) {
            let (key, value) = item.map_err(|e| failed(&self.path, &e))?;
            let Some(id) = parse_key(&key) else { break };
            // All of it: who opens a target goes by this.
            let entry = JournalEntry::decode(&value).ok_or_else(|| self.damaged_entry(id))?;
            each(id, entry.place)?;
        }
        Ok(())
    }

    /// Up to `limit` chunks after `after`, of one session or of all, and whether there are more.
    /// Blocks.
    pub fn list(
        &self,
        after: Option<ChunkId>,
        session: Option<SessionId>,
        limit: usize,
    ) -> Result<(Vec<(ChunkId, u64)>, bool)> {
        let first =
            session.map(|session| ChunkId { segment: SegmentId { session, seq: 0 }, shard: 0 });
        let from = match after.max(first) {
            Some(id) => key(id).to_vec(),
            None => vec![CHUNK],
        };
        let mut items = Vec::new();
        let mut wait = self.waits.begin();
        for item in self.db.iterator(IteratorMode::From(&from, Direction::Forward)) {
            wait.goes_on();
            let (key, value) = item.map_err(|e| failed(&self.path, &e))?;
            let Some(id) = parse_key(&key) else { break };
            if Some(id) <= after {
                continue;
            }
            if session.is_some_and(|s| s != id.segment.session) {
                break;
            }
            if items.len() == limit {
                return Ok((items, true));
            }
            let length = JournalEntry::decode_place(&mut &value[..]).map_or(0, |p| p.length);
            items.push((id, length));
        }
        Ok((items, false))
    }

    fn damaged_entry(&self, id: ChunkId) -> Error {
        let what = format!("index {}: the entry of chunk {id} is damaged", self.path);
        Error::new(ErrorKind::Corrupt, what)
    }

    fn meta(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.db.get(key).map_err(|e| failed(&self.path, &e))
    }

    fn write(&self, batch: WriteBatch) -> Result<()> {
        let _wait = self.waits.begin();
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        self.db.write_opt(batch, &options).map_err(|e| failed(&self.path, &e))
    }
}

/// Whether there is an index: the file that names what it begins with, and that. Errors: nobody can
/// say.
fn exists(path: &Path) -> Result<bool> {
    let look = || match fs::read(path.join(CURRENT)) {
        Ok(begins) => path.join(OsStr::from_bytes(begins.trim_ascii())).try_exists(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    };
    match look() {
        // No name at all.
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(false),
        found => {
            found.map_err(|e| Error::new(ErrorKind::Io, format!("index {}: {e}", path.display())))
        }
    }
}

fn options(create: bool) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&BlockCache::new_lru_cache(BLOCK_CACHE));
    table.set_bloom_filter(10.0, false);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    let mut options = Options::default();
    options.create_if_missing(create);
    options.set_block_based_table_factory(&table);
    options.set_write_buffer_size(16 << 20);
    options.set_max_write_buffer_number(4);
    options.set_max_background_jobs(2);
    options.set_max_open_files(256);
    options.set_keep_log_file_num(2);
    options.set_log_level(LogLevel::Warn);
    options.set_bytes_per_sync(1 << 20);
    options
}

pub(super) fn key(id: ChunkId) -> [u8; 1 + ChunkId::LEN] {
    let mut key = [CHUNK; 1 + ChunkId::LEN];
    key[1..].copy_from_slice(&id.to_bytes());
    key
}

pub(super) fn parse_key(key: &[u8]) -> Option<ChunkId> {
    let (&kind, id) = key.split_first()?;
    (kind == CHUNK).then_some(())?;
    id.try_into().ok().map(|id| ChunkId::from_bytes(&id))
}

fn encode_applied(applied: Applied) -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&applied.record.to_le_bytes());
    out[8..].copy_from_slice(&applied.stamp.to_le_bytes());
    out
}

pub(super) fn decode_applied(mut bytes: &[u8]) -> Option<Applied> {
    let (record, stamp) = (take_u64(&mut bytes)?, take_u64(&mut bytes)?);
    bytes.is_empty().then_some(Applied { record, stamp })
}

/// `Corrupt`: it does not read as it was written.
fn failed(path: &str, e: &rocksdb::Error) -> Error {
    let kind = match e.kind() {
        Kind::Corruption => ErrorKind::Corrupt,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("index {path}: {e}"))
}

#[cfg(test)]
mod tests;
