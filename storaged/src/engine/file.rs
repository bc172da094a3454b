//! Opens, locks and, when a target is to be made, prepares its device or file.

use super::BLOCK;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;
use weft_net::AlignedBuf;
use weft_proto::{Error, ErrorKind, Result};

/// A file up to this size is filled with zeros when it is formatted. The first write to each part
/// of a preallocated file costs ext4 a journal commit at the flush: on parts that were written
/// once, a 128 KiB write and its flush took half the time. (Filling larger files little by little,
/// ahead of the data, was measured too: it cost large puts a third of their speed and gained small
/// ones nothing.)
const FILL: u64 = 1 << 30;

/// The kernel keeps the files of a killed process open until its I/O has ended: a lock is waited
/// for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct TargetFile {
    pub file: File,
    /// Bytes, a multiple of 4096.
    pub size: u64,
    pub block_device: bool,
}

/// Opens and locks. Nothing is made: where a filesystem is not mounted, a new file would stand in
/// its place on another.
pub(super) fn open(path: &Path) -> Result<TargetFile> {
    let name = path.display();
    let fail = |what: &str, e: io::Error| Error::new(ErrorKind::Io, format!("{name}: {what}: {e}"));
    let block_device = match std::fs::metadata(path) {
        Ok(meta) => kind(path, &meta)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "{name} does not exist: is its filesystem mounted, or its drive connected? \
                     `weft \
                     target add` makes new files, with --size"
                ),
            ));
        }
        Err(e) => return Err(fail("cannot look at it", e)),
    };
    let file = open_direct(path, block_device).map_err(|e| match e.raw_os_error() {
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
    let size = (&file).seek(SeekFrom::End(0)).map_err(|e| fail("cannot find its size", e))?;
    Ok(TargetFile { file, size: size / BLOCK * BLOCK, block_device })
}

/// A file that was made and is taken away again unless it is kept.
pub(super) struct Made<'a>(Option<&'a Path>);

impl Made<'_> {
    pub fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0
            && let Err(e) = std::fs::remove_file(path)
        {
            tracing::warn!("{}: cannot be taken away again: {e}", path.display());
        }
    }
}

/// Makes a file of `size` bytes, locked; with `sparse`, without blocks. Errors: `Exists`;
/// `NoSpace`, and `Io`, which leave nothing behind.
pub(super) fn make(path: &Path, size: u64, sparse: bool) -> Result<(TargetFile, Made<'_>)> {
    File::create_new(path).map_err(|e| cannot(path, "cannot make it", &e))?;
    let made = Made(Some(path));
    Ok((resize(open(path)?, path, size, sparse)?, made))
}

/// Gives a file that holds nothing this size, as [`make`] does. Errors: `NoSpace`; `Io`.
pub(super) fn resize(
    target: TargetFile,
    path: &Path,
    size: u64,
    sparse: bool,
) -> Result<TargetFile> {
    let size = size / BLOCK * BLOCK;
    let fail = |what: &str, e: io::Error| cannot(path, what, &e);
    // The kernel would give it all that is left first, and others would find the disk full.
    let space = space(&target.file).map_err(|e| fail("cannot look at its filesystem", e))?;
    let found = target.file.metadata().map_err(|e| fail("cannot look at it", e))?;
    let free = space.available.saturating_add(found.blocks() * 512);
    if !sparse && free < size {
        let what = format!("{}: its filesystem has {free} bytes free, not {size}", path.display());
        return Err(Error::new(ErrorKind::NoSpace, what));
    }
    let cut = if found.len() > size { target.file.set_len(size) } else { Ok(()) };
    let given = cut.and_then(|()| allocate(&target.file, size, sparse));
    given.map_err(|e| fail(&format!("cannot give it {size} bytes"), e))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let kept = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
    kept.map_err(|e| fail("cannot make its name durable", e))?;
    Ok(TargetFile { size, ..target })
}

fn cannot(path: &Path, what: &str, e: &io::Error) -> Error {
    let kind = match e.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => ErrorKind::NoSpace,
        Some(libc::EEXIST) => ErrorKind::Exists,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("{}: {what}: {e}", path.display()))
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

fn open_direct(path: &Path, exclusive: bool) -> io::Result<File> {
    let flags = libc::O_CLOEXEC | if exclusive { libc::O_EXCL } else { 0 };
    let open = |flags| OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
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
        if held && start.elapsed() < LOCK_TIMEOUT {
            std::thread::sleep(LOCK_TIMEOUT / 20);
            continue;
        }
        let what = if held {
            "another storage daemon has it open (or the configuration lists it twice); stop that \
             one first"
                .into()
        } else {
            format!("cannot lock it: {e}")
        };
        return Err(Error::new(ErrorKind::Busy, format!("{}: {what}", path.display())));
    }
}

/// Gives a file that is no longer its size, and its blocks unless it is to be sparse.
fn allocate(file: &File, size: u64, sparse: bool) -> io::Result<()> {
    // Where the filesystem cannot give blocks ahead, every file is sparse.
    if sparse || !preallocate(file, size)? {
        file.set_len(size)?;
    }
    file.sync_all()
}

/// Bytes of a filesystem.
pub(super) struct Space {
    /// What is free for everybody.
    pub available: u64,
    /// And with what is kept for root.
    pub free: u64,
    pub all: u64,
}

/// Room of the filesystem that a file is on.
pub(super) fn space(file: &File) -> io::Result<Space> {
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: an open descriptor, and a structure that the call fills.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), stat.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: plain numbers, zeroed and then filled.
    let stat = unsafe { stat.assume_init() };
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    let (available, free) = (bytes(stat.f_bavail), bytes(stat.f_bfree));
    Ok(Space { available, free, all: bytes(stat.f_blocks) })
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
