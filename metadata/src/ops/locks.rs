//! Locks of files: the ranges that one owner holds, what stands against another's, and their end.
//!
//! Those of fcntl(2) and of flock(2) are two sorts that know nothing of each other; within a sort,
//! ranges of two owners overlap only if both are for reading. A record holds all ranges of one owner
//! on one inode and exists only while there are any; a second one leads to it from its session, so
//! that a session takes its locks with it when it ends (I5).

use super::Fault;
use crate::schema::{self, Range, Ranges};
use crate::store::{Read, StoreResult, Txn, after};
use v1::lock::Kind;
use weft_proto::{Error, ErrorKind, InodeId, SessionId, v1};

/// The last byte that can be locked: files end there at the latest.
pub(crate) const LAST: u64 = i64::MAX as u64;

/// Refuses a lock that no kernel asks for.
pub(super) fn check(lock: &v1::Lock) -> Result<(), Fault> {
    let known = Kind::try_from(lock.kind).is_ok();
    let whole = lock.start == 0 && lock.end == LAST;
    if !known || lock.start > lock.end || lock.end > LAST || (lock.flock && !whole) {
        return Err(Error::new(ErrorKind::Invalid, "not a lock of a range of bytes").into());
    }
    Ok(())
}

impl Ranges {
    /// Makes `[start, end]` what `write` says: locked for writing, for reading, or (`None`) not.
    pub(crate) fn set(&mut self, start: u64, end: u64, write: Option<bool>) {
        let mut ranges = Vec::with_capacity(self.ranges.len() + 2);
        for r in &self.ranges {
            if r.start < start {
                ranges.push(Range { end: r.end.min(start - 1), ..*r });
            }
        }
        ranges.extend(write.map(|write| Range { start, end, write }));
        for r in &self.ranges {
            if r.end > end {
                ranges.push(Range { start: r.start.max(end + 1), ..*r });
            }
        }
        // Neighbours of one kind are one.
        ranges.dedup_by(|next, last| {
            let joined = last.write == next.write && last.end + 1 == next.start;
            if joined {
                last.end = next.end;
            }
            joined
        });
        self.ranges = ranges;
    }

    /// The first range that stands against another owner's lock.
    fn against(&self, lock: &v1::Lock) -> Option<Range> {
        let write = lock.kind() == Kind::Write;
        let meets = |r: &&Range| r.start <= lock.end && lock.start <= r.end && (write || r.write);
        self.ranges.iter().find(meets).copied()
    }
}

/// All that is locked of an inode, of one sort.
fn holders(
    state: &dyn Read,
    ino: InodeId,
    flock: bool,
    mut visit: impl FnMut(SessionId, u64, Ranges) -> bool,
) -> StoreResult<()> {
    let from = schema::lock(ino, flock, SessionId(0), 0);
    let to = after(&from[..from.len() - 16]).unwrap_or_default();
    state.records((from, to), |key, ranges: Ranges| {
        let (_, session, owner) = schema::holder_of(key)?;
        Ok(visit(session, owner, ranges))
    })
}

/// A lock of another owner that stands against `lock` of `session`, if there is one.
pub(crate) fn conflict(
    state: &dyn Read,
    session: SessionId,
    lock: &v1::Lock,
) -> Result<Option<v1::Lock>, Fault> {
    check(lock)?;
    let mut found = None;
    if lock.kind() != Kind::None {
        holders(state, InodeId(lock.ino), lock.flock, |holder, owner, held| {
            if (holder, owner) != (session, lock.owner) {
                found = held.against(lock).map(|r| shown(lock, holder, owner, held.pid, r));
            }
            found.is_none()
        })?;
    }
    Ok(found)
}

fn shown(of: &v1::Lock, session: SessionId, owner: u64, pid: u32, r: Range) -> v1::Lock {
    let kind = if r.write { Kind::Write } else { Kind::Read }.into();
    let (start, end, session) = (r.start, r.end, session.0);
    v1::Lock { ino: of.ino, flock: of.flock, owner, kind, start, end, pid, session }
}

/// All locks on an inode of one sort.
pub(crate) fn of_inode(state: &dyn Read, ino: InodeId, flock: bool) -> StoreResult<Vec<v1::Lock>> {
    let of = v1::Lock { ino: ino.0, flock, ..Default::default() };
    let mut all = Vec::new();
    holders(state, ino, flock, |session, owner, held| {
        all.extend(held.ranges.iter().map(|r| shown(&of, session, owner, held.pid, *r)));
        true
    })?;
    Ok(all)
}

/// Writes what an owner holds now.
pub(super) fn put(tx: &mut Txn<'_>, key: Vec<u8>, session: SessionId, held: &Ranges) {
    let index = schema::lock_of(session, &key);
    if held.ranges.is_empty() {
        tx.delete(key);
        tx.delete(index);
    } else {
        tx.put(key, held);
        tx.put_bytes(index, Default::default());
    }
}

/// A session ends, and all its locks with it.
pub(super) fn end(tx: &mut Txn<'_>, session: SessionId) -> StoreResult<()> {
    let (from, to) = schema::locks_of(session);
    let mut keys = Vec::new();
    tx.scan(&from, &to, &mut |key, _| {
        keys.push(key.to_vec());
        Ok(true)
    })?;
    for key in keys {
        tx.delete(schema::lock_in(&key)?.to_vec());
        tx.delete(key);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes that the model keeps apart; the last stands for all up to [`LAST`].
    const BYTES: u64 = 24;

    fn end_of(byte: u64) -> u64 {
        if byte == BYTES - 1 { LAST } else { byte }
    }

    proptest! {
        /// Against an array of bytes: what is set is what is there, in the fewest ranges.
        #[test]
        fn ranges_are_those_of_a_byte_array(
            steps in proptest::collection::vec((0..BYTES, 0..BYTES, 0u8..3), 1..40),
        ) {
            let mut held = Ranges::default();
            let mut model = [None; BYTES as usize];
            for (a, b, kind) in steps {
                let (start, end) = (a.min(b), a.max(b));
                let write = [None, Some(false), Some(true)][usize::from(kind)];
                held.set(start, end_of(end), write);
                model[start as usize..=end as usize].fill(write);
                let mut want: Vec<Range> = Vec::new();
                for (byte, write) in model.iter().enumerate() {
                    let (start, Some(write)) = (byte as u64, *write) else { continue };
                    match want.last_mut().filter(|r| r.write == write && r.end + 1 == start) {
                        Some(last) => last.end = end_of(start),
                        None => want.push(Range { start, end: end_of(start), write }),
                    }
                }
                prop_assert_eq!(&held.ranges, &want);
                for kind in [Kind::Read, Kind::Write] {
                    let lock = v1::Lock { kind: kind.into(), start, end, ..Default::default() };
                    let stands = model[start as usize..=end as usize].iter().any(|held| {
                        held.is_some_and(|write| write || kind == Kind::Write)
                    });
                    prop_assert_eq!(held.against(&lock).is_some(), stands);
                }
            }
        }
    }

    #[test]
    fn what_no_kernel_asks_for_is_refused() {
        let good = v1::Lock { ino: 1, end: LAST, kind: Kind::Write.into(), ..Default::default() };
        assert!(check(&good).is_ok());
        for bad in [
            v1::Lock { kind: 7, ..good },
            v1::Lock { start: 5, end: 4, ..good },
            v1::Lock { end: LAST + 1, ..good },
            v1::Lock { flock: true, start: 1, ..good },
        ] {
            assert!(check(&bad).is_err(), "{bad:?}");
        }
    }
}
