//! Changes the Raft group by one step. Raft makes the same change of its configuration if this is
//! carried out, and none if it is refused.

use crate::operation::{Context, EMPTY, Fault, Operation, Reply};
use crate::schema::Cluster;
use crate::store::{Read, StoreResult, Txn};
use crate::tables::{cluster, members};
use weft_proto::v1;

impl Operation for v1::ChangeMembersEntry {
    /// The record as it will be.
    type Plan = Cluster;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Self::Plan, Fault> {
        let mut cluster = cluster::existing(state)?;
        members::change(&mut cluster, self)?;
        Ok(cluster)
    }

    fn apply(&self, cluster: Self::Plan, tx: &mut Txn<'_>, _: &Context) -> StoreResult<Reply> {
        cluster::bump(tx, cluster);
        Ok(EMPTY)
    }
}
