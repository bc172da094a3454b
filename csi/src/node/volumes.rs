//! The mounts of this machine: made, put back when they have died, taken away.

use super::mounts::{self, Found, Looks, Shown};
use super::secrets;
use super::served::{self, End};
use super::state::{Published, Staged, State};
use super::weft::{Environment, Weft};
use crate::capability::{Argument, arguments_of};
use prometheus::IntCounter;
use std::ffi::OsString;
use std::io;
use std::iter::once;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;
use tokio::time::timeout;
use tonic::Status;
use weft_net::metrics::registered;

/// A mount waits so long for the cluster, seconds.
const MOUNT_SECONDS: u64 = 30;
/// And so long a command may take in all.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(90);
/// A mount that is taken away gets so long to make durable what was written, and then so long to
/// end, seconds: together less than the orchestrator waits.
const LAST_SYNC_TIMEOUT: Duration = Duration::from_secs(30);
const UNMOUNT_SECONDS: u64 = 30;
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(45);
/// When this process ends, all mounts get so long.
const SYNC_TIMEOUT: Duration = Duration::from_secs(20);
/// By this `weft mount` says that what it is to mount is not there.
const NOT_THERE: &str = "cannot be mounted: there is no";

static REMOUNTS: LazyLock<IntCounter> = LazyLock::new(|| {
    let help = "Mounts that were made anew, because their process had died.";
    registered(IntCounter::new("weft_csi_remounts_total", help))
});

/// How volumes are mounted here; clones share it.
#[derive(Clone)]
pub struct Volumes {
    pub state: State,
    pub looks: Looks,
    pub weft: Weft,
    /// Addresses of metadata servers.
    pub metadata: Vec<String>,
    pub node_id: String,
    /// The folder that volumes lie in.
    pub root: String,
}

/// How a volume was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    Alive,
    Silent,
}

/// An error of this machine.
pub fn here(what: &str, error: io::Error) -> Status {
    Status::internal(format!("{what}: {error}"))
}

impl Volumes {
    /// Sees that a volume is mounted, and shown where workloads find it: what is not there is
    /// mounted, and what has died is put in its place. Errors: `FAILED_PRECONDITION` if something
    /// else is mounted there, those of [`Self::mount`].
    pub async fn restore(&self, staged: &mut Staged) -> Result<Condition, Status> {
        let fail = |e| here("what is mounted", e);
        let staging = staged.staging.clone();
        match self.looks.look(&staging).await.map_err(fail)? {
            Found::Alive(()) => {}
            // It is not known what is true of the places where it is shown.
            Found::Silent => return Ok(Condition::Silent),
            Found::Foreign(fs) => {
                let what = format!("{} is a mount of {fs}", staging.display());
                return Err(Status::failed_precondition(what));
            }
            Found::Nothing => self.mount(staged).await?,
            Found::Dead => {
                tracing::warn!("the mount of volume {:?} has died: it is made anew", staged.volume);
                mounts::detach(&staging).await.map_err(fail)?;
                self.mount(staged).await?;
                REMOUNTS.inc();
            }
        }
        let mut gone = Vec::new();
        for at in staged.published.clone() {
            if !self.show(staged, &at).await? {
                gone.push(at.target);
            }
        }
        if !gone.is_empty() {
            staged.published.retain(|at| !gone.contains(&at.target));
            self.state.save(staged).map_err(fail)?;
        }
        Ok(Condition::Alive)
    }

    /// Whether a volume is mounted, and shown wherever it is to be: nothing is to be restored.
    pub async fn is_fine(&self, staged: &Staged) -> bool {
        let mut places = vec![staged.staging.clone()];
        places.extend(staged.published.iter().map(|at| at.target.clone()));
        // What shows the mount lives as long as that: one question is enough.
        matches!(mounts::is_at_all(places).await, Ok(true))
            && matches!(self.looks.look(&staged.staging).await, Ok(Found::Alive(())))
    }

    /// Sees that a volume is shown at a place. Answers whether that place is there.
    async fn show(&self, staged: &Staged, at: &Published) -> Result<bool, Status> {
        let fail = |e| here(&format!("{}", at.target.display()), e);
        let mounted = mounts::on_top(&staged.staging).await.map_err(fail)?;
        match mounts::on_top(&at.target).await.map_err(fail)? {
            Some(Shown::Foreign(_)) => return Ok(true),
            shown @ Some(Shown::Weft(_)) if shown == mounted => return Ok(true),
            // Another mount of this volume; it stays if it lives.
            Some(Shown::Weft(_)) => match self.looks.look(&at.target).await.map_err(fail)? {
                Found::Dead => mounts::thin_out(&at.target).await.map_err(fail)?,
                _ => return Ok(true),
            },
            // Its workload is gone, and all of it was taken away.
            None if !at.target.is_dir() => return Ok(false),
            None => {}
        }
        self.bind(staged, at).await?;
        Ok(true)
    }

    /// Whether what is mounted is shown at a place, to be written or only read as there, by the
    /// kernel's table alone: how quick it answers says nothing of that.
    pub async fn is_shown(&self, staged: &Staged, at: &Published) -> io::Result<bool> {
        let shown = mounts::on_top(&at.target).await?;
        if shown.is_none() || shown != mounts::on_top(&staged.staging).await? {
            return Ok(false);
        }
        Ok(mounts::is_read_only(&at.target).await? == (at.read_only || staged.usage.read_only))
    }

    /// Shows a volume at a place.
    pub async fn bind(&self, staged: &Staged, at: &Published) -> Result<(), Status> {
        let bound = mounts::bind(&staged.staging, &at.target, at.read_only).await;
        bound.map_err(|e| here(&format!("{} cannot be mounted", at.target.display()), e))
    }

    /// Mounts a volume, by a process of its own. Errors: `NOT_FOUND` if it is not there,
    /// `UNAVAILABLE` otherwise.
    async fn mount(&self, staged: &Staged) -> Result<(), Status> {
        let volume = &staged.volume;
        std::fs::create_dir_all(&staged.staging)
            .map_err(|e| here(&format!("{}", staged.staging.display()), e))?;
        let (mut environment, mut path) = (self.environment(), staged.path.clone());
        if staged.tls {
            let files = secrets::files(&self.state, volume)?;
            environment.extend(secrets::environment(&files));
            path = self.path_seen(staged, &secrets::subtree(files)?)?;
        }
        let arguments = self.arguments(staged, &path)?;
        self.weft.run(arguments, environment, MOUNT_TIMEOUT).await.map_err(|why| {
            let what = format!("volume {volume:?} cannot be mounted: {why}");
            if why.contains(NOT_THERE) {
                Status::not_found(what)
            } else {
                Status::unavailable(what)
            }
        })
    }

    /// Where a volume lies for who sees this folder as the root. What others have written down is
    /// so already. Errors: `FAILED_PRECONDITION` if it is not below that.
    fn path_seen(&self, staged: &Staged, subtree: &[String]) -> Result<String, Status> {
        let Staged { volume, path, .. } = staged;
        if *path != format!("{}/{volume}", self.root) {
            return Ok(path.clone());
        }
        secrets::seen_from(subtree, path).ok_or_else(|| {
            let what = format!(
                "the certificate of volume {volume:?} is confined to /{}: {path} is not below that",
                subtree.join("/")
            );
            Status::failed_precondition(what)
        })
    }

    fn arguments(&self, staged: &Staged, path: &str) -> Result<Vec<OsString>, Status> {
        let volume = &staged.volume;
        let mut options = vec![if staged.usage.read_only { "ro" } else { "rw" }.to_owned()];
        let mut arguments: Vec<OsString> = vec!["mount".into()];
        for flag in &staged.usage.flags {
            match arguments_of(flag)? {
                Argument::Option(option) => options.push(option),
                Argument::Size(size) => arguments.push(size.into()),
            }
        }
        let id: String = volume.chars().filter(|c| !c.is_control()).take(128).collect();
        let text = |name: &str, value: &str| OsString::from(format!("--{name}={value}"));
        arguments.extend([
            text("cluster", &self.metadata.join(",")),
            text("subdir", path),
            text("name", &format!("{}:{id}", self.node_id)),
            text("options", &options.join(",")),
            text("timeout", &MOUNT_SECONDS.to_string()),
            // What lies beneath is hidden, and may have come there while nothing was mounted.
            "--allow-nonempty".into(),
            "--log-file".into(),
            self.state.log(volume).into(),
            "--".into(),
            staged.staging.clone().into(),
        ]);
        Ok(arguments)
    }

    /// Takes a mount away, once what was written there is durable. Errors: `INTERNAL` if that
    /// cannot be said of all of it; the mount stays then, and may be asked again.
    pub async fn unmount(&self, staging: &Path, known: Option<&mut Staged>) -> Result<(), Status> {
        match self.looks.look(staging).await.map_err(|e| here("what is mounted", e))? {
            // It may be that of a try before, whose process has not ended yet.
            Found::Nothing => {
                let synced = known.is_some_and(|known| known.synced);
                return self.await_end(staging, synced).await;
            }
            Found::Foreign(fs) => {
                let what = format!("{} is a mount of {fs}: it stays", staging.display());
                return Err(Status::failed_precondition(what));
            }
            Found::Alive(()) | Found::Silent => {
                let arguments = vec!["sync".into(), staging.into()];
                let done = self.weft.run(arguments, self.environment(), LAST_SYNC_TIMEOUT).await;
                done.map_err(Status::internal)?;
                if let Some(known) = known {
                    known.synced = true;
                    self.state.save(known).map_err(|e| here("what is known of it", e))?;
                }
            }
            Found::Dead => return self.take_dead_away(staging, known).await,
        }
        let seconds = format!("--timeout={UNMOUNT_SECONDS}");
        let arguments = vec!["umount".into(), seconds.into(), "--".into(), staging.into()];
        let done = self.weft.run(arguments, self.environment(), UNMOUNT_TIMEOUT).await;
        done.map_err(Status::internal)
    }

    /// Takes a mount away that has lost its process, whoever has files open there: nothing becomes
    /// durable by waiting for that. One that only lost its connection, and ended well, does not
    /// know what was in mapped files. Errors: `INTERNAL` if something may be lost, which is told
    /// once: who asks again finds nothing mounted.
    async fn take_dead_away(
        &self,
        staging: &Path,
        known: Option<&mut Staged>,
    ) -> Result<(), Status> {
        let arguments = vec!["umount".into(), "--lazy".into(), "--".into(), staging.into()];
        let done = self.weft.run(arguments, self.environment(), UNMOUNT_TIMEOUT).await;
        done.map_err(Status::internal)?;
        // What died before may lie beneath.
        mounts::detach(staging).await.map_err(|e| here("what is mounted", e))?;
        let is_safe = known.is_some_and(|known| known.synced || known.usage.read_only);
        self.await_end(staging, is_safe).await?;
        if is_safe {
            return Ok(());
        }
        let at = staging.display();
        let what = format!("{at} is unmounted; nobody served it: what was not synced may be lost");
        tracing::error!("{what}");
        Err(Status::internal(what))
    }

    /// Forgets a volume of which nothing is left on this machine: neither a mount, nor the folder
    /// for it, nor a place where a workload finds it. Who was to forget it has died, and nobody
    /// asks for it to be taken away any more.
    pub async fn forget_if_gone(&self, staged: &Staged) -> io::Result<()> {
        if staged.leaving {
            return Ok(());
        }
        for place in once(&staged.staging).chain(staged.published.iter().map(|at| &at.target)) {
            if !mounts::is_gone(place).await? {
                return Ok(());
            }
        }
        tracing::info!("volume {:?} is forgotten: nothing of it is here", staged.volume);
        self.state.remove(&staged.volume)
    }

    /// Brings to its end what [`Self::unmount`] has begun, before the volume is mounted again. What
    /// is mounted still is left as it is. Errors: as there.
    pub async fn settle(&self, staged: &Staged) -> Result<(), Status> {
        let mounted = mounts::on_top(&staged.staging).await;
        match mounted.map_err(|e| here("what is mounted", e))? {
            None => self.await_end(&staged.staging, staged.synced).await,
            Some(_) => Ok(()),
        }
    }

    /// Waits for the process of what was mounted here. `synced`: all was durable before it was
    /// unmounted. Errors: `INTERNAL`.
    async fn await_end(&self, staging: &Path, synced: bool) -> Result<(), Status> {
        let (limit, at) = (Duration::from_secs(UNMOUNT_SECONDS), staging.display());
        let end = served::end(&self.state.run(), staging, limit).await;
        match end.map_err(|e| here(&format!("the mount at {at}"), e))? {
            End::Good => Ok(()),
            End::Bad(why) => {
                let what = format!("{at} is unmounted, but not all may be durable: {why}");
                Err(Status::internal(what))
            }
            // Somebody holds a copy of the mount, perhaps a container that was given all mounts of
            // the machine. It may stay for ever, and loses nothing.
            End::Lives(pid) if synced => {
                tracing::warn!("{at} is unmounted, and its process {pid} goes on: it is in use");
                Ok(())
            }
            End::Lives(pid) => {
                let what = format!("{at} is unmounted, but its process {pid} still writes");
                Err(Status::internal(what))
            }
        }
    }

    /// Makes durable what was written through all mounts, as far as there is time.
    pub async fn sync_all(&self) {
        let Ok(all) = self.state.list() else { return };
        let syncs = all.iter().map(|staged| async {
            if let Ok(Found::Alive(())) = self.looks.look(&staged.staging).await {
                let arguments = vec!["sync".into(), staged.staging.clone().into()];
                let done = self.weft.run(arguments, self.environment(), SYNC_TIMEOUT).await;
                if let Err(why) = done {
                    tracing::error!("volume {:?}: {why}", staged.volume);
                }
            }
        });
        let _ = timeout(SYNC_TIMEOUT, futures_util::future::join_all(syncs)).await;
    }

    fn environment(&self) -> Environment {
        vec![("WEFT_RUN_DIR".into(), Some(self.state.run().into_os_string()))]
    }
}
