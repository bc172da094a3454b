//! Limits: what a change may not add to, when a soft limit was first exceeded, and the marking of
//! what lies below a directory that gets a quota, or loses it.
//!
//! Invariants: what lies in a directory counts for the directory's quota ([`Inode::zone`]), or is
//! yet to be marked; one directory's walk is under way at a time; a directory is put on the list of
//! a walk when it is marked, so that what is made in it from then on is marked, too, and what was
//! there is found.

use super::usage::{self, Sums, negative};
use crate::operation::{Fault, refuse};
use crate::schema::{self, ALL_OWNERS, Accounting, Inode, Number, Quota, Walk};
use crate::store::{Read, StoreResult, Txn};
use v1::quota_key::Kind;
use weft_proto::{ErrorKind, InodeId, v1};

/// How long a soft limit may be exceeded if nobody says otherwise, in seconds: a week.
pub(crate) const GRACE: u64 = 7 * 24 * 3600;

/// Carries out a change, and refuses it if it adds to what a quota limits, unless it only tells of
/// what was done already.
pub(crate) fn carried_out<T>(
    tx: &mut Txn<'_>,
    now: i64,
    tells: bool,
    change: impl FnOnce(&mut Txn<'_>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    if !tx.counts {
        return change(tx);
    }
    tx.attempt(|tx| {
        tx.tally.clear();
        let done = change(tx)?;
        settle(tx, now, tells)?;
        Ok(done)
    })
}

/// Looks at the limits of all that was added to.
fn settle(tx: &mut Txn<'_>, now: i64, tells: bool) -> Result<(), Fault> {
    let tally = std::mem::take(&mut tx.tally);
    if tally.is_empty() {
        return Ok(());
    }
    let on = usage::accounting(tx.state())?.unwrap_or_default();
    for (key, [bytes, inodes]) in tally {
        let Some(mut quota) = tx.state().load::<Quota>(&key)? else { continue };
        let of = schema::quota_of(&key)?;
        let before = (quota.bytes_since, quota.inodes_since);
        watch_soft(&mut quota, now);
        if !tells && is_counted(&on, of, &quota) {
            let grows = (bytes > 0, inodes > 0);
            if let Some(what) = exceeded(&quota, grows, now) {
                return refuse(
                    ErrorKind::Quota,
                    format!("the quota of {} is used up: {what}", name(of)),
                );
            }
        }
        if (quota.bytes_since, quota.inodes_since) != before {
            usage::put(tx, key, &quota)?;
        }
    }
    Ok(())
}

/// Notes since when soft limits have been exceeded, as usage and limits are now.
pub(crate) fn watch_soft(quota: &mut Quota, now: i64) {
    let since = |used: u64, soft: u64, since: i64| match soft != 0 && used > soft {
        true if since == 0 => now,
        true => since,
        false => 0,
    };
    let limits = quota.limits;
    quota.bytes_since = since(quota.bytes, limits.soft_bytes, quota.bytes_since);
    quota.inodes_since = since(quota.inodes, limits.soft_inodes, quota.inodes_since);
}

/// Whose quota it is, for people.
fn name(of: v1::QuotaKey) -> String {
    match of.kind() {
        Kind::Tree => format!("directory {}", InodeId(of.id)),
        Kind::User => format!("user {}", of.id),
        Kind::Group => format!("group {}", of.id),
        Kind::Project => format!("project {}", of.id),
    }
}

/// Whether all that counts for a quota is counted.
pub(crate) fn is_counted(on: &Accounting, of: v1::QuotaKey, quota: &Quota) -> bool {
    match of.kind() {
        Kind::Tree => quota.walk == Walk::None as i32,
        Kind::User | Kind::Group => on.owners_below == ALL_OWNERS,
        Kind::Project => true,
    }
}

/// Whether the time is over for which a soft limit may be exceeded.
fn is_overdue(quota: &Quota, since: i64, now: i64) -> bool {
    let grace = quota.limits.grace_s.saturating_mul(1_000_000_000);
    since != 0 && now.saturating_sub(since) > i64::try_from(grace).unwrap_or(i64::MAX)
}

/// Which limit stands against adding bytes, or inodes.
fn exceeded(quota: &Quota, (bytes, inodes): (bool, bool), now: i64) -> Option<String> {
    let limits = &quota.limits;
    let over = |used: u64, hard: u64| hard != 0 && used > hard;
    if bytes && over(quota.bytes, limits.bytes) {
        return Some(format!("it allows {} bytes", limits.bytes));
    }
    if inodes && over(quota.inodes, limits.inodes) {
        return Some(format!("it allows {} inodes", limits.inodes));
    }
    if bytes && is_overdue(quota, quota.bytes_since, now) {
        return Some(format!("over {} bytes for too long", limits.soft_bytes));
    }
    if inodes && is_overdue(quota, quota.inodes_since, now) {
        return Some(format!("over {} inodes for too long", limits.soft_inodes));
    }
    None
}

/// Bytes and inodes that are left under a quota's limits; `u64::MAX`: there is none.
pub(crate) fn left(quota: &Quota, now: i64) -> [u64; 2] {
    let left = |used: u64, hard: u64, since: i64| match hard {
        _ if is_overdue(quota, since, now) => 0,
        0 => u64::MAX,
        hard => hard.saturating_sub(used),
    };
    let limits = &quota.limits;
    [
        left(quota.bytes, limits.bytes, quota.bytes_since),
        left(quota.inodes, limits.inodes, quota.inodes_since),
    ]
}

/// As clients are told of it.
pub(crate) fn info(on: &Accounting, of: v1::QuotaKey, quota: Quota) -> v1::QuotaInfo {
    v1::QuotaInfo {
        key: Some(of),
        limits: Some(quota.limits),
        bytes: quota.bytes,
        inodes: quota.inodes,
        soft_bytes_since_ns: quota.bytes_since,
        soft_inodes_since_ns: quota.inodes_since,
        counting: !quota.ends && !is_counted(on, of, &quota),
        path: quota.path,
        project: quota.project,
        ends: quota.ends,
    }
}

/// The directory whose walk comes next.
pub(crate) fn next_walk(state: &dyn Read) -> StoreResult<Option<InodeId>> {
    let (_, to) = schema::all(schema::Tag::QuotaWalk);
    let (from, mut next) = (schema::quota_walk(InodeId(1), InodeId(0)), None);
    state.scan(&from, &to, &mut |key, _| {
        next = Some(InodeId(schema::number_at(key, schema::HEAD)?));
        Ok(false)
    })?;
    Ok(next)
}

/// The walk that is under way: the directory, and the quotas that what lies below it counts for
/// before it is marked and after.
#[derive(Clone, Copy)]
pub(crate) struct Marking {
    pub root: InodeId,
    pub from: u64,
    pub to: u64,
}

impl Marking {
    pub fn now(state: &dyn Read) -> StoreResult<Option<Self>> {
        let root = usage::accounting(state)?.unwrap_or_default().walking;
        if root == 0 {
            return Ok(None);
        }
        let quota: Quota =
            state.load(&schema::quota(usage::key(Kind::Tree, root)))?.unwrap_or_default();
        let (from, to) = match quota.walk() {
            Walk::Mark => (quota.above, root),
            _ => (root, quota.above),
        };
        Ok(Some(Self { root: InodeId(root), from, to }))
    }

    /// Whether something that counts for one quota, and lies in a directory with another, is yet to
    /// be marked.
    pub fn marks(&self, quota: u64, zone: u64) -> bool {
        (quota, zone) == (self.from, self.to)
    }
}

/// What lies below the directory is to be marked.
pub(crate) fn wait_for_walk(tx: &mut Txn<'_>, root: InodeId) {
    tx.put(schema::quota_walk(root, root), &Number { value: 0 });
}

/// A directory becomes one with a quota, or one like others: what is made in it from now on counts
/// accordingly.
pub(crate) fn turn(tx: &mut Txn<'_>, dir: &Inode, quota: &mut Quota) -> StoreResult<()> {
    let has_quota = quota.walk == Walk::Mark as i32;
    tx.edit_inode(dir.ino(), |dir| dir.has_quota = has_quota)?;
    if has_quota {
        reach_under(tx, dir.ino(), quota, dir.quota)?;
    }
    Ok(())
}

/// A directory with a quota is no more: its quota goes with the last that counts for it.
pub(crate) fn gone(tx: &mut Txn<'_>, root: InodeId) -> StoreResult<()> {
    let key = schema::quota(usage::key(Kind::Tree, root.0));
    let Some(mut quota) = tx.state().load::<Quota>(&key)? else { return Ok(()) };
    quota.ends = true;
    usage::put(tx, key, &quota)
}

/// A directory's quota counts for that of another directory from now on.
fn reach_under(tx: &mut Txn<'_>, root: InodeId, quota: &mut Quota, above: u64) -> StoreResult<()> {
    if quota.above == above {
        return Ok(());
    }
    let (mut sums, used) = (Sums::new(), [quota.bytes.into(), quota.inodes.into()]);
    usage::add_above(tx.state(), quota.above, &mut sums, negative(used))?;
    usage::add_above(tx.state(), above, &mut sums, used)?;
    quota.above = above;
    usage::put(tx, schema::quota(usage::key(Kind::Tree, root.0)), quota)?;
    usage::keep(tx, sums)
}

/// Marks an inode that lies in a directory that is marked already.
pub(crate) fn mark(tx: &mut Txn<'_>, walk: Marking, ino: InodeId) -> StoreResult<()> {
    let Marking { root, from, to } = walk;
    let Some(mut inode) = tx.state().inode(ino)?.filter(|inode| inode.quota == from) else {
        return Ok(());
    };
    inode.quota = to;
    tx.put_inode(&inode)?;
    if inode.has_quota {
        // What lies below it counts for its own.
        let key = schema::quota(usage::key(Kind::Tree, ino.0));
        if let Some(mut quota) = tx.state().load::<Quota>(&key)? {
            reach_under(tx, ino, &mut quota, to)?;
        }
    } else if inode.is_dir() {
        tx.put(schema::quota_walk(root, ino), &Number { value: 0 });
    }
    Ok(())
}
