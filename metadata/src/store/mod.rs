//! The ordered key-value store under the state machine: RocksDB, or a map in memory for tests.
//!
//! Invariants:
//! - a batch of changes becomes visible, and durable, as a whole or not at all;
//! - [`Store::view`] shows one moment of the store, whatever the writer does meanwhile;
//! - keys are ordered as bytes, and both kinds of store answer the same for the same changes.
//!
//! Nothing here knows what a key means; see [`crate::schema`].

mod home;
mod memory;
mod read;
mod rocks;
mod txn;

pub(crate) use memory::Memory;
#[cfg(test)]
pub(crate) use read::Visit;
pub(crate) use read::{Changes, Read, StoreError, StoreResult, Told, Unreadable, after, unheard};
pub(crate) use rocks::{Rocks, verify};
pub(crate) use txn::Txn;

use bytes::Bytes;
use std::path::Path;

/// The store of one state machine.
pub(crate) enum Store {
    Rocks(home::Home),
    Memory(Memory),
}

impl Store {
    /// Opens the RocksDB store in `dir`, creating it if it does not exist.
    pub(crate) fn open(dir: &Path, cache_bytes: usize) -> StoreResult<Self> {
        Ok(Self::Rocks(home::Home::open(dir, cache_bytes)?))
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

    /// Applies all changes atomically. They survive a crash, and a power cut, after the next
    /// [`Store::sync`].
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
    /// values of `keys` in the copy.
    pub(crate) fn checkpoint<const N: usize>(
        &self,
        dir: &Path,
        keys: [&[u8]; N],
    ) -> Result<[Option<Bytes>; N], Unreadable> {
        match self {
            Self::Rocks(home) => home.current().checkpoint(dir, keys),
            Self::Memory(memory) => Ok(memory.checkpoint(dir, keys)?),
        }
    }

    /// Reads all that a copy of this store has, past what is cached of the store itself. Answers
    /// what is damaged. Error: it cannot be read now, or `told` has had enough.
    pub(crate) fn verify_copy(
        &self,
        dir: &Path,
        told: &mut Told<'_>,
    ) -> StoreResult<Option<StoreError>> {
        match self {
            Self::Rocks(_) => Ok(verify(dir, told)?.map(StoreError::damaged)),
            Self::Memory(_) => Ok(None),
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
