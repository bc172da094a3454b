//! Quotas: what may be used, and what is.

use super::facade::Filesystem;
use crate::meta::unexpected;
use crate::types::StatFs;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{InodeId, Result, v1};

/// Quotas that are asked for at once.
const PAGE: u32 = 64;

impl Filesystem {
    /// The quotas that an inode counts for, from the nearest directory up, and those of its owners;
    /// with a key, that quota. What was written on this mount is committed first.
    pub async fn quotas(
        &self,
        ino: InodeId,
        key: Option<v1::QuotaKey>,
    ) -> Result<Vec<v1::QuotaInfo>> {
        // What cannot be committed is told to whoever syncs.
        let _ = self.sync_for_any().await;
        self.ask_quotas(ino, key, true).await
    }

    async fn ask_quotas(
        &self,
        ino: InodeId,
        key: Option<v1::QuotaKey>,
        purged: bool,
    ) -> Result<Vec<v1::QuotaInfo>> {
        let ino = if key.is_some() { 0 } else { ino.0 };
        match self.inner.requests.ask(Op::GetQuota(v1::GetQuotaOp { key, ino, purged })).await? {
            Reply::GetQuota(reply) => Ok(reply.quotas),
            _ => Err(unexpected("a question for quotas")),
        }
    }

    /// Some of all quotas and owners that are counted, after this one; and whether there are more.
    pub async fn all_quotas(
        &self,
        after: Option<v1::QuotaKey>,
    ) -> Result<(Vec<v1::QuotaInfo>, bool)> {
        let op = Op::ListQuotas(v1::ListQuotasOp { after, limit: PAGE });
        match self.inner.requests.ask(op).await? {
            Reply::ListQuotas(reply) => Ok((reply.quotas, reply.more)),
            _ => Err(unexpected("a question for quotas")),
        }
    }

    /// Sets what a directory, a user, a group or a project may use. Whether the caller may is the
    /// caller's to know. Errors: `NoAttribute` if there is none to clear.
    pub async fn set_quota(&self, op: v1::SetQuotaOp) -> Result<()> {
        self.inner.requests.change(Op::SetQuota(op)).await.map(drop)
    }

    /// How much room there is for what lies in a directory, or is written to a file: in the
    /// filesystem, and under the limits of the directories that it lies below.
    pub async fn stat_fs_at(&self, ino: InodeId) -> Result<StatFs> {
        let mut room = self.stat_fs().await?;
        if !self.inner.group.leases.quotas.are_on() {
            return Ok(room);
        }
        for quota in self.ask_quotas(ino, None, false).await? {
            let is_tree = quota.key.is_some_and(|key| key.kind() == v1::quota_key::Kind::Tree);
            if is_tree && !quota.counting && !quota.ends {
                narrow(&mut room, &quota);
            }
        }
        Ok(room)
    }
}

/// Room within a quota: its limit, and what is left of that, or of the filesystem if that is less.
fn narrow(room: &mut StatFs, quota: &v1::QuotaInfo) {
    let limits = quota.limits.unwrap_or_default();
    let first = |hard: u64, soft: u64| if hard == 0 { soft } else { hard };
    let bytes = first(limits.bytes, limits.soft_bytes);
    if bytes != 0 && bytes < room.capacity_bytes {
        let left = bytes.saturating_sub(quota.bytes);
        room.capacity_bytes = bytes;
        room.free_bytes = room.free_bytes.min(left);
        room.available_bytes = room.available_bytes.min(left);
    }
    let inodes = first(limits.inodes, limits.soft_inodes);
    let left = inodes.saturating_sub(quota.inodes);
    if inodes != 0 && room.free_inodes.is_none_or(|free| left < free) {
        (room.inodes, room.free_inodes) = (quota.inodes, Some(left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_that_is_left_counts() {
        let all = StatFs {
            capacity_bytes: 1000,
            free_bytes: 500,
            available_bytes: 400,
            inodes: 7,
            free_inodes: None,
        };
        let quota = |limit, used, inodes, made| v1::QuotaInfo {
            limits: Some(v1::QuotaLimits { bytes: limit, inodes, ..Default::default() }),
            bytes: used,
            inodes: made,
            ..Default::default()
        };
        let mut room = all;
        narrow(&mut room, &quota(0, 9, 0, 3));
        // There is less in the filesystem.
        narrow(&mut room, &quota(5000, 9, 0, 3));
        assert_eq!(room, all);
        narrow(&mut room, &quota(300, 100, 50, 20));
        assert_eq!((room.capacity_bytes, room.free_bytes, room.available_bytes), (300, 200, 200));
        assert_eq!((room.inodes, room.free_inodes), (20, Some(30)));
        narrow(&mut room, &quota(250, 10, 100, 10));
        assert_eq!((room.capacity_bytes, room.free_bytes, room.available_bytes), (250, 200, 200));
        assert_eq!((room.inodes, room.free_inodes), (20, Some(30)));
        narrow(&mut room, &quota(10, 30, 0, 0));
        assert_eq!((room.capacity_bytes, room.free_bytes), (10, 0));
    }
}
