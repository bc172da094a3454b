//! RocksDB as the store, and the directory it lives in.
//!
//! The directory holds `db-N` and the file `current`, which names the one that counts; installing
//! a checkpoint moves it beside the old one and then replaces `current`, so that a crash leaves
//! either the old store or the new one. The write-ahead log is written but not synced: the Raft log
//! is the durable one, and what a power cut takes from this store is replayed from there.

use super::read::{Changes, Read, StoreError, StoreResult, Visit};
use bytes::Bytes;
use parking_lot::RwLock;
use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, DB, DBCompressionType, Options, ReadOptions,
    SliceTransform, WriteBatch, checkpoint::Checkpoint,
};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_net::buggify;

/// Keys of one inode, directory or session share this many bytes: shard, tag, id.
const PREFIX: usize = 11;
const CURRENT: &str = "current";

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
    options.set_max_background_jobs(2);
    options.set_max_open_files(4096);
    options.set_keep_log_file_num(4);
    // Which files a checkpoint has, and so how long it takes to send it, a thread would decide.
    options.set_disable_auto_compactions(buggify::is_seeded());
    options
}

impl Rocks {
    fn open(path: PathBuf, cache_bytes: usize, create: bool) -> StoreResult<Self> {
        let db = DB::open(&options(cache_bytes, create), &path)
            .map_err(|e| StoreError::io(format!("cannot open {}: {e}", path.display())))?;
        Ok(Self { db, dir: Dir { path, obsolete: AtomicBool::new(false) } })
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
    ) -> StoreResult<[Option<Bytes>; N]> {
        Checkpoint::new(&self.db)?.create_checkpoint(dir)?;
        // The writer may have gone on: only the copy knows which moment it is of.
        let copy = DB::open_for_read_only(&options(1 << 20, false), dir, false)?;
        let mut values = [const { None }; N];
        for (value, key) in values.iter_mut().zip(keys) {
            *value = copy.get(key)?.map(Bytes::from);
        }
        Ok(values)
    }
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

/// The directory of a state machine's store, and the database in it that counts.
pub(crate) struct Home {
    dir: PathBuf,
    cache_bytes: usize,
    current: RwLock<Arc<Rocks>>,
}

impl Home {
    /// Opens the store in `dir`, creating both if they do not exist.
    pub(crate) fn open(dir: &Path, cache_bytes: usize) -> StoreResult<Self> {
        let failed = |e: std::io::Error| StoreError::io(format!("{}: {e}", dir.display()));
        fs::create_dir_all(dir).map_err(failed)?;
        let named = named(dir)?;
        // Only a directory that never had a store gets a new one: an empty store in place of a lost
        // one would pass for a state in which nothing ever happened.
        let (name, create) = named.map_or(("db-0".into(), true), |name| (name, false));
        let path = dir.join(&name);
        if create && path.try_exists().map_err(failed)? {
            // Of a first start that was cut short. Fails while it goes on.
            DB::destroy(&Options::default(), &path)?;
        }
        // This locks the store. Another process may use it until then, and install a database.
        let rocks = Rocks::open(path, cache_bytes, create)?;
        if !create && self::named(dir)?.as_ref() != Some(&name) {
            return Err(StoreError::io(format!("another process uses {}", dir.display())));
        }
        remove_others(dir, &name).map_err(failed)?;
        if create {
            point_to(dir, &name).map_err(failed)?;
        }
        Ok(Self { dir: dir.to_path_buf(), cache_bytes, current: RwLock::new(Arc::new(rocks)) })
    }

    pub(crate) fn current(&self) -> Arc<Rocks> {
        self.current.read().clone()
    }

    /// Installs the checkpoint in `from`, on the same filesystem, which is moved here. On an error
    /// the old store stays.
    pub(crate) fn replace(
        &self,
        from: &Path,
        accept: &dyn Fn(&dyn Read) -> StoreResult<()>,
    ) -> StoreResult<()> {
        let old = self.current();
        let next =
            old.dir.path.file_name().and_then(|n| n.to_str()).and_then(number).unwrap_or(0) + 1;
        let name = format!("db-{next}");
        let path = self.dir.join(&name);
        let failed = |e: std::io::Error| {
            StoreError::io(format!("cannot install {} as {}: {e}", from.display(), path.display()))
        };
        for entry in fs::read_dir(from).map_err(failed)? {
            fs::File::open(entry.map_err(failed)?.path())
                .and_then(|f| f.sync_all())
                .map_err(failed)?;
        }
        fs::rename(from, &path).map_err(failed)?;
        let new = Rocks::open(path.clone(), self.cache_bytes, false).and_then(|new| {
            accept(&new)?;
            Ok(new)
        });
        let new = match new {
            Ok(new) => new,
            Err(e) => {
                let _ = fs::remove_dir_all(&path);
                return Err(e);
            }
        };
        point_to(&self.dir, &name).map_err(failed)?;
        *self.current.write() = Arc::new(new);
        old.dir.obsolete.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// The name of the database that counts, if there is one.
fn named(dir: &Path) -> StoreResult<Option<String>> {
    let file = dir.join(CURRENT);
    let at = file.display();
    match fs::read_to_string(&file) {
        Ok(name) if number(&name).is_some() => Ok(Some(name)),
        Ok(name) => Err(StoreError::corrupt(format!("{at} names {name:?}, not a database"))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(StoreError::io(format!("{at}: {e}"))),
    }
}

/// Removes databases that do not count: what a crash left of an installation.
fn remove_others(dir: &Path, current: &str) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|n| number(n).is_some() && n != current) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// The number of a database's directory name.
fn number(name: &str) -> Option<u64> {
    name.strip_prefix("db-")?.parse().ok()
}

/// Makes `name` the database that counts, durably.
fn point_to(dir: &Path, name: &str) -> std::io::Result<()> {
    let temporary = dir.join("current.new");
    let mut file = fs::File::create(&temporary)?;
    file.write_all(name.as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, dir.join(CURRENT))?;
    fs::File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests;
