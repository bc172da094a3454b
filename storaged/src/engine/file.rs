//! Opens, locks and (when empty) prepares the device or file of a target.

use super::BLOCK;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;
use weft_net::AlignedBuf;
use weft_proto::{Error, ErrorKind, Result};

/// A file up to this size is filled with zeros when it is formatted. The first write to each part of
/// a preallocated file costs ext4 a journal commit at the flush: on parts that were written once, a
/// 128 KiB write and its flush took half the time. (Filling larger files little by little, ahead of the
/// data, was measured too: it cost large puts a third of their speed and gained small ones nothing.)
const FILL: u64 = 1 << 30;

/// The kernel keeps the files of a killed process open until its I/O has ended: a lock is waited for.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct TargetFile {
    pub file: File,
    /// Bytes, a multiple of 4096.
    pub size: u64,
    pub block_device: bool,
}

/// Opens and locks. A file that does not exist is made when `create` gives its size; with `sparse`,
/// without blocks.
pub(super) fn open(path: &Path, create: Option<u64>, sparse: bool) -> Result<TargetFile> {
    let name = path.display();
    let fail = |what: &str, e: io::Error| Error::new(ErrorKind::Io, format!("{name}: {what}: {e}"));
    let block_device = match std::fs::metadata(path) {
        Ok(meta) => kind(path, &meta)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound && create.is_some() => false,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "{name} does not exist; give the target a size to have it made, or correct the path"
                ),
            ));
        }
        Err(e) => return Err(fail("cannot look at it", e)),
    };
    let file =
        open_direct(path, block_device, create.is_some()).map_err(|e| match e.raw_os_error() {
            Some(libc::EBUSY) => Error::new(
                ErrorKind::Busy,
                format!("{name} is mounted or in use by the kernel; use another drive"),
            ),
            Some(libc::EROFS | libc::EACCES | libc::EPERM) => Error::new(
                ErrorKind::Invalid,
                format!("{name} cannot be written ({e}): it is read-only, or this user may not"),
            ),
            _ => fail("cannot open it", e),
        })?;
    lock(&file, path)?;
    let mut size = (&file).seek(SeekFrom::End(0)).map_err(|e| fail("cannot find its size", e))?;
    if size == 0
        && !block_device
        && let Some(create) = create
    {
        size = create / BLOCK * BLOCK;
        allocate(&file, size, sparse).map_err(|e| {
            Error::new(ErrorKind::NoSpace, format!("{name}: cannot allocate {size} bytes: {e}"))
        })?;
    }
    Ok(TargetFile { file, size: size / BLOCK * BLOCK, block_device })
}

/// Whether it is a block device, if it can be a target at all.
fn kind(path: &Path, meta: &Metadata) -> Result<bool> {
    if meta.file_type().is_block_device() || meta.is_file() {
        return Ok(!meta.is_file());
    }
    let what = format!("{} is neither a file nor a block device", path.display());
    Err(Error::new(ErrorKind::Invalid, what))
}

/// Opens for reading only, without a lock: for a look at it.
pub(super) fn look_at(path: &Path) -> Result<TargetFile> {
    let fail = |e: io::Error| {
        Error::new(
            if e.kind() == io::ErrorKind::NotFound { ErrorKind::NotFound } else { ErrorKind::Io },
            format!("{}: {e}", path.display()),
        )
    };
    let block_device = kind(path, &std::fs::metadata(path).map_err(fail)?)?;
    let mut file = File::open(path).map_err(fail)?;
    let size = file.seek(SeekFrom::End(0)).map_err(fail)?;
    Ok(TargetFile { file, size: size / BLOCK * BLOCK, block_device })
}

fn open_direct(path: &Path, exclusive: bool, create: bool) -> io::Result<File> {
    let flags = libc::O_CLOEXEC | if exclusive { libc::O_EXCL } else { 0 };
    let open = |flags| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(create && !exclusive)
            .custom_flags(flags)
            .open(path)
    };
    open(flags | libc::O_DIRECT).or_else(|e| {
        if e.raw_os_error() != Some(libc::EINVAL) {
            return Err(e);
        }
        tracing::warn!(
            "{}: no direct I/O on this filesystem; the page cache is used",
            path.display()
        );
        open(flags)
    })
}

#[expect(clippy::disallowed_methods, reason = "runs on a thread that may block")]
fn lock(file: &File, path: &Path) -> Result<()> {
    let start = Instant::now();
    loop {
        // SAFETY: plain system call on an open descriptor.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(());
        }
        let e = io::Error::last_os_error();
        let held = e.kind() == io::ErrorKind::WouldBlock;
        if held && start.elapsed() < LOCK_PATIENCE {
            std::thread::sleep(LOCK_PATIENCE / 20);
            continue;
        }
        let what = if held {
            "another storage daemon has it open (or the configuration lists it twice); stop that one first".into()
        } else {
            format!("cannot lock it: {e}")
        };
        return Err(Error::new(ErrorKind::Busy, format!("{}: {what}", path.display())));
    }
}

/// Gives an empty file its size, and its blocks unless it is to be sparse.
fn allocate(file: &File, size: u64, sparse: bool) -> io::Result<()> {
    // Where the filesystem cannot give blocks ahead, every file is sparse.
    if sparse || !preallocate(file, size)? {
        file.set_len(size)?;
    }
    file.sync_all()
}

/// `false`: the filesystem cannot.
fn preallocate(file: &File, size: u64) -> io::Result<bool> {
    // SAFETY: plain system call on an open descriptor.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, size as libc::off_t) } == 0 {
        return Ok(true);
    }
    let e = io::Error::last_os_error();
    if e.raw_os_error() == Some(libc::EOPNOTSUPP) { Ok(false) } else { Err(e) }
}

/// Writes zeros where a fresh target needs them: its journal, so that a record always has room, or
/// all of a small file, unless it is to be sparse.
pub(super) fn fill(target: &TargetFile, journal_end: u64, sparse: bool) -> io::Result<()> {
    let little = target.block_device || sparse || target.size > FILL;
    let end = if little { journal_end } else { target.size };
    let mut zeros = AlignedBuf::take(4 << 20);
    zeros.as_mut_slice().fill(0);
    let mut at = 0;
    while at < end {
        let len = (end - at).min(4 << 20);
        target.file.write_all_at(&zeros.as_ref()[..len as usize], at)?;
        at += len;
    }
    target.file.sync_all()
}
