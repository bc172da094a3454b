//! The Raft log on disk: entries, hard state, and where the log begins, in a RocksDB of its own.
//!
//! Keys: `e` + index (big-endian) is an entry; `h` the hard state; `c` the configuration; `t` the
//! position before the first entry; `i` the position of a snapshot that is being installed; `l` is
//! there if the log lost entries that others count on. Invariants: a log is made once, and never in
//! place of one that is missing; entries are contiguous from `t` + 1; [`LogDb::write`] is one
//! atomic batch, on disk when it returns if any of it must be; a crash in the middle of an
//! installation is finished or undone by [`LogDb::recover`].

use super::unread::Unread;
use crate::folder::MOVE_AWAY;
use raft::eraftpb::{ConfState, Entry, HardState};
use raft_prost::Message as _;
use rocksdb::{DB, DBRecoveryMode, IteratorMode, Options, ReadOptions, WriteBatch, WriteOptions};
use std::path::Path;
use weft_proto::planted::{self, Bug};
use weft_proto::{Error, ErrorKind, Result};

const HARD_STATE: &[u8] = b"h";
const CONF_STATE: &[u8] = b"c";
const TRUNCATED: &[u8] = b"t";
const INSTALLING: &[u8] = b"i";
const LOST: &[u8] = b"l";
/// Size of a segment of RocksDB's own log; a few are reused, so that a sync need not grow a file.
const WAL_FILE: usize = 32 << 20;

/// A place in the log: the index and the term of the entry there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Position {
    pub index: u64,
    pub term: u64,
}

impl Position {
    fn to_bytes(self) -> [u8; 16] {
        let mut b = [0; 16];
        b[..8].copy_from_slice(&self.index.to_be_bytes());
        b[8..].copy_from_slice(&self.term.to_be_bytes());
        b
    }

    fn from_bytes(b: &[u8]) -> Result<Self> {
        let b: [u8; 16] = b.try_into().map_err(|_| damaged("a position has a wrong length"))?;
        let v = u128::from_be_bytes(b);
        Ok(Self { index: (v >> 64) as u64, term: v as u64 })
    }
}

/// One change of the log, in the order that Raft made it.
#[derive(Default, Debug)]
pub struct Append {
    pub entries: Vec<Entry>,
    pub hard_state: Option<HardState>,
    /// Entries after the last of `entries` up to this index are from a lost term: removed.
    pub old_last: u64,
    /// The log now begins after this position.
    pub truncate: Option<Position>,
    /// Whether anyone will be told that this is durable.
    pub sync: bool,
}

/// The log's database.
pub struct LogDb {
    db: DB,
}

/// What [`LogDb::recover`] found.
pub struct Recovered {
    pub hard_state: HardState,
    pub conf_state: ConfState,
    pub truncated: Position,
    pub last: Position,
}

impl LogDb {
    /// Makes the log of a group with these servers, durably, with what its server has promised so
    /// far.
    pub fn make(dir: &Path, conf_state: &ConfState, hard_state: &HardState) -> Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(CONF_STATE, conf_state.encode_to_vec());
        batch.put(HARD_STATE, hard_state.encode_to_vec());
        Self::open_or(dir, true)?.write_synced(batch)
    }

    /// Opens the log in a folder.
    pub fn open(dir: &Path) -> Result<Self> {
        Self::open_or(dir, false)
    }

    fn open_or(dir: &Path, make: bool) -> Result<Self> {
        let mut options = Options::default();
        options.create_if_missing(make);
        options.set_write_buffer_size(WAL_FILE);
        options.set_max_write_buffer_number(4);
        options.set_recycle_log_file_num(4);
        options.set_max_background_jobs(2);
        options.set_keep_log_file_num(4);
        options.set_compression_type(rocksdb::DBCompressionType::Lz4);
        // A recycled file has old records after the torn one; stopping at the first that does not
        // fit keeps a prefix, and whatever was acknowledged lies in the synced prefix.
        options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
        // An empty log in place of a lost one would have its server forget what it promised.
        let db = DB::open(&options, dir).map_err(|e| {
            let what = format!("raft log {}: {e}; if it is lost, {MOVE_AWAY}", dir.display());
            Error::new(ErrorKind::Io, what)
        })?;
        Ok(Self { db })
    }

    /// What the log holds. `applied` is the state machine's index: if a snapshot was being
    /// installed, it tells whether the state had been replaced.
    pub fn recover(&self, applied: u64) -> Result<Recovered> {
        if self.get(LOST)?.is_some() {
            return Err(damaged(&format!("it lost entries that others count on: {MOVE_AWAY}")));
        }
        if let Some(at) = self.get(INSTALLING)? {
            let at = Position::from_bytes(&at)?;
            if applied >= at.index {
                self.reset(at)?;
            } else {
                self.db.delete(INSTALLING).map_err(|e| failed(&e))?;
            }
        }
        let mut hard_state = match self.get(HARD_STATE)? {
            Some(b) => HardState::decode(&b[..]).map_err(|e| damaged(&e.to_string()))?,
            None => HardState::default(),
        };
        let conf_state = match self.get(CONF_STATE)? {
            Some(b) => ConfState::decode(&b[..]).map_err(|e| damaged(&e.to_string()))?,
            None => return Err(damaged(&format!("it names no servers: {MOVE_AWAY}"))),
        };
        let truncated = match self.get(TRUNCATED)? {
            Some(b) => Position::from_bytes(&b)?,
            None => Position::default(),
        };
        let last = self.last()?.filter(|l| l.index > truncated.index).unwrap_or(truncated);
        if applied > last.index {
            return Err(damaged(&format!(
                "the state has applied entry {applied}, the log ends at {}: acknowledged entries \
                 are lost; {MOVE_AWAY}",
                last.index
            )));
        }
        if applied < truncated.index {
            return Err(damaged(&format!(
                "the state has applied entry {applied}, the log begins after {}: the state is \
                 lost or an old one; {MOVE_AWAY}",
                truncated.index
            )));
        }
        // The commit index is not synced on its own; what was applied was committed.
        hard_state.commit = hard_state.commit.max(applied).max(truncated.index);
        Ok(Recovered { hard_state, conf_state, truncated, last })
    }

    fn last(&self) -> Result<Option<Position>> {
        let mode = IteratorMode::From(b"f", rocksdb::Direction::Reverse);
        match self.db.iterator(mode).next() {
            Some(item) => {
                let (key, value) = item.map_err(|e| failed(&e))?;
                if key.first() != Some(&b'e') {
                    return Ok(None);
                }
                let unread = |e: Error| damaged(&format!("its last entry: {e}; {MOVE_AWAY}"));
                let entry = decode(&value).map_err(unread)?;
                Ok(Some(Position { index: entry.index, term: entry.term }))
            }
            None => Ok(None),
        }
    }

    /// Writes several changes as one batch.
    pub fn write(&self, changes: &[Append]) -> Result<()> {
        let mut batch = WriteBatch::default();
        let mut buffer = Vec::new();
        for change in changes {
            for entry in &change.entries {
                buffer.clear();
                entry.encode(&mut buffer).map_err(|e| damaged(&e.to_string()))?;
                batch.put(entry_key(entry.index), &buffer);
            }
            if let Some(last) = change.entries.last()
                && change.old_last > last.index
            {
                batch.delete_range(entry_key(last.index + 1), entry_key(change.old_last + 1));
            }
            if let Some(hard_state) = &change.hard_state {
                batch.put(HARD_STATE, hard_state.encode_to_vec());
            }
            if let Some(at) = change.truncate {
                batch.put(TRUNCATED, at.to_bytes());
                batch.delete_range(entry_key(0), entry_key(at.index + 1));
            }
        }
        let mut options = WriteOptions::default();
        let synced = changes.iter().any(|c| c.sync);
        options.set_sync(synced && !planted::is(Bug::LogUnsynced));
        self.db.write_opt(batch, &options).map_err(|e| failed(&e))
    }

    /// Notes, durably, that the log lost entries that others count on: it is not opened again.
    pub fn condemn(&self) -> Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(LOST, []);
        self.write_synced(batch)
    }

    /// Announces that the state is about to be replaced by a snapshot at `at`, durably.
    pub fn begin_install(&self, at: Position) -> Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(INSTALLING, at.to_bytes());
        self.write_synced(batch)
    }

    /// Empties the log: it goes on after `at`. Ends an installation.
    pub fn reset(&self, at: Position) -> Result<()> {
        let mut batch = WriteBatch::default();
        batch.delete_range(entry_key(0), entry_key(u64::MAX));
        batch.put(TRUNCATED, at.to_bytes());
        batch.delete(INSTALLING);
        self.write_synced(batch)
    }

    /// Entries `[low, high)` in order, as many as fit in `max_bytes`, at least one. Error: the
    /// first that is missing or does not read.
    pub fn entries(&self, low: u64, high: u64, max_bytes: u64) -> Result<Vec<Entry>, Unread> {
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(entry_key(high));
        let from = entry_key(low);
        let mut entries = Vec::new();
        let mut bytes = 0;
        for item in
            self.db.iterator_opt(IteratorMode::From(&from, rocksdb::Direction::Forward), options)
        {
            let index = low + entries.len() as u64;
            let unread = |why| Unread { index, why };
            let (_, value) = item.map_err(|e| unread(failed(&e)))?;
            bytes += value.len() as u64;
            if bytes > max_bytes && !entries.is_empty() {
                break;
            }
            let entry = decode(&value).map_err(unread)?;
            if entry.index != index {
                return Err(missing(index));
            }
            entries.push(entry);
        }
        if entries.is_empty() && low < high { Err(missing(low)) } else { Ok(entries) }
    }

    /// The term of the entry at `index`, which the log has. Error: it is missing or does not read.
    pub fn term(&self, index: u64) -> Result<u64, Unread> {
        let unread = |why| Unread { index, why };
        let bytes = self.get(&entry_key(index)).map_err(unread)?.ok_or_else(|| missing(index))?;
        Ok(decode(&bytes).map_err(unread)?.term)
    }

    /// What a drive or a memory does to an entry.
    #[cfg(test)]
    pub(crate) fn damage(&self, index: u64) {
        self.db.put(entry_key(index), b"\xff").unwrap();
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.db.get(key).map_err(|e| failed(&e))
    }

    fn write_synced(&self, batch: WriteBatch) -> Result<()> {
        let mut options = WriteOptions::default();
        options.set_sync(true);
        self.db.write_opt(batch, &options).map_err(|e| failed(&e))
    }
}

fn entry_key(index: u64) -> [u8; 9] {
    let mut key = [b'e'; 9];
    key[1..].copy_from_slice(&index.to_be_bytes());
    key
}

pub(crate) fn decode(bytes: &[u8]) -> Result<Entry> {
    Entry::decode(bytes).map_err(|e| damaged(&e.to_string()))
}

fn failed(e: &rocksdb::Error) -> Error {
    Error::new(ErrorKind::Io, format!("raft log: {e}"))
}

fn missing(index: u64) -> Unread {
    Unread { index, why: damaged("it is missing") }
}

fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("raft log: {what}"))
}
