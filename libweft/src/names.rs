//! Makes, moves and takes away names.

use crate::at::{at, call_at, named};
use crate::connect::weft_fs;
use crate::error::{call, call_unit, failed};
use crate::pointers::{object, string};
use crate::stat::kernel_device;
use libc::{c_char, c_int, c_uint, dev_t, mode_t, ssize_t};
use weft_client::FileKind;

/// Makes a directory, with mode less the umask.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_mkdir(fs: *mut weft_fs, path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    unsafe { call_at("weft_mkdir", fs, path, |user, path| user.mkdir(path, mode & 0o7777)) }
}

/// Makes a file, pipe, socket or, as root, a device, with mode less the umask.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_mknod(
    fs: *mut weft_fs,
    path: *const c_char,
    mode: mode_t,
    dev: dev_t,
) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    call_unit("weft_mknod", || unsafe {
        at(fs, path, |user, path| {
            let Some(kind) = FileKind::from_mode(mode) else {
                return failed(libc::EINVAL, format!("mode {mode:#o} is of no kind of file"));
            };
            user.mknod(path, kind, mode & 0o7777, kernel_device(dev))?;
            Ok(())
        })
    })
}

/// Takes away a name of what is no directory. Files that are open stay until they are closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_unlink(fs: *mut weft_fs, path: *const c_char) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    unsafe { call_at("weft_unlink", fs, path, |user, path| user.unlink(path)) }
}

/// Removes a directory that is empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_rmdir(fs: *mut weft_fs, path: *const c_char) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    unsafe { call_at("weft_rmdir", fs, path, |user, path| user.rmdir(path)) }
}

/// Moves a name in one step, over another one if that is there. flags are those of renameat2(2): 0,
/// RENAME_NOREPLACE or RENAME_EXCHANGE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_rename(
    fs: *mut weft_fs,
    from: *const c_char,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    call_unit("weft_rename", || unsafe {
        let to = string(to)?;
        at(fs, from, |user, from| Ok(user.rename(from, to, flags)?))
            .map_err(|e| e.at(&format!("to {}", named(to))))
    })
}

/// Gives a file one more name; a symbolic link is not followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_link(
    fs: *mut weft_fs,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    call_unit("weft_link", || unsafe {
        let to = string(to)?;
        at(fs, from, |user, from| Ok(user.link(from, to).map(drop)?))
            .map_err(|e| e.at(&format!("to {}", named(to))))
    })
}

/// Makes a symbolic link at path that leads to target.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_symlink(
    fs: *mut weft_fs,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    call_unit("weft_symlink", || unsafe {
        let target = string(target)?;
        at(fs, path, |user, path| Ok(user.symlink(target, path).map(drop)?))
    })
}

/// Where a symbolic link leads. Answers how many bytes it put into buf: no more than size, and no
/// NUL after them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_readlink(
    fs: *mut weft_fs,
    path: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> ssize_t {
    // SAFETY: the caller's pointers, see `crate`.
    call("weft_readlink", || unsafe {
        at(fs, path, |user, path| {
            if size == 0 {
                return failed(libc::EINVAL, "there is no room for anything");
            }
            let target = user.readlink(path)?;
            let fits = &target[..target.len().min(size)];
            crate::pointers::fill(fits, buf.cast(), size)
        })
    })
}

/// All that was written and changed by this connection is durable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_sync(fs: *mut weft_fs) -> c_int {
    call_unit("weft_sync", || {
        // SAFETY: the caller's pointer, see `crate`.
        let fs = unsafe { object(fs)? };
        Ok(fs.user.sync()?)
    })
}

/// The names that were made, moved and taken away in a directory are durable, as fsync(2) of a
/// directory has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_fsyncdir(fs: *mut weft_fs, path: *const c_char) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    unsafe { call_at("weft_fsyncdir", fs, path, |user, path| user.sync_dir(path)) }
}
