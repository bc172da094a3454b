//! By system calls, with the credentials of a user.

use super::op::Answer;
use super::op::Op::{self, *};
use std::ffi::{CStr, CString};
use std::io::Write as _;
use std::{fs, io, thread};
use weft_client::Credentials;

fn c(path: &str) -> CString {
    CString::new(path).expect("no NUL")
}

fn answer(result: i64) -> Answer {
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}

fn told<T>(result: io::Result<T>) -> Answer {
    result.map(drop).map_err(|e| e.raw_os_error().unwrap_or(0))
}

fn open(at: &CStr, flags: i32, mode: u32) -> Answer {
    // SAFETY: a path that ends with NUL.
    let fd = unsafe { libc::open(at.as_ptr(), flags | libc::O_CLOEXEC, mode) };
    // SAFETY: a descriptor, or none, which is refused.
    unsafe {
        let opened = answer(fd.into());
        libc::close(fd);
        opened
    }
}

pub fn by_kernel(top: &str, path: &str, op: Op) -> Answer {
    let full = |path: &str| c(&format!("{top}/{path}"));
    let of = full(path);
    let (at, here) = (of.as_ptr(), libc::AT_FDCWD);
    let path = of.to_str().expect("text");
    let mut room = [0u8; 1024];
    // SAFETY: paths end with NUL, and values are as long as is said.
    unsafe {
        match op {
            Stat => told(fs::metadata(path)),
            Lstat => told(fs::symlink_metadata(path)),
            Access(want) => answer(libc::access(at, want).into()),
            Open(flags) => open(&of, flags, 0),
            Create(flags, mode) => open(&of, flags | libc::O_CREAT, mode),
            Write => {
                told(fs::File::options().write(true).open(path).and_then(|f| (&f).write(b"x")))
            }
            Mkdir(mode) => answer(libc::mkdir(at, mode).into()),
            Unlink => answer(libc::unlink(at).into()),
            Rmdir => answer(libc::rmdir(at).into()),
            Rename(to) => answer(libc::rename(at, full(to).as_ptr()).into()),
            Exchange(to) => {
                let to = full(to);
                answer(libc::renameat2(here, at, here, to.as_ptr(), libc::RENAME_EXCHANGE).into())
            }
            Link(to) => answer(libc::link(at, full(to).as_ptr()).into()),
            Symlink(target) => answer(libc::symlink(c(target).as_ptr(), at).into()),
            Readlink => told(fs::read_link(path)),
            ReadDir => told(fs::read_dir(path)),
            Chmod(mode) => answer(libc::chmod(at, mode).into()),
            Chown(uid, gid) => answer(libc::chown(at, uid, gid).into()),
            Truncate(size) => answer(libc::truncate(at, size as i64).into()),
            Touch => answer(libc::utimensat(here, at, std::ptr::null(), 0).into()),
            Age => {
                let times = [libc::timespec { tv_sec: 5, tv_nsec: 0 }; 2];
                answer(libc::utimensat(here, at, times.as_ptr(), 0).into())
            }
            GetXattr(name) => {
                let (into, len) = (room.as_mut_ptr().cast(), room.len());
                answer(libc::getxattr(at, name.as_ptr(), into, len) as i64)
            }
            SetXattr(name, value) => {
                let (from, len) = (value.as_ptr().cast(), value.len());
                answer(libc::setxattr(at, name.as_ptr(), from, len, 0).into())
            }
        }
    }
}

/// By the kernel, on a thread with the user's credentials: the system calls themselves are of one
/// thread.
pub fn as_user(who: &Credentials, work: impl FnOnce() -> Answer + Send) -> Answer {
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
        let asked = scope.spawn(|| {
            become_user();
            work()
        });
        asked.join().expect("the thread ends")
    })
}
