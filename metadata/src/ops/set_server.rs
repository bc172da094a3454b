//! Notes what an admin wants of the metadata servers. The leader brings it about
//! ([`crate::duties`]), by [`v1::ChangeMembersEntry`].

use crate::operation::{Context, EMPTY, Fault, Operation, Reply, refuse};
use crate::schema::Cluster;
use crate::store::{Read, StoreResult, Txn};
use crate::tables::{cluster, members};
use weft_proto::{ErrorKind, v1};

impl Operation for v1::SetServerEntry {
    /// The record as it will be; nothing: it is so already.
    type Plan = Option<Cluster>;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Self::Plan, Fault> {
        let before = cluster::existing(state)?;
        let Some(change) = &self.change else {
            return refuse(ErrorKind::Protocol, "a change of the servers of an unknown kind");
        };
        let mut after = before.clone();
        members::set(&mut after, change)?;
        Ok(Some(after).filter(|after| *after != before))
    }

    fn apply(&self, plan: Self::Plan, tx: &mut Txn<'_>, _: &Context) -> StoreResult<Reply> {
        if let Some(after) = plan {
            cluster::bump(tx, after);
        }
        Ok(EMPTY)
    }
}
