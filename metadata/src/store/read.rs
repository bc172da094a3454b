//! What can be asked of a store, and how it fails.

use crate::folder::MOVE_AWAY;
use bytes::Bytes;
use std::collections::BTreeMap;
use weft_proto::{Error, ErrorKind, Result};

/// The store failed, or what it holds makes no sense. A failure is fatal to a replica, which must
/// stop rather than diverge from the others, and so is a record that does not read; what reads and
/// makes no sense is the same on all of them, and only the operation that met it is refused
/// ([`crate::ops`]).
#[derive(Debug)]
pub(crate) struct StoreError(pub Error);

pub(crate) type StoreResult<T> = Result<T, StoreError>;

impl StoreError {
    pub(crate) fn io(what: impl std::fmt::Display) -> Self {
        Self(Error::new(ErrorKind::Io, format!("metadata store: {what}")))
    }

    /// What was read is no record at all. Every version writes records that all read, so this
    /// machine did something to it after that, unnoticed by the store's checksums: the other
    /// replicas have it whole.
    pub(crate) fn damaged(what: impl std::fmt::Display) -> Self {
        Self::io(format!("{what}; this server's memory or disk has damaged it: {MOVE_AWAY}"))
    }

    /// What was read as it was written is not what the state machine expects: a defect of Weft's.
    /// What the drive did to it is found by the store's checksums, and is a failure ([`Self::io`]).
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

/// What is here could not be read, or copied.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub error: Error,
    /// It is damaged, and not that this server can read nothing now, or has no room for a copy.
    pub is_damage: bool,
}

impl From<StoreError> for Unreadable {
    fn from(e: StoreError) -> Self {
        Self { error: e.into(), is_damage: false }
    }
}

/// Who was told has had enough.
impl From<Error> for Unreadable {
    fn from(error: Error) -> Self {
        Self { error, is_damage: false }
    }
}

impl From<Unreadable> for Error {
    fn from(e: Unreadable) -> Self {
        e.error
    }
}

/// Keys to write (with a value) or to delete (without one).
pub(crate) type Changes = BTreeMap<Vec<u8>, Option<Bytes>>;

/// Called with key and value; answers whether to go on.
pub(crate) type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> StoreResult<bool> + 'a;

/// Hears now and then how many bytes more were read; an error ends the reading.
pub(crate) type Told<'a> = dyn FnMut(u64) -> Result<()> + 'a;

/// For who need not be told.
pub(crate) fn unheard(_: u64) -> Result<()> {
    Ok(())
}

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
