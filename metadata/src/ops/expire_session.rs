//! Declares a session dead, and deletes what one that ended has left.

use crate::operation::{Context, EMPTY, Fault, Operation, Reply};
use crate::schema;
use crate::store::{Read, StoreResult, Txn};
use crate::tables::{numbers, sessions};
use weft_proto::{SessionId, v1};

impl Operation for v1::ExpireSessionEntry {
    type Plan = ();

    /// A session that is gone already is no error: the leader may ask twice, and asks again for
    /// what is left of it.
    fn check(&self, _: &dyn Read, _: &Context) -> Result<(), Fault> {
        Ok(())
    }

    fn apply(&self, (): (), tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply> {
        let id = SessionId(self.session);
        if tx.state().has_session(id)? {
            sessions::end(tx, id)?;
            numbers::note_death(tx, id, cx.now)?;
        } else if tx.get(&schema::ended(id))?.is_some() {
            sessions::clear(tx, id, 0)?;
        }
        Ok(EMPTY)
    }
}
