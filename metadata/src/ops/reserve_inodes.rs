//! Sets numbers of inodes aside for files that a session makes on its own.

use super::{Context, Fault, Operation, Reply, refuse};
use crate::schema::{self, Numbers, Reserved, Tag};
use crate::store::{Read, StoreResult, Txn};
use weft_proto::{ErrorKind, InodeId, v1};

/// Most numbers in one request.
const MOST: u32 = 1 << 16;
/// Requests whose numbers are remembered; those of older ones are good no more.
const RANGES: usize = 64;
/// Sessions whose numbers are remembered after they were declared dead: their clients make the files that
/// the group had not heard of in their next session.
const DEAD: usize = 64;

impl Operation for v1::ReserveInodesOp {
    type Plan = Reserved;

    fn check(&self, state: &dyn Read, cx: &Context) -> Result<Reserved, Fault> {
        if self.count == 0 || self.count > MOST {
            let what = format!("{} numbers at once; 1 to {MOST} can be set aside", self.count);
            return refuse(ErrorKind::Invalid, what);
        }
        Ok(state.load(&schema::reserved(cx.session))?.unwrap_or_default())
    }

    fn apply(&self, mut known: Reserved, tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply> {
        let count = u64::from(self.count);
        let first = tx.edit_counters(|c| {
            c.next_inode += count;
            c.next_inode - count
        })?;
        let first = InodeId::new(InodeId::ROOT.shard(), first).0;
        if known.ranges.len() >= RANGES {
            known.ranges.remove(0);
        }
        known.ranges.push(Numbers { first, count });
        tx.put(schema::reserved(cx.session), &known);
        Ok(Reply::ReserveInodes(v1::ReserveInodesReply { first }))
    }
}

/// Forgets what was set aside for sessions that died long ago.
pub(super) fn forget_oldest(tx: &mut Txn<'_>) -> StoreResult<()> {
    let mut dead = Vec::new();
    let state = tx.state();
    state.records(schema::all(Tag::Reserved), |key, _: Reserved| {
        let id = schema::reserved_of(key)?;
        if state.session(id)?.is_none() {
            dead.push(id);
        }
        Ok(true)
    })?;
    let surplus = dead.len().saturating_sub(DEAD);
    dead.iter().take(surplus).for_each(|id| tx.delete(schema::reserved(*id)));
    Ok(())
}

impl Reserved {
    /// Whether the number is one of these.
    pub(super) fn holds(&self, ino: u64) -> bool {
        self.ranges.iter().any(|r| ino >= r.first && ino - r.first < r.count)
    }
}
