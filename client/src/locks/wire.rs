//! Locks as the group knows them.

use crate::types::{Lock, LockKind};
use weft_proto::{InodeId, SessionId, v1};

pub(super) fn to_wire(ino: InodeId, lock: &Lock) -> v1::Lock {
    let Lock { flock, owner, start, end, pid, .. } = *lock;
    let kind = match lock.kind {
        LockKind::None => v1::lock::Kind::None,
        LockKind::Read => v1::lock::Kind::Read,
        LockKind::Write => v1::lock::Kind::Write,
    };
    v1::Lock { ino: ino.0, flock, owner, kind: kind.into(), start, end, pid, session: 0 }
}

/// A lock of somebody, as the session `ours` sees it.
pub(super) fn from_wire(lock: &v1::Lock, ours: SessionId) -> Lock {
    Lock {
        flock: lock.flock,
        owner: lock.owner,
        kind: match lock.kind() {
            v1::lock::Kind::None => LockKind::None,
            v1::lock::Kind::Read => LockKind::Read,
            v1::lock::Kind::Write => LockKind::Write,
        },
        start: lock.start,
        end: lock.end,
        pid: if lock.session == ours.0 { lock.pid } else { 0 },
    }
}
