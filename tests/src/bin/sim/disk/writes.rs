//! What was written to files and not synced.

use super::names;
use libc::{c_int, c_void, off_t, size_t, ssize_t};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Of the device with the folder of this run: by inode, in the order of their writes.
static UNSYNCED: Mutex<Unsynced> = Mutex::new(BTreeMap::new());
pub static DEVICE: OnceLock<u64> = OnceLock::new();

pub type Unsynced = BTreeMap<u64, Vec<Write>>;

/// A write, and what it covered.
pub struct Write {
    off: u64,
    len: usize,
    before: Vec<u8>,
    /// Length of the file before.
    file_len: u64,
}

/// What is left of a file.
pub fn left_of(mut data: Vec<u8>, writes: &[Write], share: f64) -> Vec<u8> {
    let left = (share * (writes.len() + 1) as f64) as usize;
    for (number, write) in writes.iter().enumerate().skip(left).rev() {
        let torn = if number == left { write.len / 2 } else { 0 };
        for (at, byte) in write.before.iter().enumerate().skip(torn) {
            if let Some(now) = data.get_mut(write.off as usize + at) {
                *now = *byte;
            }
        }
        let torn = if torn > 0 { write.off + torn as u64 } else { 0 };
        data.truncate(write.file_len.max(torn) as usize);
    }
    data
}

pub fn unsynced() -> MutexGuard<'static, Unsynced> {
    UNSYNCED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is watched, and of which kind.
fn found(fd: c_int) -> Option<(libc::mode_t, libc::stat)> {
    let device = DEVICE.get()?;
    // SAFETY: all zeros is a `stat`, which the call fills.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: it is there.
    let found = unsafe { libc::fstat(fd, &mut stat) } == 0;
    (found && stat.st_dev == *device).then_some((stat.st_mode & libc::S_IFMT, stat))
}

/// The inode and the length of a file that is watched.
fn watched(fd: c_int) -> Option<(u64, u64)> {
    let (_, stat) = found(fd).filter(|(kind, _)| *kind == libc::S_IFREG)?;
    Some((stat.st_ino, stat.st_size as u64))
}

/// Notes what a write is about to cover, before it is looked at what is not synced again.
fn covers(fd: c_int, off: Option<off_t>, len: usize) -> Option<MutexGuard<'static, Unsynced>> {
    let (ino, _) = watched(fd)?;
    let mut unsynced = unsynced();
    let (_, file_len) = watched(fd)?;
    if file_len == 0 {
        // It is a new one, or was emptied.
        unsynced.remove(&ino);
    }
    let off = match off {
        Some(off) => off as u64,
        // SAFETY: these only ask.
        None => unsafe {
            match libc::fcntl(fd, libc::F_GETFL) & libc::O_APPEND {
                0 => libc::lseek(fd, 0, libc::SEEK_CUR) as u64,
                _ => file_len,
            }
        },
    };
    let mut before = vec![0; (file_len.saturating_sub(off) as usize).min(len)];
    if !before.is_empty() {
        // It may be open for writing only.
        let file = fs::File::open(format!("/proc/self/fd/{fd}"));
        let read = file.and_then(|file| file.read_exact_at(&mut before, off));
        read.expect("what a write covers can be read");
    }
    unsynced.entry(ino).or_default().push(Write { off, len, before, file_len });
    Some(unsynced)
}

/// Syncs what has power, and what it was that is durable by that.
fn sync(fd: c_int, sync: impl FnOnce() -> c_int) -> c_int {
    let Some((kind, stat)) = found(fd) else { return sync() };
    if super::is_cut_off(fd) {
        // SAFETY: it is this thread's.
        unsafe { *libc::__errno_location() = libc::EIO };
        return -1;
    }
    let done = sync();
    match kind {
        _ if done != 0 => {}
        libc::S_IFREG => drop(unsynced().remove(&stat.st_ino)),
        libc::S_IFDIR => names::synced(stat.st_ino),
        _ => {}
    }
    done
}

#[unsafe(no_mangle)]
extern "C" fn write(fd: c_int, data: *const c_void, len: size_t) -> ssize_t {
    let _covered = covers(fd, None, len);
    // SAFETY: the caller's buffer, for what it is.
    unsafe { libc::syscall(libc::SYS_write, fd, data, len) as ssize_t }
}

#[unsafe(no_mangle)]
extern "C" fn pwrite(fd: c_int, data: *const c_void, len: size_t, off: off_t) -> ssize_t {
    let _covered = covers(fd, Some(off), len);
    // SAFETY: the caller's buffer, for what it is.
    unsafe { libc::syscall(libc::SYS_pwrite64, fd, data, len, off) as ssize_t }
}

#[unsafe(no_mangle)]
extern "C" fn pwrite64(fd: c_int, data: *const c_void, len: size_t, off: off_t) -> ssize_t {
    pwrite(fd, data, len, off)
}

#[unsafe(no_mangle)]
extern "C" fn fsync(fd: c_int) -> c_int {
    // SAFETY: it has no memory to touch.
    sync(fd, || unsafe { libc::syscall(libc::SYS_fsync, fd) as c_int })
}

#[unsafe(no_mangle)]
extern "C" fn fdatasync(fd: c_int) -> c_int {
    // SAFETY: it has no memory to touch.
    sync(fd, || unsafe { libc::syscall(libc::SYS_fdatasync, fd) as c_int })
}

/// Room is there: RocksDB asks for more than it ever uses in a run.
#[unsafe(no_mangle)]
extern "C" fn fallocate(fd: c_int, mode: c_int, off: off_t, len: off_t) -> c_int {
    if mode == libc::FALLOC_FL_KEEP_SIZE && watched(fd).is_some() {
        return 0;
    }
    // SAFETY: it has no memory to touch.
    unsafe { libc::syscall(libc::SYS_fallocate, fd, mode, off, len) as c_int }
}

#[unsafe(no_mangle)]
extern "C" fn fallocate64(fd: c_int, mode: c_int, off: off_t, len: off_t) -> c_int {
    fallocate(fd, mode, off, len)
}
