//! Changes that are not written yet, over a store: the entries of one batch see each other's.

use super::read::{Changes, Read, StoreResult, Visit};
use crate::read_locked::ReadLocked;
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};
use std::sync::Arc;

/// A store with changes laid over it. Nothing reaches the store until the changes are taken out
/// and written.
pub(crate) struct Txn<'a> {
    base: &'a dyn Read,
    changes: Changes,
    /// What to put back if an attempt fails: a key, and what was laid over it before.
    undo: Vec<(Vec<u8>, Option<Option<Bytes>>)>,
    /// Attempts under way, one within the other.
    attempts: usize,
    /// Whether somebody may be counting in here: else nobody looks.
    pub(crate) counts: bool,
    /// Whether all servers of the group keep what this version does of inodes.
    pub(crate) complete: bool,
    /// What was added to counters, by their keys, since this was emptied: bytes and inodes. Also by
    /// attempts that failed.
    pub(crate) tally: BTreeMap<Vec<u8>, [i128; 2]>,
    /// What the state knows of locks.
    pub(crate) read_locked: Arc<ReadLocked>,
}

impl<'a> Txn<'a> {
    pub(crate) fn new(base: &'a dyn Read) -> Self {
        Self {
            base,
            changes: Changes::new(),
            undo: Vec::new(),
            attempts: 0,
            counts: true,
            complete: true,
            tally: BTreeMap::new(),
            read_locked: Arc::default(),
        }
    }

    /// Makes changes that are undone if `change` fails.
    pub(crate) fn attempt<T, E>(
        &mut self,
        change: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let (mark, within) = (self.undo.len(), self.attempts);
        self.attempts += 1;
        let outcome = change(self);
        // Not one less: a panic may have left attempts within this one open.
        self.attempts = within;
        if outcome.is_err() {
            for (key, before) in self.undo.drain(mark..).rev() {
                match before {
                    Some(change) => self.changes.insert(key, change),
                    None => self.changes.remove(&key),
                };
            }
        }
        if self.attempts == 0 {
            self.undo.clear();
        }
        outcome
    }

    fn lay(&mut self, key: Vec<u8>, change: Option<Bytes>) {
        if self.attempts == 0 {
            self.changes.insert(key, change);
            return;
        }
        let before = self.changes.insert(key.clone(), change);
        self.undo.push((key, before));
    }

    /// This transaction as something to read from.
    pub(crate) fn state(&self) -> &dyn Read {
        self
    }

    pub(crate) fn put_bytes(&mut self, key: Vec<u8>, value: Bytes) {
        self.lay(key, Some(value));
    }

    pub(crate) fn put(&mut self, key: Vec<u8>, record: &impl Message) {
        self.put_bytes(key, record.encode_to_vec().into());
    }

    pub(crate) fn delete(&mut self, key: Vec<u8>) {
        self.lay(key, None);
    }

    pub(crate) fn into_changes(self) -> Changes {
        self.changes
    }
}

impl Read for Txn<'_> {
    fn get(&self, key: &[u8]) -> StoreResult<Option<Bytes>> {
        match self.changes.get(key) {
            Some(change) => Ok(change.clone()),
            None => self.base.get(key),
        }
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> StoreResult<()> {
        if from >= to {
            return Ok(());
        }
        let range = self.changes.range::<[u8], _>((Included(from), Excluded(to)));
        let mut ours = range.peekable();
        let mut go = true;
        self.base.scan(from, to, &mut |key, value| {
            while let Some((k, change)) = ours.next_if(|(k, _)| k.as_slice() < key) {
                if let Some(v) = change {
                    go = visit(k, v)?;
                    if !go {
                        return Ok(false);
                    }
                }
            }
            let hidden = ours.next_if(|(k, _)| k.as_slice() == key);
            go = match hidden {
                None => visit(key, value)?,
                Some((k, Some(v))) => visit(k, v)?,
                Some((_, None)) => true,
            };
            Ok(go)
        })?;
        while go && let Some((k, change)) = ours.next() {
            if let Some(v) = change {
                go = visit(k, v)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Memory;
    use proptest::prelude::*;

    #[test]
    fn what_fails_leaves_nothing() {
        let memory = Memory::default();
        memory.write([(vec![1], Some(Bytes::from_static(b"below")))].into());
        let base = memory.snapshot();
        let mut tx = Txn::new(&*base);
        tx.put_bytes(vec![2], "before".into());
        let outcome: Result<(), Result<(), ()>> = tx.attempt(|tx| {
            tx.put_bytes(vec![1], "over".into());
            tx.delete(vec![2]);
            let kept = tx.attempt(|tx| {
                tx.put_bytes(vec![3], "kept".into());
                Ok::<(), ()>(())
            });
            let failed = tx.attempt(|tx| {
                tx.delete(vec![1]);
                tx.put_bytes(vec![2], "again".into());
                tx.put_bytes(vec![2], "and again".into());
                Err::<(), ()>(())
            });
            assert_eq!((kept, failed), (Ok(()), Err(())));
            assert_eq!(tx.get(&[1]).unwrap().unwrap(), "over");
            assert_eq!(tx.get(&[2]).unwrap(), None);
            assert_eq!(tx.get(&[3]).unwrap().unwrap(), "kept");
            Err(failed)
        });
        assert!(outcome.is_err());
        let kept = [(vec![2], Some(Bytes::from_static(b"before")))];
        assert_eq!(tx.into_changes(), kept.into());
    }

    proptest! {
        /// A transaction reads as the store will read once its changes are written.
        #[test]
        fn reads_as_if_written(
            below in proptest::collection::btree_map(0u8..40, 0u8..9, 0..30),
            above in proptest::collection::btree_map(0u8..40, proptest::option::of(0u8..9), 0..30),
            from in 0u8..42, to in 0u8..42, stop in 0usize..20,
        ) {
            let memory = Memory::default();
            let fill = below.iter().map(|(&k, &v)| (vec![k], Some(Bytes::from(vec![v])))).collect();
            memory.write(fill);
            let base = memory.snapshot();
            let mut tx = Txn::new(&*base);
            let mut model: BTreeMap<u8, u8> = below.clone();
            for (&k, &v) in &above {
                match v {
                    Some(v) => { tx.put_bytes(vec![k], vec![v].into()); model.insert(k, v); }
                    None => { tx.delete(vec![k]); model.remove(&k); }
                }
            }
            let mut seen = Vec::new();
            tx.scan(&[from], &[to], &mut |k, v| { seen.push((k[0],
                v[0])); Ok(seen.len() < stop) }).unwrap();
            let want: Vec<_> = model.iter().map(|(&k, &v)| (k, v))
                .filter(|&(k, _)| k >= from && k < to).take(stop.max(1)).collect();
            prop_assert_eq!(seen, want);
            for k in 0..42 {
                prop_assert_eq!(tx.get(&[k]).unwrap().map(|v| v[0]), model.get(&k).copied());
            }
        }
    }
}
