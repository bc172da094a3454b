//! Requests of the kernel.

use super::bytes::{Malformed, Reader};
use super::opcode;
use super::{IN_HEADER, Init};

/// What every request says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    pub opcode: u32,
    /// Names the request until it is answered; never used again.
    pub unique: u64,
    pub node: u64,
    pub uid: u32,
    pub gid: u32,
    /// The calling thread, as the process that mounted sees it; 0 if it cannot.
    pub pid: u32,
    /// Bytes of extensions at the end.
    extensions: usize,
}

/// One request. Names and data are borrowed from the buffer that it was read into.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Request<'a> {
    pub header: Header,
    pub op: Op<'a>,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    Now,
    /// Seconds since 1970 and nanoseconds that count forward from them.
    At(i64, u32),
}

/// Which attributes to change.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    pub fh: Option<u64>,
    /// The caller may not keep set-id bits.
    pub drop_set_ids: bool,
}

/// A byte-range lock, or BSD's of the whole file.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Lock {
    pub fh: u64,
    pub owner: u64,
    pub start: u64,
    /// The last byte.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: u32,
    pub pid: u32,
    pub flock: bool,
}

/// What is asked. `flags` of open and create are those of `open(2)`; modes carry the type where the
/// call does, and are given with the umask that is not applied to them yet.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Op<'a> {
    Lookup {
        name: &'a [u8],
    },
    /// The kernel dropped an inode that it was told of in so many answers. Wants no answer.
    Forget {
        answers: u64,
    },
    /// The same of several.
    ForgetMany(Forgotten<'a>),
    GetAttr,
    StatX,
    SetAttr(SetAttr),
    ReadLink,
    SymLink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod {
        name: &'a [u8],
        mode: u32,
        rdev: u32,
        umask: u32,
    },
    MkDir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RmDir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    /// Gives inode `node` the name in the directory of the header.
    Link {
        node: u64,
        name: &'a [u8],
    },
    Open {
        flags: u32,
    },
    Create {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        flags: u32,
    },
    /// Makes a file without a name in the directory of the header and opens it.
    TmpFile {
        mode: u32,
        umask: u32,
        flags: u32,
    },
    /// `direct` where it fills no page of the kernel's.
    Read {
        fh: u64,
        offset: u64,
        size: u32,
        direct: bool,
    },
    /// `direct` as in `Read`; `write_back` where the kernel writes pages that were stored to in
    /// memory.
    Write {
        fh: u64,
        offset: u64,
        data: &'a [u8],
        direct: bool,
        write_back: bool,
        /// The caller may not keep set-id bits.
        drop_set_ids: bool,
        /// The open file has `O_APPEND` now: programs set and clear that (`F_SETFL`). `RWF_APPEND`
        /// of one call is not told.
        append: bool,
        /// The file, or this one call (`RWF_DSYNC`), asks for `O_DSYNC`. Linux obeys that itself by
        /// a sync for some writes only.
        sync: bool,
    },
    Flush {
        fh: u64,
        lock_owner: u64,
    },
    Fsync {
        fh: u64,
        data_only: bool,
    },
    /// `flock_owner` where BSD locks of that owner end with it.
    Release {
        fh: u64,
        flock_owner: Option<u64>,
    },
    OpenDir,
    ReadDir {
        fh: u64,
        after: u64,
        size: u32,
    },
    ReleaseDir {
        fh: u64,
    },
    FsyncDir,
    StatFs,
    SyncFs,
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
        /// With an access control list: the caller is not of the inode's group.
        clear_setgid: bool,
    },
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Access {
        mask: u32,
    },
    GetLk(Lock),
    SetLk(Lock),
    /// As `SetLk`, and waits until the lock is to be had.
    SetLkW(Lock),
    Fallocate {
        fh: u64,
        offset: u64,
        len: u64,
        mode: u32,
    },
    Lseek {
        fh: u64,
        offset: u64,
        whence: u32,
    },
    CopyFileRange {
        fh: u64,
        offset: u64,
        to_node: u64,
        to_fh: u64,
        to_offset: u64,
        len: u64,
        flags: u64,
        /// The answer has room for 64 bits.
        wide: bool,
    },
    Init(Init),
    /// The caller of request `unique` got a signal. Wants no answer.
    Interrupt {
        unique: u64,
    },
    Destroy,
    /// Anything that this protocol version does not know, or that nobody here serves.
    Unknown,
}

/// Inodes that the kernel dropped, each with the number of answers that it was told of it in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forgotten<'a>(&'a [u8]);

impl Iterator for Forgotten<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let mut r = Reader(self.0);
        let one = (r.u64().ok()?, r.u64().ok()?);
        self.0 = r.0;
        Some(one)
    }
}

/// Of reads and writes: the owner of locks is told, which Linux does of those past its pages alone.
const LOCK_OWNER: u32 = 1 << 1;

/// Length of the record that a request of this opcode begins with.
pub fn operation_len(opcode: u32) -> usize {
    match opcode {
        2 | 9 | 12 | 13 | 14 | 22 | 23 | 27 | 34 | 36 | 42 | 50 => 8,
        3 | 8 | 20 | 21 | 30 | 35 | 45 | 51 => 16,
        18 | 25 | 29 | 46 | 52 => 24,
        43 => 32,
        15 | 16 | 28 => 40,
        31..=33 => 48,
        47 | 53 => 56,
        4 => 88,
        _ => 0,
    }
}

/// Decodes what one read of `/dev/fuse` gave.
pub fn decode(bytes: &[u8]) -> Result<Request<'_>, Malformed> {
    let header = header(bytes)?;
    if usize::try_from(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        != Ok(bytes.len())
    {
        return Err(Malformed::Length);
    }
    let mut rest = Reader(&bytes[IN_HEADER..]);
    let record = rest.take(operation_len(header.opcode))?;
    with(header, record, rest.0)
}

/// Decodes what io_uring gave in parts: the header, the record, names or data.
pub fn decode_parts<'a>(
    head: &[u8],
    record: &'a [u8],
    tail: &'a [u8],
) -> Result<Request<'a>, Malformed> {
    let header = header(head)?;
    with(header, Reader(record).take(operation_len(header.opcode))?, tail)
}

fn header(bytes: &[u8]) -> Result<Header, Malformed> {
    let mut r = Reader(bytes);
    r.u32()?; // length
    let (opcode, unique, node) = (r.u32()?, r.u64()?, r.u64()?);
    let (uid, gid, pid) = (r.u32()?, r.u32()?, r.u32()?);
    let extensions = usize::from(r.u16()?) * 8;
    r.u16()?;
    Ok(Header { opcode, unique, node, uid, gid, pid, extensions })
}

fn with<'a>(header: Header, record: &'a [u8], tail: &'a [u8]) -> Result<Request<'a>, Malformed> {
    // Extensions come last. None is asked for; an answer to what was not asked is skipped.
    let named = tail.len().checked_sub(header.extensions).ok_or(Malformed::Short)?;
    let op = operation(header.opcode, Reader(record), Reader(&tail[..named]))?;
    Ok(Request { header, op })
}

fn operation<'a>(op: u32, mut r: Reader<'a>, mut tail: Reader<'a>) -> Result<Op<'a>, Malformed> {
    Ok(match op {
        opcode::LOOKUP => Op::Lookup { name: tail.name()? },
        opcode::FORGET => Op::Forget { answers: r.u64()? },
        opcode::BATCH_FORGET => Op::ForgetMany(forget_many(r, tail)?),
        opcode::GETATTR => skip_handle(r, Op::GetAttr)?,
        opcode::SETATTR => Op::SetAttr(set_attr(&mut r)?),
        opcode::READLINK => Op::ReadLink,
        opcode::SYMLINK => Op::SymLink { name: tail.name()?, target: tail.name()? },
        opcode::MKNOD => {
            Op::MkNod { mode: r.u32()?, rdev: r.u32()?, umask: r.u32()?, name: tail.name()? }
        }
        opcode::MKDIR => Op::MkDir { mode: r.u32()?, umask: r.u32()?, name: tail.name()? },
        opcode::UNLINK => Op::Unlink { name: tail.name()? },
        opcode::RMDIR => Op::RmDir { name: tail.name()? },
        opcode::RENAME => {
            let new_parent = r.u64()?;
            Op::Rename { new_parent, flags: 0, name: tail.name()?, new_name: tail.name()? }
        }
        opcode::RENAME2 => {
            let (new_parent, flags) = (r.u64()?, r.u32()?);
            Op::Rename { new_parent, flags, name: tail.name()?, new_name: tail.name()? }
        }
        opcode::LINK => Op::Link { node: r.u64()?, name: tail.name()? },
        opcode::OPEN => Op::Open { flags: r.u32()? },
        opcode::CREATE => {
            let (flags, mode, umask) = (r.u32()?, r.u32()?, r.u32()?);
            Op::Create { flags, mode, umask, name: tail.name()? }
        }
        opcode::TMPFILE => Op::TmpFile { flags: r.u32()?, mode: r.u32()?, umask: r.u32()? },
        opcode::READ => {
            let (fh, offset, size, flags) = (r.u64()?, r.u64()?, r.u32()?, r.u32()?);
            Op::Read { fh, offset, size, direct: flags & LOCK_OWNER != 0 }
        }
        opcode::WRITE => write(r, tail)?,
        opcode::STATFS => Op::StatFs,
        opcode::RELEASE => release(&mut r)?,
        opcode::FSYNC => Op::Fsync { fh: r.u64()?, data_only: r.u32()? & 1 != 0 },
        opcode::SETXATTR => set_xattr(r, tail)?,
        opcode::GETXATTR => Op::GetXattr { size: r.u32()?, name: tail.name()? },
        opcode::LISTXATTR => Op::ListXattr { size: r.u32()? },
        opcode::REMOVEXATTR => Op::RemoveXattr { name: tail.name()? },
        opcode::FLUSH => flush(r)?,
        opcode::INIT => Op::Init(Init::decode(&mut tail)?),
        opcode::OPENDIR => Op::OpenDir,
        opcode::READDIR => {
            let (fh, after, size) = (r.u64()?, r.u64()?, r.u32()?);
            Op::ReadDir { fh, after, size }
        }
        opcode::RELEASEDIR => Op::ReleaseDir { fh: r.u64()? },
        opcode::FSYNCDIR => Op::FsyncDir,
        opcode::GETLK => Op::GetLk(lock(&mut r)?),
        opcode::SETLK => Op::SetLk(lock(&mut r)?),
        opcode::SETLKW => Op::SetLkW(lock(&mut r)?),
        opcode::ACCESS => Op::Access { mask: r.u32()? },
        opcode::INTERRUPT => Op::Interrupt { unique: r.u64()? },
        opcode::DESTROY => Op::Destroy,
        opcode::FALLOCATE => {
            let (fh, offset, len, mode) = (r.u64()?, r.u64()?, r.u64()?, r.u32()?);
            Op::Fallocate { fh, offset, len, mode }
        }
        opcode::LSEEK => Op::Lseek { fh: r.u64()?, offset: r.u64()?, whence: r.u32()? },
        opcode::COPY_FILE_RANGE => copy_file_range(r, false)?,
        opcode::COPY_FILE_RANGE_64 => copy_file_range(r, true)?,
        opcode::SYNCFS => Op::SyncFs,
        opcode::STATX => skip_handle(r, Op::StatX)?,
        _ => Op::Unknown,
    })
}

fn write<'a>(mut r: Reader<'a>, tail: Reader<'a>) -> Result<Op<'a>, Malformed> {
    const CACHE: u32 = 1 << 0;
    const KILL_SUIDGID: u32 = 1 << 2;
    let (fh, offset, size, flags) = (r.u64()?, r.u64()?, r.u32()?, r.u32()?);
    let (_lock_owner, of_file) = (r.u64()?, r.u32()? as i32);
    let (append, sync) = (of_file & libc::O_APPEND != 0, of_file & libc::O_DSYNC != 0);
    let (direct, write_back) = (flags & LOCK_OWNER != 0, flags & CACHE != 0);
    let (drop_set_ids, data) = (flags & KILL_SUIDGID != 0, exactly(tail, size)?);
    Ok(Op::Write { fh, offset, data, direct, write_back, drop_set_ids, append, sync })
}

fn forget_many<'a>(mut r: Reader<'_>, mut tail: Reader<'a>) -> Result<Forgotten<'a>, Malformed> {
    const ONE: usize = 16;
    let bytes = (r.u32()? as usize).checked_mul(ONE).ok_or(Malformed::Length)?;
    Ok(Forgotten(tail.take(bytes)?))
}

fn flush(mut r: Reader<'_>) -> Result<Op<'_>, Malformed> {
    let (fh, _) = (r.u64()?, r.u64()?);
    Ok(Op::Flush { fh, lock_owner: r.u64()? })
}

fn set_xattr<'a>(mut r: Reader<'a>, mut tail: Reader<'a>) -> Result<Op<'a>, Malformed> {
    const ACL_KILL_SGID: u32 = 1 << 0;
    let (size, flags, of_kernel) = (r.u32()?, r.u32()?, r.u32()?);
    let clear_setgid = of_kernel & ACL_KILL_SGID != 0;
    Ok(Op::SetXattr { flags, clear_setgid, name: tail.name()?, value: exactly(tail, size)? })
}

fn copy_file_range<'a>(mut r: Reader<'a>, wide: bool) -> Result<Op<'a>, Malformed> {
    let (fh, offset, to_node, to_fh) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
    let (to_offset, len, flags) = (r.u64()?, r.u64()?, r.u64()?);
    Ok(Op::CopyFileRange { fh, offset, to_node, to_fh, to_offset, len, flags, wide })
}

/// The data of a request that told its length. The kernel pads nothing.
fn exactly(tail: Reader<'_>, size: u32) -> Result<&[u8], Malformed> {
    if tail.0.len() != size as usize {
        return Err(Malformed::Length);
    }
    Ok(tail.0)
}

/// GETATTR and STATX begin alike, with a handle, which makes no difference.
fn skip_handle<'a>(mut r: Reader<'_>, op: Op<'a>) -> Result<Op<'a>, Malformed> {
    let _ = (r.u32()?, r.u32()?, r.u64()?);
    Ok(op)
}

fn release<'a>(r: &mut Reader<'_>) -> Result<Op<'a>, Malformed> {
    const FLOCK_UNLOCK: u32 = 1 << 1;
    let (fh, _, flags, owner) = (r.u64()?, r.u32()?, r.u32()?, r.u64()?);
    Ok(Op::Release { fh, flock_owner: (flags & FLOCK_UNLOCK != 0).then_some(owner) })
}

fn lock(r: &mut Reader<'_>) -> Result<Lock, Malformed> {
    let (fh, owner, start, end) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
    let (kind, pid, flags) = (r.u32()?, r.u32()?, r.u32()?);
    Ok(Lock { fh, owner, start, end, kind, pid, flock: flags & 1 != 0 })
}

fn set_attr(r: &mut Reader<'_>) -> Result<SetAttr, Malformed> {
    let (valid, _) = (r.u32()?, r.u32()?);
    let (fh, size, _lock_owner) = (r.u64()?, r.u64()?, r.u64()?);
    let (atime, mtime, _ctime) = (r.u64()? as i64, r.u64()? as i64, r.u64()?);
    let (atime_ns, mtime_ns, _ctime_ns) = (r.u32()?, r.u32()?, r.u32()?);
    let (mode, _) = (r.u32()?, r.u32()?);
    let (uid, gid) = (r.u32()?, r.u32()?);
    let has = |bit: u32| valid & (1 << bit) != 0;
    let time = |set: u32, now: u32, seconds, ns| match (has(set), has(now)) {
        (true, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::At(seconds, ns)),
        (false, _) => None,
    };
    Ok(SetAttr {
        mode: has(0).then_some(mode),
        uid: has(1).then_some(uid),
        gid: has(2).then_some(gid),
        size: has(3).then_some(size),
        atime: time(4, 7, atime, atime_ns),
        mtime: time(5, 8, mtime, mtime_ns),
        fh: has(6).then_some(fh),
        drop_set_ids: has(11),
    })
}
