//! The same questions to the kernel: files with modes, owners and lists on a local filesystem, and
//! a thread with the credentials of another user. Needs to be root.

use super::super::*;
use super::{attr, list};
use crate::types::{Attr, FileKind, SetTime};
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, io, thread};

const ACL: &CStr = c"system.posix_acl_access";
const NOBODY: u32 = u32::MAX;

/// Goes with all that is in it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("weft-access-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        answer(set_mode(&path, 0o755)).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn answer(result: i32) -> Result<(), i32> {
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error().raw_os_error().unwrap()),
    }
}

fn set_mode(path: &Path, mode: u32) -> i32 {
    // SAFETY: a path that ends with NUL.
    unsafe { libc::chmod(c(path).as_ptr(), mode) }
}

fn set_xattr(path: &Path, name: &CStr, value: &[u8]) -> i32 {
    let (path, value_at) = (c(path), value.as_ptr().cast());
    // SAFETY: texts that end with NUL, and a value as long as is said.
    unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value_at, value.len(), 0) }
}

fn access_list(path: &Path) -> Option<Vec<u8>> {
    let (path, mut value) = (c(path), vec![0; 4096]);
    let into = value.as_mut_ptr().cast();
    // SAFETY: there is room for as much as is said.
    let len = unsafe { libc::getxattr(path.as_ptr(), ACL.as_ptr(), into, value.len()) };
    value.truncate(usize::try_from(len).ok()?);
    Some(value)
}

/// Works on a thread that has these credentials; the system calls themselves are of one thread.
fn as_user<T: Send>(who: &Credentials, work: impl FnOnce() -> T + Send) -> T {
    let become_user = || {
        let (uid, gid) = (who.uid, who.gid);
        // SAFETY: numbers, and a list as long as is said.
        unsafe {
            let (len, at) = (who.groups.len(), who.groups.as_ptr());
            assert_eq!(libc::syscall(libc::SYS_setgroups, len, at), 0, "this test is for root");
            assert_eq!(libc::syscall(libc::SYS_setresgid, gid, gid, gid), 0);
            assert_eq!(libc::syscall(libc::SYS_setresuid, uid, uid, uid), 0);
        }
    };
    thread::scope(|scope| {
        scope
            .spawn(|| {
                become_user();
                work()
            })
            .join()
            .unwrap()
    })
}

fn known(path: &Path) -> (Attr, Option<Vec<u8>>) {
    let (meta, list) = (fs::symlink_metadata(path).unwrap(), access_list(path));
    let kind = FileKind::from_mode(meta.mode()).unwrap();
    (attr(kind, meta.mode() & 0o7777, meta.uid(), meta.gid(), list.is_some()), list)
}

fn users() -> Vec<Credentials> {
    let user = |uid, gid, groups: &[u32]| Credentials { uid, gid, groups: groups.to_vec() };
    vec![
        user(0, 0, &[]),
        user(1000, 1000, &[]),
        user(1001, 2000, &[]),
        user(1001, 1001, &[2000]),
        user(1002, 1002, &[3000, 3001]),
        user(1003, 1003, &[2000, 3000]),
        user(65534, 65534, &[]),
    ]
}

fn lists() -> Vec<Option<Vec<u8>>> {
    let mut all = vec![None];
    for mask in 0..8 {
        for (user, owning, group, other_group, others) in
            [(7, 7, 7, 7, 0), (0, 5, 2, 4, 7), (6, 1, 4, 3, 4), (5, 0, 0, 6, 5)]
        {
            all.push(Some(list(&[
                (1, 6, NOBODY),
                (2, user, 1001),
                (4, owning, NOBODY),
                (8, group, 3000),
                (8, other_group, 3001),
                (16, mask, NOBODY),
                (32, others, NOBODY),
            ])));
        }
    }
    all
}

#[test]
fn the_kernel_allows_the_same() {
    let folder = Folder::new();
    let mut paths = Vec::new();
    for (number, acl) in lists().iter().enumerate() {
        for mode in [0o000, 0o001, 0o040, 0o070, 0o400, 0o604, 0o635, 0o750, 0o777, 0o317] {
            for dir in [false, true] {
                let path = folder.0.join(format!("{number}-{mode:o}-{dir}"));
                match dir {
                    true => fs::create_dir(&path).unwrap(),
                    false => fs::write(&path, "").unwrap(),
                }
                std::os::unix::fs::chown(&path, Some(1000), Some(2000)).unwrap();
                if let Some(acl) = acl {
                    answer(set_xattr(&path, ACL, acl)).unwrap();
                }
                if acl.is_none() || mode == 0o070 || mode == 0o604 {
                    answer(set_mode(&path, mode)).unwrap();
                }
                paths.push(path);
            }
        }
    }
    for who in users() {
        let ask = |path: &PathBuf| {
            let path = c(path);
            // SAFETY: a path that ends with NUL.
            (1..8).map(|want| answer(unsafe { libc::access(path.as_ptr(), want) })).collect()
        };
        let told: Vec<Vec<_>> = as_user(&who, || paths.iter().map(ask).collect());
        for (path, told) in paths.iter().zip(told) {
            let (attr, list) = known(path);
            for (want, told) in (1..8).zip(told) {
                let got = check(&who, &attr, list.as_deref(), Access::from_bits(want));
                let got = got.map_err(|e| e.errno());
                assert_eq!(got, told, "{who:?} {want} {attr:?} {list:?}");
            }
        }
    }
}

/// What a user tries with an inode, and what the rules say of it.
type Try = (&'static str, fn(&Path) -> i32, fn(&Credentials, &Attr) -> Rule);
/// What must be permitted beside, and the mode afterwards if the rules say.
type Rule = weft_proto::Result<(Access, Option<u32>)>;

const UTIME_NOW: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW };
const UTIME_OMIT: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT };
const AT_5: libc::timespec = libc::timespec { tv_sec: 5, tv_nsec: 0 };

fn set_times(path: &Path, times: [libc::timespec; 2]) -> i32 {
    // SAFETY: a path that ends with NUL, and two times.
    unsafe { libc::utimensat(libc::AT_FDCWD, c(path).as_ptr(), times.as_ptr(), 0) }
}

fn set_owner(path: &Path, uid: u32, gid: u32) -> i32 {
    // SAFETY: a path that ends with NUL.
    unsafe { libc::chown(c(path).as_ptr(), uid, gid) }
}

fn owned(who: &Credentials, attr: &Attr, uid: Option<u32>, gid: Option<u32>) -> Rule {
    let mode = chown(who, attr, uid, gid)?.mode;
    let left =
        weft_proto::mode::mode_after(attr.mode, attr.kind == FileKind::Directory, mode, true);
    Ok((Access::NONE, Some(left)))
}

const TRIES: [Try; 14] = [
    ("chmod", |p| set_mode(p, 0o6751), |w, a| Ok((Access::NONE, Some(chmod(w, a, 0o6751)?)))),
    ("chown", |p| set_owner(p, 1001, NOBODY), |w, a| owned(w, a, Some(1001), None)),
    ("chown to itself", |p| set_owner(p, 1000, NOBODY), |w, a| owned(w, a, Some(1000), None)),
    ("chgrp", |p| set_owner(p, NOBODY, 2000), |w, a| owned(w, a, None, Some(2000))),
    ("chgrp away", |p| set_owner(p, NOBODY, 4000), |w, a| owned(w, a, None, Some(4000))),
    ("chgrp own", |p| set_owner(p, NOBODY, 1000), |w, a| owned(w, a, None, Some(1000))),
    (
        "touch",
        |p| set_times(p, [UTIME_NOW; 2]),
        |w, a| Ok((utimes(w, a, Some(SetTime::Now), Some(SetTime::Now))?, None)),
    ),
    (
        "times",
        |p| set_times(p, [AT_5; 2]),
        |w, a| Ok((utimes(w, a, Some(SetTime::At(5)), Some(SetTime::At(5)))?, None)),
    ),
    (
        "one time",
        |p| set_times(p, [UTIME_NOW, UTIME_OMIT]),
        |w, a| Ok((utimes(w, a, Some(SetTime::Now), None)?, None)),
    ),
    ("no time", |p| set_times(p, [UTIME_OMIT; 2]), |w, a| Ok((utimes(w, a, None, None)?, None))),
    (
        "user xattr",
        |p| set_xattr(p, c"user.a", b"1"),
        |w, a| Ok((write_xattr(w, a, b"user.a")?, None)),
    ),
    (
        "trusted xattr",
        |p| set_xattr(p, c"trusted.a", b"1"),
        |w, a| Ok((write_xattr(w, a, b"trusted.a")?, None)),
    ),
    (
        "security xattr",
        |p| set_xattr(p, c"security.a", b"1"),
        |w, a| Ok((write_xattr(w, a, b"security.a")?, None)),
    ),
    ("list", |p| set_xattr(p, ACL, &list(&[(1, 6, NOBODY), (4, 4, NOBODY), (32, 0, NOBODY)])), {
        |w, a| Ok((write_xattr(w, a, ACL.to_bytes())?, None))
    }),
];

#[test]
fn the_kernel_lets_the_same_users_change_inodes() {
    let folder = Folder::new();
    for (number, (name, attempt, rule)) in TRIES.iter().enumerate() {
        for who in users() {
            for mode in [0o4777, 0o2777, 0o6767, 0o1777, 0o666, 0o600, 0o644] {
                for dir in [false, true] {
                    let path = folder.0.join(format!("{number}-{dir}"));
                    match dir {
                        true => fs::create_dir(&path).unwrap(),
                        false => fs::write(&path, "").unwrap(),
                    }
                    answer(set_owner(&path, 1000, 2000)).unwrap();
                    answer(set_mode(&path, mode)).unwrap();
                    let (before, _) = known(&path);
                    let told = as_user(&who, || answer(attempt(&path)));
                    let got = rule(&who, &before).and_then(|(beside, after)| {
                        check(&who, &before, None, beside)?;
                        Ok(after)
                    });
                    let what = format!("{name} by {who:?} of {before:?}");
                    assert_eq!(got.as_ref().map(|_| ()).map_err(|e| e.errno()), told, "{what}");
                    if let Ok(Some(after)) = got {
                        assert_eq!(known(&path).0.mode, after, "{what}");
                    }
                    match dir {
                        true => fs::remove_dir(&path).unwrap(),
                        false => fs::remove_file(&path).unwrap(),
                    }
                }
            }
        }
    }
}

#[test]
fn the_kernel_keeps_the_same_names_in_sticky_directories() {
    let folder = Folder::new();
    for dir_owner in [0, 1000, 1001] {
        for victim_owner in [0, 1000, 1001] {
            for mode in [0o777, 0o1777] {
                for who in users() {
                    let dir = folder.0.join("dir");
                    let victim = dir.join("victim");
                    fs::create_dir(&dir).unwrap();
                    fs::write(&victim, "").unwrap();
                    answer(set_owner(&victim, victim_owner, 5000)).unwrap();
                    answer(set_owner(&dir, dir_owner, 5000)).unwrap();
                    answer(set_mode(&dir, mode)).unwrap();
                    let got = check_sticky(&who, &known(&dir).0, &known(&victim).0);
                    let path = c(&victim);
                    // SAFETY: a path that ends with NUL.
                    let told = as_user(&who, || answer(unsafe { libc::unlink(path.as_ptr()) }));
                    let what = format!("{who:?} {dir_owner} {victim_owner} {mode:o}");
                    assert_eq!(got.map_err(|e| e.errno()), told, "{what}");
                    fs::remove_dir_all(&dir).unwrap();
                }
            }
        }
    }
}
