//! Counts what inodes come to for their users and groups, a bounded number at a time, in the order
//! of their numbers. Those before are counted with each change ([`crate::tables::usage`]).

use crate::operation::{Change, Context, EMPTY, Fault, Reply};
use crate::schema::{self, ALL_OWNERS, Accounting, Inode, Tag};
use crate::store::Txn;
use crate::tables::usage::{self, Sums, add};
use v1::quota_key::Kind;
use weft_proto::{InodeId, v1};

/// Most inodes that one entry looks at.
const STEP: usize = 4096;

impl Change for v1::CountOwnersEntry {
    fn run(&self, tx: &mut Txn<'_>, _: &Context) -> Result<Reply, Fault> {
        tx.attempt(|tx| {
            let on = usage::accounting(tx.state())?.unwrap_or_default();
            if matches!(on.owners_below, 0 | ALL_OWNERS) {
                tx.delete(schema::quota_walk(InodeId(0), InodeId(0)));
                return Ok(EMPTY);
            }
            let (first, to) = schema::all_in(tx.state().shard()?, Tag::Inode);
            let from = schema::inode(InodeId(on.owners_below)).max(first);
            let (mut sums, mut seen, mut below) = (Sums::new(), 0, ALL_OWNERS);
            tx.state().records((from, to), |key, inode: Inode| {
                if seen == STEP {
                    below = schema::ino_of(key)?.0;
                    return Ok(false);
                }
                seen += 1;
                let charge = usage::charge(&inode);
                add(&mut sums, usage::key(Kind::User, inode.attr.uid.into()), charge);
                add(&mut sums, usage::key(Kind::Group, inode.attr.gid.into()), charge);
                Ok(true)
            })?;
            usage::keep(tx, sums)?;
            let version = on.version + u64::from(below == ALL_OWNERS);
            let now = Accounting { owners_below: below, version, ..on };
            tx.put(schema::accounting(), &now);
            if below == ALL_OWNERS {
                tx.delete(schema::quota_walk(InodeId(0), InodeId(0)));
            }
            Ok(EMPTY)
        })
    }
}
