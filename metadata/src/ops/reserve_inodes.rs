//! Sets numbers of inodes aside for files that a session makes on its own.
//!
//! They are the session's for as long as it lives: a file may be told long after it was made. And for a
//! while after it was declared dead, since its client makes what the group had not heard of in its next
//! session: by age, because all sessions may die together.

use super::{Context, Fault, Operation, Reply, refuse};
use crate::schema::{self, Numbers, Tag};
use crate::store::{Read, StoreResult, Txn};
use weft_proto::{ErrorKind, InodeId, SessionId, v1};

/// Most numbers in one request.
const MOST: u32 = 1 << 16;
/// How long numbers are remembered after their session was declared dead, in nanoseconds: a week, since a
/// mount with new files waits for the group for as long as it lives.
const AGE: i64 = 7 * 24 * 3600 * 1_000_000_000;
/// Most records that are forgotten with one death: more than are made for one, for the rest comes later.
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
        let first = tx.edit_counters(|c| {
            c.next_inode += count;
            c.next_inode - count
        })?;
        let first = InodeId::new(InodeId::ROOT.shard(), first).0;
        tx.put(schema::reserved(cx.session, first + count), &Numbers { first, count });
        Ok(Reply::ReserveInodes(v1::ReserveInodesReply { first }))
    }
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
    let (mut has_any, range) = (false, schema::all_reserved(id));
    tx.state().records(range, |_, _: Numbers| {
        has_any = true;
        Ok(false)
    })?;
    if has_any {
        tx.put_bytes(schema::dead(now, id), Default::default());
    }
    let (from, _) = schema::all(Tag::Dead);
    let long_ago = schema::dead(now.saturating_sub(AGE), SessionId(0));
    let mut old = Vec::new();
    tx.scan(&from, &long_ago, &mut |key, _| {
        old.push((schema::dead_of(key)?, key.to_vec()));
        Ok(old.len() < STEP)
    })?;
    let mut left = STEP;
    for (id, key) in old {
        let forgotten = forget(tx, id, left)?;
        left -= forgotten;
        if left == 0 {
            break;
        }
        tx.delete(key);
    }
    Ok(())
}

/// Forgets what was set aside for a session, up to so many records. Answers how many.
pub(super) fn forget(tx: &mut Txn<'_>, id: SessionId, limit: usize) -> StoreResult<usize> {
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
