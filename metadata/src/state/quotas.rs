//! What the state says of quotas: what is to be counted, and what is left under them.

use super::StateMachine;
use crate::ops::QUOTA_STEP;
use crate::schema::{self, IndexEntry, Number};
use crate::store::{Read, StoreResult};
use crate::tables::{quotas, usage};
use std::sync::atomic::Ordering;
use v1::log_entry::Body;
use v1::step_quota_entry::Page;
use weft_proto::{InodeId, Result, v1};

/// What something counts for, as to quotas.
pub(crate) struct Counting {
    /// The directory whose quota it is; 0: none.
    pub zone: u64,
    pub uid: u32,
    pub gid: u32,
    pub is_orphan: bool,
}

impl StateMachine {
    /// Whether a quota was ever set.
    pub fn has_quotas(&self) -> bool {
        self.quotas.load(Ordering::Acquire)
    }

    /// As [`Self::orphaned`], of what is to be counted for quotas.
    pub fn to_count(&self) -> u64 {
        self.to_count.load(Ordering::Acquire)
    }

    /// What comes next of all that is to be counted: an entry of the log, and the inodes that it
    /// marks.
    pub fn next_count(&self) -> Result<Option<(Body, Vec<InodeId>)>> {
        self.read_by(self.store.view(next))
    }

    /// What is made in a directory, or written to a file, counts for.
    pub(crate) fn zone(&self, ino: InodeId) -> Result<Option<Counting>> {
        let inode = self.read_by(self.store.newest(|s| s.inode(ino)))?;
        Ok(inode.map(|inode| Counting {
            zone: inode.zone(),
            uid: inode.attr.uid,
            gid: inode.attr.gid,
            is_orphan: inode.attr.nlink == 0,
        }))
    }

    /// Bytes and inodes that are left under a quota, and all that it counts for. `None`: no limit
    /// stands in the way.
    pub(crate) fn left(&self, key: v1::QuotaKey, now: i64) -> Result<Option<[u64; 2]>> {
        let found = self.read_by(self.store.view(|s| -> StoreResult<_> {
            let on = usage::accounting(s)?.unwrap_or_default();
            let all = match key.kind() {
                v1::quota_key::Kind::Tree => usage::above(s, key.id)?,
                _ => Vec::from_iter(s.load(&schema::quota(key))?.map(|quota| (key, quota))),
            };
            let counted = all.iter().filter(|(key, quota)| quotas::is_counted(&on, *key, quota));
            Ok(counted.map(|(_, quota)| quotas::left(quota, now)).collect::<Vec<_>>())
        }))?;
        let least = found.into_iter().reduce(|a, b| [a[0].min(b[0]), a[1].min(b[1])]);
        Ok(least.filter(|left| *left != [u64::MAX; 2]))
    }

    /// Whether users and groups are counted, and the version of all limits.
    pub(crate) fn limits(&self) -> Result<(bool, u64)> {
        let on = self.read_by(self.store.newest(|s| usage::accounting(s)))?.unwrap_or_default();
        Ok((on.owners_below != 0, on.version))
    }
}

fn next(s: &dyn Read) -> StoreResult<Option<(Body, Vec<InodeId>)>> {
    let Some(on) = usage::accounting(s)? else { return Ok(None) };
    if s.get(&schema::quota_walk(InodeId(0), InodeId(0)))?.is_some() {
        return Ok(Some((Body::CountOwners(v1::CountOwnersEntry {}), Vec::new())));
    }
    if on.walking == 0 {
        let root = quotas::next_walk(s)?;
        let entry = |root: InodeId| v1::StepQuotaEntry { root: root.0, pages: Vec::new() };
        return Ok(root.map(|root| (Body::StepQuota(entry(root)), vec![root])));
    }
    let root = InodeId(on.walking);
    let (mut dirs, mut pages, mut inos) = (Vec::new(), Vec::new(), Vec::new());
    s.records(schema::quota_walks(root), |key, at: Number| {
        dirs.push((InodeId(schema::number_at(key, schema::HEAD + 8)?), at.value));
        Ok(dirs.len() < QUOTA_STEP)
    })?;
    for (dir, from) in dirs {
        if inos.len() >= QUOTA_STEP {
            break;
        }
        let (_, end) = schema::all_of(schema::Tag::Index, dir);
        let mut to = u64::MAX;
        s.records((schema::index(dir, from), end), |key, entry: IndexEntry| {
            if inos.len() >= QUOTA_STEP {
                to = schema::number_at(key, schema::HEAD + 8)?;
                return Ok(false);
            }
            inos.push(InodeId(entry.ino));
            Ok(true)
        })?;
        pages.push(Page { dir: dir.0, from, to });
    }
    Ok(Some((Body::StepQuota(v1::StepQuotaEntry { root: root.0, pages }), inos)))
}
