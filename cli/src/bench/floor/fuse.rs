//! An empty FUSE server in this process, over the same channel as the real mount: names live in a
//! map, reads answer zeros, writes are dropped. What it costs is what FUSE itself costs.

use crate::bench::context::{Context, Sample};
use crate::bench::task::{Files, Task, Work};
use crate::bench::workers::{self, Spread};
use anyhow::{Context as _, Result};
use bytes::Bytes;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weft_fuse::abi::{Answer, Attr, Entry, Errno, Header, Op, Open, Reply, Request};
use weft_fuse::{Handler, Outcome};

/// Longest request that FUSE carries.
const REQUEST: u32 = weft_fuse::abi::MAX_REQUEST;
/// As far as FUSE gains from.
const READ_AHEAD_KIB: u32 = 8192;
const THREADS: usize = 2;
const ROOT: u64 = 1;
/// The inode that has content.
const ZEROS: u64 = 2;

pub fn run(context: &Context) -> Result<Vec<Sample>> {
    let mount_point = context.scratch().join("fuse");
    std::fs::create_dir_all(&mount_point)?;
    let options = weft_fuse::Options {
        source: "weft:bench".into(),
        threads: THREADS,
        allow_other: false,
        read_ahead_kib: READ_AHEAD_KIB,
        ..Default::default()
    };
    // It never waits for anything, but handlers run inside a runtime.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
    let _inside = runtime.enter();
    let handler = Arc::new(Empty::new(context.size));
    let mounted = weft_fuse::mount_handler(handler, &mount_point, &options)
        .with_context(|| format!("cannot mount FUSE at {}", mount_point.display()))?;
    let samples = measure(context, &mount_point);
    mounted.unmount(false).context("cannot unmount the empty FUSE server")?;
    mounted.join().context("the empty FUSE server failed")?;
    std::fs::remove_dir(&mount_point)?;
    samples
}

fn measure(context: &Context, dir: &Path) -> Result<Vec<Sample>> {
    let one = |name, work| {
        let task = Task { work, limit_s: context.limit.as_secs_f64() };
        context.measure(name, || workers::run(&[task], Spread::Threads))
    };
    let files = |count| Files { dir: dir.into(), count };
    let (zeros, request) = (|| dir.join("zeros"), 1 << 20);
    let small = Work::RandomRead {
        path: zeros(),
        request: 4096,
        count: context.operations,
        seed: context.seed(),
        verify: false,
    };
    let mut samples = vec![
        one("fuse_write", Work::Write { path: dir.join("sink"), bytes: context.size, request })?,
        one("fuse_read", Work::Read { path: zeros(), request, verify: false })?,
        one("fuse_read_4k", small)?,
        one("fuse_create", Work::Create { files: files(context.operations) })?,
    ];
    // Not all of them, if that took too long.
    let made = samples[3].outcome.operations;
    samples.push(one("fuse_stat", Work::Stat { files: files(made) })?);
    samples.push(one("fuse_unlink", Work::Unlink { files: files(made) })?);
    Ok(samples)
}

struct Empty {
    names: Mutex<HashMap<Vec<u8>, u64>>,
    next: AtomicU64,
    /// Size that the file of zeros claims to have.
    size: u64,
    zeros: Bytes,
}

impl Empty {
    fn new(size: u64) -> Self {
        Self {
            names: Mutex::new(HashMap::from([(b"zeros".to_vec(), ZEROS)])),
            next: AtomicU64::new(ZEROS + 1),
            size,
            zeros: vec![0; REQUEST as usize].into(),
        }
    }

    fn names(&self) -> std::sync::MutexGuard<'_, HashMap<Vec<u8>, u64>> {
        self.names.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn attr(&self, ino: u64) -> Attr {
        // Only the file of zeros has contents; new files are empty until they are written, and
        // what is written is not kept.
        let size = if ino == ZEROS { self.size } else { 0 };
        Attr {
            ino,
            size,
            blocks: size / 512,
            mode: if ino == ROOT { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 },
            nlink: 1,
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
            blksize: 4096,
            ..Default::default()
        }
    }

    fn entry(&self, ino: u64) -> Entry {
        Entry {
            node: ino,
            attr: self.attr(ino),
            name_ttl: Duration::ZERO,
            attr_ttl: Duration::ZERO,
        }
    }

    fn create(&self, name: &[u8]) -> Reply {
        let ino = self.next.fetch_add(1, Ordering::Relaxed);
        self.names().insert(name.to_vec(), ino);
        Reply::Created(self.entry(ino), Open { fh: 0, flags: 0 })
    }

    fn read(&self, offset: u64, size: u32) -> Reply {
        let left = self.size.saturating_sub(offset).min(u64::from(size.min(REQUEST)));
        Reply::Data(vec![self.zeros.slice(..left as usize)])
    }

    fn answer(&self, node: u64, op: &Op<'_>) -> Answer {
        const GONE: Errno = Errno(libc::ENOENT);
        match *op {
            Op::Lookup { name } => {
                let ino = self.names().get(name).copied().ok_or(GONE)?;
                Ok(Reply::Entry(self.entry(ino)))
            }
            Op::GetAttr { .. } | Op::SetAttr(_) => Ok(Reply::Attr(self.attr(node), Duration::ZERO)),
            Op::Create { name, .. } => Ok(self.create(name)),
            Op::Unlink { name } => self.names().remove(name).map(|_| Reply::Empty).ok_or(GONE),
            Op::Open { .. } => Ok(Reply::Open(Open { fh: 0, flags: 0 })),
            Op::Read { offset, size, .. } => Ok(self.read(offset, size)),
            Op::Write { data, .. } => Ok(Reply::Written(data.len() as u32)),
            Op::Flush { .. } | Op::Fsync { .. } | Op::Release { .. } => Ok(Reply::Empty),
            _ => Err(Errno(libc::ENOSYS)),
        }
    }
}

impl Handler for Empty {
    fn handle(&self, request: &Request<'_>) -> Outcome {
        Outcome::Done(self.answer(request.header.node, &request.op))
    }

    fn unwanted(&self, _: &Header, _: &Reply) {}
}
