//! Sets numbers of inodes aside for what a session makes on its own.
//!
//! They are the session's for as long as it lives: a file may be told long after it was made. And
//! for a while after it was declared dead, since its client makes what the group had not heard of
//! in its next session: by age, because all sessions may die together.

use crate::known::Known;
use crate::operation::{Context, Fault, Operation, Reply, refuse};
use crate::schema::{self, Number, Numbers};
use crate::store::{Read, StoreError, StoreResult, Txn};
use weft_proto::{Error, ErrorKind, InodeId, SessionId, v1};

/// Most numbers in one request.
const MAX_NUMBERS: u32 = 1 << 16;
/// A session is given so many at a time to take its own from, at first and at most: twice what it
/// has taken of the last. So sessions that ask in turns have a few ranges each, and not one for
/// every request.
const BLOCK: [u64; 2] = [MAX_NUMBERS as u64, 1 << 24];
impl Operation for v1::ReserveInodesOp {
    type Plan = ();

    fn check(&self, _: &dyn Read, _: &Context) -> Result<(), Fault> {
        if self.count == 0 || self.count > MAX_NUMBERS {
            let what =
                format!("{} numbers at once; 1 to {MAX_NUMBERS} can be set aside", self.count);
            return refuse(ErrorKind::Invalid, what);
        }
        Ok(())
    }

    fn apply(&self, (): (), tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply> {
        if self.known > Known::NEWEST {
            let what = format!(
                "the log has what versions of level {} know, and this version of weft knows level \
                 {}: start the newer version that wrote it",
                self.known,
                Known::NEWEST
            );
            return Err(StoreError(Error::new(ErrorKind::NotSupported, what)));
        }
        let count = u64::from(self.count);
        let mut range = newest(tx.state(), cx.session)?.unwrap_or_default();
        if range.room < count {
            let block = range.count.saturating_mul(2).clamp(BLOCK[0], BLOCK[1]);
            let first = tx.edit_counters(|c| {
                c.next_inode += block;
                c.next_inode - block
            })?;
            let first = InodeId::new(tx.state().shard()?, first).0;
            // Who is alone in making files has one range, however many it makes.
            if range.end() + range.room == first {
                range.room += block;
            } else {
                range = Numbers { first, room: block, ..Numbers::default() };
            }
        }
        if let Some(session) = tx.state().session(cx.session)? {
            range.owner = session.owner;
        }
        let first = range.end();
        if range.count > 0 {
            tx.delete(schema::reserved(cx.session, first));
        }
        range.count += count;
        range.room -= count;
        tx.put(schema::reserved(cx.session, range.end()), &range);
        tx.put(schema::newest_reserved(cx.session), &Number { value: range.end() });
        // Once told, it stays so: no server of an older version may come back.
        if self.batches {
            tx.put(schema::meta(schema::BATCHES), &Number { value: 1 });
        }
        let known = raise_level(tx, self.known)?;
        let batches = self.batches || knows_batches(tx.state())?;
        let xattrs = known >= Known::Xattrs as u32;
        Ok(Reply::ReserveInodes(v1::ReserveInodesReply { first, batches, xattrs }))
    }
}

/// Whether sessions may tell of what they do in batches.
pub(crate) fn knows_batches(state: &dyn Read) -> StoreResult<bool> {
    Ok(state.get(&schema::meta(schema::BATCHES))?.is_some())
}

/// Notes what all servers know now. Answers what all have known once.
pub(crate) fn raise_level(tx: &mut Txn<'_>, level: u32) -> StoreResult<u32> {
    let known = known_level(tx.state())?;
    if level > known {
        tx.put(schema::meta(schema::KNOWN), &Number { value: level.into() });
    }
    Ok(known.max(level))
}

/// What every server of the group has known once, as in [`Known`].
pub(crate) fn known_level(state: &dyn Read) -> StoreResult<u32> {
    let known = state.load(&schema::meta(schema::KNOWN))?;
    Ok(known.map_or(0, |Number { value }| u32::try_from(value).unwrap_or(u32::MAX)))
}

/// The range that the session took numbers from last.
fn newest(state: &dyn Read, id: SessionId) -> StoreResult<Option<Numbers>> {
    let Some(Number { value }) = state.load(&schema::newest_reserved(id))? else { return Ok(None) };
    state.load(&schema::reserved(id, value))
}
