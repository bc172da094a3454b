//! Ends the session of the client that asks.

use crate::operation::{Context, EMPTY, Fault, Operation, Reply};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::{numbers, sessions};
use weft_proto::v1;

impl Operation for v1::CloseSessionOp {
    type Plan = ();

    fn check(&self, state: &dyn Read, cx: &Context) -> Result<(), Fault> {
        sessions::must_exist(state, cx.session)
    }

    fn apply(&self, (): (), tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply> {
        sessions::end(tx, cx.session)?;
        numbers::note_close(tx, cx.session, cx.now)?;
        Ok(EMPTY)
    }
}
