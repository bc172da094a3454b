//! What quotas say is used, against what the inodes come to that count for them.

use super::Check;
use super::plan::Stage;
use crate::schema::{self, Quota, Tag, Walk};
use crate::store::StoreResult;
use crate::tables::usage::{self, Sums};
use v1::quota_key::Kind;
use weft_proto::{InodeId, v1};

impl Check<'_> {
    /// What is used of each quota.
    pub(super) fn usage(&mut self) -> StoreResult<()> {
        let Some(counted) = self.counted.take() else { return Ok(()) };
        let (state, mut sums) = (self.state, Sums::new());
        for (zone, charge) in counted.zones {
            usage::add_above(state, zone, &mut sums, charge)?;
            self.is_recorded(zone, counted.on.walking)?;
        }
        let of_users = counted.users.into_iter().map(|(id, sum)| (Kind::User, id, sum));
        let of_groups = counted.groups.into_iter().map(|(id, sum)| (Kind::Group, id, sum));
        for (kind, id, charge) in of_users.chain(of_groups) {
            usage::add(&mut sums, usage::key(kind, id.into()), charge);
        }
        state.records(schema::all(Tag::Quota), |key, quota: Quota| {
            self.is_used(key, quota, sums.remove(key).unwrap_or_default())?;
            Ok(true)
        })?;
        // Of those nothing is recorded.
        for (key, used) in sums {
            self.is_used(&key, Quota::default(), used)?;
        }
        Ok(())
    }

    /// What inodes count for has a record. Its limits are lost with it.
    fn is_recorded(&mut self, zone: u64, walking: u64) -> StoreResult<()> {
        let key = schema::quota(usage::key(Kind::Tree, zone));
        if self.state.get(&key)?.is_some() {
            return Ok(());
        }
        let dir = self.state.inode(InodeId(zone))?;
        let what = format!("the quota of directory {} has no record", InodeId(zone));
        self.mend(Stage::Usage, what, |draft| {
            let has_quota = dir.as_ref().is_some_and(|dir| dir.has_quota);
            let walk = match (walking == zone, has_quota) {
                (false, _) => Walk::None,
                (true, true) => Walk::Mark,
                (true, false) => Walk::Unmark,
            };
            let above = dir.map_or(0, |dir| dir.quota);
            let quota = Quota { ends: !has_quota, above, walk: walk.into(), ..Quota::default() };
            draft.put(key, &quota)
        })
    }

    fn is_used(&mut self, key: &[u8], quota: Quota, [bytes, inodes]: [i128; 2]) -> StoreResult<()> {
        let known = (i128::from(quota.bytes), i128::from(quota.inodes));
        if known == (bytes, inodes) {
            return Ok(());
        }
        let of = schema::quota_of(key)?;
        let what = format!(
            "quota of {} {}: {bytes} bytes and {inodes} inodes count for it, it says {} and {}",
            of.kind().as_str_name().to_lowercase(),
            of.id,
            quota.bytes,
            quota.inodes
        );
        self.mend(Stage::Usage, what, |draft| {
            let bytes = u64::try_from(bytes).unwrap_or(0);
            let inodes = u64::try_from(inodes).unwrap_or(0);
            draft.put(key.to_vec(), &Quota { bytes, inodes, ..quota })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::mending::mend;
    use super::super::tests::{keys, problems, with};
    use super::*;
    use crate::store::{Memory, Read, Txn};
    use v1::meta_request::Op;

    fn limited() -> Memory {
        let limit = |kind: Kind, id| {
            let key = Some(usage::key(kind, id));
            Op::SetQuota(v1::SetQuotaOp { key, bytes: Some(1000), ..Default::default() })
        };
        let dir = v1::MkDirOp { parent: 1, name: "limited".into(), ..Default::default() };
        let file = v1::CreateOp { parent: 6, name: "f".into(), ..Default::default() };
        with(vec![Op::MkDir(dir), limit(Kind::Tree, 6), Op::Create(file)])
    }

    #[test]
    fn what_inodes_account_for_is_mended_with_what_their_quotas_do() {
        let memory = limited();
        let state = memory.snapshot();
        for ino in [6, 7].map(InodeId) {
            let mut tx = Txn::new(&*state);
            let whole = Read::get(&tx, &schema::inode(ino)).unwrap();
            let mut inode = tx.state().inode_that_exists(ino).unwrap();
            inode.set_allocated(inode.allocated + 5000);
            inode.attr.nlink += 1;
            tx.put_inode(&inode).unwrap();
            assert_eq!(mend(&mut tx).len(), 1);
            assert_eq!(Read::get(&tx, &schema::inode(ino)).unwrap(), whole);
            assert_eq!(problems(&tx), Vec::<String>::new());
        }
    }

    #[test]
    fn what_quotas_say_is_put_right() {
        let memory = limited();
        let state = memory.snapshot();
        assert_eq!(problems(&*state), Vec::<String>::new());
        for key in keys(&*state, &[Tag::Quota]) {
            let whole = Read::get(&*state, &key).unwrap();
            let mut tx = Txn::new(&*state);
            let mut quota: Quota = schema::decode(&key, whole.clone().unwrap()).unwrap();
            quota.inodes += 5;
            tx.put(key.clone(), &quota);
            assert_eq!(mend(&mut tx).len(), 1);
            assert_eq!(Read::get(&tx, &key).unwrap(), whole);
            // A record that is gone comes back, without limits.
            tx.delete(key.clone());
            assert_eq!(mend(&mut tx).len(), 2);
            let quota: Quota = tx.state().load(&key).unwrap().unwrap();
            assert_eq!((quota.inodes, quota.limits), (1, v1::QuotaLimits::default()));
            assert_eq!(problems(&tx), Vec::<String>::new());
        }
    }
}
