//! How many inodes there are. Capacities are known to the leader, not to the replicated state.

use crate::operation::{Fault, Query, Reply};
use crate::store::Read;
use weft_proto::v1;

impl Query for v1::StatFsOp {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault> {
        let inodes = state.counters()?.inodes;
        Ok(Reply::StatFs(v1::StatFsReply { inodes, ..Default::default() }))
    }

    fn is_single_read(&self) -> bool {
        true
    }
}
