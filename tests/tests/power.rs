//! The power of a whole cluster goes, with all that its disks had not written yet: what `fsync`
//! answered for is there afterwards, of a file and of a folder, and what was under way is of what
//! was written, and never anything else. What was seen once stays.

use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::seq::IteratorRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use weft_tests::{Cluster, Shape, data};

const WRITERS: u64 = 4;
/// What is acknowledged before each cut, at most: of the first, while the cluster is young.
const ACKNOWLEDGED: [u32; 5] = [10, 150, 150, 150, 150];
const PATIENCE: Duration = Duration::from_secs(120);

/// What a file may hold.
#[derive(Clone, PartialEq, Eq)]
enum Content {
    Missing,
    Whole(Vec<u8>),
    /// Any part of this, from its beginning, with zeros for what is not there.
    Some(Vec<u8>),
}

impl Content {
    fn may_be(&self, found: Option<&[u8]>) -> bool {
        match (self, found) {
            (Self::Missing, None) => true,
            (Self::Whole(content), Some(found)) => content == found,
            (Self::Some(content), Some(found)) => {
                let same = |(a, b): (&u8, &u8)| *a == 0 || a == b;
                found.len() <= content.len() && found.iter().zip(content).all(same)
            }
            _ => false,
        }
    }

    /// For people.
    fn describe(&self) -> String {
        match self {
            Self::Missing => "missing".into(),
            Self::Whole(content) => format!("{} bytes", content.len()),
            Self::Some(content) => format!("some of {} bytes", content.len()),
        }
    }
}

/// Who writes, and notes what it may find: one thread.
struct Writer {
    dir: PathBuf,
    rng: SmallRng,
    allowed: BTreeMap<PathBuf, Vec<Content>>,
    /// Names that were changed, and not flushed.
    unflushed: Vec<PathBuf>,
    /// All that was appended to the log, and how much of it was flushed.
    log: Vec<u8>,
    flushed: usize,
    /// Open: nothing tells the cluster of them but the flush of their folder.
    held: Vec<File>,
    acknowledged: Sender<()>,
}

impl Writer {
    fn new(dir: PathBuf, seed: u64, acknowledged: Sender<()>) -> Self {
        let (allowed, unflushed, log, flushed, held) = Default::default();
        let rng = SmallRng::seed_from_u64(seed);
        Self { dir, rng, allowed, unflushed, log, flushed, held, acknowledged }
    }

    /// Writes until the power is cut. Error: something failed before.
    fn run(&mut self, is_cut: &AtomicBool) -> Result<()> {
        for round in 0.. {
            let done = self.round(round);
            if is_cut.load(Ordering::SeqCst) {
                break;
            }
            done.context("it failed while there was power")?;
        }
        Ok(())
    }

    fn round(&mut self, round: u64) -> io::Result<()> {
        match self.rng.random_range(0..4) {
            0 => self.replace(round),
            1 => self.append(round),
            2 => self.overwrite(round),
            _ => self.make_names(round),
        }
    }

    /// As editors do: a new file in the place of one.
    fn replace(&mut self, round: u64) -> io::Result<()> {
        let (new, to) = (self.dir.join("new"), self.dir.join(format!("file-{}", round % 8)));
        let content = self.content(200_000);
        let mut file = File::create(&new)?;
        file.write_all(&content)?;
        file.sync_all()?;
        self.change(&to, Content::Whole(content), |to| fs::rename(&new, to))?;
        match self.rng.random() {
            true => self.flush_names(),
            false => Ok(()),
        }
    }

    fn append(&mut self, round: u64) -> io::Result<()> {
        let path = self.dir.join("log");
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        let line = format!("round {round}, as it should be\n").into_bytes();
        self.log.extend_from_slice(&line);
        file.write_all(&line)?;
        file.sync_data()?;
        self.flushed = self.log.len();
        self.acknowledge();
        Ok(())
    }

    /// A large file anew.
    fn overwrite(&mut self, round: u64) -> io::Result<()> {
        let content = self.content(3_000_000);
        let path = self.dir.join(format!("large-{}", round % 3));
        self.change(&path, Content::Missing, |path| match fs::remove_file(path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        })?;
        let allowed = self.allowed.entry(path.clone()).or_default();
        allowed.push(Content::Some(content.clone()));
        let mut file = File::create(&path)?;
        file.write_all(&content)?;
        file.sync_all()?;
        self.allowed.insert(path, vec![Content::Whole(content)]);
        self.acknowledge();
        Ok(())
    }

    /// Names that come, and go again later; their folder is flushed behind them.
    fn make_names(&mut self, round: u64) -> io::Result<()> {
        let there = |allowed: &[Content]| allowed.last() != Some(&Content::Missing);
        let names = self.allowed.iter().filter(|(_, allowed)| there(allowed));
        let names = names.map(|(path, _)| path).filter(|path| path.extension().is_some());
        for old in names.cloned().choose_multiple(&mut self.rng, 2) {
            self.change(&old, Content::Missing, |old| fs::remove_file(old))?;
        }
        self.held.clear();
        for i in 0..self.rng.random_range(1..5) {
            let (path, mut made) = (self.dir.join(format!("{round}-{i}.name")), None);
            self.change(&path, Content::Whole(Vec::new()), |path| {
                made = Some(File::create_new(path)?);
                Ok(())
            })?;
            self.held.extend(made);
        }
        self.flush_names()
    }

    fn flush_names(&mut self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()?;
        for path in self.unflushed.drain(..) {
            if let Some(allowed) = self.allowed.get_mut(&path) {
                allowed.drain(..allowed.len() - 1);
            }
        }
        self.acknowledge();
        Ok(())
    }

    /// No two are alike, nor two parts of one; no byte is zero.
    fn content(&mut self, longest: usize) -> Vec<u8> {
        let len = self.rng.random_range(0..longest);
        let mut content = data::bytes(self.rng.random(), len);
        content.iter_mut().for_each(|byte| *byte |= 1);
        content
    }

    fn acknowledge(&self) {
        // Nobody counts any more when enough was.
        let _ = self.acknowledged.send(());
    }

    /// Any of what was there may be, until the names are flushed.
    fn change(
        &mut self,
        path: &Path,
        to: Content,
        act: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let allowed = self.allowed.entry(path.to_path_buf());
        allowed.or_insert_with(|| vec![Content::Missing]).push(to);
        self.unflushed.push(path.to_path_buf());
        act(path)
    }

    /// Compares what is there with what may be, and from now on has to.
    fn check(&mut self) -> Result<()> {
        for (path, allowed) in &mut self.allowed {
            let found = read(path)?;
            let may_be: Vec<String> = allowed.iter().map(Content::describe).collect();
            let (is_fine, len) = {
                let found = found.as_deref();
                (allowed.iter().any(|content| content.may_be(found)), found.map(<[u8]>::len))
            };
            ensure!(is_fine, "{}: {len:?} bytes; it may be {may_be:?}", path.display());
            *allowed = vec![found.map_or(Content::Missing, Content::Whole)];
        }
        let log = read(&self.dir.join("log"))?.unwrap_or_default();
        let (found, flushed) = (log.len(), self.flushed);
        ensure!(found >= flushed, "{found} bytes of the log, of {flushed} that were flushed");
        ensure!(self.log.starts_with(&log), "the log has other bytes");
        (self.log, self.flushed) = (log, found);
        // Whatever it holds, it is no error.
        read(&self.dir.join("new")).map(drop)
    }
}

/// `None`: there is no such file.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("read {}", path.display())),
    }
}

/// Waits until so much was acknowledged, or no writer is left: each says why. Error: nothing is.
fn await_acknowledged(acknowledged: &Receiver<()>, count: u32) -> Result<()> {
    for _ in 0..count {
        match acknowledged.recv_timeout(PATIENCE) {
            Err(RecvTimeoutError::Disconnected) => break,
            answered => answered.context("nothing is acknowledged")?,
        }
    }
    Ok(())
}

#[test]
fn what_was_acknowledged_outlives_the_power() -> Result<()> {
    let seed = rand::random();
    eprintln!("seed {seed}");
    let (mut disk, cluster) = Cluster::start_on_disk(Shape::default())?;
    // What is lost with too many targets is waited for.
    cluster.allow(Duration::from_secs(600))?;
    let (mut rng, mut all) = (SmallRng::seed_from_u64(seed), Vec::<Writer>::new());
    for (round, most) in ACKNOWLEDGED.into_iter().enumerate() {
        let (tell, acknowledged) = channel();
        let (consumers, is_cut) = (cluster.consumers()?, Arc::new(AtomicBool::new(false)));
        let writers = (0..WRITERS).map(|writer| {
            let dir = cluster.mnt().join(format!("{round}-{writer}"));
            fs::create_dir(&dir)?;
            // The folder is there whatever comes.
            File::open(cluster.mnt())?.sync_all()?;
            let mut writer = Writer::new(dir, rng.random(), tell.clone());
            let is_cut = is_cut.clone();
            Ok(std::thread::spawn(move || {
                writer.run(&is_cut)?;
                anyhow::Ok(writer)
            }))
        });
        let writers = writers.collect::<Result<Vec<_>>>()?;
        drop(tell);
        await_acknowledged(&acknowledged, rng.random_range(1..=most))?;
        is_cut.store(true, Ordering::SeqCst);
        cluster.cut_power(&mut disk, consumers, rng.random())?;
        for writer in writers {
            all.push(writer.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??);
        }
        for writer in &mut all {
            writer.check().with_context(|| format!("seed {seed}, after cut {round}"))?;
        }
    }
    cluster.await_targets("up", 6)?;
    cluster.await_clean()
}
