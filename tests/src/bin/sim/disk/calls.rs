//! The functions of the C library that name files.

use super::names::{What, folders, is_seen, of};
use libc::{AT_FDCWD, AT_REMOVEDIR, c_char, c_int, mode_t};
use std::ffi::{CStr, OsStr};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The path that a call is about, if it is to be noted.
///
/// # Safety
///
/// `path` must be a string of C.
unsafe fn seen(dir: c_int, path: *const c_char) -> Option<PathBuf> {
    if !is_seen() || path.is_null() {
        return None;
    }
    // SAFETY: as the caller says.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
    let base = || fs::read_link(format!("/proc/self/fd/{dir}")).ok();
    match path.is_absolute() {
        true => Some(path.to_owned()),
        false if dir == AT_FDCWD => None,
        false => base().map(|base| base.join(path)),
    }
}

/// What RocksDB says for people has the time in its name, and nothing depends on it.
fn is_for_people(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"LOG"))
}

/// Calls what makes a name, perhaps.
fn make(path: Option<PathBuf>, call: impl FnOnce() -> c_int) -> c_int {
    let new = path.filter(|path| fs::symlink_metadata(path).is_err() && !is_for_people(path));
    let done = call();
    if let Some(path) = new.filter(|_| done >= 0)
        && let Some(folder) = of(&mut folders(), &path)
    {
        folder.note(&path, None, What::Made);
    }
    done
}

/// Calls what removes a name.
fn remove(path: Option<PathBuf>, call: impl FnOnce() -> c_int) -> c_int {
    let Some(path) = path.filter(|path| !is_for_people(path)) else { return call() };
    let folders = &mut *folders();
    let Some(folder) = of(folders, &path) else { return call() };
    let kept = folder.keep(&path);
    let done = call();
    if done == 0 {
        folder.note(&path, None, What::Removed(kept));
    }
    done
}

unsafe fn open_at(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's string, for what it is.
    let made = unsafe { seen(dir, path) }.filter(|_| flags & libc::O_CREAT != 0);
    // SAFETY: as above.
    make(made, || unsafe { libc::syscall(libc::SYS_openat, dir, path, flags, mode) as c_int })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as the caller says; `mode` is looked at where it is given.
    unsafe { open_at(AT_FDCWD, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as the caller says; `mode` is looked at where it is given.
    unsafe { open_at(AT_FDCWD, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller's string, for what it is.
    unsafe {
        let call = || libc::syscall(libc::SYS_mkdirat, AT_FDCWD, path, mode) as c_int;
        make(seen(AT_FDCWD, path), call)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn link(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller's strings, for what they are.
    unsafe { linkat(AT_FDCWD, from, AT_FDCWD, to, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn linkat(
    from_dir: c_int,
    from: *const c_char,
    dir: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's strings, for what they are.
    unsafe {
        let call = || libc::syscall(libc::SYS_linkat, from_dir, from, dir, to, flags) as c_int;
        make(seen(dir, to), call)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's string, for what it is.
    unsafe {
        let call = || libc::syscall(libc::SYS_unlinkat, dir, path, flags) as c_int;
        remove(seen(dir, path), call)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: the caller's string, for what it is.
    unsafe { unlinkat(AT_FDCWD, path, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rmdir(path: *const c_char) -> c_int {
    // SAFETY: the caller's string, for what it is.
    unsafe { unlinkat(AT_FDCWD, path, AT_REMOVEDIR) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller's strings, for what they are.
    let (call, seen) = unsafe {
        let at = AT_FDCWD;
        let call = move || libc::syscall(libc::SYS_renameat2, at, from, at, to, 0) as c_int;
        (call, seen(at, from).zip(seen(at, to)))
    };
    let Some((from, to)) = seen.filter(|(from, _)| !is_for_people(from)) else { return call() };
    let folders = &mut *folders();
    let Some(folder) = of(folders, &to).filter(|folder| from.starts_with(&folder.path)) else {
        return call();
    };
    let over = folder.keep(&to);
    let done = call();
    if done == 0 {
        let old = from.strip_prefix(&folder.path).expect("it is below").to_owned();
        folder.note(&to, Some(&from), What::Renamed(old, over));
    }
    done
}
