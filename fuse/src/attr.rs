//! Attributes, times and locks between the client's form and the kernel's.

use crate::abi;
use weft_client::{Allocate, Attr, Lock, LockKind, SetAttr, SetTime, Via};

/// Size that `stat` recommends for I/O, in bytes: one FUSE request.
const IO_SIZE: u32 = abi::MAX_REQUEST;
const NS: i64 = 1_000_000_000;

/// What a mode of `fallocate(2)` asks for, and whether the size stays; `None` if that is not known
/// here.
pub fn allocation(mode: u32) -> Option<(Allocate, bool)> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_KEEP: i32 = ZERO | KEEP;
    match mode as i32 {
        0 => Some((Allocate::Room, false)),
        KEEP => Some((Allocate::Room, true)),
        ZERO => Some((Allocate::Hole, false)),
        PUNCH | ZERO_KEEP => Some((Allocate::Hole, true)),
        _ => None,
    }
}

pub fn to_kernel(a: &Attr) -> abi::Attr {
    abi::Attr {
        ino: a.ino.0,
        size: a.size,
        blocks: a.blocks,
        atime: time(a.atime_ns),
        mtime: time(a.mtime_ns),
        ctime: time(a.ctime_ns),
        btime: (a.btime_ns != 0).then(|| time(a.btime_ns)),
        mode: a.kind.type_bits() | a.mode & 0o7777,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        // The kernel's own 32-bit encoding came in with mknod and goes back as it was.
        rdev: a.rdev as u32,
        blksize: IO_SIZE,
    }
}

pub fn to_client(change: &abi::SetAttr) -> SetAttr {
    SetAttr {
        mode: change.mode.map(|mode| mode & 0o7777),
        uid: change.uid,
        gid: change.gid,
        size: change.size,
        atime: change.atime.map(set_time),
        mtime: change.mtime.map(set_time),
    }
}

/// How a read or write has to do with the kernel's pages.
pub fn via(direct: bool, write_back: bool) -> Via {
    match (direct, write_back) {
        (true, _) => Via::Direct,
        (false, true) => Via::WriteBack,
        (false, false) => Via::Cache,
    }
}

/// `None` for a kind of lock that there is not.
pub fn lock_to_client(lock: &abi::Lock) -> Option<Lock> {
    let abi::Lock { owner, start, end, pid, flock, .. } = *lock;
    let kind = match i32::try_from(lock.kind).ok()? {
        libc::F_UNLCK => LockKind::None,
        libc::F_RDLCK => LockKind::Read,
        libc::F_WRLCK => LockKind::Write,
        _ => return None,
    };
    Some(Lock { flock, owner, kind, start, end, pid })
}

pub fn lock_to_kernel(lock: &Lock) -> abi::Lock {
    let Lock { flock, owner, start, end, pid, .. } = *lock;
    let kind = match lock.kind {
        LockKind::None => libc::F_UNLCK,
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
    };
    abi::Lock { fh: 0, owner, start, end, kind: kind as u32, pid, flock }
}

/// From nanoseconds since 1970, before it too.
fn time(ns: i64) -> abi::Time {
    abi::Time { seconds: ns.div_euclid(NS), ns: ns.rem_euclid(NS) as u32 }
}

/// Times that nanoseconds in 64 bits cannot tell (before 1677, after 2262) become the nearest.
fn set_time(time: abi::SetTime) -> SetTime {
    match time {
        abi::SetTime::Now => SetTime::Now,
        abi::SetTime::At(seconds, ns) => {
            let exact = i128::from(seconds) * i128::from(NS) + i128::from(ns);
            SetTime::At(exact.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_on_both_sides_of_1970_are_exact() {
        for (seconds, ns, want) in [
            (0, 0, 0),
            (0, 1, 1),
            (1_700_000_000, 123_456_789, 1_700_000_000_123_456_789),
            (-1, 0, -1_000_000_000),
            (-1, 500_000_000, -500_000_000),
            (-86_400, 1, -86_399_999_999_999),
        ] {
            assert_eq!(set_time(abi::SetTime::At(seconds, ns)), SetTime::At(want));
            assert_eq!(time(want), abi::Time { seconds, ns });
        }
        assert_eq!(set_time(abi::SetTime::At(1 << 40, 0)), SetTime::At(i64::MAX));
        assert_eq!(set_time(abi::SetTime::At(i64::MIN, u32::MAX)), SetTime::At(i64::MIN));
        assert_eq!(time(i64::MIN).ns, 145_224_192);
    }
}
