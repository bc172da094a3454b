//! Random operations of two handles and a second client on one file, against an array of bytes;
//! with and without targets that fail meanwhile.

use crate::fixture::storage::Fault;
use crate::fixture::{Cluster, pattern, small_layout};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::time::Duration;
use weft_client::{Allocate, Creator, Filesystem, HandleId, OpenFlags, Seek, SetAttr};
use weft_proto::{ErrorKind, InodeId, Layout};

const SPAN: u64 = 300_000;

struct Model {
    cluster: Cluster,
    fs: Filesystem,
    other: Filesystem,
    handles: [HandleId; 2],
    ino: InodeId,
    bytes: Vec<u8>,
    rng: StdRng,
    /// Targets that may be broken at a time.
    faults: usize,
    trace: Vec<String>,
}

impl Model {
    async fn new(layout: Layout, targets: usize, faults: usize, seed: u64) -> Self {
        let cluster = Cluster::start(targets, layout).await;
        cluster.metadata.extents_at_once.store(5, std::sync::atomic::Ordering::Relaxed);
        let mut options = cluster.options();
        options.hedge_floor = Duration::from_millis(5);
        let (fs, other) = (
            Filesystem::connect(options.clone()).await.unwrap(),
            Filesystem::connect(options).await.unwrap(),
        );
        let first = fs
            .create(InodeId::ROOT, b"f", 0o644, Creator::default(), OpenFlags::default())
            .await
            .unwrap();
        let second = fs.open(first.attr.ino, OpenFlags::default()).await.unwrap();
        Self {
            cluster,
            fs,
            other,
            handles: [first.handle, second.handle],
            ino: first.attr.ino,
            bytes: Vec::new(),
            rng: StdRng::seed_from_u64(seed),
            faults,
            trace: Vec::new(),
        }
    }

    fn handle(&mut self) -> HandleId {
        self.handles[self.rng.random_range(0..2)]
    }

    async fn write(&mut self) {
        let len = match self.rng.random_range(0..4) {
            0 => self.rng.random_range(1..100),
            1 => self.rng.random_range(1..6000),
            2 => 4096,
            _ => self.rng.random_range(1..120_000),
        };
        let off = match self.rng.random_range(0..3) {
            0 => self.bytes.len() as u64,
            1 => self.rng.random_range(0..SPAN) / 4096 * 4096,
            _ => self.rng.random_range(0..SPAN),
        };
        self.trace.push(format!("write {off}+{len}"));
        let data = pattern(len, self.rng.random());
        let handle = self.handle();
        assert_eq!(self.fs.write(handle, off, &data).await.unwrap(), len);
        let end = off as usize + len;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[off as usize..end].copy_from_slice(&data);
    }

    async fn read(&mut self) {
        let off = self.rng.random_range(0..SPAN + 10_000);
        let len = if self.rng.random() {
            self.rng.random_range(1..5000)
        } else {
            self.rng.random_range(1..200_000)
        };
        self.trace.push(format!("read {off}+{len}"));
        let handle = self.handle();
        let got = self.fs.read(handle, off, len).await.unwrap().into_bytes();
        let from = (off as usize).min(self.bytes.len());
        let want = &self.bytes[from..(off as usize + len).min(self.bytes.len()).max(from)];
        self.same(&got, want, off);
    }

    fn same(&self, got: &[u8], want: &[u8], off: u64) {
        if got != want {
            let at = got.iter().zip(want).position(|(a, b)| a != b);
            panic!(
                "{} bytes instead of {} at {off}, first difference {at:?}; {:#?}",
                got.len(),
                want.len(),
                self.trace
            );
        }
    }

    async fn truncate(&mut self) {
        let size = self.rng.random_range(0..SPAN);
        self.trace.push(format!("truncate {size}"));
        let change = SetAttr { size: Some(size), ..Default::default() };
        let attr = self.fs.set_attr(self.ino, None, change).await.unwrap();
        self.bytes.resize(size as usize, 0);
        assert_eq!(attr.size, size);
    }

    async fn allocate(&mut self) {
        let (off, len) = (self.rng.random_range(0..SPAN), self.rng.random_range(1..60_000));
        let what = if self.rng.random() { Allocate::Hole } else { Allocate::Room };
        let keep_size = self.rng.random();
        self.trace.push(format!("fallocate {what:?} {off}+{len}, keep size: {keep_size}"));
        let handle = self.handle();
        self.fs.fallocate(handle, off, len, what, keep_size).await.unwrap();
        let end = (off + len) as usize;
        if !keep_size && self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        if what == Allocate::Hole {
            let size = self.bytes.len();
            self.bytes[size.min(off as usize)..size.min(end)].fill(0);
        }
    }

    /// Within the file; a range that overlaps itself is refused.
    async fn copy(&mut self) {
        let (from, to) = (self.rng.random_range(0..SPAN), self.rng.random_range(0..SPAN));
        let len = self.rng.random_range(1..80_000);
        self.trace.push(format!("copy {from}+{len} to {to}"));
        let (source, dest) = (self.handle(), self.handle());
        let len_now = len.min((self.bytes.len() as u64).saturating_sub(from));
        let copied = self.fs.copy_range(source, from, dest, to, len).await;
        if len_now > 0 && from.abs_diff(to) < len_now {
            assert_eq!(copied.unwrap_err().kind, ErrorKind::Invalid, "{:#?}", self.trace);
            return;
        }
        assert_eq!(copied.unwrap(), len_now, "{:#?}", self.trace);
        let (from, to, len) = (from as usize, to as usize, len_now as usize);
        if len > 0 {
            let data = self.bytes[from..from + len].to_vec();
            self.bytes.resize(self.bytes.len().max(to + len), 0);
            self.bytes[to..to + len].copy_from_slice(&data);
        }
    }

    /// Holes hold only zeros, and data and holes end where the other begins.
    async fn seek(&mut self) {
        let off = self.rng.random_range(0..SPAN);
        self.trace.push(format!("seek from {off}"));
        let (handle, size) = (self.handle(), self.bytes.len() as u64);
        let data = self.fs.seek(handle, off, Seek::Data).await;
        let hole = self.fs.seek(handle, off, Seek::Hole).await;
        if off >= size {
            assert_eq!(data.unwrap_err().kind, ErrorKind::NoData, "{:#?}", self.trace);
            assert_eq!(hole.unwrap_err().kind, ErrorKind::NoData, "{:#?}", self.trace);
            return;
        }
        let data = match data {
            Err(error) if error.kind == ErrorKind::NoData => size,
            data => data.unwrap(),
        };
        let hole = hole.unwrap();
        assert!((data == off) != (hole == off), "{off}: data {data}, hole {hole}");
        assert!(off <= data && data <= size && off <= hole && hole <= size);
        let zeros = &self.bytes[off as usize..data as usize];
        assert!(zeros.iter().all(|b| *b == 0), "{off}..{data} is a hole; {:#?}", self.trace);
    }

    /// After a flush another client sees the same.
    async fn compare(&mut self) {
        self.trace.push("flush and compare".into());
        let handle = self.handle();
        self.fs.flush(handle).await.unwrap();
        let opened = self.other.open(self.ino, OpenFlags::default()).await.unwrap();
        assert_eq!(opened.attr.size, self.bytes.len() as u64, "{:#?}", self.trace);
        let mut got = Vec::new();
        let step = self.rng.random_range(10_000..400_000);
        while got.len() < self.bytes.len() {
            let part = self.other.read(opened.handle, got.len() as u64, step).await.unwrap();
            assert!(!part.is_empty());
            part.parts().iter().for_each(|p| got.extend_from_slice(p));
        }
        self.same(&got, &self.bytes, 0);
        self.other.release(opened.handle).await.unwrap();
    }

    async fn reopen(&mut self) {
        self.trace.push("reopen".into());
        let which = self.rng.random_range(0..2);
        self.fs.release(self.handles[which]).await.unwrap();
        self.handles[which] = self.fs.open(self.ino, OpenFlags::default()).await.unwrap().handle;
    }

    async fn size(&mut self) {
        let attr = self.fs.get_attr(self.ino).await.unwrap();
        assert_eq!(attr.size, self.bytes.len() as u64, "{:#?}", self.trace);
    }

    /// Breaks some targets in some way and mends the others.
    fn shuffle_faults(&mut self) {
        let all = self.cluster.targets.len();
        self.cluster.targets.iter().for_each(|t| t.set(Fault::None));
        for _ in 0..self.rng.random_range(0..=self.faults) {
            let fault = match self.rng.random_range(0..6) {
                0 => Fault::Refuse(ErrorKind::Unavailable),
                1 => Fault::RefusePut(ErrorKind::Io),
                2 => Fault::Corrupt,
                3 => Fault::Slow(Duration::from_millis(100)),
                4 => Fault::RefusePut(ErrorKind::NoSpace),
                _ => Fault::Empty,
            };
            let target = self.rng.random_range(0..all);
            self.trace.push(format!("target {target}: {fault:?}"));
            self.cluster.targets[target].set(fault);
        }
    }

    async fn run(mut self, steps: usize) {
        for _ in 0..steps {
            match self.rng.random_range(0..28) {
                0..9 => self.write().await,
                9..15 => self.read().await,
                15 => self.truncate().await,
                16 => self.compare().await,
                17 => self.reopen().await,
                18 => self.size().await,
                19 => {
                    let handle = self.handle();
                    self.trace.push("fsync".into());
                    self.fs.fsync(handle, true).await.unwrap();
                }
                20 | 21 => self.allocate().await,
                22 | 23 => self.copy().await,
                24 | 25 => self.seek().await,
                _ if self.faults > 0 => self.shuffle_faults(),
                _ => {}
            }
        }
        self.compare().await;
        self.cluster.targets.iter().for_each(|t| t.set(Fault::None));
        self.fs.shutdown().await.unwrap();
        self.other.shutdown().await.unwrap();
        self.cluster.assert_no_violations();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_an_array_of_bytes() {
    for (seed, profile) in (0..).zip(["2+1", "4+2", "replica=3", "3+0", "2+1", "4+2", "5+2", "1+0"])
    {
        let layout = small_layout(profile);
        Model::new(layout, usize::from(layout.profile.width()), 0, seed).await.run(300).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_an_array_of_bytes_while_targets_fail() {
    // As many faults as parity bears, and as many targets more than the profile needs.
    for (seed, profile, faults) in
        [(10, "2+1", 1), (11, "4+2", 2), (12, "replica=3", 2), (13, "2+2", 2)]
    {
        let layout = small_layout(profile);
        Model::new(layout, usize::from(layout.profile.width()) + faults, faults, seed)
            .await
            .run(150)
            .await;
    }
}
