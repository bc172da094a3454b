//! The storage of a simulated cluster: the real daemon and the real engine on drives in memory
//! ([`super::drive`]), which can be replaced by blank ones, hang and be full.
//!
//! An engine has threads. The simulation stands still while one of them works
//! ([`Device::is_simulated`]), so that whatever is done at a target happens at one moment of
//! simulated time, and a seed decides all of it.

use super::drive::{Disk, Drive, lock};
use anyhow::{Context, Result};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use weft_net::buggify::{self, Point};
use weft_net::{Incoming, Outgoing, Service, sim};
use weft_proto::{Call, Error, ErrorKind, v1};
use weft_storaged::engine::{Engine, Unread};
use weft_storaged::{Clock, Config, Daemon, Target};

/// How often an admin looks whether a target has failed.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Between two attempts to open a target that could not be.
const AGAIN: Duration = Duration::from_secs(1);
/// An index that is in use is copied again if it changed meanwhile, so often.
const COPIES: usize = 100;
/// All is read once in this time, in seconds.
const SCRUB_PERIOD: u64 = 60;
/// Longest time at a target, in microseconds.
const SLOWEST: u64 = 3000;

/// One storage host: a drive and what outlives the daemon.
pub struct Host {
    name: &'static str,
    port: u16,
    metadata: Vec<String>,
    /// The index, and what of it is durable.
    index: PathBuf,
    durable: PathBuf,
    disk: Arc<Disk>,
    random: Mutex<SmallRng>,
    /// The target takes no writes until the daemon is restarted.
    failed: AtomicBool,
    /// Some of its drive was other bytes at some time.
    rotted: AtomicBool,
    /// A blank drive came in the place of its drive.
    replaced: AtomicBool,
    /// Nothing that its drive does ends.
    hangs: watch::Sender<bool>,
    /// It takes in no more chunks.
    full: AtomicBool,
}

impl Host {
    pub fn new(
        name: &'static str,
        port: u16,
        metadata: Vec<String>,
        dir: &Path,
        seed: u64,
    ) -> Arc<Self> {
        let mut random = SmallRng::seed_from_u64(seed);
        let disk = Arc::new(Disk::blank(&mut random));
        Arc::new(Self {
            name,
            port,
            metadata,
            index: dir.join(format!("{name}.index")),
            durable: dir.join(format!("{name}.durable")),
            disk,
            random: Mutex::new(random),
            failed: AtomicBool::new(false),
            rotted: AtomicBool::new(false),
            replaced: AtomicBool::new(false),
            hangs: watch::Sender::new(false),
            full: AtomicBool::new(false),
        })
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What happens to the drive while its host is down: of what was not flushed, nothing is left,
    /// and of the index what was durable when its daemon started, or with `lost` nothing.
    pub fn cut_power(&self, lost: bool) -> Result<()> {
        self.disk.cut_power();
        remove(&self.index)?;
        if !lost && self.durable.exists() {
            copy(&self.durable, &self.index)?;
        }
        Ok(())
    }

    /// One read in `every` fails from now on; 0: all succeed.
    pub fn fail_reads(&self, every: u32) {
        self.disk.fail_reads(every);
    }

    /// From now on nothing ends that its drive is asked for, while the daemon lives; or all does.
    pub fn hang(&self, hangs: bool) {
        self.hangs.send_replace(hangs);
    }

    async fn is_there(&self) {
        // The sender lives as long as `self`.
        let _ = self.hangs.subscribe().wait_for(|hangs| !hangs).await;
    }

    /// There is no room for another chunk from now on, or there is: nobody is told before he tries.
    pub fn fill(&self, full: bool) {
        self.full.store(full, Ordering::SeqCst);
    }

    /// Some blocks with data are other bytes from now on.
    pub fn rot(&self) {
        self.rotted.store(true, Ordering::SeqCst);
        self.disk.rot();
    }

    pub fn was_replaced(&self) -> bool {
        self.replaced.load(Ordering::SeqCst)
    }

    pub fn has_rotted(&self) -> bool {
        self.rotted.load(Ordering::SeqCst)
    }

    /// Whether the target of the daemon that runs has failed for good, which an admin sees: it errs
    /// no more, but nobody else opens it again.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// Puts a blank drive in its place, formatted as an admin would.
    pub fn replace(&self) -> Result<()> {
        self.replaced.store(true, Ordering::SeqCst);
        self.disk.replace(&mut lock(&self.random));
        remove(&self.index)?;
        remove(&self.durable)
    }

    /// The daemon, until its host is crashed. A target that cannot be opened is tried again, as a
    /// supervisor does.
    pub async fn serve(self: Arc<Self>) -> turmoil::Result {
        let engine = loop {
            match self.open() {
                Ok(engine) => break engine,
                Err(error) => {
                    tracing::info!(host = self.name, "cannot open the target: {error}");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        };
        self.failed.store(false, Ordering::SeqCst);
        let (listen, public) =
            (format!("0.0.0.0:{}", self.port), format!("{}:{}", self.name, self.port));
        let mut config = Config::new(self.name, listen, self.metadata.clone());
        config.advertise = Some(public);
        (config.scrub_period, config.clock) = (SCRUB_PERIOD, Clock(simulated_s));
        config.targets.push(Target::new("/simulated", None));
        let daemon = Daemon::bind(config, sim::transport()).await?;
        let (_stop, stopped) = watch::channel(false);
        let around = |service| {
            let host = self.clone();
            Arc::new(Delayed { host, service }) as Arc<dyn Service>
        };
        let watch = async {
            loop {
                self.failed.store(engine.failure().is_some(), Ordering::SeqCst);
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        };
        let run = daemon.run_open(vec![(engine.clone(), "/simulated".into())], around, stopped);
        tokio::select! {
            biased;
            result = run => Ok(result?),
            () = watch => Ok(()),
        }
    }

    fn open(self: &Arc<Self>) -> weft_proto::Result<Engine> {
        let (drive, superblock) = Drive::attach(&self.disk);
        let drive = Arc::new(drive);
        let (name, index) = (PathBuf::from(self.name), self.index.clone());
        let engine = Engine::on_device(drive, superblock, &name, &index, &mut Unread::default())?;
        let kept = remove(&self.durable).and_then(|()| copy(&self.index, &self.durable));
        kept.map_err(|e| Error::new(ErrorKind::Io, e.to_string()))?;
        Ok(engine)
    }
}

/// The chunk service, after a delay that the seed decides.
struct Delayed {
    host: Arc<Host>,
    service: Arc<dyn Service>,
}

#[async_trait::async_trait]
impl Service for Delayed {
    async fn call(&self, mut request: Incoming) -> weft_proto::Result<Outgoing> {
        let delay = lock(&self.host.random).random_range(0..SLOWEST);
        tokio::time::sleep(Duration::from_micros(delay)).await;
        // The drive has begun, and goes on, or it has done and nobody hears of it.
        let begins_late = *self.host.hangs.borrow() && lock(&self.host.random).random_bool(0.5);
        if begins_late {
            self.host.is_there().await;
            request.deadline = None;
        }
        if request.op == v1::PutRequest::OP && self.host.full.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::NoSpace, "the drive is full"));
        }
        let answer = self.service.call(request).await;
        self.host.is_there().await;
        buggify::pause(Point::DaemonLate).await;
        answer
    }
}

fn simulated_s() -> u64 {
    turmoil::since_epoch().map_or(0, |t| t.as_secs())
}

fn remove(dir: &Path) -> Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("removing {}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Copies an index that may be in use: its files do not change, but come and go.
fn copy(from: &Path, to: &Path) -> Result<()> {
    for _ in 0..COPIES {
        if try_copy(from, to).is_ok() {
            return Ok(());
        }
        remove(to)?;
    }
    try_copy(from, to).with_context(|| format!("copying {}", from.display()))
}

fn try_copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        // The lock belongs to whoever has it open.
        if entry.file_type()?.is_file() && entry.file_name() != "LOCK" {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
