//! Marks what lies below a directory with its quota, or with that of the directory above again, a
//! bounded number of names at a time ([`crate::tables::quotas`]).

use crate::operation::{Change, Context, EMPTY, Fault, Reply};
use crate::schema::{self, Accounting, IndexEntry, Number, Quota, Walk};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::quotas::{self, Marking};
use crate::tables::usage;
use v1::quota_key::Kind;
use v1::step_quota_entry::Page;
use weft_proto::{InodeId, v1};

/// Most names that one entry looks at.
pub(crate) const STEP: usize = 1024;

impl Change for v1::StepQuotaEntry {
    fn run(&self, tx: &mut Txn<'_>, _: &Context) -> Result<Reply, Fault> {
        tx.attempt(|tx| {
            let Some(on) = usage::accounting(tx.state())? else { return Ok(EMPTY) };
            if on.walking == 0 {
                // Of another directory the leases have not been taken back.
                let next = quotas::next_walk(tx.state())?;
                if let Some(root) = next.filter(|root| root.0 == self.root) {
                    begin(tx, on, root)?;
                }
                return Ok(EMPTY);
            }
            if on.walking != self.root {
                return Ok(EMPTY);
            }
            let root = InodeId(self.root);
            let Some(marking) = Marking::now(tx.state())? else { return Ok(EMPTY) };
            let mut left = STEP;
            for page in &self.pages {
                left = walk(tx, marking, page, left)?;
            }
            if is_over(tx.state(), root)? {
                end(tx, on, root)?;
            }
            Ok(EMPTY)
        })
    }
}

fn key(root: InodeId) -> Vec<u8> {
    schema::quota(usage::key(Kind::Tree, root.0))
}

fn record(state: &dyn Read, root: InodeId) -> StoreResult<Quota> {
    Ok(state.load(&key(root))?.unwrap_or_default())
}

fn is_over(state: &dyn Read, root: InodeId) -> StoreResult<bool> {
    let ((from, to), mut over) = (schema::quota_walks(root), true);
    state.scan(&from, &to, &mut |_, _| {
        over = false;
        Ok(false)
    })?;
    Ok(over)
}

fn begin(tx: &mut Txn<'_>, on: Accounting, root: InodeId) -> StoreResult<()> {
    let mut quota = record(tx.state(), root)?;
    let dir = tx.state().inode(root)?.filter(|dir| dir.is_dir());
    match dir.filter(|_| quota.walk != 0) {
        Some(dir) => {
            quotas::turn(tx, &dir, &mut quota)?;
            usage::put(tx, key(root), &quota)?;
            tx.put(schema::accounting(), &Accounting { walking: root.0, ..on });
        }
        // It is gone.
        None => {
            tx.delete(schema::quota_walk(root, root));
            end(tx, on, root)?;
        }
    }
    Ok(())
}

/// All is marked. What was asked for meanwhile comes next.
fn end(tx: &mut Txn<'_>, on: Accounting, root: InodeId) -> StoreResult<()> {
    tx.put(schema::accounting(), &Accounting { walking: 0, version: on.version + 1, ..on });
    let Some(mut quota) = tx.state().load::<Quota>(&key(root))? else { return Ok(()) };
    let is_there = tx.state().inode(root)?.is_some();
    quota.walk = match (quota.walk(), quota.ends) {
        (Walk::Mark, true) if is_there => Walk::Unmark,
        (Walk::Unmark, false) if is_there => Walk::Mark,
        _ => Walk::None,
    }
    .into();
    if quota.walk != 0 {
        quotas::wait_for_walk(tx, root);
    }
    usage::put(tx, key(root), &quota)
}

/// Marks the names of a page, as far as there is something `left` to do. Answers what is left then.
fn walk(tx: &mut Txn<'_>, marking: Marking, page: &Page, left: usize) -> StoreResult<usize> {
    let dir = InodeId(page.dir);
    let place = schema::quota_walk(marking.root, dir);
    let at = tx.state().load::<Number>(&place)?.map(|at| at.value);
    if at != Some(page.from) || left == 0 {
        return Ok(left);
    }
    let (mut found, mut next) = (Vec::new(), Some(page.to).filter(|to| *to != u64::MAX));
    let (_, end) = schema::all_of(schema::Tag::Index, dir);
    let range = (schema::index(dir, page.from), end.min(schema::index(dir, page.to)));
    tx.state().records(range, |key, entry: IndexEntry| {
        if found.len() >= left {
            next = Some(schema::number_at(key, schema::HEAD + 8)?);
            return Ok(false);
        }
        found.push(InodeId(entry.ino));
        Ok(true)
    })?;
    for ino in &found {
        quotas::mark(tx, marking, *ino)?;
    }
    match next {
        Some(value) => tx.put(place, &Number { value }),
        None => tx.delete(place),
    }
    Ok(left - found.len())
}
