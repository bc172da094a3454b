//! What of the files of simulated servers was written and not synced: a power cut takes it.
//!
//! RocksDB writes its files itself. So that this is seen, the functions of the C library that write
//! and sync are ours in this program.

use libc::{c_int, c_void, off_t, size_t, ssize_t};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Of the device with the folder of this run: by inode, in the order of their writes.
static UNSYNCED: Mutex<BTreeMap<u64, Vec<Write>>> = Mutex::new(BTreeMap::new());
static DEVICE: std::sync::OnceLock<u64> = std::sync::OnceLock::new();

/// A write, and what it covered.
struct Write {
    off: u64,
    len: usize,
    before: Vec<u8>,
    /// Length of the file before.
    file_len: u64,
}

/// From now on it is seen what is written below this folder.
pub fn watch(folder: &Path) -> io::Result<()> {
    let device = fs::metadata(folder)?.dev();
    DEVICE.get_or_init(|| device);
    let probe = folder.join("probe");
    let mut file = fs::File::create(&probe)?;
    file.write_all(b"unsynced")?;
    if !unsynced().contains_key(&file.metadata()?.ino()) {
        return Err(io::Error::other(format!("{}: writes are not seen", folder.display())));
    }
    fs::remove_file(probe)
}

/// Copies a folder as it is found if the power goes now: of what was not synced, of each file some
/// share of its writes is left, and half of the next. `share` says how much of a file with this
/// name.
pub fn cut_power(from: &Path, to: &Path, share: &dyn Fn(&Path) -> f64) -> io::Result<()> {
    let mut files = Vec::new();
    let unsynced = unsynced();
    let mut folders = vec![from.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let data = match fs::metadata(&path) {
                Ok(found) if found.is_dir() => {
                    folders.push(path);
                    continue;
                }
                Ok(found) => fs::read(&path).map(|data| (found.ino(), data)),
                Err(error) => Err(error),
            };
            match data {
                Ok((ino, data)) => {
                    let writes = unsynced.get(&ino).map_or(&[][..], |writes| writes);
                    let path = path.strip_prefix(from).map_err(io::Error::other)?;
                    files.push((path.to_owned(), left_of(data, writes, share(path))));
                }
                // RocksDB removes what it needs no more in the background.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    drop(unsynced);
    fs::create_dir_all(to)?;
    for (path, data) in files {
        let path = to.join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        let mut file = fs::File::create(path)?;
        file.write_all(&data)?;
        // What is left will not be lost by another cut.
        file.sync_all()?;
    }
    Ok(())
}

/// What is left of a file.
fn left_of(mut data: Vec<u8>, writes: &[Write], share: f64) -> Vec<u8> {
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

fn unsynced() -> MutexGuard<'static, BTreeMap<u64, Vec<Write>>> {
    UNSYNCED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The inode and the length of a file that is watched.
fn watched(fd: c_int) -> Option<(u64, u64)> {
    let device = DEVICE.get()?;
    // SAFETY: all zeros is a `stat`, which the call fills.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: it is there.
    let found = unsafe { libc::fstat(fd, &mut stat) } == 0;
    let is_file = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    (found && is_file && stat.st_dev == *device).then_some((stat.st_ino, stat.st_size as u64))
}

/// Notes what a write is about to cover, before it is looked at what is not synced again.
fn covers(
    fd: c_int,
    off: Option<off_t>,
    len: usize,
) -> Option<MutexGuard<'static, BTreeMap<u64, Vec<Write>>>> {
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

fn synced(fd: c_int, done: c_int) -> c_int {
    if let Some((ino, _)) = watched(fd).filter(|_| done == 0) {
        unsynced().remove(&ino);
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
    synced(fd, unsafe { libc::syscall(libc::SYS_fsync, fd) as c_int })
}

#[unsafe(no_mangle)]
extern "C" fn fdatasync(fd: c_int) -> c_int {
    // SAFETY: it has no memory to touch.
    synced(fd, unsafe { libc::syscall(libc::SYS_fdatasync, fd) as c_int })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As RocksDB and `std` do it.
    #[test]
    fn what_was_synced_is_left() {
        let dir = tempfile::tempdir().unwrap();
        watch(dir.path()).unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir(&from).unwrap();
        let mut file = fs::File::create(from.join("log")).unwrap();
        file.write_all(b"synced").unwrap();
        file.sync_data().unwrap();
        file.write_all(b" and some").unwrap();
        file.write_all(b" more").unwrap();
        file.write_all_at(b"S", 0).unwrap();
        fs::write(from.join("other"), b"never").unwrap();
        let left = |share| {
            cut_power(&from, &to, &|_| share).unwrap();
            [fs::read(to.join("log")).unwrap(), fs::read(to.join("other")).unwrap()]
        };
        assert_eq!(left(0.99), [b"Synced and some more".to_vec(), b"never".to_vec()]);
        assert_eq!(left(0.0), [b"synced and".to_vec(), b"ne".to_vec()]);
        assert_eq!(left(0.25), [b"synced and some m".to_vec(), b"ne".to_vec()]);
        file.sync_all().unwrap();
        assert_eq!(left(0.0)[0], b"Synced and some more");
    }
}
