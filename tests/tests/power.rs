//! The power of a whole cluster goes, with all that its disks had not written yet: what was
//! acknowledged is there afterwards, and what was under way is there whole or not at all.

use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use weft_tests::{Cluster, Shape, eventually};

const WRITERS: u64 = 4;
const ROUNDS: u64 = 4;
const PATIENCE: Duration = Duration::from_secs(120);

/// What a file may hold; `None`: it may be missing.
type Allowed = BTreeMap<PathBuf, Vec<Option<Vec<u8>>>>;

/// Who writes, and notes what it may find: one thread.
struct Writer {
    dir: PathBuf,
    rng: SmallRng,
    allowed: Allowed,
    /// Names that were changed, and not flushed.
    unflushed: Vec<PathBuf>,
    /// All that was appended to the log, and how much of it was flushed.
    log: Vec<u8>,
    flushed: usize,
    acknowledged: Arc<AtomicU64>,
}

impl Writer {
    fn new(dir: PathBuf, seed: u64, acknowledged: &Arc<AtomicU64>) -> Self {
        let (allowed, unflushed, log, flushed) = Default::default();
        let (rng, acknowledged) = (SmallRng::seed_from_u64(seed), acknowledged.clone());
        Self { dir, rng, allowed, unflushed, log, flushed, acknowledged }
    }

    /// Writes until something fails.
    fn run(&mut self) -> std::io::Error {
        let mut round = 0;
        loop {
            if let Err(error) = self.round(round) {
                return error;
            }
            round += 1;
        }
    }

    fn round(&mut self, round: u64) -> std::io::Result<()> {
        self.replace(round)?;
        self.append(round)?;
        self.overwrite(round)?;
        // A name that comes, and goes three rounds later.
        let name = |round| self.dir.join(format!("name-{round}"));
        let (new, old) = (name(round), round.checked_sub(3).map(name));
        self.change(&new, Some(Vec::new()), |new| File::create(new).map(drop))?;
        old.map_or(Ok(()), |old| self.change(&old, None, |old| fs::remove_file(old)))?;
        match self.rng.random_bool(0.5) {
            true => self.flush_names(),
            false => Ok(()),
        }
    }

    fn flush_names(&mut self) -> std::io::Result<()> {
        File::open(&self.dir)?.sync_all()?;
        for path in self.unflushed.drain(..) {
            if let Some(allowed) = self.allowed.get_mut(&path) {
                allowed.drain(..allowed.len() - 1);
            }
        }
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// As editors do: a new file in the place of one.
    fn replace(&mut self, round: u64) -> std::io::Result<()> {
        let (new, to) = (self.dir.join("new"), self.dir.join(format!("file-{}", round % 8)));
        let content = self.content(round, 200_000);
        let mut file = File::create(&new)?;
        file.write_all(&content)?;
        file.sync_all()?;
        self.change(&to, Some(content), |to| fs::rename(&new, to))
    }

    fn append(&mut self, round: u64) -> std::io::Result<()> {
        let path = self.dir.join("log");
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        let line = format!("round {round}, as it should be\n").into_bytes();
        self.log.extend_from_slice(&line);
        file.write_all(&line)?;
        file.sync_data()?;
        self.flushed = self.log.len();
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The same file again, and all of it at once.
    fn overwrite(&mut self, round: u64) -> std::io::Result<()> {
        let content = self.content(round, 3_000_000);
        let path = self.dir.join(format!("large-{}", round % 3));
        self.change(&path, None, |path| match fs::remove_file(path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        })?;
        let mut file = File::create(&path)?;
        // Until it is flushed nothing is promised of it but that it is no other.
        self.allowed.remove(&path);
        file.write_all(&content)?;
        file.sync_all()?;
        self.allowed.insert(path, vec![Some(content)]);
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn content(&mut self, round: u64, longest: usize) -> Vec<u8> {
        let len = self.rng.random_range(0..longest);
        let tag = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..len).map(|i| (i as u64).wrapping_mul(tag).to_le_bytes()[1]).collect()
    }

    /// Any of what was there may be, until the names are flushed.
    fn change(
        &mut self,
        path: &Path,
        to: Option<Vec<u8>>,
        act: impl FnOnce(&Path) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let allowed = self.allowed.entry(path.to_path_buf()).or_insert_with(|| vec![None]);
        allowed.push(to);
        self.unflushed.push(path.to_path_buf());
        act(path)
    }

    /// Compares what is there with what may be.
    fn check(&self) -> Result<()> {
        for (path, allowed) in &self.allowed {
            let found = match fs::read(path) {
                Ok(content) => Some(content),
                Err(e) if e.kind() == ErrorKind::NotFound => None,
                Err(e) => return Err(e).with_context(|| format!("read {}", path.display())),
            };
            let len = |content: &Option<Vec<u8>>| content.as_ref().map(Vec::len);
            let lens: Vec<_> = allowed.iter().map(len).collect();
            let (path, found_len) = (path.display(), len(&found));
            ensure!(allowed.contains(&found), "{path}: {found_len:?} bytes, and not of {lens:?}");
        }
        let log = fs::read(self.dir.join("log")).or_else(|e| match self.flushed {
            0 => Ok(Vec::new()),
            _ => Err(e),
        })?;
        let (found, flushed) = (log.len(), self.flushed);
        ensure!(found >= flushed, "{found} bytes of the log, of {flushed} that were flushed");
        ensure!(self.log.starts_with(&log), "the log has other bytes");
        Ok(())
    }
}

#[test]
fn what_was_acknowledged_outlives_the_power() -> Result<()> {
    let seed = rand::random();
    eprintln!("seed {seed}");
    let (mut disk, cluster) = Cluster::start_on_disk(Shape::default())?;
    let (mut rng, mut all) = (SmallRng::seed_from_u64(seed), Vec::new());
    for round in 0..ROUNDS {
        let (acknowledged, cut) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let writers = (0..WRITERS).map(|writer| {
            let dir = cluster.mnt().join(format!("{round}-{writer}"));
            fs::create_dir(&dir)?;
            let mut writer = Writer::new(dir, rng.random(), &acknowledged);
            let cut = cut.clone();
            Ok(std::thread::spawn(move || {
                let error = writer.run();
                ensure!(cut.load(Ordering::Relaxed), "it failed while there was power: {error}");
                Ok(writer)
            }))
        });
        let writers = writers.collect::<Result<Vec<_>>>()?;
        let enough = rng.random_range(100..600);
        eventually(PATIENCE, "some work", || {
            let is_enough = acknowledged.load(Ordering::Relaxed) >= enough;
            (is_enough || writers.iter().any(|writer| writer.is_finished())).then_some(())
        })?;
        cut.store(true, Ordering::Relaxed);
        cluster.cut_power(&mut disk, rng.random())?;
        for writer in writers {
            all.push(writer.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??);
        }
        for writer in &all {
            writer.check().with_context(|| format!("seed {seed}, after cut {round}"))?;
        }
    }
    cluster.await_targets("up", 6)?;
    cluster.await_clean()
}
