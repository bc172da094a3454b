//! Attributes by paths and of open files.

use crate::at::{at, call_at};
use crate::connect::weft_fs;
use crate::error::{Answer, call_unit, failed};
use crate::open::weft_file;
use crate::pointers::{object, out};
use crate::stat::{fill, fill_room};
use libc::{c_char, c_int, gid_t, mode_t, off_t, stat, statvfs, timespec, uid_t};
use weft_client::{Access, SetTime};

/// Attributes of what a path leads to. st_dev is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_stat(fs: *mut weft_fs, path: *const c_char, buf: *mut stat) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    call_unit("weft_stat", || unsafe {
        let buf = out(buf)?;
        at(fs, path, |user, path| {
            fill(&user.stat(path)?, buf);
            Ok(())
        })
    })
}

/// weft_stat, of a symbolic link itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_lstat(
    fs: *mut weft_fs,
    path: *const c_char,
    buf: *mut stat,
) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    call_unit("weft_lstat", || unsafe {
        let buf = out(buf)?;
        at(fs, path, |user, path| {
            fill(&user.lstat(path)?, buf);
            Ok(())
        })
    })
}

/// weft_stat, of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_fstat(file: *mut weft_file, buf: *mut stat) -> c_int {
    call_unit("weft_fstat", || {
        // SAFETY: the caller's pointers, see `crate`.
        let (file, buf) = unsafe { (weft_file::of(file)?, out(buf)?) };
        fill(&file.run(file.open().stat())?, buf);
        Ok(())
    })
}

/// Room in the filesystem.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_statvfs(fs: *mut weft_fs, buf: *mut statvfs) -> c_int {
    call_unit("weft_statvfs", || {
        // SAFETY: the caller's pointers, see `crate`.
        let (fs, buf) = unsafe { (object(fs)?, out(buf)?) };
        fill_room(&fs.user.stat_fs()?, buf);
        Ok(())
    })
}

/// Whether the user of this connection may do mode: F_OK, or R_OK, W_OK and X_OK; -EACCES.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_access(fs: *mut weft_fs, path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    call_unit("weft_access", || unsafe {
        at(fs, path, |user, path| {
            if mode & !(libc::R_OK | libc::W_OK | libc::X_OK) != 0 {
                return failed(libc::EINVAL, format!("{mode:#x} is no mode of access"));
            }
            let wants = [
                (libc::R_OK, Access::READ),
                (libc::W_OK, Access::WRITE),
                (libc::X_OK, Access::EXECUTE),
            ];
            let wants = wants.into_iter().filter(|(bit, _)| mode & bit != 0);
            let want = wants.fold(Access::NONE, |all, (_, want)| all | want);
            Ok(user.access(path, want)?)
        })
    })
}

/// Sets permission bits with set-id bits and sticky.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_chmod(fs: *mut weft_fs, path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    unsafe { call_at("weft_chmod", fs, path, |user, path| user.chmod(path, mode & 0o7777)) }
}

/// Sets owner and group; (uid_t)-1 or (gid_t)-1 stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_chown(
    fs: *mut weft_fs,
    path: *const c_char,
    uid: uid_t,
    gid: gid_t,
) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    unsafe { call_at("weft_chown", fs, path, |user, path| user.chown(path, id(uid), id(gid))) }
}

/// weft_chown, of a symbolic link itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_lchown(
    fs: *mut weft_fs,
    path: *const c_char,
    uid: uid_t,
    gid: gid_t,
) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    unsafe { call_at("weft_lchown", fs, path, |user, path| user.lchown(path, id(uid), id(gid))) }
}

/// What is to be set, of a user or a group.
fn id(id: u32) -> Option<u32> {
    (id != u32::MAX).then_some(id)
}

/// Cuts a file, or extends it by a hole, to length bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_truncate(
    fs: *mut weft_fs,
    path: *const c_char,
    length: off_t,
) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    call_unit("weft_truncate", || unsafe {
        at(fs, path, |user, path| {
            user.truncate(path, crate::memory::offset(length)?)?;
            Ok(())
        })
    })
}

/// Sets the times of access and change, times[0] and times[1], as utimensat(2) does: UTIME_NOW and
/// UTIME_OMIT are known, NULL is both now. flags: 0 or AT_SYMLINK_NOFOLLOW.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_utimens(
    fs: *mut weft_fs,
    path: *const c_char,
    times: *const timespec,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's pointers, see `crate`; there are two times, or NULL.
    call_unit("weft_utimens", || unsafe {
        at(fs, path, |user, path| {
            let times = times.cast::<[timespec; 2]>().as_ref();
            let [atime, mtime] = match times {
                None => [Some(SetTime::Now); 2],
                Some([atime, mtime]) => [set_time(atime)?, set_time(mtime)?],
            };
            match flags {
                0 => user.utimes(path, atime, mtime)?,
                libc::AT_SYMLINK_NOFOLLOW => user.lutimes(path, atime, mtime)?,
                _ => return failed(libc::EINVAL, format!("flags {flags:#x} are not known here")),
            };
            Ok(())
        })
    })
}

fn set_time(time: &timespec) -> Answer<Option<SetTime>> {
    const NANOS: i64 = 1_000_000_000;
    match time.tv_nsec {
        libc::UTIME_OMIT => Ok(None),
        libc::UTIME_NOW => Ok(Some(SetTime::Now)),
        ns @ 0..NANOS => {
            // Times that cannot be kept become the first or the last one that can, as on Linux.
            let at = time.tv_sec.saturating_mul(NANOS).saturating_add(ns);
            Ok(Some(SetTime::At(at)))
        }
        ns => failed(libc::EINVAL, format!("{ns} are no nanoseconds of a second")),
    }
}
