//! Many seeds, each in a process of its own, several at a time.

use super::less;
use anyhow::{Context, Result};
use std::io::Read;
use std::num::NonZero;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weft_proto::planted::Bug;
use weft_tests::sim::{Less, Summary, folder};

/// A seed that takes longer hangs.
const SEED_TIMEOUT: Duration = Duration::from_secs(300);
pub const TOO_LATE: &str = "not over within";
/// Between two looks whether one has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Which seeds are run, and how.
#[derive(Clone)]
pub struct Seeds {
    pub first: u64,
    /// No more than so many.
    pub count: Option<u64>,
    /// None begins later.
    pub limit: Option<Duration>,
    pub jobs: NonZero<usize>,
    pub planted: Option<Bug>,
    pub less: Less,
    /// None begins once one has failed.
    pub until_failure: bool,
}

/// How a seed ended, with what it did, or said.
pub enum Ended {
    Well(Summary),
    Wrong(String),
}

/// What all of them took.
pub struct All {
    pub seeds: u64,
    /// Seconds.
    pub took: f64,
}

impl All {
    /// Seeds a second.
    pub fn rate(&self) -> f64 {
        self.seeds as f64 / self.took
    }
}

impl Seeds {
    /// Runs them, and hands over how each ended.
    pub fn run(&self, told: impl FnMut(u64, Ended) + Send) -> Result<All> {
        let (start, told) = (Instant::now(), Mutex::new(told));
        let (begun, ended, enough) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let next = || {
            let late = self.limit.is_some_and(|limit| start.elapsed() >= limit);
            if late || enough.load(Ordering::SeqCst) {
                return None;
            }
            let number = begun.fetch_add(1, Ordering::SeqCst);
            let wanted = self.count.is_none_or(|count| number < count);
            wanted.then(|| self.first.wrapping_add(number))
        };
        let work = || -> Result<()> {
            while let Some(seed) = next() {
                let how = self.alone(seed, &enough);
                // The others need not go on for what cannot be told.
                let how = how.inspect_err(|_| enough.store(true, Ordering::SeqCst))?;
                let Some(how) = how else { break };
                if self.until_failure && matches!(how, Ended::Wrong(_)) {
                    enough.store(true, Ordering::SeqCst);
                }
                ended.fetch_add(1, Ordering::SeqCst);
                told.lock().expect("nobody panics")(seed, how);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.jobs.get()).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
        })?;
        Ok(All { seeds: ended.into_inner(), took: start.elapsed().as_secs_f64() })
    }

    /// Runs one; `None` if meanwhile there were enough.
    fn alone(&self, seed: u64, enough: &AtomicBool) -> Result<Option<Ended>> {
        // It goes with whoever waits, also if the process is killed.
        let folder = folder()?;
        let mut alone = Command::new(std::env::current_exe()?);
        alone.arg("--one").arg(folder.path()).arg(seed.to_string());
        alone.stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(bug) = self.planted {
            alone.args(["--planted", &format!("{bug:?}")]);
        }
        alone.args(less::arguments(&self.less));
        let mut child = alone.spawn().context("a process for a seed")?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let (out, err) = (out.map(listen), err.map(listen));
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if enough.load(Ordering::SeqCst) || start.elapsed() > SEED_TIMEOUT {
                child.kill()?;
                child.wait()?;
                break None;
            }
            std::thread::sleep(LOOK_INTERVAL);
        };
        let said = |by: Option<std::thread::JoinHandle<String>>| {
            by.map(|by| by.join().expect("no panic")).unwrap_or_default()
        };
        let (out, err) = (said(out), said(err));
        Ok(match status {
            Some(status) if status.success() => {
                eprint!("{err}");
                Some(Ended::Well(serde_json::from_str(&out).context("what a seed says it did")?))
            }
            Some(status) => Some(Ended::Wrong(format!("{status}: {err}"))),
            None if enough.load(Ordering::SeqCst) => None,
            None => Some(Ended::Wrong(format!("{TOO_LATE} {SEED_TIMEOUT:?}; {err}"))),
        })
    }
}

/// All that a pipe says, taken by a thread.
fn listen(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut said = Vec::new();
        // What came until then is told.
        let _ = pipe.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    })
}
