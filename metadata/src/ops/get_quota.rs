//! Quotas as they are: those that an inode counts for, and all of them.

use super::set_quota::MAX_PATH;
use crate::operation::{BRIEF, Fault, Query, Reply, refuse};
use crate::schema::{self, Quota, Tag};
use crate::store::{Read, StoreResult};
use crate::tables::{inodes, quotas, usage};
use v1::quota_key::Kind;
use weft_proto::{ErrorKind, v1};

/// Most quotas in one answer.
const MOST: usize = 64;
/// One of them is no longer, in bytes.
const LONGEST: usize = MAX_PATH + 256;

impl Query for v1::GetQuotaOp {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault> {
        let on = usage::accounting(state)?.unwrap_or_default();
        let one = |key: v1::QuotaKey| -> StoreResult<v1::QuotaInfo> {
            let quota: Option<Quota> = state.load(&schema::quota(key))?;
            Ok(quotas::info(&on, key, quota.unwrap_or_default()))
        };
        let mut found = Vec::new();
        if let Some(key) = self.key {
            if Kind::try_from(key.kind).is_err() {
                return refuse(ErrorKind::Protocol, "a quota of an unknown kind");
            }
            found.push(one(key)?);
        } else {
            let inode = inodes::existing(state, self.ino)?;
            // One whose turn it is not yet is told, too.
            let own = usage::key(Kind::Tree, inode.attr.ino);
            if !inode.has_quota && state.get(&schema::quota(own))?.is_some() {
                found.push(one(own)?);
            }
            for (key, quota) in usage::above(state, inode.zone())? {
                found.push(quotas::info(&on, key, quota));
            }
            found.truncate(MOST - 2);
            if on.owners_below != 0 {
                found.push(one(usage::key(Kind::User, inode.attr.uid.into()))?);
                found.push(one(usage::key(Kind::Group, inode.attr.gid.into()))?);
            }
        }
        Ok(Reply::GetQuota(v1::GetQuotaReply { quotas: found }))
    }

    fn longest(&self) -> usize {
        BRIEF + MOST * LONGEST
    }
}

impl Query for v1::ListQuotasOp {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault> {
        let on = usage::accounting(state)?.unwrap_or_default();
        let (mut from, to) = schema::all(Tag::Quota);
        if let Some(after) = self.after {
            from = schema::quota(after);
            from.push(0);
        }
        let limit = (self.limit as usize).clamp(1, MOST);
        let (mut found, mut more) = (Vec::new(), false);
        state.records((from, to), |key, quota: Quota| {
            more = found.len() == limit;
            if !more {
                found.push(quotas::info(&on, schema::quota_of(key)?, quota));
            }
            Ok(!more)
        })?;
        Ok(Reply::ListQuotas(v1::ListQuotasReply { quotas: found, more }))
    }

    fn longest(&self) -> usize {
        BRIEF + MOST * LONGEST
    }
}
