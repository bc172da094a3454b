//! What quotas say is used, against what the inodes come to that count for them.

use super::Check;
use super::plan::Stage;
use crate::schema::{self, Inode, Quota, Tag};
use crate::store::StoreResult;
use crate::tables::usage::{self, Sums};
use v1::quota_key::Kind;
use weft_proto::v1;

fn add(sum: &mut [i128; 2], change: [i128; 2]) {
    *sum = [sum[0] + change[0], sum[1] + change[1]];
}

impl Check<'_> {
    /// An inode that is there.
    pub(super) fn count(&mut self, inode: &Inode) {
        let Some(counted) = &mut self.counted else { return };
        let charge = usage::charge(inode);
        if inode.quota != 0 {
            add(counted.zones.entry(inode.quota).or_default(), charge);
        }
        if inode.attr.ino < counted.on.owners_below {
            add(counted.users.entry(inode.attr.uid).or_default(), charge);
            add(counted.groups.entry(inode.attr.gid).or_default(), charge);
        }
    }

    /// What is used of each quota.
    pub(super) fn usage(&mut self) -> StoreResult<()> {
        let Some(counted) = self.counted.take() else { return Ok(()) };
        let (state, mut sums) = (self.state, Sums::new());
        for (zone, charge) in counted.zones {
            usage::add_above(state, zone, &mut sums, charge)?;
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
