//! Exercises one file with random operations and compares it with an array of bytes after each, as
//! fsx does: reads and writes, mapped ones too, truncation, allocation, holes, copies within the
//! file and by way of another, close and open. With several mounts, the file is handed from one to
//! the next.
//!
//! Which operations run is decided by the seed alone. What fails says the seed and the last
//! operations.

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Operations that a failure tells of.
const TOLD: usize = 40;
const PAGE: u64 = 4096;

/// How a file goes from one mount to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandOver {
    /// Closed on one, then opened on the other.
    Close,
    /// Open on all; synced on one before the other uses it.
    Fsync,
    /// Open on all; whoever uses it holds a lock of it.
    Lock,
    /// Open on all; used by any at any time.
    Nothing,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Fsx {
    /// The file's folder, by way of each mount.
    pub folders: Vec<PathBuf>,
    pub hand_over: HandOver,
    pub seed: u64,
    pub operations: u64,
    /// Longest file, bytes.
    pub longest: u64,
    /// Longest range of one operation, bytes.
    pub most: u64,
}

impl Fsx {
    /// Runs it and removes the files.
    pub fn run(&self) -> Result<()> {
        let mut world = World::new(self)?;
        for number in 0..self.operations {
            if let Err(error) = world.step(number) {
                let mut told = String::new();
                for (number, what) in &world.trace {
                    writeln!(told, "  {number} {what}")?;
                }
                return Err(error).with_context(|| {
                    format!("seed {} operation {number}; the last were\n{told}", self.seed)
                });
            }
        }
        world.end().with_context(|| format!("seed {}, at the end", self.seed))
    }
}

struct World<'a> {
    fsx: &'a Fsx,
    rng: SmallRng,
    /// What the file should hold, and the other one that it is copied to and from.
    bytes: Vec<u8>,
    other: Vec<u8>,
    /// On each mount, if it is open there.
    open: Vec<Option<Pair>>,
    now: usize,
    /// Written by way of a mapping, and not synced.
    unsynced: bool,
    trace: VecDeque<(u64, String)>,
}

struct Pair {
    file: File,
    other: File,
}

impl<'a> World<'a> {
    fn new(fsx: &'a Fsx) -> Result<Self> {
        let mut world = Self {
            fsx,
            rng: SmallRng::seed_from_u64(fsx.seed),
            bytes: Vec::new(),
            other: Vec::new(),
            open: fsx.folders.iter().map(|_| None).collect(),
            now: 0,
            unsynced: false,
            trace: VecDeque::new(),
        };
        world.open()?;
        if fsx.hand_over != HandOver::Close {
            for at in 0..fsx.folders.len() {
                world.now = at;
                world.open()?;
            }
        }
        world.lock(libc::F_WRLCK)?;
        Ok(world)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.fsx.folders[self.now].join(format!("{name}-{}", self.fsx.seed))
    }

    fn open(&mut self) -> Result<()> {
        let open = |path: PathBuf| {
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
        };
        let pair = Pair { file: open(self.path("file"))?, other: open(self.path("other"))? };
        self.open[self.now] = Some(pair);
        Ok(())
    }

    /// Locks the file as a process does, or unlocks it, if that is how it is handed over.
    fn lock(&self, kind: libc::c_int) -> Result<()> {
        if self.fsx.hand_over != HandOver::Lock {
            return Ok(());
        }
        // SAFETY: a struct of numbers: all of the file, from its start on.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as libc::c_short;
        let fd = self.pair()?.file.as_raw_fd();
        // SAFETY: the lock outlives the call.
        let done = check(unsafe { libc::fcntl(fd, libc::F_SETLKW, &lock) });
        done.context("lock or unlock the file")
    }

    fn pair(&self) -> Result<&Pair> {
        self.open[self.now].as_ref().context("not open here")
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn told(&mut self, number: u64, what: String) {
        if self.trace.len() == TOLD {
            self.trace.pop_front();
        }
        self.trace.push_back((number, format!("mount {}: {what}", self.now)));
    }

    /// A range that may reach to the longest file.
    fn range(&mut self) -> (u64, u64) {
        let off = match self.rng.random_range(0..4) {
            0 => self.rng.random_range(0..self.fsx.longest) / PAGE * PAGE,
            1 => self.size().min(self.fsx.longest - 1),
            _ => self.rng.random_range(0..self.fsx.longest),
        };
        let most = self.fsx.most.min(self.fsx.longest - off);
        let most = if self.rng.random_ratio(1, 3) { most.min(600) } else { most };
        (off, self.rng.random_range(1..=most))
    }

    /// A range within the file, which is not empty.
    fn inner_range(&mut self) -> (u64, u64) {
        let off = self.rng.random_range(0..self.size());
        let most = self.fsx.most.min(self.size() - off);
        (off, self.rng.random_range(1..=most))
    }

    fn data(&mut self, len: u64) -> Vec<u8> {
        let mut data = vec![0; len as usize];
        self.rng.fill_bytes(&mut data);
        data
    }

    /// The bytes at `off` are `data` now; the file grows if it has to.
    fn set(&mut self, off: u64, data: &[u8]) {
        let end = off as usize + data.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[off as usize..end].copy_from_slice(data);
    }

    fn step(&mut self, number: u64) -> Result<()> {
        if self.fsx.folders.len() > 1 && self.rng.random_ratio(1, 3) {
            self.hand_over(number)?;
        }
        match self.rng.random_range(0..100) {
            0..18 => self.write(number)?,
            18..36 => self.read(number)?,
            36..44 => self.map_read(number)?,
            44..52 => self.map_write(number)?,
            52..58 => self.truncate(number)?,
            58..72 => self.allocate(number)?,
            72..80 => self.copy_within(number)?,
            80..84 => self.copy_out(number)?,
            84..88 => self.copy_in(number)?,
            88..93 => self.seek(number)?,
            93..97 => self.sync(number)?,
            _ => self.reopen(number)?,
        }
        let size = self.pair()?.file.metadata()?.len();
        ensure!(size == self.size(), "the size is {size} and should be {}", self.size());
        Ok(())
    }

    fn hand_over(&mut self, number: u64) -> Result<()> {
        let next = self.rng.random_range(0..self.fsx.folders.len());
        if next == self.now {
            return Ok(());
        }
        self.told(number, format!("hands over to {next}"));
        match self.fsx.hand_over {
            HandOver::Close => {
                self.open[self.now] = None;
                self.now = next;
                self.open()?;
            }
            HandOver::Fsync => {
                let pair = self.pair()?;
                pair.file.sync_data()?;
                pair.other.sync_data()?;
                self.now = next;
            }
            HandOver::Lock => {
                self.lock(libc::F_UNLCK)?;
                self.now = next;
                self.lock(libc::F_WRLCK)?;
            }
            HandOver::Nothing => {
                // What a mapping made dirty is the kernel's until then.
                if self.unsynced {
                    self.pair()?.file.sync_data()?;
                }
                self.now = next;
            }
        }
        self.unsynced = false;
        // A mapping and a copy go by the size that this mount's kernel remembers.
        let size = self.pair()?.file.metadata()?.len();
        ensure!(size == self.size(), "handed over with {size} bytes instead of {}", self.size());
        Ok(())
    }

    fn write(&mut self, number: u64) -> Result<()> {
        let (off, len) = self.range();
        self.told(number, format!("write {off}+{len}"));
        let data = self.data(len);
        self.pair()?.file.write_all_at(&data, off)?;
        self.set(off, &data);
        Ok(())
    }

    fn read(&mut self, number: u64) -> Result<()> {
        let (off, len) = self.range();
        self.told(number, format!("read {off}+{len}"));
        let got = read(&self.pair()?.file, off, len)?;
        same(&got, within(&self.bytes, off, len), off)
    }

    fn map_read(&mut self, number: u64) -> Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let (off, len) = self.inner_range();
        self.told(number, format!("mapped read {off}+{len}"));
        let map = Map::new(&self.pair()?.file, off, len, libc::PROT_READ)?;
        same(map.bytes(off, len), within(&self.bytes, off, len), off)?;
        let end = off + len;
        if end == self.size() && !end.is_multiple_of(PAGE) {
            let rest = map.bytes(end, PAGE - end % PAGE);
            ensure!(rest.iter().all(|b| *b == 0), "the page goes on behind the end of file");
        }
        Ok(())
    }

    fn map_write(&mut self, number: u64) -> Result<()> {
        let (off, len) = self.range();
        let sync = self.rng.random();
        self.told(number, format!("mapped write {off}+{len}, sync: {sync}"));
        let data = self.data(len);
        let pair = self.pair()?;
        if off + len > self.size() {
            pair.file.set_len(off + len)?;
        }
        let mut map = Map::new(&pair.file, off, len, libc::PROT_READ | libc::PROT_WRITE)?;
        map.bytes_mut(off, len).copy_from_slice(&data);
        if sync {
            map.sync()?;
        }
        drop(map);
        self.unsynced |= !sync;
        self.set(off, &data);
        Ok(())
    }

    fn truncate(&mut self, number: u64) -> Result<()> {
        let size = self.rng.random_range(0..=self.fsx.longest);
        self.told(number, format!("truncate from {} to {size}", self.size()));
        self.pair()?.file.set_len(size)?;
        self.bytes.resize(size as usize, 0);
        Ok(())
    }

    fn allocate(&mut self, number: u64) -> Result<()> {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const MODES: [(&str, i32); 5] = [
            ("allocate", 0),
            ("allocate keeping the size", KEEP),
            ("punch", libc::FALLOC_FL_PUNCH_HOLE | KEEP),
            ("zero", libc::FALLOC_FL_ZERO_RANGE),
            ("zero keeping the size", libc::FALLOC_FL_ZERO_RANGE | KEEP),
        ];
        let ((off, len), (name, mode)) = (self.range(), MODES[self.rng.random_range(0..5)]);
        self.told(number, format!("{name} {off}+{len}"));
        let (start, count) = (off as libc::off_t, len as libc::off_t);
        // SAFETY: no memory is passed.
        check(unsafe { libc::fallocate(self.pair()?.file.as_raw_fd(), mode, start, count) })?;
        if mode & KEEP == 0 {
            let size = self.size().max(off + len);
            self.bytes.resize(size as usize, 0);
        }
        if mode & !KEEP != 0 {
            let size = self.bytes.len();
            self.bytes[size.min(off as usize)..size.min((off + len) as usize)].fill(0);
        }
        Ok(())
    }

    fn copy_within(&mut self, number: u64) -> Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let (from, len) = self.inner_range();
        let to = self.rng.random_range(0..=self.fsx.longest - len);
        self.told(number, format!("copy {from}+{len} to {to}"));
        let file = &self.pair()?.file;
        let copied = copy(file, from, file, to, len);
        if from.abs_diff(to) < len {
            let errno = copied.err().and_then(|e| e.raw_os_error());
            ensure!(errno == Some(libc::EINVAL), "a copy onto itself answered {errno:?}");
            return Ok(());
        }
        ensure!(copied? == len, "the copy was short");
        let data = within(&self.bytes, from, len).to_vec();
        self.set(to, &data);
        Ok(())
    }

    /// The other file becomes a copy of this one, and stays it when this one is changed.
    fn copy_out(&mut self, number: u64) -> Result<()> {
        self.told(number, "copy to the other file".into());
        let pair = self.pair()?;
        pair.other.set_len(0)?;
        let size = self.size();
        let copied = copy(&pair.file, 0, &pair.other, 0, size + 1000)?;
        ensure!(copied == size, "{copied} bytes of {size} were copied");
        self.other = self.bytes.clone();
        let got = read(&self.pair()?.other, 0, size + 1)?;
        same(&got, &self.other, 0)
    }

    fn copy_in(&mut self, number: u64) -> Result<()> {
        let (to, len) = self.range();
        let from = self.rng.random_range(0..self.fsx.longest);
        self.told(number, format!("copy {from}+{len} of the other file to {to}"));
        let pair = self.pair()?;
        let size = pair.other.metadata()?.len();
        ensure!(size == self.other.len() as u64, "the other file has {size} bytes");
        let data = within(&self.other, from, len).to_vec();
        let copied = copy(&pair.other, from, &pair.file, to, len)?;
        ensure!(copied == data.len() as u64, "{copied} bytes of {} were copied", data.len());
        if !data.is_empty() {
            self.set(to, &data);
        }
        Ok(())
    }

    /// From a random place, finds data or a hole where one may be, and only zeros in a hole.
    fn seek(&mut self, number: u64) -> Result<()> {
        let off = self.rng.random_range(0..self.fsx.longest);
        self.told(number, format!("seek from {off}"));
        if self.unsynced {
            // The kernel does not look at the pages that a mapping made dirty.
            self.pair()?.file.sync_data()?;
            self.unsynced = false;
        }
        let (file, size) = (&self.pair()?.file, self.size());
        let seek = |whence| {
            // SAFETY: no memory is passed.
            let at = unsafe { libc::lseek(file.as_raw_fd(), off as libc::off_t, whence) };
            match u64::try_from(at) {
                Ok(at) => Ok(at),
                Err(_) => Err(io::Error::last_os_error().raw_os_error()),
            }
        };
        let (data, hole) = (seek(libc::SEEK_DATA), seek(libc::SEEK_HOLE));
        if off >= size {
            let none = Err(Some(libc::ENXIO));
            ensure!(data == none && hole == none, "behind the end: {data:?}, {hole:?}");
            return Ok(());
        }
        let data = match data {
            Err(Some(libc::ENXIO)) => size,
            Ok(data) if data < size => data,
            other => bail!("data at {other:?}"),
        };
        let Ok(hole) = hole else { bail!("no hole: {hole:?}") };
        ensure!(data >= off && hole >= off && hole <= size, "data {data}, hole {hole}");
        ensure!((data == off) != (hole == off), "both or neither at {off}: {data}, {hole}");
        let zeros = within(&self.bytes, off, data - off).iter().all(|b| *b == 0);
        ensure!(zeros, "{off}..{data} is told to be a hole");
        Ok(())
    }

    fn sync(&mut self, number: u64) -> Result<()> {
        self.told(number, "fsync".into());
        self.pair()?.file.sync_all()?;
        self.unsynced = false;
        Ok(())
    }

    fn reopen(&mut self, number: u64) -> Result<()> {
        self.told(number, "close and open".into());
        self.open[self.now] = None;
        self.open()?;
        self.unsynced = false;
        self.lock(libc::F_WRLCK)
    }

    /// Both files, whole, by way of every mount.
    fn end(mut self) -> Result<()> {
        for pair in self.open.iter().flatten() {
            pair.file.sync_all()?;
        }
        self.open.iter_mut().for_each(|pair| *pair = None);
        for at in 0..self.fsx.folders.len() {
            self.now = at;
            same(&std::fs::read(self.path("file"))?, &self.bytes, 0)?;
            same(&std::fs::read(self.path("other"))?, &self.other, 0)?;
        }
        std::fs::remove_file(self.path("file"))?;
        Ok(std::fs::remove_file(self.path("other"))?)
    }
}

/// The part of `bytes` that is in a range, which may reach beyond their end.
fn within(bytes: &[u8], off: u64, len: u64) -> &[u8] {
    let at = |n: u64| bytes.len().min(n as usize);
    &bytes[at(off)..at(off + len)]
}

pub(crate) fn same(got: &[u8], want: &[u8], off: u64) -> Result<()> {
    if got == want {
        return Ok(());
    }
    let differs = got.iter().zip(want).position(|(a, b)| a != b);
    let last = got.iter().zip(want).rposition(|(a, b)| a != b);
    let at = |n: Option<usize>| n.map(|n| n as u64 + off);
    let zeros = differs.is_some_and(|n| got[n] == 0);
    bail!(
        "{} bytes instead of {} at {off}; they differ from {:?} to {:?}, zeros there: {zeros}",
        got.len(),
        want.len(),
        at(differs),
        at(last)
    )
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Up to `len` bytes from `off`; fewer only at the end of file.
pub(crate) fn read(file: &File, off: u64, len: u64) -> io::Result<Vec<u8>> {
    let (mut data, mut done) = (vec![0; len as usize], 0);
    while done < data.len() {
        match file.read_at(&mut data[done..], off + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    data.truncate(done);
    Ok(data)
}

/// As much as one call after the other copies.
pub(crate) fn copy(
    from: &File,
    from_off: u64,
    to: &File,
    to_off: u64,
    len: u64,
) -> io::Result<u64> {
    let (mut at, mut into) = (from_off as libc::off64_t, to_off as libc::off64_t);
    let mut left = len as usize;
    while left > 0 {
        let (from, to) = (from.as_raw_fd(), to.as_raw_fd());
        // SAFETY: both offsets outlive the call.
        let copied = unsafe { libc::copy_file_range(from, &mut at, to, &mut into, left, 0) };
        match usize::try_from(copied) {
            Ok(0) => break,
            Ok(n) => left -= n,
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(len - left as u64)
}

/// Pages of a file, mapped shared.
struct Map {
    start: *mut u8,
    len: usize,
    /// Of the first page.
    off: u64,
}

impl Map {
    fn new(file: &File, off: u64, len: u64, protection: libc::c_int) -> io::Result<Self> {
        let first = off - off % PAGE;
        let len = (off + len).next_multiple_of(PAGE) - first;
        let (fd, at) = (file.as_raw_fd(), first as libc::off_t);
        let (none, shared) = (std::ptr::null_mut(), libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(none, len as usize, protection, shared, fd, at) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: start.cast(), len: len as usize, off: first })
    }

    fn bytes(&self, off: u64, len: u64) -> &[u8] {
        let at = (off - self.off) as usize;
        assert!(at + len as usize <= self.len, "outside of the mapping");
        // SAFETY: within the mapping, which nothing else in this process writes to while it is
        // used.
        unsafe { std::slice::from_raw_parts(self.start.add(at), len as usize) }
    }

    fn bytes_mut(&mut self, off: u64, len: u64) -> &mut [u8] {
        let at = (off - self.off) as usize;
        assert!(at + len as usize <= self.len, "outside of the mapping");
        // SAFETY: as above, and it was mapped to be written to.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len as usize) }
    }

    fn sync(&self) -> io::Result<()> {
        // SAFETY: exactly the mapping.
        check(unsafe { libc::msync(self.start.cast(), self.len, libc::MS_SYNC) })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping, which nobody uses any more.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}
