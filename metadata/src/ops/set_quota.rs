//! Sets what a directory, a user, a group or a project may use.
//!
//! A directory without anything in it has its quota at once; else what lies below is marked step by
//! step first ([`super::step_quota`]). The first quota of a user or a group has all inodes counted
//! ([`super::count_owners`]).

use crate::operation::{Change, Context, EMPTY, Fault, Reply, refuse};
use crate::schema::{self, Accounting, Inode, Quota, Walk};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::usage::{self, Sums, add, negative};
use crate::tables::{inodes, quotas};
use std::collections::BTreeSet;
use v1::quota_key::Kind;
use weft_proto::{ErrorKind, InodeId, v1};

/// Longest path that is kept.
pub(super) const MAX_PATH: usize = 4096;
/// Directories that are looked at above one.
const MAX_DEPTH: usize = 4096;

impl Change for v1::SetQuotaOp {
    fn run(&self, tx: &mut Txn<'_>, cx: &Context) -> Result<Reply, Fault> {
        let Some(key) = self.key.filter(|key| Kind::try_from(key.kind).is_ok()) else {
            return refuse(ErrorKind::Protocol, "a quota of nobody, or of an unknown kind");
        };
        tx.attempt(|tx| {
            let before: Option<Quota> = tx.state().load(&schema::quota(key))?;
            let mut quota = before.clone().unwrap_or_default();
            set_limits(self, &mut quota)?;
            quotas::watch_soft(&mut quota, cx.now);
            tx.counts = true;
            let mut on = usage::accounting(tx.state())?.unwrap_or_default();
            on.version += 1;
            tx.put(schema::accounting(), &on);
            match key.kind() {
                Kind::Tree => set_tree(self, tx, key, before, quota)?,
                Kind::User | Kind::Group => {
                    count_owners(tx, on);
                    usage::put(tx, schema::quota(key), &quota)?;
                }
                Kind::Project => usage::put(tx, schema::quota(key), &quota)?,
            }
            Ok(EMPTY)
        })
    }
}

fn set_limits(op: &v1::SetQuotaOp, quota: &mut Quota) -> Result<(), Fault> {
    if op.path.len() > MAX_PATH {
        let what = format!("a path of {} bytes is over {MAX_PATH}", op.path.len());
        return refuse(ErrorKind::NameTooLong, what);
    }
    if op.clear {
        quota.limits = v1::QuotaLimits::default();
        return Ok(());
    }
    let old = quota.limits;
    let limits = v1::QuotaLimits {
        bytes: op.bytes.unwrap_or(old.bytes),
        soft_bytes: op.soft_bytes.unwrap_or(old.soft_bytes),
        inodes: op.inodes.unwrap_or(old.inodes),
        soft_inodes: op.soft_inodes.unwrap_or(old.soft_inodes),
        grace_s: op.grace_s.unwrap_or(old.grace_s),
    };
    let beyond = |soft: u64, hard: u64| hard != 0 && soft > hard;
    if beyond(limits.soft_bytes, limits.bytes) || beyond(limits.soft_inodes, limits.inodes) {
        return refuse(ErrorKind::Invalid, "a soft limit lies beyond the hard one");
    }
    let soft = (limits.soft_bytes, limits.soft_inodes) != (0, 0);
    let grace_s = if limits.grace_s == 0 && soft { quotas::GRACE } else { limits.grace_s };
    quota.limits = v1::QuotaLimits { grace_s, ..limits };
    Ok(())
}

/// Has all inodes counted for their owners, unless that was begun before.
fn count_owners(tx: &mut Txn<'_>, on: Accounting) {
    if on.owners_below == 0 {
        // No inode has a number below.
        tx.put(schema::accounting(), &Accounting { owners_below: 1, ..on });
        quotas::wait_for_walk(tx, InodeId(0));
    }
}

fn set_tree(
    op: &v1::SetQuotaOp,
    tx: &mut Txn<'_>,
    key: v1::QuotaKey,
    before: Option<Quota>,
    mut quota: Quota,
) -> Result<(), Fault> {
    let dir = inodes::named_directory(tx.state(), key.id)?;
    if op.clear && before.is_none() {
        let what = format!("directory {} has no quota of its own", dir.ino());
        return refuse(ErrorKind::NoAttribute, what);
    }
    if !op.path.is_empty() {
        quota.path = op.path.clone();
    }
    let project = if op.clear { Some(0) } else { op.project };
    let is_new = before.is_none() || quota.ends;
    quota.ends = op.clear;
    if let Some(project) = project.filter(|project| *project != quota.project) {
        join_project(tx, &dir, &mut quota, project)?;
    }
    // A walk that is under way ends first.
    let turns = quota.walk == 0 && dir.has_quota == op.clear && (is_new || op.clear);
    if turns {
        let walk = if op.clear { Walk::Unmark } else { Walk::Mark };
        quota.walk = walk.into();
        match dir.entries {
            0 => {
                quotas::turn(tx, &dir, &mut quota)?;
                quota.walk = Walk::None.into();
            }
            _ => quotas::wait_for_walk(tx, dir.ino()),
        }
    }
    Ok(usage::put(tx, schema::quota(key), &quota)?)
}

/// What counts for a directory's quota counts for another project, or for none.
fn join_project(
    tx: &mut Txn<'_>,
    dir: &Inode,
    quota: &mut Quota,
    project: u64,
) -> Result<(), Fault> {
    let state = tx.state();
    if quota.walk != 0 {
        let what = format!("what lies in directory {} is being counted: try again", dir.ino());
        return refuse(ErrorKind::Busy, what);
    }
    let above = directories_above(state, dir.ino())?;
    let mut others = Vec::new();
    state.records(schema::all(schema::Tag::Quota), |key, other: Quota| {
        let of = schema::quota_of(key)?;
        if of.kind() == Kind::Tree && project != 0 && other.project == project {
            others.push(of.id);
        }
        Ok(true)
    })?;
    for other in others {
        // What lies in both would count twice.
        let other = InodeId(other);
        if above.contains(&other) || directories_above(state, other)?.contains(&dir.ino()) {
            let what = format!(
                "directory {} and {} lie within each other: both cannot be of project {project}",
                dir.ino(),
                other
            );
            return refuse(ErrorKind::Invalid, what);
        }
    }
    let (mut sums, used) = (Sums::new(), [quota.bytes.into(), quota.inodes.into()]);
    if quota.project != 0 {
        add(&mut sums, usage::key(Kind::Project, quota.project), negative(used));
    }
    if project != 0 {
        add(&mut sums, usage::key(Kind::Project, project), used);
    }
    quota.project = project;
    Ok(usage::keep(tx, sums)?)
}

/// The directories that one lies below, as far up as one can be moved.
fn directories_above(state: &dyn Read, dir: InodeId) -> StoreResult<BTreeSet<InodeId>> {
    let (mut above, mut at) = (BTreeSet::new(), dir);
    while let Some(inode) = state.inode(at)? {
        at = InodeId(inode.parent);
        // The root is its own.
        if above.len() >= MAX_DEPTH || !above.insert(at) {
            break;
        }
    }
    Ok(above)
}
