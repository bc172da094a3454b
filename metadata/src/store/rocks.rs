//! RocksDB as the store. The write-ahead log stays in memory until there is a MiB of it, or a sync:
//! the Raft log is the durable one, and what a crash takes from this store is replayed from there.

use super::read::{Changes, Read, StoreError, StoreResult, Told, Unreadable, Visit};
use bytes::Bytes;
use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, DB, DBCompressionType, ErrorKind, IteratorMode,
    Options, ReadOptions, SliceTransform, WriteBatch, checkpoint::Checkpoint,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use weft_net::buggify;

/// Keys of one inode, directory or session share this many bytes: shard, tag, id.
const PREFIX: usize = 11;

impl From<rocksdb::Error> for StoreError {
    fn from(e: rocksdb::Error) -> Self {
        Self::io(e)
    }
}

/// One open database.
pub(crate) struct Rocks {
    db: DB,
    // Declared after `db`: the files go only after the database is closed.
    dir: Dir,
}

/// A database's directory, removed once nobody uses it if it was replaced.
struct Dir {
    path: PathBuf,
    obsolete: AtomicBool,
}

impl Drop for Dir {
    fn drop(&mut self) {
        if self.obsolete.load(Ordering::Relaxed) {
            // What is left behind is removed at the next start.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn options(cache_bytes: usize, create: bool) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(cache_bytes));
    table.set_block_size(8 << 10);
    table.set_bloom_filter(10.0, false);
    table.set_whole_key_filtering(true);
    // Index and filters are cut in pieces: whole ones, megabytes for a large file, would not fit
    // in a part of the cache and be read from disk for every get.
    table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    table.set_partition_filters(true);
    table.set_pin_top_level_index_and_filter(true);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_format_version(5);

    let mut options = Options::default();
    options.create_if_missing(create);
    options.set_block_based_table_factory(&table);
    options.set_prefix_extractor(SliceTransform::create_fixed_prefix(PREFIX));
    options.set_memtable_prefix_bloom_ratio(0.05);
    options.set_memtable_whole_key_filtering(true);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_write_buffer_size(32 << 20);
    options.set_max_write_buffer_number(3);
    options.set_max_total_wal_size(256 << 20);
    options.set_manual_wal_flush(true);
    options.set_max_background_jobs(2);
    options.set_max_open_files(4096);
    options.set_keep_log_file_num(4);
    // Which files a checkpoint has, and so how long it takes to send it, a thread would decide.
    options.set_disable_auto_compactions(buggify::is_seeded());
    options
}

impl Rocks {
    pub(super) fn open(path: PathBuf, cache_bytes: usize, create: bool) -> StoreResult<Self> {
        let db = DB::open(&options(cache_bytes, create), &path)
            .map_err(|e| StoreError::io(format!("cannot open {}: {e}", path.display())))?;
        Ok(Self { db, dir: Dir { path, obsolete: AtomicBool::new(false) } })
    }

    /// A copy, of which a little is looked at and nothing changed.
    pub(crate) fn open_copy(path: PathBuf) -> StoreResult<Self> {
        let db = DB::open_for_read_only(&options(SMALL_CACHE, false), &path, false)
            .map_err(|e| StoreError::io(format!("cannot open {}: {e}", path.display())))?;
        Ok(Self { db, dir: Dir { path, obsolete: AtomicBool::new(false) } })
    }

    /// Removes what there is of a database, unless it is open.
    pub(super) fn destroy(path: &Path) -> StoreResult<()> {
        Ok(DB::destroy(&Options::default(), path)?)
    }

    pub(super) fn is_empty(&self) -> StoreResult<bool> {
        Ok(self.db.iterator(IteratorMode::Start).next().transpose()?.is_none())
    }

    /// Its directory.
    pub(super) fn path(&self) -> &Path {
        &self.dir.path
    }

    /// Its directory is to be removed once nobody uses it.
    pub(super) fn retire(&self) {
        self.dir.obsolete.store(true, Ordering::Relaxed);
    }

    pub(crate) fn view<T>(&self, f: impl FnOnce(&dyn Read) -> T) -> T {
        f(&self.db.snapshot())
    }

    pub(crate) fn write(&self, changes: Changes) -> StoreResult<()> {
        let mut batch = WriteBatch::default();
        for (key, value) in changes {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        Ok(self.db.write(batch)?)
    }

    pub(crate) fn sync(&self) -> StoreResult<()> {
        Ok(self.db.flush_wal(true)?)
    }

    pub(crate) fn checkpoint<const N: usize>(
        &self,
        dir: &Path,
        keys: [&[u8]; N],
    ) -> Result<[Option<Bytes>; N], Unreadable> {
        self.copy(dir, keys).map_err(|e| match is_damage(&e) {
            true => Unreadable { error: StoreError::damaged(e).into(), is_damage: true },
            false => StoreError::from(e).into(),
        })
    }

    fn copy<const N: usize>(
        &self,
        dir: &Path,
        keys: [&[u8]; N],
    ) -> Result<[Option<Bytes>; N], rocksdb::Error> {
        Checkpoint::new(&self.db)?.create_checkpoint(dir)?;
        // The writer may have gone on: only the copy knows which moment it is of.
        let copy = DB::open_for_read_only(&options(SMALL_CACHE, false), dir, false)?;
        let mut values = [const { None }; N];
        for (value, key) in values.iter_mut().zip(keys) {
            *value = copy.get(key)?.map(Bytes::from);
        }
        Ok(values)
    }
}

/// Cache of a database of which all is read once.
const SMALL_CACHE: usize = 1 << 20;
/// Bytes read ahead then.
const READ_AHEAD: usize = 1 << 20;
/// Bytes between two times that it is told how many were read.
const STEP: u64 = 1 << 20;

/// Reads all of a database, and writes nothing. Answers what is damaged. Error: it cannot be read
/// now, or `told` has had enough.
pub(crate) fn verify(dir: &Path, told: &mut Told<'_>) -> StoreResult<Option<String>> {
    match read_all(dir, told) {
        Err(e) if is_damage(&e) => Ok(Some(e.to_string())),
        read => read?.map(|()| None),
    }
}

/// Whether what lies there does not read, and not that this server can read nothing now.
fn is_damage(e: &rocksdb::Error) -> bool {
    // As it calls EIO.
    let failed = "Input/output error";
    matches!(e.kind(), ErrorKind::Corruption) || e.as_ref().contains(failed)
}

/// Reads all of a database, so that every block is held against its checksum, or as much as `told`
/// wants.
fn read_all(dir: &Path, told: &mut Told<'_>) -> Result<StoreResult<()>, rocksdb::Error> {
    let db = DB::open_for_read_only(&options(SMALL_CACHE, false), dir, false)?;
    let mut options = ReadOptions::default();
    options.set_total_order_seek(true);
    options.fill_cache(false);
    options.set_readahead_size(READ_AHEAD);
    let mut at = db.raw_iterator_opt(options);
    at.seek_to_first();
    let mut read = 0;
    while let Some((key, value)) = at.item() {
        read += (key.len() + value.len()) as u64;
        if read >= STEP
            && let Err(e) = told(std::mem::take(&mut read))
        {
            return Ok(Err(StoreError(e)));
        }
        at.next();
    }
    at.status()?;
    Ok(told(read).map_err(StoreError))
}

/// Whether all keys of `[from, to)` begin with the same prefix, so that its bloom filter helps.
fn one_prefix(from: &[u8], to: &[u8]) -> bool {
    let Some(prefix) = from.get(..PREFIX) else { return false };
    to.starts_with(prefix) || super::after(prefix).is_some_and(|end| end == to)
}

fn read_options(from: &[u8], to: &[u8]) -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_total_order_seek(!one_prefix(from, to));
    options.set_iterate_upper_bound(to);
    options
}

fn walk<D: rocksdb::DBAccess>(
    mut at: rocksdb::DBRawIteratorWithThreadMode<'_, D>,
    from: &[u8],
    visit: &mut Visit<'_>,
) -> StoreResult<()> {
    at.seek(from);
    while let Some((key, value)) = at.item() {
        if !visit(key, value)? {
            return Ok(());
        }
        at.next();
    }
    Ok(at.status()?)
}

impl Read for Rocks {
    fn get(&self, key: &[u8]) -> StoreResult<Option<Bytes>> {
        Ok(self.db.get_pinned(key)?.map(|v| Bytes::copy_from_slice(&v)))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> StoreResult<()> {
        if from >= to {
            return Ok(());
        }
        walk(self.db.raw_iterator_opt(read_options(from, to)), from, visit)
    }
}

impl Read for rocksdb::Snapshot<'_> {
    fn get(&self, key: &[u8]) -> StoreResult<Option<Bytes>> {
        Ok(self.get_pinned(key)?.map(|v| Bytes::copy_from_slice(&v)))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> StoreResult<()> {
        if from >= to {
            return Ok(());
        }
        walk(self.raw_iterator_opt(read_options(from, to)), from, visit)
    }
}
