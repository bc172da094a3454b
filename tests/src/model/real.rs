//! The operations of the model as system calls, by way of one mount or another.

use super::node::{Answer, Attr, Kind};
use super::op::{Allocate, Op, Rename, SetTime, SetXattr};
use crate::fsx;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, FallocateFlags, OFlag, RenameFlags, fallocate, renameat2};
use nix::sys::stat::{FileStat, Mode, UtimensatFlags, fstat, lstat, stat, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{self, Gid, Uid};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, DirEntryExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const SECOND: i64 = 1_000_000_000;

type Result<T, E = Errno> = std::result::Result<T, E>;

/// What one system call tells of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    pub ino: u64,
    pub attr: Attr,
    /// Nanoseconds since 1970.
    pub mtime: i64,
    pub ctime: i64,
}

impl TryFrom<FileStat> for Seen {
    type Error = Errno;

    fn try_from(stat: FileStat) -> Result<Self> {
        let kind = match stat.st_mode & libc::S_IFMT {
            libc::S_IFREG => Kind::File,
            libc::S_IFDIR => Kind::Directory,
            libc::S_IFLNK => Kind::Link,
            libc::S_IFIFO => Kind::Fifo,
            _ => return Err(Errno::ENOTSUP),
        };
        let attr = Attr {
            kind,
            mode: stat.st_mode & 0o7777,
            nlink: stat.st_nlink,
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: stat.st_rdev,
            size: if kind == Kind::Directory { 0 } else { stat.st_size as u64 },
        };
        Ok(Self {
            ino: stat.st_ino,
            attr,
            mtime: stat.st_mtime * SECOND + stat.st_mtime_nsec,
            ctime: stat.st_ctime * SECOND + stat.st_ctime_nsec,
        })
    }
}

/// One folder, seen by way of each mount, and what is open there.
pub struct Real {
    folders: Vec<PathBuf>,
    open: BTreeMap<usize, File>,
}

fn errno(error: io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)
}

fn offset(at: u64) -> Result<i64> {
    i64::try_from(at).map_err(|_| Errno::EOVERFLOW)
}

impl Real {
    pub fn new(folders: Vec<PathBuf>) -> Self {
        Self { folders, open: BTreeMap::new() }
    }

    fn path(&self, on: usize, path: &str) -> PathBuf {
        self.folders[on].join(path)
    }

    pub fn file(&self, slot: usize) -> Result<&File> {
        self.open.get(&slot).ok_or(Errno::EBADF)
    }

    /// What a name is, without following it.
    pub fn look(&self, on: usize, path: &str) -> Result<Seen> {
        lstat(&self.path(on, path))?.try_into()
    }

    pub fn look_at_open(&self, slot: usize) -> Result<Seen> {
        fstat(self.file(slot)?)?.try_into()
    }

    /// The names in a directory, with the number and kind that the listing tells.
    pub fn list(&self, on: usize, path: &str) -> Result<BTreeMap<String, (u64, Kind)>> {
        list(&self.path(on, path))
    }

    pub fn read_link(&self, on: usize, path: &str) -> Result<String> {
        let target = fs::read_link(self.path(on, path)).map_err(errno)?;
        target.into_os_string().into_string().map_err(|_| Errno::EILSEQ)
    }

    pub fn open_to_read(&self, on: usize, path: &str) -> Result<File> {
        let mut how = OpenOptions::new();
        how.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
        how.open(self.path(on, path)).map_err(errno)
    }

    /// Does an operation, which is for mount `on`.
    pub fn apply(&mut self, on: usize, op: &Op) -> Result<Answer> {
        match op {
            Op::Open { slot, path, how, mode } => {
                // Nothing blocks even if what should be a file has become a fifo.
                let mut flags = OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
                flags |= match (how.read, how.write) {
                    (true, true) => OFlag::O_RDWR,
                    (false, true) => OFlag::O_WRONLY,
                    _ => OFlag::O_RDONLY,
                };
                flags.set(OFlag::O_CREAT, how.create);
                flags.set(OFlag::O_EXCL, how.exclusive);
                flags.set(OFlag::O_TRUNC, how.truncate);
                flags.set(OFlag::O_APPEND, how.append);
                let path = self.path(on, path);
                let fd = nix::fcntl::open(&path, flags, Mode::from_bits_truncate(*mode))?;
                self.open.insert(*slot, fd.into());
            }
            Op::Close { slot } => drop(self.open.remove(slot).ok_or(Errno::EBADF)?),
            Op::Read { slot, off, len } => {
                let read = fsx::read(self.file(*slot)?, *off, *len).map_err(errno)?;
                return Ok(Answer::Bytes(read));
            }
            Op::Write { slot, off, data } => {
                let written = self.file(*slot)?.write_at(&data.bytes(), *off).map_err(errno)?;
                return Ok(Answer::Count(written as u64));
            }
            Op::SetLen { slot, len } => unistd::ftruncate(self.file(*slot)?, offset(*len)?)?,
            Op::Allocate { slot, what, off, len } => {
                let mode = match what {
                    Allocate::Room => 0,
                    Allocate::RoomKeepingSize => libc::FALLOC_FL_KEEP_SIZE,
                    Allocate::Punch => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    Allocate::Zero => libc::FALLOC_FL_ZERO_RANGE,
                    Allocate::ZeroKeepingSize => {
                        libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE
                    }
                };
                let mode = FallocateFlags::from_bits_retain(mode);
                fallocate(self.file(*slot)?, mode, offset(*off)?, offset(*len)?)?;
            }
            Op::Copy { from, off, to, to_off, len } => {
                let (from, to) = (self.file(*from)?, self.file(*to)?);
                // The kernel goes by the size that it remembers.
                fstat(from)?;
                let copied = fsx::copy(from, *off, to, *to_off, *len).map_err(errno)?;
                return Ok(Answer::Count(copied));
            }
            Op::Sync { slot } => self.file(*slot)?.sync_all().map_err(errno)?,
            Op::Truncate { path, len } => {
                unistd::truncate(&self.path(on, path), offset(*len)?)?;
            }
            Op::ListOpen { slot } => {
                // One more open, of what may have no name any more.
                let open = format!("/proc/self/fd/{}", self.file(*slot)?.as_raw_fd());
                return Ok(Answer::Names(list(Path::new(&open))?.into_keys().collect()));
            }
            Op::MkDir { path, mode } => {
                let made = fs::DirBuilder::new().mode(*mode).create(self.path(on, path));
                made.map_err(errno)?;
            }
            Op::RmDir { path } => fs::remove_dir(self.path(on, path)).map_err(errno)?,
            Op::Unlink { path } => unistd::unlink(&self.path(on, path))?,
            Op::Rename { from, to, how } => {
                let flags = match how {
                    Rename::Replace => RenameFlags::empty(),
                    Rename::NoReplace => RenameFlags::RENAME_NOREPLACE,
                    Rename::Exchange => RenameFlags::RENAME_EXCHANGE,
                };
                // Under the locks of a rename the kernel does not find a directory that another
                // mount moved from where it knew it: ESTALE.
                let _ = (self.look(on, from), self.look(on, to));
                let (from, to) = (self.path(on, from), self.path(on, to));
                renameat2(AT_FDCWD, &from, AT_FDCWD, &to, flags)?;
            }
            Op::Link { from, to } => {
                fs::hard_link(self.path(on, from), self.path(on, to)).map_err(errno)?;
            }
            Op::SymLink { target, path } => {
                std::os::unix::fs::symlink(target, self.path(on, path)).map_err(errno)?;
            }
            Op::ReadLink { path } => return self.read_link(on, path).map(Answer::Text),
            Op::MkFifo { path, mode } => {
                unistd::mkfifo(&self.path(on, path), Mode::from_bits_truncate(*mode))?;
            }
            Op::ChMod { path, mode } => {
                let mode = fs::Permissions::from_mode(*mode);
                fs::set_permissions(self.path(on, path), mode).map_err(errno)?;
            }
            Op::ChOwn { path, uid, gid, follow } => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                let how = if *follow { AtFlags::empty() } else { AtFlags::AT_SYMLINK_NOFOLLOW };
                unistd::fchownat(AT_FDCWD, &self.path(on, path), uid, gid, how)?;
            }
            Op::SetTimes { path, atime, mtime, follow } => {
                let to_kernel = |time: &SetTime| match *time {
                    SetTime::Omit => TimeSpec::UTIME_OMIT,
                    SetTime::Now => TimeSpec::UTIME_NOW,
                    SetTime::At(ns) => TimeSpec::new(ns / SECOND, ns % SECOND),
                };
                let (atime, mtime) = (to_kernel(atime), to_kernel(mtime));
                let how = match follow {
                    true => UtimensatFlags::FollowSymlink,
                    false => UtimensatFlags::NoFollowSymlink,
                };
                utimensat(AT_FDCWD, &self.path(on, path), &atime, &mtime, how)?;
            }
            Op::Stat { path, follow } => {
                let path = self.path(on, path);
                let seen: Seen = if *follow { stat(&path)? } else { lstat(&path)? }.try_into()?;
                return Ok(Answer::Attr(seen.attr));
            }
            Op::List { path } => {
                return Ok(Answer::Names(self.list(on, path)?.into_keys().collect()));
            }
            Op::SetXattr { path, name, value, how } => {
                let (value, flags) = (
                    value.bytes(),
                    match how {
                        SetXattr::Any => 0,
                        SetXattr::Create => libc::XATTR_CREATE,
                        SetXattr::Replace => libc::XATTR_REPLACE,
                    },
                );
                let (path, name) = (self.c_path(on, path)?, c_string(name)?);
                let (path, name, from) = (path.as_ptr(), name.as_ptr(), value.as_ptr().cast());
                // SAFETY: the names end with a zero byte and the length is that of the value.
                Errno::result(unsafe { libc::setxattr(path, name, from, value.len(), flags) })?;
            }
            Op::GetXattr { path, name } => {
                return self.xattr(on, path, name).map(Answer::Bytes);
            }
            Op::RemoveXattr { path, name } => {
                let (path, name) = (self.c_path(on, path)?, c_string(name)?);
                // SAFETY: the names end with a zero byte.
                Errno::result(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) })?;
            }
            Op::ListXattr { path } => {
                let names = self.xattr_names(on, path)?;
                return Ok(Answer::Names(names.into_iter().collect()));
            }
        }
        Ok(Answer::Done)
    }

    fn c_path(&self, on: usize, path: &str) -> Result<CString> {
        CString::new(self.path(on, path).as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)
    }

    pub fn xattr(&self, on: usize, path: &str, name: &str) -> Result<Vec<u8>> {
        let (path, name) = (self.c_path(on, path)?, c_string(name)?);
        filled(|to, len| {
            // SAFETY: the names end with a zero byte and the length is that of the buffer.
            unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), to.cast(), len) }
        })
    }

    /// Those of users: a system's own are no matter of the model.
    pub fn xattr_names(&self, on: usize, path: &str) -> Result<Vec<String>> {
        let path = self.c_path(on, path)?;
        let names = filled(|to, len| {
            // SAFETY: the path ends with a zero byte and the length is that of the buffer.
            unsafe { libc::listxattr(path.as_ptr(), to.cast(), len) }
        })?;
        let names = String::from_utf8(names).map_err(|_| Errno::EILSEQ)?;
        let names = names.split_terminator('\0').filter(|name| name.starts_with("user."));
        Ok(names.map(str::to_owned).collect())
    }
}

fn list(path: &Path) -> Result<BTreeMap<String, (u64, Kind)>> {
    let mut names = BTreeMap::new();
    for entry in fs::read_dir(path).map_err(errno)? {
        let entry = entry.map_err(errno)?;
        let kind = entry.file_type().map_err(errno)?;
        let kind = match () {
            () if kind.is_dir() => Kind::Directory,
            () if kind.is_file() => Kind::File,
            () if kind.is_symlink() => Kind::Link,
            () => Kind::Fifo,
        };
        let name = entry.file_name().into_string().map_err(|_| Errno::EILSEQ)?;
        if names.insert(name, (entry.ino(), kind)).is_some() {
            return Err(Errno::EEXIST);
        }
    }
    Ok(names)
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Errno::EINVAL)
}

/// What a call put into a buffer.
fn filled(call: impl FnOnce(*mut u8, usize) -> isize) -> Result<Vec<u8>> {
    let mut value = vec![0u8; 4096];
    let len = Errno::result(call(value.as_mut_ptr(), value.len()))?;
    value.truncate(usize::try_from(len).map_err(|_| Errno::EOVERFLOW)?);
    Ok(value)
}
