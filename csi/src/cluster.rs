//! The way to the cluster, and the folder that all volumes lie in.

use crate::failure::failed;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tonic::Status;
use weft_client::{Attr, Creator, FileKind, Filesystem, Options};
use weft_proto::{Error, ErrorKind, InodeId, Result};

/// A call waits so long for the cluster when nobody is connected yet.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// What the cluster has not done by then fails, and is asked for again by the orchestrator.
const OP_DEADLINE: Duration = Duration::from_secs(30);
/// Memory for data, of which none is read or written.
const CACHE: usize = 1 << 20;
/// What was deleted and is not gone yet lies in this folder, which no id of a volume names.
const TRASH: &[u8] = b".deleted";
/// Root's.
pub const ROOT: Creator = Creator { uid: 0, gid: 0, umask: 0 };

/// Clones share the connection.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

struct Inner {
    options: Options,
    root: String,
    connected: AtomicBool,
    place: Mutex<Option<Place>>,
}

/// Where volumes are.
#[derive(Clone)]
pub struct Place {
    pub fs: Filesystem,
    /// The folder of all volumes.
    pub volumes: InodeId,
    /// The folder of what was deleted.
    pub trash: InodeId,
}

impl Cluster {
    /// Volumes lie in the folder `root`, which is made if it is not there. Connects when it is
    /// first needed.
    pub fn new(mut options: Options, root: String) -> Self {
        (options.op_deadline, options.connect_timeout) = (OP_DEADLINE, CONNECT_TIMEOUT);
        (options.cache_bytes, options.write_buffer_bytes) = (CACHE, CACHE);
        let (connected, place) = (AtomicBool::new(false), Mutex::default());
        Self(Arc::new(Inner { options, root, connected, place }))
    }

    /// The folder that volumes lie in.
    pub fn root(&self) -> &str {
        &self.0.root
    }

    /// Whether the cluster was reached.
    pub fn is_connected(&self) -> bool {
        self.0.connected.load(Ordering::Relaxed)
    }

    /// Where volumes are. Errors: `UNAVAILABLE` if the cluster does not answer.
    pub async fn place(&self) -> Result<Place, Status> {
        self.entered(false).await
    }

    /// Where volumes are, whatever was known: somebody may have taken a folder away, which is made
    /// again. Errors: as [`Self::place`].
    pub async fn place_anew(&self) -> Result<Place, Status> {
        self.entered(true).await
    }

    async fn entered(&self, anew: bool) -> Result<Place, Status> {
        match timeout(CONNECT_TIMEOUT, self.enter(anew)).await {
            Ok(place) => place.map_err(|e| failed("the folder of the volumes", e)),
            Err(_) => {
                let what = format!("no metadata leader answered for {CONNECT_TIMEOUT:?}");
                Err(Status::unavailable(what))
            }
        }
    }

    async fn enter(&self, anew: bool) -> Result<Place> {
        let mut known = self.0.place.lock().await;
        // The cluster was restored from a backup since: it takes nothing from who was there before.
        if known.take_if(|place| place.fs.has_ended()).is_some() {
            self.0.connected.store(false, Ordering::Relaxed);
        }
        let fs = match &*known {
            Some(place) if anew => place.fs.clone(),
            Some(place) => match place.fs.get_attr(place.volumes).await {
                // Somebody has taken the folder away.
                Err(e) if e.kind == ErrorKind::Stale => place.fs.clone(),
                // And somebody has it open still.
                Ok(found) if found.nlink == 0 => place.fs.clone(),
                _ => return Ok(place.clone()),
            },
            None => Filesystem::connect(self.0.options.clone()).await?,
        };
        let mut volumes = fs.root();
        for name in self.0.root.split('/').filter(|name| !name.is_empty()) {
            volumes = folder(&fs, volumes, name.as_bytes(), 0o755).await?.ino;
        }
        let trash = folder(&fs, volumes, TRASH, 0o700).await?.ino;
        let place = known.insert(Place { fs, volumes, trash }).clone();
        self.0.connected.store(true, Ordering::Relaxed);
        Ok(place)
    }

    /// Makes durable what is not yet, and ends the session.
    pub async fn leave(&self) {
        if let Some(place) = self.0.place.lock().await.take()
            && let Err(error) = place.fs.shutdown().await
        {
            tracing::warn!("not all is durable: {error}");
        }
    }
}

impl Place {
    /// What has this name among the volumes, if anything has.
    pub async fn find(&self, id: &str) -> Result<Option<Attr>> {
        match self.fs.lookup(self.volumes, id.as_bytes()).await {
            Ok(found) => Ok(Some(found)),
            Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// The folder of this name, which is made if it is not there. Errors: `NotDirectory`.
pub async fn folder(fs: &Filesystem, parent: InodeId, name: &[u8], mode: u32) -> Result<Attr> {
    let found = match fs.lookup(parent, name).await {
        Err(e) if e.kind == ErrorKind::NotFound => {
            match fs.mk_dir(parent, name, mode, ROOT).await {
                // Another driver was faster.
                Err(e) if e.kind == ErrorKind::Exists => fs.lookup(parent, name).await?,
                made => {
                    let made = made?;
                    fs.sync_dir(parent).await?;
                    made
                }
            }
        }
        found => found?,
    };
    match found.kind {
        FileKind::Directory => Ok(found),
        _ => {
            let shown = String::from_utf8_lossy(name);
            Err(Error::new(ErrorKind::NotDirectory, format!("{shown:?} is not a folder")))
        }
    }
}
