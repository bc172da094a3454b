//! A drive that can be told to hang or to err: a file behind a FUSE filesystem of this process,
//! which answers requests, keeps them, or fails them.
//!
//! Invariant: what was kept is done and answered when the drive goes on; when this process ends,
//! the kernel fails it.

use anyhow::{Context, Result};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, Session, SessionACL, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const NAME: &str = "drive";
const INODE: INodeNo = INodeNo(2);

/// A mounted drive. Unmounted when dropped.
pub struct HangingDrive {
    shared: Arc<Shared>,
    path: PathBuf,
    session: Option<fuser::BackgroundSession>,
}

impl HangingDrive {
    /// Serves the file `backing` as `<mount>/drive`.
    pub fn mount(backing: &Path, mount: &Path) -> Result<Self> {
        std::fs::create_dir_all(mount)?;
        let file = OpenOptions::new().read(true).write(true).open(backing)?;
        let (kept, unreadable) = (Mutex::default(), Mutex::default());
        let shared = Arc::new(Shared { file, kept, changed: Condvar::new(), unreadable });
        let mut config = fuser::Config::default();
        config.mount_options = vec![MountOption::FSName("weft-test-drive".into())];
        config.acl = SessionACL::Owner;
        let session = Session::new(Served(shared.clone()), mount, &config)
            .and_then(Session::spawn)
            .with_context(|| format!("cannot mount FUSE at {}", mount.display()))?;
        Ok(Self { shared, path: mount.join(NAME), session: Some(session) })
    }

    /// The file that stands for the drive.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// From now on no request is answered.
    pub fn hang(&self) {
        self.shared.kept().requests.get_or_insert_default();
    }

    /// From now on reads that touch these bytes are answered with an error, and no others.
    pub fn err_in(&self, bytes: Range<u64>) {
        *self.shared.unreadable() = bytes;
    }

    /// Waits until a request hangs.
    pub fn await_victim(&self, limit: Duration) -> Result<()> {
        let kept = self.shared.kept();
        let idle = |k: &mut Kept| k.requests.as_ref().is_none_or(Vec::is_empty);
        let waited = self.shared.changed.wait_timeout_while(kept, limit, idle);
        let waited = waited.unwrap_or_else(|e| e.into_inner()).1;
        anyhow::ensure!(!waited.timed_out(), "no request came to the drive within {limit:?}");
        Ok(())
    }

    /// Does and answers what was kept, and everything from now on.
    pub fn go_on(&self) {
        let kept = self.shared.kept().requests.take();
        for request in kept.into_iter().flatten() {
            request();
        }
    }
}

impl Drop for HangingDrive {
    fn drop(&mut self) {
        self.go_on();
        // The mount may be busy: whoever uses it is stopped after this.
        if let Some(session) = self.session.take() {
            let _ = session.umount_and_join();
        }
    }
}

/// A request that was not answered.
type Later = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Kept {
    /// `None` while the drive works.
    requests: Option<Vec<Later>>,
}

struct Shared {
    file: File,
    kept: Mutex<Kept>,
    changed: Condvar,
    /// Bytes whose reads fail.
    unreadable: Mutex<Range<u64>>,
}

impl Shared {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn unreadable(&self) -> MutexGuard<'_, Range<u64>> {
        self.unreadable.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Runs a request now, or keeps it.
    fn serve(&self, request: impl FnOnce() + Send + 'static) {
        let mut kept = self.kept();
        match &mut kept.requests {
            Some(requests) => {
                requests.push(Box::new(request));
                self.changed.notify_all();
            }
            None => {
                drop(kept);
                request();
            }
        }
    }

    fn attr(&self, ino: INodeNo) -> FileAttr {
        let root = ino == INodeNo::ROOT;
        let size = if root { 0 } else { self.file.metadata().map_or(0, |m| m.len()) };
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if root { FileType::Directory } else { FileType::RegularFile },
            perm: if root { 0o755 } else { 0o644 },
            nlink: 1,
            // SAFETY: both only read the credentials of this process.
            uid: unsafe { libc::geteuid() },
            // SAFETY: as above.
            gid: unsafe { libc::getegid() },
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

struct Served(Arc<Shared>);

impl Filesystem for Served {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == NAME {
            true => reply.entry(&Duration::MAX, &self.0.attr(INODE), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::MAX, &self.0.attr(ino));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.attr(&Duration::MAX, &self.0.attr(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let shared = self.0.clone();
        let unreadable = self.0.unreadable().clone();
        if offset < unreadable.end && unreadable.start < offset + u64::from(size) {
            return reply.error(Errno::EIO);
        }
        self.0.serve(move || {
            let mut bytes = vec![0; size as usize];
            match shared.file.read_at(&mut bytes, offset) {
                Ok(len) => reply.data(&bytes[..len]),
                Err(_) => reply.error(Errno::EIO),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (shared, data) = (self.0.clone(), data.to_vec());
        self.0.serve(move || match shared.file.write_all_at(&data, offset) {
            Ok(()) => reply.written(data.len() as u32),
            Err(_) => reply.error(Errno::EIO),
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let shared = self.0.clone();
        self.0.serve(move || match shared.file.sync_data() {
            Ok(()) => reply.ok(),
            Err(_) => reply.error(Errno::EIO),
        });
    }
}
