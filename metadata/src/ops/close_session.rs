//! Ends the session of the client that asks.

use super::{Context, EMPTY, Fault, Operation, Reply, reserve_inodes, session};
use crate::store::{Read, StoreResult, Txn};
use weft_proto::v1;

impl Operation for v1::CloseSessionOp {
    type Plan = ();

    fn check(&self, state: &dyn Read, cx: &Context) -> Result<(), Fault> {
        session::must_exist(state, cx.session)
    }

    fn apply(&self, (): (), tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply> {
        session::end(tx, cx.session)?;
        reserve_inodes::note_close(tx, cx.session, cx.now)?;
        Ok(EMPTY)
    }
}
