//! What inodes count for: usage of directories with quotas, of users, groups and projects, kept
//! with every record of an inode that is written.
//!
//! Invariants: what is used of a quota is the sum of what the inodes that count for it come to
//! ([`charge`]), in the same transaction as their records; where no quota was ever set, nobody
//! counts, and no record is read for it.

use crate::schema::{self, Accounting, Inode, Quota};
use crate::store::{Read, StoreResult, Txn};
use bytes::Bytes;
use std::collections::BTreeMap;
use v1::quota_key::Kind;
use weft_proto::{InodeId, v1};

/// Bytes and inodes that are added to what is used, by the keys of quotas.
pub(crate) type Sums = BTreeMap<Vec<u8>, [i128; 2]>;

/// Directories with quotas above each other, at most: a defect must not go round for ever.
const MAX_ABOVE: usize = 4096;

/// The bytes and inodes that an inode comes to, until it is purged: who keeps open what has no name
/// any more could write without end otherwise.
pub(crate) fn charge(inode: &Inode) -> [i128; 2] {
    [inode.allocated.into(), 1]
}

pub(crate) fn key(kind: Kind, id: u64) -> v1::QuotaKey {
    v1::QuotaKey { kind: kind.into(), id }
}

/// What is counted; `None`: nothing.
pub(crate) fn accounting(state: &dyn Read) -> StoreResult<Option<Accounting>> {
    state.load(&schema::accounting())
}

/// The keys that what is in this directory's quota counts for: that, those of the directories
/// above, and their projects. With their records.
pub(crate) fn above(state: &dyn Read, zone: u64) -> StoreResult<Vec<(v1::QuotaKey, Quota)>> {
    let (mut found, mut at) = (Vec::new(), zone);
    while at != 0 && found.len() < MAX_ABOVE {
        let tree = key(Kind::Tree, at);
        let Some(quota) = state.load::<Quota>(&schema::quota(tree))? else { break };
        let project = key(Kind::Project, quota.project);
        at = quota.above;
        found.push((tree, quota));
        if project.id != 0 {
            let of_project = state.load(&schema::quota(project))?.unwrap_or_default();
            found.push((project, of_project));
        }
    }
    Ok(found)
}

/// Adds to what counts for a directory's quota, and for all that it counts for.
pub(crate) fn add_above(
    state: &dyn Read,
    zone: u64,
    sums: &mut Sums,
    change: [i128; 2],
) -> StoreResult<()> {
    for (key, _) in above(state, zone)? {
        add(sums, key, change);
    }
    Ok(())
}

pub(crate) fn add(sums: &mut Sums, key: v1::QuotaKey, change: [i128; 2]) {
    let sum = sums.entry(schema::quota(key)).or_default();
    sum[0] += change[0];
    sum[1] += change[1];
}

pub(crate) fn negative(change: [i128; 2]) -> [i128; 2] {
    change.map(|n| -n)
}

/// Adds what an inode comes to.
fn add_inode(
    state: &dyn Read,
    on: &Accounting,
    inode: &Inode,
    change: [i128; 2],
    sums: &mut Sums,
) -> StoreResult<()> {
    add_above(state, inode.quota, sums, change)?;
    if inode.attr.ino < on.owners_below {
        add(sums, key(Kind::User, inode.attr.uid.into()), change);
        add(sums, key(Kind::Group, inode.attr.gid.into()), change);
    }
    Ok(())
}

/// Puts what was added into the records.
pub(crate) fn keep(tx: &mut Txn<'_>, sums: Sums) -> StoreResult<()> {
    for (key, change) in sums {
        if change == [0, 0] {
            continue;
        }
        let mut quota: Quota = tx.state().load(&key)?.unwrap_or_default();
        let sum = |used: u64, change: i128| {
            u64::try_from((i128::from(used) + change).max(0)).unwrap_or(u64::MAX)
        };
        quota.bytes = sum(quota.bytes, change[0]);
        quota.inodes = sum(quota.inodes, change[1]);
        let told = tx.tally.entry(key.clone()).or_default();
        (told[0], told[1]) = (told[0] + change[0], told[1] + change[1]);
        put(tx, key, &quota)?;
    }
    Ok(())
}

/// Stores the record of a quota, unless nothing needs it any more.
pub(crate) fn put(tx: &mut Txn<'_>, key: Vec<u8>, quota: &Quota) -> StoreResult<()> {
    let is_tree = schema::quota_of(&key)?.kind() == Kind::Tree;
    let unused = (quota.bytes, quota.inodes) == (0, 0);
    let over = match is_tree {
        true => quota.ends && quota.walk == 0,
        false => quota.limits == v1::QuotaLimits::default(),
    };
    match unused && over {
        true => tx.delete(key),
        false => tx.put(key, quota),
    }
    Ok(())
}

impl Txn<'_> {
    pub(crate) fn put_inode(&mut self, record: &Inode) -> StoreResult<()> {
        let older;
        let record = if self.complete {
            record
        } else {
            // As a server of the version before has it.
            let parent = if record.is_dir() { record.parent } else { 0 };
            older = Inode { parent, ..record.clone() };
            &older
        };
        let key = schema::inode(record.ino());
        if self.counts
            && let Some(on) = accounting(self.state())?
        {
            let before: Option<Inode> = self.state().load(&key)?;
            self.count(&on, before.as_ref(), Some(record))?;
        }
        self.put(key, record);
        Ok(())
    }

    /// An inode is no more.
    pub(crate) fn delete_inode(&mut self, record: &Inode) -> StoreResult<()> {
        if self.counts
            && let Some(on) = accounting(self.state())?
        {
            self.count(&on, Some(record), None)?;
        }
        self.delete(schema::inode(record.ino()));
        Ok(())
    }

    /// Changes an inode that exists, whatever earlier changes of this transaction made of it.
    pub(crate) fn edit_inode(
        &mut self,
        ino: InodeId,
        change: impl FnOnce(&mut Inode),
    ) -> StoreResult<Inode> {
        let mut record = self.state().inode_that_exists(ino)?;
        change(&mut record);
        self.put_inode(&record)?;
        Ok(record)
    }

    /// The record of an inode is changed as it is told, by who mends.
    pub(crate) fn replace_inode(
        &mut self,
        key: Vec<u8>,
        before: Option<Inode>,
        after: Option<Bytes>,
    ) -> StoreResult<()> {
        if self.counts
            && let Some(on) = accounting(self.state())?
        {
            let inode = after.clone().map(|after| schema::decode(&key, after)).transpose()?;
            self.count(&on, before.as_ref(), inode.as_ref())?;
        }
        match after {
            Some(after) => self.put_bytes(key, after),
            None => self.delete(key),
        }
        Ok(())
    }

    /// An inode becomes another.
    fn count(
        &mut self,
        on: &Accounting,
        before: Option<&Inode>,
        after: Option<&Inode>,
    ) -> StoreResult<()> {
        let counts = |inode: Option<&Inode>| {
            inode.map(|inode| (charge(inode), inode.quota, inode.attr.uid, inode.attr.gid))
        };
        if counts(before) == counts(after) {
            return Ok(());
        }
        let mut sums = Sums::new();
        if let Some(before) = before {
            add_inode(self.state(), on, before, negative(charge(before)), &mut sums)?;
        }
        if let Some(after) = after {
            add_inode(self.state(), on, after, charge(after), &mut sums)?;
        }
        keep(self, sums)
    }
}
