//! The file that pieces lie in: a block that says what it is, and regions of [`REGION`] bytes, each
//! with records from its beginning on and a [`List`] of them at its end, once it is full.
//!
//! Nothing is flushed: what a crash leaves is recognised by its checksums, or is not there.
//!
//! Invariant: one process at a time has it (`flock`).

use crate::list::{LIST, List};
use crate::piece::Piece;
use crate::record::{self, BLOCK_LEN};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use weft_net::Buffer;
use weft_proto::{Error, ErrorKind, Result, Uuid};

/// Bytes of a region: what is given up together.
pub const REGION: u64 = 64 << 20;
/// Blocks of a region that records may lie in.
pub const ROOM: u32 = ((REGION - LIST) / BLOCK_LEN as u64) as u32;

const MAGIC: [u8; 8] = *b"WEFTHOT1";
/// Bytes of the drive that are left to others, so that they are not the ones who find it full.
const RESERVE: u64 = 64 << 20;
/// Of a list, read at once; what is longer needs a second look.
const LIST_HEAD: usize = 2 * BLOCK_LEN;

/// Where a piece lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub region: u32,
    /// The block of the region that its record begins at.
    pub at: u32,
    /// Bytes of the piece.
    pub len: u32,
}

/// An open store.
pub struct Store {
    file: File,
    path: PathBuf,
    /// Tells what was written to it from what was there before.
    id: u64,
    /// How many it has.
    pub regions: u32,
    /// The next write waits for this.
    #[cfg(test)]
    pub hangs: weft_net::sync::Mutex<Option<std::sync::mpsc::Receiver<()>>>,
}

impl Store {
    /// Opens the store for a cluster in `dir`, or makes it; it takes `size` bytes there, all of
    /// them at once. Errors: `Busy` if another process has it, `NoSpace` if it does not fit there.
    pub fn open(dir: &Path, cluster: Uuid, size: u64) -> Result<Self> {
        let regions = u32::try_from(size / REGION).unwrap_or(u32::MAX);
        let path = dir.join(format!("{cluster}.hot"));
        let fail = |e: io::Error| failed(&path, &e);
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|e| failed(dir, &e))?;
        let file = open_direct(&path).map_err(fail)?;
        // SAFETY: a plain system call on an open descriptor.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let error = io::Error::last_os_error();
            return Err(match error.kind() {
                io::ErrorKind::WouldBlock => {
                    let what = format!("{}: another process has it", path.display());
                    Error::new(ErrorKind::Busy, what)
                }
                _ => fail(error),
            });
        }
        let (meta, us) = (file.metadata().map_err(fail)?, own_uid());
        if !meta.is_file() || meta.uid() != us || meta.nlink() != 1 || meta.mode() & 0o077 != 0 {
            let what = "is not a file that this user alone has: name another folder, or remove it";
            return Err(Error::new(ErrorKind::Invalid, format!("{} {what}", path.display())));
        }
        let mut store = Self {
            file,
            path: path.clone(),
            id: 0,
            regions,
            #[cfg(test)]
            hangs: Default::default(),
        };
        store.take_room()?;
        store.id = match store.superblock(cluster).map_err(fail)? {
            Some(id) => id,
            None => store.begin(cluster).map_err(fail)?,
        };
        Ok(store)
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All room is taken now: what others put on the drive later does not make writes fail.
    fn take_room(&self) -> Result<()> {
        let fail = |e: io::Error| failed(&self.path, &e);
        let end = BLOCK_LEN as u64 + u64::from(self.regions) * REGION;
        let before = self.file.metadata().map_err(fail)?.len();
        if before > end {
            self.file.set_len(end).map_err(fail)?;
        }
        // Some filesystems take all there is before they say that it is not enough: whoever else
        // writes there then would find it full.
        let taken = self.file.metadata().map_err(fail)?.blocks() * 512;
        let free = free_bytes(&self.file).map_err(fail)?;
        fits(&self.path, end.saturating_sub(taken), free)?;
        self.allocate(before, end).map_err(fail)
    }

    /// Takes room up to `end`, for a file that was as long as `before`.
    fn allocate(&self, before: u64, end: u64) -> io::Result<()> {
        let len = i64::try_from(end).map_err(io::Error::other)?;
        // SAFETY: a plain system call on an open descriptor.
        if unsafe { libc::fallocate(self.file.as_raw_fd(), 0, 0, len) } == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            // This filesystem gives room when it is written to.
            e if e.raw_os_error() == Some(libc::EOPNOTSUPP) => self.file.set_len(end),
            // What there was of it is given back: others have use for it.
            e => self.file.set_len(before.min(end)).and(Err(e)),
        }
    }

    /// The id, if this is a store for that cluster.
    fn superblock(&self, cluster: Uuid) -> io::Result<Option<u64>> {
        let block = self.read_at(0, BLOCK_LEN)?;
        let id = block[8..].first_chunk().map(|id| u64::from_le_bytes(*id));
        Ok(id.filter(|id| block[..] == superblock(*id, cluster)[..]))
    }

    /// What was there is no piece of it any more.
    fn begin(&self, cluster: Uuid) -> io::Result<u64> {
        let id = rand::random();
        self.file.write_all_at(&superblock(id, cluster), 0)?;
        Ok(id)
    }

    fn read_at(&self, at: u64, len: usize) -> io::Result<Buffer> {
        let mut buffer = Buffer::take(len);
        self.file.read_exact_at(&mut buffer, at)?;
        Ok(buffer)
    }

    /// The bytes `within` a piece. Errors: `Corrupt` if they are not there as they were put.
    pub fn read(&self, piece: Piece, place: Place, within: Range<u32>) -> Result<Buffer> {
        let fail = |e: io::Error| failed(&self.path, &e);
        let block = BLOCK_LEN as u32;
        let (first, end) = (within.start / block, within.end.div_ceil(block));
        let at = offset(place.region) + u64::from(place.at) * BLOCK_LEN as u64;
        let len = |blocks: u32| blocks as usize * BLOCK_LEN;
        // What lies between the head and a part near to it is read, too, rather than twice.
        let (head, mut body) = if first < 8 {
            let mut whole = self.read_at(at, len(1 + end)).map_err(fail)?;
            let head = whole.split_to(BLOCK_LEN);
            whole.split_to(len(first));
            (head, whole)
        } else {
            let head = self.read_at(at, BLOCK_LEN).map_err(fail)?;
            let from = at + len(1 + first) as u64;
            (head, self.read_at(from, len(end - first)).map_err(fail)?)
        };
        if !record::is_good(piece, place.len, &head, first as usize, &body) {
            let what = format!("{}: the record at {at} is not what it was", self.path.display());
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        body.split_to((within.start - first * block) as usize);
        Ok(body.split_to((within.end - within.start) as usize))
    }

    /// Writes a record to block `at` of a region.
    pub fn write(&self, region: u32, at: u32, record: &Buffer) -> Result<()> {
        let at = offset(region) + u64::from(at) * BLOCK_LEN as u64;
        self.write_at(record, at)
    }

    /// What is in a region, if it was filled.
    pub fn list(&self, region: u32) -> Option<List> {
        let at = offset(region) + REGION - LIST;
        let mut bytes = self.read_at(at, LIST_HEAD).ok()?;
        let len = List::len(self.id, &bytes)?;
        if len > bytes.len() {
            bytes = self.read_at(at, len.next_multiple_of(BLOCK_LEN)).ok()?;
        }
        List::decode(self.id, &bytes, ROOM)
    }

    /// Says what is in a region; with `None`, nothing: it is going to be filled anew.
    pub fn set_list(&self, region: u32, list: Option<&List>) -> Result<()> {
        let bytes = list.map(|list| list.encode(self.id)).unwrap_or_default();
        let mut block = Buffer::take(bytes.len().next_multiple_of(BLOCK_LEN).max(BLOCK_LEN));
        block[..bytes.len()].copy_from_slice(&bytes);
        block[bytes.len()..].fill(0);
        let at = offset(region) + REGION - LIST;
        self.write_at(&block, at)
    }

    fn write_at(&self, bytes: &Buffer, at: u64) -> Result<()> {
        #[cfg(test)]
        {
            let hangs = self.hangs.lock().take();
            let _ = hangs.map(|hangs| hangs.recv());
        }
        self.file.write_all_at(bytes, at).map_err(|e| failed(&self.path, &e))
    }
}

/// Bytes that this user may take of the file's filesystem.
fn free_bytes(file: &File) -> io::Result<u64> {
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: an open descriptor, and a structure that the call fills.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), stat.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: plain numbers, zeroed and then filled.
    let stat = unsafe { stat.assume_init() };
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Whether so many bytes more can be taken where so many are free. Errors: `NoSpace`.
fn fits(path: &Path, wanted: u64, free: u64) -> Result<()> {
    if wanted == 0 || wanted.saturating_add(RESERVE) <= free {
        return Ok(());
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let what = format!(
        "{}: {} MiB more are to be taken, and the drive has {} MiB free, of which {} MiB are left \
         to others: make room there, or mount with a smaller --hot-size",
        path.display(),
        mib(wanted),
        free >> 20,
        mib(RESERVE)
    );
    Err(Error::new(ErrorKind::NoSpace, what))
}

/// Who this process is to the filesystem.
fn own_uid() -> u32 {
    // SAFETY: a plain system call that cannot fail.
    unsafe { libc::geteuid() }
}

fn offset(region: u32) -> u64 {
    BLOCK_LEN as u64 + u64::from(region) * REGION
}

fn superblock(id: u64, cluster: Uuid) -> Buffer {
    let mut block = Buffer::take(BLOCK_LEN);
    block.fill(0);
    block[..8].copy_from_slice(&MAGIC);
    block[8..16].copy_from_slice(&id.to_le_bytes());
    block[16..32].copy_from_slice(&cluster.0);
    block[32..40].copy_from_slice(&REGION.to_le_bytes());
    let sum = crc32fast::hash(&block);
    block[40..44].copy_from_slice(&sum.to_le_bytes());
    block
}

fn open_direct(path: &Path) -> io::Result<File> {
    let open = |flags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW | flags).open(path)
    };
    match open(libc::O_DIRECT) {
        // This filesystem has no I/O past the page cache.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => open(0),
        opened => opened,
    }
}

fn failed(path: &Path, error: &io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests;
