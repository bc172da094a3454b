//! Numbers of inodes that are set aside, in their order, as the state has them: to find out whose
//! one is without passing over all.

use crate::schema::{self, Numbers, Tag};
use crate::store::{Changes, Store, StoreResult};
use crate::tables::numbers;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use weft_proto::SessionId;

/// All ranges, by the first number behind each, once they were asked for.
#[derive(Default)]
pub(super) struct SetAside(Mutex<Option<BTreeMap<u64, (SessionId, Numbers)>>>);

/// What a batch of entries does to them.
pub(super) type Changed = Vec<(Vec<u8>, Option<Bytes>)>;

impl SetAside {
    /// The range that a number lies in, and the session that it is set aside for. `store` is read
    /// if they are not known: as it is then, so that what is noted next is behind that.
    pub fn find(&self, store: &Store, ino: u64) -> StoreResult<Option<(SessionId, Numbers)>> {
        let mut known = self.0.lock();
        let ranges = match &mut *known {
            Some(ranges) => ranges,
            none => none.insert(store.view(numbers::all)?),
        };
        let behind = ranges.range(ino.saturating_add(1)..).next();
        Ok(behind.filter(|(_, (_, range))| ino >= range.first).map(|(_, found)| found.clone()))
    }

    /// What these changes, which are about to be stored, do to ranges.
    pub fn among(changes: &Changes) -> Changed {
        let of_ranges = changes.iter().filter(|(key, _)| schema::has_tag(key, Tag::Reserved));
        of_ranges.map(|(key, change)| (key.clone(), change.clone())).collect()
    }

    /// These are stored.
    pub fn note(&self, changed: Changed) {
        let mut known = self.0.lock();
        let Some(ranges) = &mut *known else { return };
        let noted = changed.into_iter().try_for_each(|(key, change)| {
            let Some((session, end)) = numbers::range_at(&key)? else { return Ok(()) };
            let change = change.map(|value| schema::decode(&key, value)).transpose()?;
            match change {
                Some(range) => ranges.insert(end, (session, range)),
                None => ranges.remove(&end),
            };
            StoreResult::Ok(())
        });
        // Whoever asks next is told why.
        if noted.is_err() {
            *known = None;
        }
    }

    /// The state is another.
    pub fn forget(&self) {
        *self.0.lock() = None;
    }
}
