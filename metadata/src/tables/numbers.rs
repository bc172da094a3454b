//! Numbers of inodes that are set aside for a session ([`crate::ops`], `reserve_inodes`): whose
//! they are, and until when that is remembered.

use crate::schema::{self, Numbers, Tag};
use crate::store::{Read, StoreResult, Txn};
use std::collections::BTreeMap;
use weft_proto::{InodeId, SessionId};

/// How long numbers are remembered after their session was declared dead, in nanoseconds: a week,
/// since a mount with new files waits for the group for as long as it lives.
const AGE: i64 = 7 * 24 * 3600 * 1_000_000_000;
/// So many of the dead are remembered however long ago they died: that is told by the leaders'
/// clocks, and one that is set forward makes all of them old.
const KEEP: usize = 1024;
/// Most records that are forgotten with one entry; the rest goes with later ones.
const STEP: usize = 4096;

/// The range that was found last: the files of one request are mostly of one.
#[derive(Default)]
pub(crate) struct Known(Option<(SessionId, Numbers)>);

impl Known {
    /// Whether the number was set aside for this session.
    pub(crate) fn is_reserved(
        &mut self,
        state: &dyn Read,
        id: SessionId,
        ino: u64,
    ) -> StoreResult<bool> {
        let holds = |of: SessionId, range: &Numbers| {
            of == id && ino >= range.first && ino - range.first < range.count
        };
        if self.0.as_ref().is_some_and(|(of, range)| holds(*of, range)) {
            return Ok(true);
        }
        // Only the first range that ends behind it can hold it.
        let (_, to) = schema::all_reserved(id);
        state.records((schema::reserved(id, ino.saturating_add(1)), to), |_, range| {
            self.0 = Some((id, range));
            Ok(false)
        })?;
        Ok(self.0.as_ref().is_some_and(|(of, range)| holds(*of, range)))
    }
}

/// The session that a key is of, and the first number behind the range that it is the key of.
/// `None`: it says where the session's last range is.
pub(crate) fn range_at(key: &[u8]) -> StoreResult<Option<(SessionId, u64)>> {
    let end = schema::number_at(key, schema::HEAD + 8)?;
    let session = SessionId(schema::number_at(key, schema::HEAD)?);
    Ok((end != 0).then_some((session, end)))
}

/// All ranges, by the first number behind each, with whose they are.
pub(crate) fn all(state: &dyn Read) -> StoreResult<BTreeMap<u64, (SessionId, Numbers)>> {
    let mut all = BTreeMap::new();
    let (from, to) = schema::all(Tag::Reserved);
    state.scan(&from, &to, &mut |key, value| {
        if let Some((session, end)) = range_at(key)? {
            all.insert(end, (session, schema::decode(key, value)?));
        }
        Ok(true)
    })?;
    Ok(all)
}

/// The last number that was set aside for any session, asked for or not.
pub(crate) fn last_reserved(state: &dyn Read) -> StoreResult<u64> {
    let last = |(_, range): (SessionId, Numbers)| {
        let behind = range.first.saturating_add(range.count).saturating_add(range.room);
        InodeId(behind.saturating_sub(1)).number()
    };
    Ok(all(state)?.into_values().map(last).max().unwrap_or(0))
}

/// Notes that a session was declared dead, and forgets what was set aside for those that died long
/// ago.
pub(crate) fn note_death(tx: &mut Txn<'_>, id: SessionId, now: i64) -> StoreResult<()> {
    // It takes no more of them.
    tx.delete(schema::newest_reserved(id));
    if has_any(tx, id)? {
        tx.put_bytes(schema::dead(time(now), id), Default::default());
    }
    forget_the_old(tx, now, STEP)
}

/// Forgets what was set aside for a session that was closed, and for those that died long ago: a
/// step of it.
pub(crate) fn note_close(tx: &mut Txn<'_>, id: SessionId, now: i64) -> StoreResult<()> {
    let forgotten = forget(tx, id, STEP)?;
    if has_any(tx, id)? {
        tx.put_bytes(schema::dead(0, id), Default::default());
    }
    forget_the_old(tx, now, STEP - forgotten)
}

/// As keys have it, in which 0 has a meaning of its own.
fn time(ns: i64) -> u64 {
    u64::try_from(ns).unwrap_or(0).max(1)
}

fn has_any(tx: &Txn<'_>, id: SessionId) -> StoreResult<bool> {
    let (from, to) = schema::all_reserved(id);
    let mut any = false;
    tx.scan(&from, &to, &mut |_, _| {
        any = true;
        Ok(false)
    })?;
    Ok(any)
}

/// Takes a step, of `left` records, in forgetting what the closed left and what was set aside for
/// the dead of long ago, but for the last [`KEEP`] dead.
fn forget_the_old(tx: &mut Txn<'_>, now: i64, mut left: usize) -> StoreResult<()> {
    let (from, to) = schema::all(Tag::Dead);
    let long_ago = schema::dead(time(now.saturating_sub(AGE)), SessionId(0));
    let (mut recent, mut old) = (0, Vec::new());
    tx.scan(&long_ago, &to, &mut |_, _| {
        recent += 1;
        Ok(recent < KEEP)
    })?;
    tx.scan(&from, &long_ago, &mut |key, _| {
        old.push((schema::death_of(key)?, schema::dead_of(key)?));
        Ok(old.len() < KEEP + STEP)
    })?;
    let closed = old.partition_point(|&(time, _)| time == 0);
    let go = (old.len() + recent).saturating_sub(KEEP).clamp(closed, old.len());
    for &(time, id) in &old[..go] {
        if left == 0 {
            break;
        }
        left -= forget(tx, id, left)?;
        if !has_any(tx, id)? {
            tx.delete(schema::dead(time, id));
        }
    }
    Ok(())
}

/// Forgets what was set aside for a session, up to so many records. Answers how many.
fn forget(tx: &mut Txn<'_>, id: SessionId, limit: usize) -> StoreResult<usize> {
    let (from, to) = schema::all_reserved(id);
    let mut keys = Vec::new();
    tx.scan(&from, &to, &mut |key, _| {
        if keys.len() < limit {
            keys.push(key.to_vec());
        }
        Ok(keys.len() < limit)
    })?;
    let forgotten = keys.len();
    keys.into_iter().for_each(|key| tx.delete(key));
    Ok(forgotten)
}
