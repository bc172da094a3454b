//! Keeps one target attached: finds its drive, opens it, and, when the drive is behind a fabric,
//! goes on watching it.
//!
//! A path that is lost makes the target away: requests are refused at once and heartbeats say so,
//! so that the cluster goes round it. When the path comes back and no write was left in doubt, it
//! goes on; when one was, or the device is another one now, the target is closed and opened again,
//! which verifies it as after a crash.
//!
//! Invariants: a target is opened again only when every request to the old device has ended; what
//! answers then must be the same target; an open that met an error of the drive, or no drive, is
//! tried again, on any drive; a local drive that failed later stays failed until a restart, since
//! nobody pulls its cable by design.

use crate::engine::{Engine, TargetOptions, Unread};
use crate::location::Location;
use crate::nvmeof::{self, Remote, Roots};
use crate::service::Targets;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use weft_proto::{Error, ErrorKind, Result, Uuid};

/// Between two looks at a path. Reading sysfs costs some microseconds.
const LOOK: Duration = Duration::from_millis(250);
/// Between two attempts to connect paths that are missing.
const CONNECT: Duration = Duration::from_secs(5);
/// Between two attempts to open a target, at first and at most; never less than the last one took,
/// which may have read the whole drive.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_MOST: Duration = Duration::from_secs(10);
/// After so many tries a drive that cannot make anything durable is taken as it is, to be read.
const FAILED_TRIES: u32 = 5;

/// A target that is open.
pub(crate) struct Open {
    pub engine: Engine,
    /// Where its drive is, as the admin wrote it.
    pub location: String,
}

pub(crate) struct Keeper {
    pub location: Location,
    pub options: TargetOptions,
    pub fabric: nvmeof::Options,
    pub roots: Roots,
    pub open: Arc<Mutex<Vec<Open>>>,
    pub targets: Arc<Targets>,
}

impl Keeper {
    /// Serves the target until dropped. Tells `started` how the first attempt went: an error means
    /// that only an admin can help, as far as anybody can tell.
    pub async fn run(self, started: oneshot::Sender<Result<()>>) {
        match &self.location {
            Location::Local(_) => {
                let opened = self.open_at_last(None, &mut Some(started)).await;
                self.targets.opening.fetch_sub(1, Ordering::AcqRel);
                // Drives show up late when a machine starts, and so do filesystems.
                if opened.is_err_and(|e| e.kind == ErrorKind::NotFound) {
                    let _ = self.open_at_last(None, &mut None).await;
                }
            }
            Location::Fabric(remote) => match self.keep(remote, started).await {},
        }
    }

    async fn keep(&self, remote: &Remote, started: oneshot::Sender<Result<()>>) -> Infallible {
        let mut started = Some(started);
        let mut known = None;
        loop {
            // Only drives of this machine are given up.
            let Ok(engine) = self.open_at_last(known, &mut started).await else { continue };
            if known.replace(engine.uuid()).is_none() {
                self.targets.opening.fetch_sub(1, Ordering::AcqRel);
            }
            let why = tokio::select! {
                why = self.watch(remote, &engine) => why,
                never = self.connect_paths(remote) => match never {},
            };
            tracing::error!(target = %self.location, "target is lost: {why}");
            self.retire(engine, &why).await;
        }
    }

    /// Tries until the target is open. Errors: the first, if it is of this machine and only an
    /// admin can mend that, and somebody is to be told.
    async fn open_at_last(
        &self,
        known: Option<Uuid>,
        started: &mut Option<oneshot::Sender<Result<()>>>,
    ) -> Result<Engine> {
        let (mut again, mut tries) = (AGAIN, 0);
        let mut said = String::new();
        let unread = Arc::new(Mutex::new(Unread::default()));
        loop {
            let begun = Instant::now();
            let result = match self.find().await {
                Ok(device) => self.open(device, known, (&unread, tries >= FAILED_TRIES)).await,
                Err(e) => Err(e),
            };
            let hopeless = result.as_ref().err().filter(|e| !self.may_heal(e)).cloned();
            if let Some(started) = started.take() {
                // Nobody waits when the daemon ends.
                let _ = started.send(hopeless.clone().map_or(Ok(()), Err));
                if let (Some(e), Location::Local(_)) = (hopeless, &self.location) {
                    return Err(e);
                }
            }
            match result {
                Ok(engine) => return Ok(engine),
                Err(e) if e.message != said => {
                    tracing::warn!(target = %self.location, "not served, will try again: {e}");
                    said = e.message;
                }
                Err(_) => {}
            }
            sleep(again.max(begun.elapsed())).await;
            (again, tries) = ((again * 2).min(AGAIN_MOST), tries + 1);
        }
    }

    /// Where the drive is at this moment.
    async fn find(&self) -> Result<PathBuf> {
        match &self.location {
            Location::Local(path) => Ok(path.clone()),
            Location::Fabric(remote) => nvmeof::attach(&self.roots, remote, &self.fabric).await,
        }
    }

    /// Whether this may pass without an admin: the fabric, the target, or a daemon that has just
    /// ended may be on its way.
    fn may_heal(&self, e: &Error) -> bool {
        match e.kind {
            ErrorKind::Unavailable | ErrorKind::TimedOut | ErrorKind::Io | ErrorKind::Busy => true,
            ErrorKind::NotFound => matches!(self.location, Location::Fabric(_)),
            _ => false,
        }
    }

    async fn open(
        &self,
        device: PathBuf,
        known: Option<Uuid>,
        (unread, takes_failed): (&Arc<Mutex<Unread>>, bool),
    ) -> Result<Engine> {
        let options = TargetOptions { path: device, ..self.options.clone() };
        let unread = unread.clone();
        let open = move || {
            let engine = Engine::open_again(&options, &mut unread.lock())?;
            match engine.failure().filter(|_| !takes_failed) {
                // It may pass.
                Some(why) => Err(Error::new(ErrorKind::Io, why)),
                None => Ok(engine),
            }
        };
        let opened = tokio::task::spawn_blocking(open).await;
        let engine =
            opened.unwrap_or_else(|e| Err(Error::new(ErrorKind::Internal, e.to_string())))?;
        if let Some(known) = known.filter(|&k| k != engine.uuid()) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("{} was target {known} and is {} now", self.location, engine.uuid()),
            ));
        }
        self.admit(&engine)?;
        Ok(engine)
    }

    /// Serves a target that is open, unless it cannot stand beside those that are.
    fn admit(&self, engine: &Engine) -> Result<()> {
        let mut open = self.open.lock();
        for other in open.iter() {
            check_together(engine, &self.location.to_string(), other)?;
        }
        if let Some(id) = engine.id() {
            self.targets.insert(id, engine.clone());
        }
        open.push(Open { engine: engine.clone(), location: self.location.to_string() });
        Ok(())
    }

    /// Returns why the target must be opened again.
    async fn watch(&self, remote: &Remote, engine: &Engine) -> String {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut errors = 0;
        let mut away = false;
        // What it was opened with all the same, so that it can be read.
        let known = engine.failure();
        loop {
            looks.tick().await;
            if let Some(why) = engine.failure().filter(|_| known.is_none()) {
                return why;
            }
            if !nvmeof::is_live(&self.roots, remote) {
                let why = nvmeof::lost_paths(&self.roots, remote);
                if !std::mem::replace(&mut away, true) {
                    tracing::warn!(target = %self.location, "target is away: {why}");
                }
                self.set_away(engine, Some(why));
                continue;
            }
            let stat = engine.stat();
            let now = stat.read_errors + stat.write_errors;
            // A device that was taken away and made anew answers under another number: ask ours.
            if (away || now != errors)
                && let Err(e) = engine.probe().await
            {
                return e.message;
            }
            errors = now;
            if std::mem::replace(&mut away, false) {
                tracing::info!(target = %self.location, "target is back");
                self.set_away(engine, None);
            }
        }
    }

    fn set_away(&self, engine: &Engine, why: Option<String>) {
        if let Some(id) = engine.id() {
            self.targets.set_away(id, why);
        }
    }

    /// Connects again what the kernel gave up.
    async fn connect_paths(&self, remote: &Remote) -> Infallible {
        loop {
            sleep(CONNECT).await;
            if let Err(e) = nvmeof::connect_all(&self.roots, remote, &self.fabric).await {
                tracing::debug!(target = %self.location, "{e}");
            }
        }
    }

    /// Takes the target out of service and waits for the last request to it.
    async fn retire(&self, engine: Engine, why: &str) {
        {
            // Together, so that nobody who registers it puts it back.
            let mut open = self.open.lock();
            if let Some(id) = engine.id() {
                self.targets.remove(id, why.to_owned());
            }
            open.retain(|o| !o.engine.is_same(&engine));
        }
        if let Err(e) = engine.retire().await {
            tracing::warn!(target = %self.location, "closing: {e}");
        }
    }
}

/// Refuses two targets that one daemon cannot serve.
fn check_together(engine: &Engine, location: &str, other: &Open) -> Result<()> {
    let theirs = &other.location;
    if other.engine.uuid() == engine.uuid() {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "{location} and {theirs} are the same target {}: one is a copy; remove it",
                engine.uuid()
            ),
        ));
    }
    match (engine.cluster(), other.engine.cluster()) {
        (Some(a), Some(b)) if a != b => Err(Error::new(
            ErrorKind::WrongCluster,
            format!(
                "{location} belongs to cluster {a}, {theirs} to {b}: a daemon serves one cluster"
            ),
        )),
        _ => Ok(()),
    }
}
