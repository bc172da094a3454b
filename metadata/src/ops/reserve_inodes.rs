//! Sets numbers of inodes aside for files that a session makes on its own.
//!
//! They are the session's for as long as it lives: a file may be told long after it was made. And for a
//! while after it was declared dead, since its client makes what the group had not heard of in its next
//! session: by age, because all sessions may die together.

use super::{Context, Fault, Operation, Reply, refuse};
use crate::schema::{self, Number, Numbers, Tag};
use crate::store::{Read, StoreResult, Txn};
use weft_proto::{ErrorKind, InodeId, SessionId, v1};

/// Most numbers in one request.
const MOST: u32 = 1 << 16;
/// A session is given so many at a time to take its own from, at first and at most: twice what it has taken of
/// the last. So sessions that ask in turns have a few ranges each, and not one for every request.
const BLOCK: [u64; 2] = [MOST as u64, 1 << 24];
/// How long numbers are remembered after their session was declared dead, in nanoseconds: a week, since a
/// mount with new files waits for the group for as long as it lives.
const AGE: i64 = 7 * 24 * 3600 * 1_000_000_000;
/// So many of the dead are remembered however long ago they died: that is told by the leaders' clocks, and one
/// that is set forward makes all of them old.
const KEEP: usize = 1024;
/// Most records that are forgotten with one entry; the rest goes with later ones.
const STEP: usize = 4096;

impl Operation for v1::ReserveInodesOp {
    type Plan = ();

    fn check(&self, _: &dyn Read, _: &Context) -> Result<(), Fault> {
        if self.count == 0 || self.count > MOST {
            let what = format!("{} numbers at once; 1 to {MOST} can be set aside", self.count);
            return refuse(ErrorKind::Invalid, what);
        }
        Ok(())
    }

    fn apply(&self, (): (), tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply> {
        let count = u64::from(self.count);
        let mut range = newest(tx.state(), cx.session)?.unwrap_or_default();
        if range.room < count {
            let block = range.count.saturating_mul(2).clamp(BLOCK[0], BLOCK[1]);
            let first = tx.edit_counters(|c| {
                c.next_inode += block;
                c.next_inode - block
            })?;
            let first = InodeId::new(InodeId::ROOT.shard(), first).0;
            // Who is alone in making files has one range, however many it makes.
            if range.end() + range.room == first {
                range.room += block;
            } else {
                range = Numbers { first, count: 0, room: block };
            }
        }
        let first = range.end();
        if range.count > 0 {
            tx.delete(schema::reserved(cx.session, first));
        }
        range.count += count;
        range.room -= count;
        tx.put(schema::reserved(cx.session, range.end()), &range);
        tx.put(schema::newest_reserved(cx.session), &Number { value: range.end() });
        Ok(Reply::ReserveInodes(v1::ReserveInodesReply { first }))
    }
}

/// The range that the session took numbers from last.
fn newest(state: &dyn Read, id: SessionId) -> StoreResult<Option<Numbers>> {
    let Some(Number { value }) = state.load(&schema::newest_reserved(id))? else { return Ok(None) };
    state.load(&schema::reserved(id, value))
}

/// The range that was found last: the files of one request are mostly of one.
#[derive(Default)]
pub(super) struct Known(Option<(SessionId, Numbers)>);

impl Known {
    /// Whether the number was set aside for this session.
    pub(super) fn is_reserved(
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

/// Notes that a session was declared dead, and forgets what was set aside for those that died long ago.
pub(super) fn note_death(tx: &mut Txn<'_>, id: SessionId, now: i64) -> StoreResult<()> {
    // It takes no more of them.
    tx.delete(schema::newest_reserved(id));
    if has_any(tx, id)? {
        tx.put_bytes(schema::dead(time(now), id), Default::default());
    }
    forget_the_old(tx, now, STEP)
}

/// Forgets what was set aside for a session that was closed, and for those that died long ago: a step of it.
pub(super) fn note_close(tx: &mut Txn<'_>, id: SessionId, now: i64) -> StoreResult<()> {
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

/// Takes a step, of `left` records, in forgetting what the closed left and what was set aside for the dead of
/// long ago, but for the last [`KEEP`] dead.
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
