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
//! nobody pulls its cable by design; what another daemon serves, or an admin has forgotten, is
//! closed, and opened again only after the metadata group has said that it is this one's, since the
//! other changes its drive.

mod watch;

use crate::engine::{Engine, TargetOptions, Unread};
use crate::location::Location;
use crate::nvmeof::{self, Roots};
use crate::service::Targets;
use parking_lot::Mutex;
use std::future::pending;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use weft_control::Group;
use weft_net::Transport;
use weft_proto::{Error, ErrorKind, Result, Uuid, v1};

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
    /// To tell its keeper that another daemon serves it; `None` once that is told.
    pub refuse: Option<oneshot::Sender<Lost>>,
}

/// A target that must not be served as it is.
pub(crate) struct Lost {
    pub engine: Engine,
    pub why: String,
    /// What the metadata group has refused, when another daemon serves it.
    pub refused: Option<v1::RegisterTargetRequest>,
}

pub(crate) struct Keeper {
    pub location: Location,
    pub options: TargetOptions,
    pub fabric: nvmeof::Options,
    pub roots: Roots,
    pub transport: Arc<dyn Transport>,
    /// Addresses of metadata servers.
    pub metadata: Vec<String>,
    pub open: Arc<Mutex<Vec<Open>>>,
    pub targets: Arc<Targets>,
}

/// Longer than a daemon takes that has said that it is stopping, and that is told to read its file
/// again.
const SETTLES: Duration = Duration::from_secs(15);

/// What is known of a target that was open.
#[derive(Default)]
struct Before {
    known: Option<Uuid>,
    /// The metadata group has to accept this before it is opened again.
    refused: Option<v1::RegisterTargetRequest>,
}

/// A target that is open, and by what its keeper hears that another daemon serves it.
type Opened = (Engine, oneshot::Receiver<Lost>);

impl Keeper {
    /// Serves the target until dropped. Tells `started` how the first attempt went: an error means
    /// that only an admin can help, as far as anybody can tell.
    pub async fn run(self, started: oneshot::Sender<Result<()>>) {
        let (mut started, mut before) = (Some(started), Before::default());
        let mut is_first = true;
        loop {
            let opened = self.open_at_last(&before, &mut started).await;
            if std::mem::take(&mut is_first) {
                self.targets.opening.fetch_sub(1, Ordering::AcqRel);
            }
            let (engine, refusal) = match opened {
                Ok(open) => open,
                // Drives show up late when a machine starts, and so do filesystems.
                Err(e) if e.kind == ErrorKind::NotFound => continue,
                Err(_) => return,
            };
            let (known, mut refusal) = (Some(engine.uuid()), refusal);
            let Lost { engine, why, mut refused } = self.lose(engine, &mut refusal).await;
            tracing::error!(target = %self.location, "target is lost: {why}");
            self.withdraw(&engine, &why);
            // It may have been refused while it was lost; nobody refuses what is not open.
            refused = refused.or_else(|| refusal.try_recv().ok()?.refused);
            before = Before { known, refused };
            if let Err(e) = engine.retire().await {
                tracing::warn!(target = %self.location, "closing: {e}");
            }
        }
    }

    /// Returns when the target must be closed.
    async fn lose(&self, engine: Engine, refusal: &mut oneshot::Receiver<Lost>) -> Lost {
        let refusal = async {
            match refusal.await {
                Ok(lost) => lost,
                Err(_) => pending().await,
            }
        };
        let Location::Fabric(remote) = &self.location else {
            // At the end of the daemon nobody waits for who has it here.
            drop(engine);
            return refusal.await;
        };
        tokio::select! {
            lost = refusal => lost,
            why = self.watch(remote, &engine) => Lost { engine, why, refused: None },
            never = self.connect_paths(remote) => match never {},
        }
    }

    /// Tries until the target is open. Errors: the first, if it is of this machine and only an
    /// admin can mend that, and somebody is to be told.
    async fn open_at_last(
        &self,
        before: &Before,
        started: &mut Option<oneshot::Sender<Result<()>>>,
    ) -> Result<Opened> {
        let (mut again, mut tries) = (AGAIN, 0);
        let mut said = String::new();
        let unread = Arc::new(Mutex::new(Unread::default()));
        loop {
            let mut took = Duration::ZERO;
            let result = match self.given_back(before).await {
                Ok(()) => {
                    let begun = Instant::now();
                    let result = self.try_open(before, (&unread, tries >= FAILED_TRIES)).await;
                    (took, tries) = (begun.elapsed(), tries + 1);
                    result
                }
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
                Ok(opened) => return Ok(opened),
                Err(e) if e.message != said => {
                    tracing::warn!(target = %self.location, "not served, will try again: {e}");
                    said = e.message;
                }
                Err(_) => {}
            }
            sleep(again.max(took)).await;
            again = (again * 2).min(AGAIN_MOST);
        }
    }

    /// Whether it may be opened, of which nothing is read before that: until then it may change.
    async fn given_back(&self, before: &Before) -> Result<()> {
        let Some(request) = &before.refused else { return Ok(()) };
        // Who cannot reach the drive does not ask for it.
        self.find().await?;
        self.ask(request).await?;
        // Who is stopping has been replaced before its last request has ended, and who starts anew
        // asks for it back.
        sleep(SETTLES).await;
        self.ask(request).await
    }

    async fn ask(&self, request: &v1::RegisterTargetRequest) -> Result<()> {
        let mut group = Group::new(self.transport.clone(), self.metadata.clone());
        group.call(request.clone()).await.map(drop)
    }

    /// Opens the target and serves it, if it may be.
    async fn try_open(&self, before: &Before, how: (&Arc<Mutex<Unread>>, bool)) -> Result<Opened> {
        let device = self.find().await?;
        let engine = self.open(device, before.known, how).await?;
        if let Some(request) = &before.refused {
            // An index that is made anew takes long, and the target counts as down meanwhile.
            self.ask(request).await?;
        }
        self.admit(engine)
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
        Ok(engine)
    }

    /// Serves a target that is open, unless it cannot stand beside those that are.
    fn admit(&self, engine: Engine) -> Result<Opened> {
        let mut open = self.open.lock();
        for other in open.iter() {
            check_together(&engine, &self.location.to_string(), other)?;
        }
        if let Some(id) = engine.id() {
            self.targets.insert(id, engine.clone());
        }
        let (refuse, refusal) = oneshot::channel();
        let location = self.location.to_string();
        open.push(Open { engine: engine.clone(), location, refuse: Some(refuse) });
        Ok((engine, refusal))
    }

    /// Takes the target out of service.
    fn withdraw(&self, engine: &Engine, why: &str) {
        // Together, so that nobody who registers it puts it back.
        let mut open = self.open.lock();
        if let Some(id) = engine.id() {
            self.targets.remove(id, why.to_owned());
        }
        open.retain(|o| !o.engine.is_same(engine));
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
