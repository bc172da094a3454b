//! A store in memory, for tests and simulation. A checkpoint of it is one file.

use super::read::{Changes, Read, StoreError, StoreResult, Visit};
use bytes::{Buf, Bytes};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};
use std::path::Path;
use std::sync::Arc;

type Map = BTreeMap<Vec<u8>, Bytes>;

const DUMP: &str = "dump";

/// Readers share the map as it was when they came; the writer copies it only while they do.
#[derive(Default)]
pub(crate) struct Memory(RwLock<Arc<Map>>);

impl Memory {
    pub(crate) fn snapshot(&self) -> Arc<Map> {
        self.0.read().clone()
    }

    pub(crate) fn write(&self, changes: Changes) {
        let mut guard = self.0.write();
        let map = Arc::make_mut(&mut guard);
        for (key, value) in changes {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
    }

    pub(crate) fn checkpoint<const N: usize>(
        &self,
        dir: &Path,
        keys: [&[u8]; N],
    ) -> StoreResult<[Option<Bytes>; N]> {
        let map = self.snapshot();
        let mut out = Vec::new();
        for (k, v) in map.iter() {
            for part in [k.as_slice(), v] {
                out.extend_from_slice(&(part.len() as u32).to_be_bytes());
                out.extend_from_slice(part);
            }
        }
        let failed = |e| StoreError::io(format!("checkpoint to {}: {e}", dir.display()));
        std::fs::create_dir(dir).map_err(failed)?;
        std::fs::write(dir.join(DUMP), out).map_err(failed)?;
        Ok(keys.map(|key| map.get(key).cloned()))
    }

    pub(crate) fn replace(
        &self,
        dir: &Path,
        accept: &dyn Fn(&dyn Read) -> StoreResult<()>,
    ) -> StoreResult<()> {
        let failed = |e| StoreError::io(format!("checkpoint in {}: {e}", dir.display()));
        let mut bytes = Bytes::from(std::fs::read(dir.join(DUMP)).map_err(failed)?);
        let mut map = Map::new();
        while !bytes.is_empty() {
            let (key, value) = (part(&mut bytes)?, part(&mut bytes)?);
            map.insert(key.to_vec(), value);
        }
        accept(&map)?;
        *self.0.write() = Arc::new(map);
        std::fs::remove_dir_all(dir).map_err(failed)
    }
}

fn part(bytes: &mut Bytes) -> StoreResult<Bytes> {
    let short = || StoreError::corrupt("checkpoint file ends early");
    if bytes.len() < 4 {
        return Err(short());
    }
    let len = bytes.get_u32() as usize;
    if bytes.len() < len {
        return Err(short());
    }
    Ok(bytes.split_to(len))
}

impl Read for Map {
    fn get(&self, key: &[u8]) -> StoreResult<Option<Bytes>> {
        Ok(BTreeMap::get(self, key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> StoreResult<()> {
        if from < to {
            for (key, value) in self.range::<[u8], _>((Included(from), Excluded(to))) {
                if !visit(key, value)? {
                    break;
                }
            }
        }
        Ok(())
    }
}
