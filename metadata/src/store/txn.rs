//! Changes that are not written yet, over a store: the entries of one batch see each other's.

use super::{Changes, Read, StoreResult, Visit};
use bytes::Bytes;
use prost::Message;
use std::ops::Bound::{Excluded, Included};

/// A store with changes laid over it. Nothing reaches the store until the changes are taken out
/// and written.
pub(crate) struct Txn<'a> {
    base: &'a dyn Read,
    changes: Changes,
}

impl<'a> Txn<'a> {
    pub(crate) fn new(base: &'a dyn Read) -> Self {
        Self { base, changes: Changes::new() }
    }

    /// This transaction as something to read from.
    pub(crate) fn state(&self) -> &dyn Read {
        self
    }

    pub(crate) fn put_bytes(&mut self, key: Vec<u8>, value: Bytes) {
        self.changes.insert(key, Some(value));
    }

    pub(crate) fn put(&mut self, key: Vec<u8>, record: &impl Message) {
        self.put_bytes(key, record.encode_to_vec().into());
    }

    pub(crate) fn delete(&mut self, key: Vec<u8>) {
        self.changes.insert(key, None);
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
    use std::collections::BTreeMap;

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
            tx.scan(&[from], &[to], &mut |k, v| { seen.push((k[0], v[0])); Ok(seen.len() < stop) }).unwrap();
            let want: Vec<_> = model.iter().map(|(&k, &v)| (k, v))
                .filter(|&(k, _)| k >= from && k < to).take(stop.max(1)).collect();
            prop_assert_eq!(seen, want);
            for k in 0..42 {
                prop_assert_eq!(tx.get(&[k]).unwrap().map(|v| v[0]), model.get(&k).copied());
            }
        }
    }
}
