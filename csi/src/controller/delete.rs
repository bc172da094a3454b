//! Deletes volumes: out of sight at once, by one rename, and then piece by piece.
//!
//! Everything below is named by its folder's inode, and never by a path: no link leads anywhere
//! else.

use super::record::Record;
use super::remove::{Below, Turn};
use crate::cluster::{Cluster, Place};
use crate::failure::failed;
use crate::volume_id;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tonic::Status;
use weft_client::FileKind;
use weft_proto::{ErrorKind, Result};

/// The answer waits so long for all to be gone; the rest goes without it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Volumes that are taken apart at a time.
const AT_A_TIME: usize = 2;
/// Names that are read at once.
const PAGE: u32 = 256;
/// Between tries of what could not be deleted.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(300);
/// Between tries to reach the cluster.
const CONNECT_PAUSE: Duration = Duration::from_secs(5);
/// How often it is looked whether others have left something.
const LOOK_INTERVAL: Duration = Duration::from_secs(180);
/// So often it is tried to move a volume, when folders are taken away meanwhile.
const MOVES: usize = 3;

/// Takes apart what was deleted.
#[derive(Clone)]
pub struct Purge {
    cluster: Cluster,
    places: Arc<Semaphore>,
    /// Names of what is being taken apart.
    at_work: Arc<Mutex<HashSet<Vec<u8>>>>,
}

impl Purge {
    /// Nothing is done yet.
    pub fn new(cluster: Cluster) -> Self {
        Self { cluster, places: Arc::new(Semaphore::new(AT_A_TIME)), at_work: Arc::default() }
    }

    /// Goes on with what others have left, and with what comes there by a move of which nobody
    /// knows that it was done, for as long as this process lives.
    pub async fn go_on(&self) {
        let mut seen = self.left(true).await;
        for name in seen.iter().cloned() {
            tokio::spawn(self.clone().take_apart(name));
        }
        loop {
            sleep(LOOK_INTERVAL).await;
            let left = self.left(false).await;
            // What was not there before may be another driver's, which is at work on it.
            for name in left.iter().filter(|name| seen.contains(*name)).cloned() {
                tokio::spawn(self.clone().take_apart(name));
            }
            seen = left;
        }
    }

    /// Names of what was deleted and is not gone, once the cluster answers.
    async fn left(&self, first: bool) -> HashSet<Vec<u8>> {
        loop {
            let left = match self.cluster.place().await {
                Ok(place) => trash(&place).await.map_err(|e| (e.kind, e.to_string())),
                Err(status) => Err((ErrorKind::Unavailable, status.message().to_owned())),
            };
            let (kind, error) = match left {
                Ok(left) => return left,
                Err(error) => error,
            };
            if first {
                tracing::warn!("the cluster is not there yet: {error}");
            } else {
                tracing::warn!("it is not known what is to be deleted still: {error}");
            }
            sleep(CONNECT_PAUSE).await;
            if is_gone(kind) {
                let _ = self.cluster.place_anew().await;
            }
        }
    }

    /// Takes apart what has this name among what was deleted, however often it takes.
    async fn take_apart(self, name: Vec<u8>) {
        if !self.at_work.lock().insert(name.clone()) {
            return;
        }
        let shown = String::from_utf8_lossy(&name).into_owned();
        let (mut pause, mut below) = (FIRST_PAUSE, None);
        loop {
            let Ok(place) = self.places.acquire().await else { break };
            let tried = self.try_to(&name, &mut below).await;
            // Others have their turn meanwhile.
            drop(place);
            match tried {
                Ok(Turn::Done) => {
                    tracing::info!("{shown} is gone");
                    break;
                }
                Ok(Turn::Over) => {
                    sleep(FIRST_PAUSE).await;
                    continue;
                }
                Err(error) => tracing::warn!("{shown} is not gone yet: {error}"),
            }
            below = None;
            sleep(pause).await;
            pause = (2 * pause).min(MAX_PAUSE);
        }
        self.at_work.lock().remove(&name);
    }

    async fn try_to(&self, name: &[u8], below: &mut Option<Below>) -> Result<Turn, Status> {
        let place = self.cluster.place().await?;
        let fail = |e| failed(&String::from_utf8_lossy(name), e);
        if let Some(below) = below {
            return below.go_on(&place.fs).await.map_err(fail);
        }
        let top = match place.fs.lookup(place.trash, name).await {
            Err(e) if e.kind == ErrorKind::NotFound => return Ok(Turn::Done),
            Err(e) if e.kind == ErrorKind::Stale => {
                self.cluster.place_anew().await?;
                return Err(fail(e));
            }
            top => top.map_err(fail)?,
        };
        if top.kind != FileKind::Directory {
            return match place.fs.unlink(place.trash, name).await {
                Err(e) if e.kind == ErrorKind::NotFound => Ok(Turn::Done),
                gone => gone.map(|()| Turn::Done).map_err(fail),
            };
        }
        let below = below.insert(Below::new(place.trash, name, top.ino));
        below.go_on(&place.fs).await.map_err(fail)
    }
}

/// What has gone, or whose folder has.
pub fn is_gone(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::Stale)
}

/// Names of what was deleted and is not gone.
async fn trash(place: &Place) -> Result<HashSet<Vec<u8>>> {
    let (mut names, mut cookie) = (HashSet::new(), 0);
    loop {
        let page = place.fs.read_dir(place.trash, cookie, PAGE, false).await?;
        for entry in &page.entries {
            cookie = entry.cookie;
            names.insert(entry.name.to_vec());
        }
        if page.end || page.entries.is_empty() {
            return Ok(names);
        }
    }
}

/// Deletes a volume; one that is not there is deleted. Errors: `FAILED_PRECONDITION` of a folder
/// that was not made by this driver.
pub async fn delete(purge: &Purge, id: &str) -> Result<(), Status> {
    if !volume_id::is_valid(id) {
        tracing::info!("nothing of {id:?} is this driver's to delete");
        return Ok(());
    }
    let mut place = purge.cluster.place().await?;
    let what = format!("volume {id:?}");
    let fail = |error| failed(&what, error);
    let foreign =
        || Status::failed_precondition(format!("{what} was not made by this driver: it stays"));
    for _ in 0..MOVES {
        let Some(found) = place.find(id).await.map_err(fail)? else {
            let now = purge.cluster.place_anew().await?;
            if now.volumes != place.volumes {
                place = now;
                continue;
            }
            // A try before may have moved it, and not have heard of that.
            return place.fs.sync_dir(place.volumes).await.map_err(fail);
        };
        if found.kind != FileKind::Directory {
            return Err(foreign());
        }
        if Record::of(&place, found.ino).await.map_err(fail)?.is_none() {
            // A try to make it may have left it behind.
            return match place.fs.rm_dir(place.volumes, id.as_bytes()).await {
                Err(e) if e.kind == ErrorKind::NotEmpty => Err(foreign()),
                Err(e) if e.kind == ErrorKind::NotFound => Ok(()),
                removed => removed.map_err(fail),
            };
        }
        let name = format!("{id}.{:016x}", rand::random::<u64>());
        let moved =
            place.fs.rename(place.volumes, id.as_bytes(), place.trash, name.as_bytes(), 0).await;
        if let Err(error) = &moved
            && is_gone(error.kind)
        {
            // The volume, or the folder for what was deleted: that is made again.
            place = purge.cluster.place_anew().await?;
            continue;
        }
        // It may be there even though that failed. It goes on whether somebody waits or not.
        let gone = tokio::spawn(purge.clone().take_apart(name.into_bytes()));
        moved.map_err(fail)?;
        place.fs.sync_dir(place.volumes).await.map_err(fail)?;
        tracing::info!("deleted {what}");
        let _ = timeout(ANSWER_TIMEOUT, gone).await;
        return Ok(());
    }
    Err(Status::unavailable(format!("{what} cannot be moved: folders are taken away meanwhile")))
}
