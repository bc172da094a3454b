//! The Raft log as the Raft library reads it: the newest entries in memory, older ones from disk.
//!
//! The library moves on before the disk has the entries it handed out (they are announced as
//! durable later), so it must be able to read them at once: memory holds every entry that is not
//! yet on disk, and a bounded tail of those that are.
//! Invariants: `cache` is contiguous and ends at the last entry; entries below `cache` are on disk.
//!
//! What does not read any more is to the library as if it had been forgotten: whoever needs it is
//! sent a snapshot. What this server itself is to apply yet, and the last that it has applied (who
//! votes says of which term what is committed is), cannot be forgotten, and the library would end
//! the process over it: a log of which that does not read is not opened.

use super::db::{LogDb, Position};
use super::lengths::Lengths;
use super::unread::Unread;
use parking_lot::Mutex;
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use raft_prost::Message as _;
use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_proto::Result;

/// Entries kept in memory for followers that are a little behind.
const CACHE_ENTRIES: usize = 8192;
/// And their bytes.
const CACHE_BYTES: usize = 32 << 20;

/// The log of one server, owned by its event loop.
pub struct LogStorage {
    db: Arc<LogDb>,
    hard_state: HardState,
    conf_state: ConfState,
    truncated: Position,
    last: u64,
    cache: VecDeque<Entry>,
    cache_bytes: usize,
    lengths: Lengths,
    /// A snapshot that is ready to be sent.
    snapshot: Option<Snapshot>,
    /// Set when Raft asked for a snapshot that is not there.
    snapshot_wanted: AtomicBool,
    /// Followers that are sent no snapshot for now.
    resting: BTreeSet<u64>,
    /// What could not be read, until that was heard of.
    unreadable: Mutex<Option<Unread>>,
}

impl LogStorage {
    /// Makes an empty log for a server of the group of `voters` that has promised what `hard_state`
    /// says.
    pub fn make(dir: &Path, voters: Vec<u64>, hard_state: &HardState) -> Result<()> {
        LogDb::make(dir, &ConfState::from((voters, Vec::new())), hard_state)
    }

    /// Opens the log, which must be there. `applied` is the state machine's index.
    pub fn open(dir: &Path, applied: u64) -> Result<Self> {
        let db = LogDb::open(dir)?;
        let found = db.recover(applied)?;
        read_once(&db, applied.max(found.truncated.index + 1), found.last.index)?;
        Ok(Self {
            db: Arc::new(db),
            hard_state: found.hard_state,
            conf_state: found.conf_state,
            truncated: found.truncated,
            last: found.last.index,
            cache: VecDeque::new(),
            cache_bytes: 0,
            lengths: Lengths::new(found.last.index),
            snapshot: None,
            snapshot_wanted: AtomicBool::new(false),
            resting: BTreeSet::new(),
            unreadable: Mutex::new(None),
        })
    }

    /// The disk side, for the worker that writes it.
    pub fn db(&self) -> Arc<LogDb> {
        self.db.clone()
    }

    /// The group's configuration.
    pub fn conf_state(&self) -> &ConfState {
        &self.conf_state
    }

    /// The group's configuration is another now.
    pub fn set_conf_state(&mut self, conf_state: ConfState) {
        self.conf_state = conf_state;
    }

    /// Whether this server has ever voted or followed.
    pub fn has_history(&self) -> bool {
        self.hard_state.term > 0
    }

    /// How long the log is in bytes, as far as that was noted since the start.
    pub fn lengths(&self) -> &Lengths {
        &self.lengths
    }

    /// Position before the first entry.
    pub fn truncated(&self) -> Position {
        self.truncated
    }

    /// Takes new entries into memory, in place of those from the same index on. Answers the last
    /// index that was there before.
    pub fn append(&mut self, entries: &[Entry]) -> u64 {
        let old_last = self.last;
        let Some(first) = entries.first() else { return old_last };
        assert!(
            first.index > self.truncated.index && first.index <= old_last + 1,
            "entry {} does not join a log of {}..={old_last}",
            first.index,
            self.truncated.index + 1
        );
        while self.cache.back().is_some_and(|e| e.index >= first.index) {
            self.cache_bytes -= self.cache.pop_back().map_or(0, |e| e.data.len());
        }
        self.lengths.cut(first.index);
        for entry in entries {
            self.cache_bytes += entry.data.len();
            self.lengths.grow(entry);
            self.cache.push_back(entry.clone());
        }
        self.last = self.cache.back().map_or(old_last, |e| e.index);
        old_last
    }

    /// Forgets old entries that the disk has: those up to `durable`, beyond a bounded tail.
    pub fn evict(&mut self, durable: u64) {
        while (self.cache.len() > CACHE_ENTRIES || self.cache_bytes > CACHE_BYTES)
            && self.cache.front().is_some_and(|e| e.index <= durable)
        {
            self.cache_bytes -= self.cache.pop_front().map_or(0, |e| e.data.len());
        }
    }

    /// Reads everything from the disk from now on.
    #[cfg(test)]
    pub(crate) fn forget_cached(&mut self) {
        self.cache.clear();
        self.cache_bytes = 0;
    }

    /// Lets the log begin after `index`, which it must hold. Answers the position for the disk.
    pub fn truncate(&mut self, index: u64) -> raft::Result<Position> {
        let at = Position { index, term: self.term(index)? };
        while self.cache.front().is_some_and(|e| e.index <= index) {
            self.cache_bytes -= self.cache.pop_front().map_or(0, |e| e.data.len());
        }
        self.truncated = at;
        self.lengths.forget(index);
        self.snapshot.take_if(|s| s.get_metadata().index < index);
        Ok(at)
    }

    /// The state was replaced by a snapshot at `at`: the log is empty and goes on from there.
    pub fn reset(&mut self, at: Position, conf_state: ConfState) {
        self.cache.clear();
        self.cache_bytes = 0;
        self.truncated = at;
        self.lengths = Lengths::new(at.index);
        self.last = at.index;
        self.conf_state = conf_state;
        self.snapshot = None;
    }

    /// Whether Raft has asked for a snapshot since the last call.
    pub fn take_snapshot_wanted(&self) -> bool {
        self.snapshot_wanted.swap(false, Ordering::Relaxed)
    }

    /// Offers a snapshot to Raft. Its index must still be in the log.
    pub fn offer_snapshot(&mut self, snapshot: Option<Snapshot>) {
        self.snapshot = snapshot;
        // Whoever asked meanwhile finds this one; making another would take it away from them.
        self.snapshot_wanted.store(false, Ordering::Relaxed);
    }

    /// These followers, and no others, are sent no snapshot for now.
    pub fn rest(&mut self, followers: BTreeSet<u64>) {
        self.resting = followers;
    }

    /// What could not be read, if anything since the last call.
    pub fn take_unreadable(&self) -> Option<Unread> {
        self.unreadable.lock().take()
    }

    fn unreadable(&self, unread: Unread) -> raft::Error {
        self.unreadable.lock().get_or_insert(unread);
        raft::Error::Store(StorageError::Compacted)
    }

    /// The index of the snapshot that is offered.
    pub fn offered(&self) -> Option<u64> {
        self.snapshot.as_ref().map(|snapshot| snapshot.get_metadata().index)
    }

    fn cache_first(&self) -> u64 {
        self.cache.front().map_or(self.last + 1, |e| e.index)
    }
}

/// Reads the entries from `next` to `last`. Error: one of them does not read.
fn read_once(db: &LogDb, mut next: u64, last: u64) -> Result<()> {
    while next <= last {
        let read = db.entries(next, last + 1, CACHE_BYTES as u64);
        next += read.map_err(Unread::at_the_start)?.len() as u64;
    }
    Ok(())
}

impl Storage for LogStorage {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.conf_state.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.truncated.index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        if high > self.last + 1 {
            return Err(raft::Error::Store(StorageError::Unavailable));
        }
        let max = max_size.into().unwrap_or(u64::MAX);
        let cache_first = self.cache_first();
        let mut entries = Vec::new();
        if low < cache_first {
            let until = high.min(cache_first);
            entries = self.db.entries(low, until, max).map_err(|e| self.unreadable(e))?;
            if (entries.len() as u64) < until - low {
                return Ok(entries);
            }
        }
        let mut bytes: u64 = entries.iter().map(|e| e.encoded_len() as u64).sum();
        let skip = low.saturating_sub(cache_first) as usize;
        for entry in self.cache.iter().skip(skip).take_while(|e| e.index < high) {
            bytes += entry.encoded_len() as u64;
            if bytes > max && !entries.is_empty() {
                break;
            }
            entries.push(entry.clone());
        }
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.truncated.index {
            return Ok(self.truncated.term);
        }
        if index < self.truncated.index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        if index > self.last {
            return Err(raft::Error::Store(StorageError::Unavailable));
        }
        let cache_first = self.cache_first();
        if index >= cache_first {
            return Ok(self.cache[(index - cache_first) as usize].term);
        }
        self.db.term(index).map_err(|e| self.unreadable(e))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.truncated.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last)
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        if self.resting.contains(&to) {
            return Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        match &self.snapshot {
            Some(snapshot) if snapshot.get_metadata().index >= request_index => {
                Ok(snapshot.clone())
            }
            _ => {
                self.snapshot_wanted.store(true, Ordering::Relaxed);
                Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable))
            }
        }
    }
}

#[cfg(test)]
mod tests;
