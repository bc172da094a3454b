//! Locks a range of a file for its owner, unlocks it, or changes what the lock is for. Never waits:
//! who wants to, asks for its turn first ([`crate::soft::lock_waits`]).

use crate::operation::{Context, EMPTY, Fault, Operation, Reply, refuse};
use crate::schema;
use crate::store::{Read, StoreResult, Txn};
use crate::tables::{inodes, locks};
use v1::lock::Kind;
use weft_proto::locks::{MAX_RANGES, Ranges};
use weft_proto::planted::{self, Bug};
use weft_proto::{Error, ErrorKind, InodeId, v1};

impl Operation for v1::SetLockOp {
    /// Where the owner's locks lie, and what they are after this.
    type Plan = (Vec<u8>, Ranges);

    fn check(&self, state: &dyn Read, cx: &Context) -> Result<Self::Plan, Fault> {
        let missing = || Error::new(ErrorKind::Protocol, "a request to lock without a lock");
        let lock = self.lock.as_ref().ok_or_else(missing)?;
        locks::check(lock)?;
        let key = schema::lock(InodeId(lock.ino), lock.flock, cx.session, lock.owner);
        let mut held: Ranges = state.load(&key)?.unwrap_or_default();
        let write = match lock.kind() {
            Kind::None => None,
            Kind::Read => Some(false),
            Kind::Write => Some(true),
        };
        if write.is_some() {
            inodes::existing(state, lock.ino)?;
            held.pid = lock.pid;
            let conflict = locks::conflict(state, Some(&cx.read_locked), cx.session, lock)?;
            if conflict.is_some() && !planted::is(Bug::LockTwice) {
                return refuse(ErrorKind::WouldBlock, "another holds a lock");
            }
        }
        let before = held.ranges.len();
        held.set(lock.start, lock.end, write);
        if held.ranges.len() > MAX_RANGES.max(before) {
            let what = format!("over {MAX_RANGES} ranges of one file are locked by one owner");
            return refuse(ErrorKind::NoLocks, what);
        }
        Ok((key, held))
    }

    fn apply(&self, (key, held): Self::Plan, tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply> {
        if let Some(lock) = self.lock.as_ref().filter(|lock| lock.kind() == Kind::Write) {
            cx.read_locked.end(lock);
        }
        locks::put(tx, key, cx.session, &held);
        Ok(EMPTY)
    }
}
