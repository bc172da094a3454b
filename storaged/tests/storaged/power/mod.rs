//! Power cut at any moment: an engine works on a drive in memory that writes down every write and
//! flush; then every prefix of that, and sampled orders and tears of what was not flushed, is taken
//! for what a power cut left, and an engine is started on it (with the index as it was durable
//! then).
//!
//! What was acknowledged must be there, what was deleted must be gone, anything else absent or
//! whole; the space in use must be that of the chunks; the target must go on working; and a rebuild
//! by scan must find what was acknowledged, too, and take nothing for a chunk that is not whole.
//! Every other target is encrypted.
//!
//! `WEFT_CRASH_POINTS=100000` runs so many of them, `WEFT_SEED=n` others than usual. The seed
//! decides the workload, the drive's order and the samples; how the engine's threads meet, it does
//! not. A violation therefore keeps the drive and the index that show it.

mod drive;
mod index;
mod model;
mod planted;
mod trace;
mod workload;

pub use drive::{Drive, Faults, Recorder};
pub use index::copy as copy_index;

use crate::support;
use drive::Plain;
use index::{Snapshots, folder};
use model::{Model, check, grow};
use parking_lot::Mutex;
use planted::{Mistake, Planted};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;
use trace::{Fate, Moment, Trace};
use weft_proto::Result;
use weft_storaged::engine::{Device, Encrypted, Engine, KeySource, Superblock, Unread};

/// Small, so that the target fills up, its space is reused and its journal wraps.
const SIZE: u64 = 2 << 20;
const JOURNAL: u64 = 20;
/// Generations of one lab: each starts from what a cut left of the one before.
const GENERATIONS: u64 = 4;
/// Puts and deletes of a generation.
const TURNS: u64 = 240;
/// Samples between "all lost" and "all kept".
const SAMPLES: usize = 3;
/// About so many crash points of a generation, anywhere in it, so that the next ones are reached.
const POINTS: usize = 120;
/// One cut in so many is also started without the index.
const REBUILDS: u32 = 10;

pub fn superblock() -> Superblock {
    let blocks = SIZE / 4096;
    Superblock {
        journal_blocks: JOURNAL,
        data_block: 1 + JOURNAL,
        data_end: blocks - 1,
        ..Superblock::new(SIZE)
    }
}

pub fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

pub fn start(device: Arc<dyn Device>, superblock: &Superblock, index: &Path) -> Result<Engine> {
    start_again(device, superblock, index, &mut Unread::default())
}

pub fn start_again(
    device: Arc<dyn Device>,
    superblock: &Superblock,
    index: &Path,
    unread: &mut Unread,
) -> Result<Engine> {
    Engine::on_device(device, superblock.clone(), Path::new("drive"), index, unread)
}

/// Drives and engines of one seed.
struct Lab {
    seed: u64,
    random: StdRng,
    superblock: Superblock,
    folder: TempDir,
    mistake: Option<Mistake>,
    /// Of an encrypted target.
    key: Option<KeySource>,
    /// Crash points that may still be taken, by all labs together.
    budget: Arc<AtomicUsize>,
}

impl Lab {
    fn new(seed: u64, mistake: Option<Mistake>, budget: Arc<AtomicUsize>) -> Self {
        let random = StdRng::seed_from_u64(seed);
        let (mut superblock, folder) = (superblock(), folder());
        // Every other one.
        let key = seed.is_multiple_of(2).then(|| support::key(&folder.path().join("key"), 1));
        if let Some(key) = &key {
            Encrypted::prepare(&mut superblock, key).unwrap();
        }
        Self { seed, random, superblock, folder, mistake, key, budget }
    }

    /// The drive as the engine sees it.
    fn unlock(&self, drive: Arc<dyn Device>) -> Arc<dyn Device> {
        let key = self.key.as_ref();
        Encrypted::unlock(drive, &self.superblock, key, Path::new("drive")).unwrap()
    }

    /// Runs all generations, or as many as the budget allows, and answers how many. Errors: a
    /// violation, and where its drive was kept.
    fn run(&mut self) -> Result<u64, String> {
        let mut image = vec![0; SIZE as usize];
        let mut index = self.folder.path().join("none");
        let mut model = Model::new();
        for generation in 0..GENERATIONS {
            let into = self.folder.path().join(format!("states-{generation}"));
            let trace = self.record(image, &index, &model, into.clone());
            if let Some(mistake) = trace.mistakes.first() {
                return Err(format!("seed {}, generation {generation}: {mistake}", self.seed));
            }
            let cut = self
                .cuts(&trace, &model, &index)
                .map_err(|e| format!("seed {}, generation {generation}: {e}", self.seed))?;
            let Some(next) = cut else { return Ok(generation) };
            index = self.folder.path().join(format!("index-{generation}"));
            index::copy(&next.index, &index);
            (image, model) = (next.image, next.model);
            std::fs::remove_dir_all(into).unwrap();
        }
        Ok(GENERATIONS)
    }

    /// Lets an engine work.
    fn record(&mut self, image: Vec<u8>, index: &Path, model: &Model, into: PathBuf) -> Trace {
        let live = self.folder.path().join("live");
        let _ = std::fs::remove_dir_all(&live);
        index::copy(index, &live);
        let snapshots = Snapshots::new(live.clone(), into);
        let (drive, recorder) = Drive::new(image, self.random.random(), Some(snapshots));
        let device: Arc<dyn Device> = match self.mistake {
            None => drive,
            Some(mistake) => Planted::new(drive, mistake),
        };
        let engine = start(self.unlock(device), &self.superblock, &live).unwrap();
        let seed = self.random.random();
        runtime().block_on(workload::run(&engine, &recorder, model, TURNS, seed));
        recorder.finish()
    }

    /// Cuts the power after some of the events of the trace. Answers one of the cuts, to go on
    /// from, or `None` when the budget is spent.
    fn cuts(&mut self, trace: &Trace, model: &Model, index: &Path) -> Result<Option<Cut>, String> {
        let runtime = runtime();
        let mut moment = Moment::start(trace);
        moment.model = model.clone();
        let events = trace.events.len();
        let keep = events * self.random.random_range(3..10) / 10;
        let share = (POINTS as f64 / (events * (SAMPLES + 2)) as f64).min(1.0);
        let mut kept = None;
        while let Some(new) = moment.step() {
            let needed = moment.at() >= keep && kept.is_none();
            if !new || !needed && !self.random.random_bool(share) {
                continue;
            }
            let middle = (self.superblock.data_block * 4096) as usize;
            for fate in Fate::all(&mut self.random, moment.volatile(), SAMPLES, middle) {
                let spent =
                    self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                        left.checked_sub(1)
                    });
                if spent.is_err() {
                    return Ok(None);
                }
                let mut cut = Cut {
                    image: moment.image(fate, &mut self.random),
                    index: moment.index.map_or(index, |i| i).to_path_buf(),
                    model: moment.model.clone(),
                };
                self.try_start(&runtime, &mut cut).map_err(|what| {
                    let kept = cut.keep();
                    format!("cut after event {} ({fate:?}): {what}; kept in {kept}", moment.at())
                })?;
                if moment.at() >= keep {
                    kept.get_or_insert(cut);
                }
            }
        }
        Ok(kept)
    }

    /// Starts an engine on what the cut left and compares; the model learns what was in doubt.
    fn try_start(&mut self, runtime: &Runtime, cut: &mut Cut) -> Result<(), String> {
        let work = self.folder.path().join("work");
        let _ = std::fs::remove_dir_all(&work);
        if self.random.random_ratio(1, REBUILDS) {
            let engine = self.start(cut, &work)?;
            runtime
                .block_on(check(&engine, &mut cut.model.clone(), true))
                .map_err(|e| format!("with the index rebuilt: {e}"))?;
            drop(engine);
            let _ = std::fs::remove_dir_all(&work);
        }
        index::copy(&cut.index, &work);
        let engine = self.start(cut, &work)?;
        runtime.block_on(async {
            check(&engine, &mut cut.model, false).await?;
            grow(&engine, &mut cut.model.clone(), &mut self.random).await
        })
    }

    fn start(&self, cut: &Cut, index: &Path) -> Result<Engine, String> {
        start(self.unlock(Plain::new(cut.image.clone())), &self.superblock, index)
            .map_err(|e| format!("the target does not start: {e}"))
    }
}

/// What a power cut left.
struct Cut {
    image: Vec<u8>,
    /// The index as it was durable.
    index: PathBuf,
    model: Model,
}

impl Cut {
    /// Keeps drive and index for a look.
    fn keep(&self) -> String {
        let Ok(folder) = tempfile::Builder::new().prefix("weft-crash-").tempdir() else {
            return "nothing: no temporary folder".into();
        };
        let path = folder.keep();
        let _ = std::fs::write(path.join("drive"), &self.image);
        index::copy(&self.index, &path.join("index"));
        path.display().to_string()
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default)
}

#[test]
fn acknowledged_chunks_survive_power_cuts_at_any_moment() {
    let points = number("WEFT_CRASH_POINTS", 1500) as usize;
    let first = number("WEFT_SEED", 1);
    println!("{points} crash points from seed {first} on");
    let begun = Instant::now();
    let budget = Arc::new(AtomicUsize::new(points));
    let next = Mutex::new(first);
    let lanes = std::thread::available_parallelism().map_or(2, usize::from).max(2);
    let complete = AtomicUsize::new(0);
    let violations: Vec<String> = std::thread::scope(|scope| {
        let lane = || {
            while budget.load(Ordering::Relaxed) > 0 {
                let seed = {
                    let mut next = next.lock();
                    *next += 1;
                    *next - 1
                };
                let generations = Lab::new(seed, None, budget.clone()).run()?;
                complete.fetch_add(usize::from(generations == GENERATIONS), Ordering::Relaxed);
            }
            Ok(())
        };
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().filter_map(|l| l.join().expect("a lane").err()).collect()
    });
    let complete = complete.into_inner();
    println!(
        "{points} crash points, seeds {first}..{}, {complete} with all generations, {} violations, \
         {:.1} s",
        *next.lock(),
        violations.len(),
        begun.elapsed().as_secs_f64()
    );
    assert!(violations.is_empty(), "{violations:#?}");
    assert!(complete > 0 || points < 1500, "no seed has come to its last generation");
}

/// The test of the test: with each of these mistakes in the engine, the simulator says so.
#[test]
fn planted_mistakes_are_found() {
    for mistake in [Mistake::NoFlush, Mistake::RecordOnly, Mistake::WrongChecksum] {
        let budget = Arc::new(AtomicUsize::new(6000));
        let mut seeds = (1..).take_while(|_| budget.load(Ordering::Relaxed) > 0);
        let found =
            seeds.find_map(|seed| Lab::new(seed, Some(mistake), budget.clone()).run().err());
        let what = found.unwrap_or_else(|| panic!("{mistake:?} was not noticed"));
        println!("{mistake:?}: {what}");
        let kept = what.rsplit(' ').next().expect("the folder comes last");
        std::fs::remove_dir_all(kept).expect("the violation was kept");
    }
}

/// Of what was not acknowledged the record may be there without the data.
#[test]
fn a_record_without_its_data_does_no_harm() {
    let budget = Arc::new(AtomicUsize::new(500));
    let mut seeds = (1..).take_while(|_| budget.load(Ordering::Relaxed) > 0);
    let run = |seed| Lab::new(seed, Some(Mistake::RecordFirst), budget.clone()).run();
    assert_eq!(seeds.find_map(|seed| run(seed).err()), None);
}
