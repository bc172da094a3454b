//! Locks of files: the ranges that one owner holds, what stands against another's, and their end.
//!
//! Those of fcntl(2) and of flock(2) are two sorts that know nothing of each other; within a sort,
//! ranges of two owners overlap only if both are for reading. A record holds all ranges of one
//! owner on one inode and exists only while there are any; a second one leads to it from its
//! session, so that a session takes its locks with it when it ends (I5). Those of a session that
//! has ended lock nothing any more, though records of very many are still there.

use crate::operation::Fault;
use crate::read_locked::ReadLocked;
use crate::schema;
use crate::store::{Read, StoreResult, Txn, after};
use v1::lock::Kind;
use weft_proto::locks::{LAST, Range, Ranges};
use weft_proto::planted::{self, Bug};
use weft_proto::{Error, ErrorKind, InodeId, SessionId, v1};

/// Refuses a lock that no kernel asks for.
pub(crate) fn check(lock: &v1::Lock) -> Result<(), Fault> {
    let known = Kind::try_from(lock.kind).is_ok();
    let whole = lock.start == 0 && lock.end == LAST;
    if !known || lock.start > lock.end || lock.end > LAST || (lock.flock && !whole) {
        return Err(Error::new(ErrorKind::Invalid, "not a lock of a range of bytes").into());
    }
    Ok(())
}

/// The records of all that is locked of an inode, of one sort, those of ended sessions among them.
fn holders(
    state: &dyn Read,
    ino: InodeId,
    flock: bool,
    mut visit: impl FnMut(SessionId, u64, Ranges) -> StoreResult<bool>,
) -> StoreResult<()> {
    let from = schema::lock(ino, flock, SessionId(0), 0);
    let to = after(&from[..from.len() - 16]).unwrap_or_default();
    state.records((from, to), |key, ranges: Ranges| {
        let (_, session, owner) = schema::holder_of(key)?;
        visit(session, owner, ranges)
    })
}

/// A lock of another owner that stands against `lock` of `session`, if there is one. `known`: of
/// this state, where that is the newest.
pub(crate) fn conflict(
    state: &dyn Read,
    known: Option<&ReadLocked>,
    session: SessionId,
    lock: &v1::Lock,
) -> Result<Option<v1::Lock>, Fault> {
    check(lock)?;
    let (mut found, mut all_read) = (None, true);
    let reads = lock.kind() == Kind::Read;
    let known = known.filter(|_| reads);
    if lock.kind() != Kind::None && !known.is_some_and(|known| known.has(lock)) {
        holders(state, InodeId(lock.ino), lock.flock, |holder, owner, held| {
            all_read &= held.ranges.iter().all(|range| !range.write);
            if (holder, owner) != (session, lock.owner)
                && let Some(r) = held.against(lock)
                && (state.has_session(holder)? || planted::is(Bug::LockKept))
            {
                found = Some(shown(lock, holder, owner, held.pid, r));
            }
            Ok(found.is_none())
        })?;
        if let Some(known) = known.filter(|_| all_read) {
            known.note(lock);
        }
    }
    Ok(found)
}

fn shown(of: &v1::Lock, session: SessionId, owner: u64, pid: u32, r: Range) -> v1::Lock {
    let kind = if r.write { Kind::Write } else { Kind::Read }.into();
    let (start, end, session) = (r.start, r.end, session.0);
    v1::Lock { ino: of.ino, flock: of.flock, owner, kind, start, end, pid, session }
}

/// The records of a session's locks, counted up to `limit`.
pub(crate) fn count(state: &dyn Read, session: SessionId, limit: usize) -> StoreResult<usize> {
    let ((from, to), mut count) = (schema::locks_of(session), 0);
    state.scan(&from, &to, &mut |_, _| {
        count += 1;
        Ok(count < limit)
    })?;
    Ok(count)
}

/// Whether another session holds any lock on the inode.
pub(crate) fn others_hold(state: &dyn Read, session: SessionId, ino: InodeId) -> StoreResult<bool> {
    let mut others = false;
    for flock in [false, true] {
        holders(state, ino, flock, |holder, _, _| {
            others |= holder != session && state.has_session(holder)?;
            Ok(!others)
        })?;
    }
    Ok(others)
}

/// All locks on an inode of one sort.
pub(crate) fn of_inode(state: &dyn Read, ino: InodeId, flock: bool) -> StoreResult<Vec<v1::Lock>> {
    let of = v1::Lock { ino: ino.0, flock, ..Default::default() };
    let (mut all, mut last) = (Vec::new(), None);
    holders(state, ino, flock, |session, owner, held| {
        // They come session by session.
        let lives = match last.filter(|(known, _)| *known == session) {
            Some((_, lives)) => lives,
            None => state.has_session(session)?,
        };
        last = Some((session, lives));
        if lives {
            all.extend(held.ranges.iter().map(|r| shown(&of, session, owner, held.pid, *r)));
        }
        Ok(true)
    })?;
    Ok(all)
}

/// Writes what an owner holds now.
pub(crate) fn put(tx: &mut Txn<'_>, key: Vec<u8>, session: SessionId, held: &Ranges) {
    let index = schema::lock_of(session, &key);
    if held.ranges.is_empty() {
        tx.delete(key);
        tx.delete(index);
    } else {
        tx.put(key, held);
        tx.put_bytes(index, Default::default());
    }
}

/// Deletes the locks of a session that has ended, up to `limit`. Answers how many.
pub(crate) fn end(tx: &mut Txn<'_>, session: SessionId, limit: usize) -> StoreResult<usize> {
    let (from, to) = schema::locks_of(session);
    let mut keys = Vec::new();
    tx.scan(&from, &to, &mut |key, _| {
        keys.push(key.to_vec());
        Ok(keys.len() < limit)
    })?;
    let ended = keys.len();
    for key in keys {
        match schema::lock_in(&key) {
            Ok(lock) => tx.delete(lock.to_vec()),
            Err(e) => tracing::error!(session = session.0, "what it locked cannot be told: {e}"),
        }
        tx.delete(key);
    }
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Memory, Visit};
    use bytes::Bytes;
    use std::cell::Cell;

    /// Counts the records that are looked at.
    struct Looks<'a>(&'a dyn Read, Cell<usize>);

    impl Read for Looks<'_> {
        fn get(&self, key: &[u8]) -> StoreResult<Option<Bytes>> {
            self.0.get(key)
        }

        fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> StoreResult<()> {
            self.0.scan(from, to, &mut |key, value| {
                self.1.set(self.1.get() + 1);
                visit(key, value)
            })
        }
    }

    const ID: SessionId = SessionId(3);

    fn whole(kind: Kind) -> v1::Lock {
        let (ino, owner) = (9, 5000);
        v1::Lock { ino, flock: true, end: LAST, kind: kind.into(), owner, ..Default::default() }
    }

    fn hold(tx: &mut Txn<'_>, owner: u64, write: bool) {
        let ranges = vec![Range { start: 0, end: LAST, write }];
        put(tx, schema::lock(InodeId(9), true, ID, owner), ID, &Ranges { pid: 1, ranges });
    }

    #[test]
    fn who_reads_beside_thousands_of_readers_looks_at_none_of_them() {
        let memory = Memory::default();
        let base = memory.snapshot();
        let mut tx = Txn::new(&*base);
        tx.put(schema::session(ID), &schema::Session::default());
        (0..3000).for_each(|owner| hold(&mut tx, owner, false));
        let known = ReadLocked::default();
        let look = |tx: &Txn<'_>, kind| {
            let state = Looks(tx.state(), Cell::new(0));
            let found = conflict(&state, Some(&known), ID, &whole(kind)).unwrap();
            (found.is_some(), state.1.get())
        };
        assert_eq!(look(&tx, Kind::Read), (false, 3000));
        assert_eq!(look(&tx, Kind::Read), (false, 0));
        assert_eq!(look(&tx, Kind::Write), (true, 1), "one stands against it");
        // The last one is unlocked, and another takes it to write.
        known.end(&whole(Kind::Write));
        hold(&mut tx, 2999, true);
        for _ in 0..2 {
            assert_eq!(look(&tx, Kind::Read), (true, 3000));
        }
        hold(&mut tx, 2999, false);
        assert_eq!(look(&tx, Kind::Read), (false, 3000));
        assert_eq!(look(&tx, Kind::Read), (false, 0));
        known.forget();
        assert_eq!(look(&tx, Kind::Read), (false, 3000));
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
