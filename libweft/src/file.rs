//! What is done with open files.

use crate::error::{call, call_unit, failed};
use crate::memory::{self, Buffer, Buffers, count, offset};
use crate::open::weft_file;
use libc::{c_int, c_uint, c_void, iovec, off_t, ssize_t};
use weft_client::{Allocate, LockKind, Seek};

/// Reads up to len bytes at off; fewer only at the end of the file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_pread(
    file: *mut weft_file,
    buf: *mut c_void,
    len: usize,
    off: off_t,
) -> ssize_t {
    call("weft_pread", || {
        // SAFETY: the caller's pointer, see `crate`.
        let file = unsafe { weft_file::of(file)? };
        let (open, buffers) = (file.to_read()?, Buffers::One(Buffer::new(buf, len)?));
        let off = offset(off)?;
        file.run(memory::read(open, off, &buffers)).map(count)
    })
}

/// Writes len bytes at off, or at the end of the file if it was opened with O_APPEND. It answers
/// len or an error, after which any part of them may have been written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_pwrite(
    file: *mut weft_file,
    buf: *const c_void,
    len: usize,
    off: off_t,
) -> ssize_t {
    call("weft_pwrite", || {
        // SAFETY: the caller's pointer, see `crate`.
        let file = unsafe { weft_file::of(file)? };
        let (open, buffers) = (file.to_write()?, Buffers::One(Buffer::new(buf.cast_mut(), len)?));
        let off = offset(off)?;
        file.run(memory::write(open, off, &buffers, file.append())).map(count)
    })
}

/// weft_pread, into count buffers, 0 to 1024, one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_preadv(
    file: *mut weft_file,
    iov: *const iovec,
    iovcnt: c_int,
    off: off_t,
) -> ssize_t {
    call("weft_preadv", || {
        // SAFETY: the caller's pointers, see `crate`.
        let (file, buffers) = unsafe { (weft_file::of(file)?, Buffers::read(iov, iovcnt)?) };
        let (open, off) = (file.to_read()?, offset(off)?);
        file.run(memory::read(open, off, &buffers)).map(count)
    })
}

/// weft_pwrite, from count buffers, 0 to 1024, one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_pwritev(
    file: *mut weft_file,
    iov: *const iovec,
    iovcnt: c_int,
    off: off_t,
) -> ssize_t {
    call("weft_pwritev", || {
        // SAFETY: the caller's pointers, see `crate`.
        let (file, buffers) = unsafe { (weft_file::of(file)?, Buffers::read(iov, iovcnt)?) };
        let (open, off) = (file.to_write()?, offset(off)?);
        file.run(memory::write(open, off, &buffers, file.append())).map(count)
    })
}

/// What was written to the file, by whatever descriptor of this connection, is durable and visible
/// to all. Answers an error of earlier writes that this file was not told of yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_fsync(file: *mut weft_file) -> c_int {
    call_unit("weft_fsync", || {
        // SAFETY: the caller's pointer, see `crate`.
        let file = unsafe { weft_file::of(file)? };
        file.run(file.open().sync())
    })
}

/// The same as weft_fsync: size and content become durable together.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_fdatasync(file: *mut weft_file) -> c_int {
    call_unit("weft_fdatasync", || {
        // SAFETY: the caller's pointer, see `crate`.
        let file = unsafe { weft_file::of(file)? };
        file.run(file.open().sync())
    })
}

/// Cuts the file, or extends it by a hole, to length bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_ftruncate(file: *mut weft_file, length: off_t) -> c_int {
    call_unit("weft_ftruncate", || {
        // SAFETY: the caller's pointer, see `crate`.
        let file = unsafe { weft_file::of(file)? };
        let size = offset(length)?;
        file.run(file.open().truncate(size)).map(drop)
    })
}

/// Modes of fallocate(2): 0, KEEP_SIZE, PUNCH_HOLE with KEEP_SIZE, ZERO_RANGE with or without it;
/// others are refused (-EOPNOTSUPP). Room is looked for and not set aside.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_fallocate(
    file: *mut weft_file,
    mode: c_int,
    off: off_t,
    len: off_t,
) -> c_int {
    const KEEP: c_int = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH: c_int = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO: c_int = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_KEEP: c_int = ZERO | KEEP;
    call_unit("weft_fallocate", || {
        // SAFETY: the caller's pointer, see `crate`.
        let file = unsafe { weft_file::of(file)? };
        let (what, keep_size) = match mode {
            0 => (Allocate::Room, false),
            KEEP => (Allocate::Room, true),
            ZERO => (Allocate::Hole, false),
            PUNCH | ZERO_KEEP => (Allocate::Hole, true),
            _ => return failed(libc::EOPNOTSUPP, format!("mode {mode:#x} is not known here")),
        };
        let (off, len) = (offset(off)?, offset(len)?);
        if len == 0 {
            return failed(libc::EINVAL, "the range has no bytes");
        }
        let open = file.to_write()?;
        file.run(open.allocate(off, len, what, keep_size))
    })
}

/// The first offset from off on where there is data (SEEK_DATA) or a hole (SEEK_HOLE); -ENXIO
/// behind the last one. Files have no position: other values of whence are refused (-EINVAL).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_lseek(file: *mut weft_file, off: off_t, whence: c_int) -> off_t {
    call("weft_lseek", || {
        // SAFETY: the caller's pointer, see `crate`.
        let file = unsafe { weft_file::of(file)? };
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => {
                return failed(libc::EINVAL, "files have no position: SEEK_DATA or SEEK_HOLE");
            }
        };
        // As lseek(2): there is nothing before the file either.
        let Ok(off) = u64::try_from(off) else {
            return failed(libc::ENXIO, format!("the offset {off} is before the file"));
        };
        file.run(file.open().seek(off, what))
    }) as off_t
}

/// Operations of flock(2): LOCK_SH, LOCK_EX, LOCK_UN, and LOCK_NB (-EWOULDBLOCK). The lock belongs
/// to this open file, and stands against those of mounts, too. No signal ends the wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_flock(file: *mut weft_file, operation: c_int) -> c_int {
    call_unit("weft_flock", || {
        // SAFETY: the caller's pointer, see `crate`.
        let file = unsafe { weft_file::of(file)? };
        let kind = match operation & !libc::LOCK_NB {
            libc::LOCK_SH => LockKind::Read,
            libc::LOCK_EX => LockKind::Write,
            libc::LOCK_UN => LockKind::None,
            _ => return failed(libc::EINVAL, format!("{operation:#x} is no operation of flock")),
        };
        file.run(file.open().lock(kind, operation & libc::LOCK_NB == 0))
    })
}

/// Copies up to len bytes from one open file to another, or within one, and moves no bytes where
/// they can share them. Answers how many, which may be fewer; 0 at the end of the source. flags: 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_copy_file_range(
    from: *mut weft_file,
    from_off: off_t,
    to: *mut weft_file,
    to_off: off_t,
    len: usize,
    flags: c_uint,
) -> ssize_t {
    call("weft_copy_file_range", || {
        // SAFETY: the caller's pointers, see `crate`.
        let (from, to) = unsafe { (weft_file::of(from)?, weft_file::of(to)?) };
        let (source, sink) = (from.to_read()?, to.to_write()?);
        if to.append() {
            return failed(libc::EBADF, "the file was opened to append");
        }
        if flags != 0 {
            return failed(libc::EINVAL, "there are no flags yet");
        }
        let (from_off, to_off) = (offset(from_off)?, offset(to_off)?);
        from.run(source.copy_to(from_off, sink, to_off, len as u64))
    })
}
