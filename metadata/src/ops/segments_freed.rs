//! The chunks of garbage segments are deleted everywhere: the segments can be forgotten. One that
//! is not garbage is left alone.

use crate::operation::{Context, EMPTY, Fault, Operation, Reply};
use crate::schema;
use crate::store::{Read, StoreResult, Txn};
use weft_proto::{SegmentId, v1};

impl Operation for v1::SegmentsFreedEntry {
    type Plan = ();

    fn check(&self, _: &dyn Read, _: &Context) -> Result<(), Fault> {
        Ok(())
    }

    fn apply(&self, (): (), tx: &mut Txn<'_>, _: &Context) -> StoreResult<Reply> {
        for &key in &self.segments {
            let id = SegmentId::from(key);
            let key = schema::garbage(id);
            if let Some(freed) = tx.state().load::<v1::SegmentInfo>(&key)? {
                tx.leave_group(freed.pg, id)?;
                tx.delete(key);
            }
        }
        Ok(EMPTY)
    }
}
