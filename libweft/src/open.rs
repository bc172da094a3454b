//! Opens and closes files.

use crate::at::at;
use crate::connect::weft_fs;
use crate::error::{Answer, Failure, call_unit, failed, of_this_process};
use crate::pointers::{object, out};
use libc::{c_char, c_int, mode_t};
use std::sync::Arc;
use weft_client::blocking::File;
use weft_client::{OpenFile, OpenFlags};

/// Flags of `open(2)` that say something here.
const MEANT: c_int = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_NOFOLLOW
    | libc::O_NOATIME;
/// Those that say nothing about a file that no kernel has open, and are taken.
const IGNORED: c_int = libc::O_CLOEXEC
    | libc::O_LARGEFILE
    | KERNEL_LARGEFILE
    | libc::O_NOCTTY
    | libc::O_NONBLOCK
    | libc::O_DIRECT;
/// What `O_LARGEFILE` is to the kernel; it is 0 where files are large anyway.
const KERNEL_LARGEFILE: c_int = 0o100_000;

/// An open file. Any number of threads may use it. It has no position: reads and writes say where.
#[allow(non_camel_case_types)]
pub struct weft_file {
    file: File,
    open: Arc<OpenFile>,
    reads: bool,
    writes: bool,
    /// Writes go to the end, each as one.
    append: bool,
}

impl weft_file {
    fn new(file: File, flags: c_int) -> Self {
        let access = flags & libc::O_ACCMODE;
        let (reads, writes) = (access != libc::O_WRONLY, access != libc::O_RDONLY);
        Self { open: file.open_file(), file, reads, writes, append: flags & libc::O_APPEND != 0 }
    }

    /// The object that a call was given. Errors: `EINVAL`; `ENOTCONN` after a fork.
    ///
    /// # Safety
    /// See [`crate`].
    pub(crate) unsafe fn of<'a>(file: *mut Self) -> Answer<&'a Self> {
        // SAFETY: that of the caller.
        let file = unsafe { object(file)? };
        of_this_process(file.file.connection())?;
        Ok(file)
    }

    /// Does something with it, to its end; what fails is told with its inode.
    pub(crate) fn run<T>(&self, act: impl Future<Output = weft_proto::Result<T>>) -> Answer<T> {
        let done = self.file.connection().run(act);
        done.map_err(|e| Failure::from(e).at(&format!("inode {}", self.file.ino())))
    }

    pub(crate) fn blocking(&self) -> &File {
        &self.file
    }

    pub(crate) fn open(&self) -> &Arc<OpenFile> {
        &self.open
    }

    pub(crate) fn append(&self) -> bool {
        self.append
    }

    /// Errors: `EBADF` if it was not opened to read.
    pub(crate) fn to_read(&self) -> Answer<&Arc<OpenFile>> {
        self.opened_to(self.reads, "read")
    }

    /// Errors: `EBADF` if it was not opened to write.
    pub(crate) fn to_write(&self) -> Answer<&Arc<OpenFile>> {
        self.opened_to(self.writes, "write")
    }

    fn opened_to(&self, allowed: bool, what: &str) -> Answer<&Arc<OpenFile>> {
        if allowed {
            return Ok(&self.open);
        }
        let what = format!("inode {} was not opened to {what}", self.file.ino());
        failed(libc::EBADF, what)
    }
}

/// Opens a file, or makes it (O_CREAT), with mode less the umask. flags are those of open(2):
/// access mode, O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_SYNC, O_DSYNC, O_NOFOLLOW and O_NOATIME.
/// O_CLOEXEC, O_LARGEFILE, O_NOCTTY, O_NONBLOCK and O_DIRECT are taken and say nothing. All others,
/// O_DIRECTORY, O_PATH and O_TMPFILE among them, are refused (-EINVAL); directories are opened by
/// weft_opendir.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_open(
    fs: *mut weft_fs,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    file: *mut *mut weft_file,
) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    call_unit("weft_open", || unsafe {
        let file = out(file)?;
        at(fs, path, |user, path| {
            check(flags)?;
            let how = OpenFlags::from_bits(flags);
            let opened = match flags & libc::O_CREAT {
                0 => user.open(path, OpenFlags { exclusive: false, ..how }),
                _ => user.create(path, mode & 0o7777, how),
            };
            *file = Box::into_raw(Box::new(weft_file::new(opened?, flags)));
            Ok(())
        })
    })
}

fn check(flags: c_int) -> Answer<()> {
    if flags & libc::O_ACCMODE == libc::O_ACCMODE {
        return failed(libc::EINVAL, "flags ask neither to read, nor to write, nor both");
    }
    if flags & libc::O_DIRECTORY != 0 {
        return failed(libc::EINVAL, "O_DIRECTORY: directories are opened by weft_opendir");
    }
    match flags & !(MEANT | IGNORED) {
        0 => Ok(()),
        unknown => failed(libc::EINVAL, format!("flags {unknown:#o} are not known here")),
    }
}

/// Closes a file and frees it, whatever it answers: the first error of what was written and nobody
/// was told of. What was written is visible to all by then, and durable within seconds by itself;
/// weft_fsync says when. Its lock of weft_flock goes with it. A second close is a use of freed
/// memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_close(file: *mut weft_file) -> c_int {
    call_unit("weft_close", || {
        // SAFETY: the caller's pointer, see `crate`.
        unsafe { object(file)? };
        // SAFETY: it was made by `weft_open`, and is not used any more.
        let weft_file { file, open, .. } = *unsafe { Box::from_raw(file) };
        of_this_process(file.connection())?;
        drop(open);
        let place = format!("inode {}", file.ino());
        file.close().map_err(|e| Failure::from(e).at(&place))
    })
}
