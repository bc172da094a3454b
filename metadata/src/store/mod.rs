//! The ordered key-value store under the state machine: RocksDB, or a map in memory for tests.
//!
//! Invariants:
//! - a batch of changes becomes visible, and durable, as a whole or not at all;
//! - [`Store::view`] shows one moment of the store, whatever the writer does meanwhile;
//! - keys are ordered as bytes, and both kinds of store answer the same for the same changes.
//!
//! Nothing here knows what a key means; see [`crate::schema`].

mod memory;
mod rocks;
mod txn;

pub(crate) use memory::Memory;
pub(crate) use txn::Txn;

use crate::identity::MOVE_AWAY;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::Path;
use weft_proto::{Error, ErrorKind};

/// The store failed, or what it holds makes no sense. A failure is fatal to a replica, which must stop
/// rather than diverge from the others, and so is a record that does not read; what reads and makes no
/// sense is the same on all of them, and only the operation that met it is refused ([`crate::ops`]).
#[derive(Debug)]
pub(crate) struct StoreError(pub Error);

pub(crate) type StoreResult<T> = Result<T, StoreError>;

impl StoreError {
    pub(crate) fn io(what: impl std::fmt::Display) -> Self {
        Self(Error::new(ErrorKind::Io, format!("metadata store: {what}")))
    }

    /// What was read is no record at all. Every version writes records that all read, so this machine did
    /// something to it after that, unnoticed by the store's checksums: the other replicas have it whole.
    pub(crate) fn damaged(what: impl std::fmt::Display) -> Self {
        Self::io(format!("{what}; this server's memory or disk has damaged it: {MOVE_AWAY}"))
    }

    /// What was read as it was written is not what the state machine expects: a defect of Weft's. What
    /// the drive did to it is found by the store's checksums, and is a failure ([`Self::io`]).
    pub(crate) fn corrupt(what: impl std::fmt::Display) -> Self {
        Self(Error::new(ErrorKind::Corrupt, format!("metadata store: {what}; run a check")))
    }

    /// Whether the store works, and it is its content that makes no sense.
    pub(crate) fn is_of_content(&self) -> bool {
        self.0.kind == ErrorKind::Corrupt
    }
}

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl From<StoreError> for Error {
    fn from(e: StoreError) -> Self {
        e.0
    }
}

/// Keys to write (with a value) or to delete (without one).
pub(crate) type Changes = BTreeMap<Vec<u8>, Option<Bytes>>;

/// Called with key and value; answers whether to go on.
pub(crate) type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> StoreResult<bool> + 'a;

/// The first key, of any length, that is behind all keys that begin with `prefix`.
pub(crate) fn after(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&b| b != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// What can be asked of a store, of a snapshot of it, and of a transaction over it.
pub(crate) trait Read {
    fn get(&self, key: &[u8]) -> StoreResult<Option<Bytes>>;

    /// Visits the keys of `[from, to)` in order.
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> StoreResult<()>;
}

/// The store of one state machine.
pub(crate) enum Store {
    Rocks(rocks::Home),
    Memory(Memory),
}

impl Store {
    /// Opens the RocksDB store in `dir`, creating it if it does not exist.
    pub(crate) fn open(dir: &Path, cache_bytes: usize) -> StoreResult<Self> {
        Ok(Self::Rocks(rocks::Home::open(dir, cache_bytes)?))
    }

    /// Shows one moment of the store to `f`.
    pub(crate) fn view<T>(&self, f: impl FnOnce(&dyn Read) -> T) -> T {
        match self {
            Self::Rocks(home) => home.current().view(f),
            Self::Memory(memory) => f(&*memory.snapshot()),
        }
    }

    /// Shows the newest state to `f`, each read by itself: for the writer, and for single reads.
    pub(crate) fn newest<T>(&self, f: impl FnOnce(&dyn Read) -> T) -> T {
        match self {
            Self::Rocks(home) => f(&*home.current()),
            Self::Memory(memory) => f(&*memory.snapshot()),
        }
    }

    /// Applies all changes atomically. They survive the end of the process, and a power cut after
    /// the next [`Store::sync`].
    pub(crate) fn write(&self, changes: Changes) -> StoreResult<()> {
        match self {
            Self::Rocks(home) => home.current().write(changes),
            Self::Memory(memory) => {
                memory.write(changes);
                Ok(())
            }
        }
    }

    /// Makes every write so far durable.
    pub(crate) fn sync(&self) -> StoreResult<()> {
        match self {
            Self::Rocks(home) => home.current().sync(),
            Self::Memory(_) => Ok(()),
        }
    }

    /// Writes a copy of one moment of the store to `dir`, which must not exist, and answers the
    /// value of `key` in the copy.
    pub(crate) fn checkpoint(&self, dir: &Path, key: &[u8]) -> StoreResult<Option<Bytes>> {
        match self {
            Self::Rocks(home) => home.current().checkpoint(dir, key),
            Self::Memory(memory) => memory.checkpoint(dir, key),
        }
    }

    /// Replaces the whole store by a checkpoint that `accept` agrees with. The directory is moved.
    pub(crate) fn replace(
        &self,
        dir: &Path,
        accept: &dyn Fn(&dyn Read) -> StoreResult<()>,
    ) -> StoreResult<()> {
        match self {
            Self::Rocks(home) => home.replace(dir, accept),
            Self::Memory(memory) => memory.replace(dir, accept),
        }
    }
}
