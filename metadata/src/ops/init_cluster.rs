//! Begins a cluster: its identity, the root directory and the first pool. The first entry wins;
//! later ones change nothing.

use crate::operation::{Context, EMPTY, Fault, Operation, Reply, refuse};
use crate::schema::{self, Cluster, Counters, Pool};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::inodes;
use weft_proto::{ErrorKind, InodeId, Layout, Profile, Uuid, v1};

/// The first pool.
const DEFAULT_POOL: (u32, &str) = (1, "default");

impl Operation for v1::InitClusterEntry {
    /// The profile of the first pool; none if the cluster exists.
    type Plan = Option<Profile>;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Self::Plan, Fault> {
        if state.cluster()?.is_some() {
            return Ok(None);
        }
        if Uuid::from_slice(&self.cluster).is_none_or(|id| id == Uuid::NIL) {
            return refuse(ErrorKind::Invalid, "a cluster needs an identity of 16 random bytes");
        }
        let Some(profile) = self.profile else {
            return refuse(ErrorKind::Invalid, "a cluster needs a redundancy profile");
        };
        let profile = Profile::try_from(profile)?;
        Layout::for_profile(profile).validate()?;
        if self.shard > u16::MAX.into() {
            return refuse(ErrorKind::Invalid, format!("there is no shard {}", self.shard));
        }
        Ok(Some(profile))
    }

    fn apply(&self, plan: Self::Plan, tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply> {
        let Some(profile) = plan else { return Ok(EMPTY) };
        tx.put_cluster(&Cluster {
            id: self.cluster.clone(),
            epoch: 1,
            members: self.members.clone(),
            shard: self.shard,
            ..Default::default()
        });
        let (id, name) = DEFAULT_POOL;
        tx.put(schema::pool(id), &Pool { name: name.into(), profile: profile.into() });
        let root = InodeId::root_of(tx.state().shard()?);
        tx.put_inode(&inodes::root(root, Layout::for_profile(profile).into(), cx.now))?;
        let next_inode = root.number() + 1;
        tx.edit_counters(|c| {
            *c = Counters { next_inode, next_session: 1, next_target: 1, inodes: 1, next_pg: 1 };
        })?;
        Ok(EMPTY)
    }
}
