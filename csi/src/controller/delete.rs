//! Deletes volumes: out of sight at once, by one rename, and then piece by piece.
//!
//! Everything below is named by its folder's inode, and never by a path: no link leads anywhere
//! else.

use super::record::Record;
use crate::cluster::{Cluster, Place};
use crate::failure::failed;
use crate::volume_id;
use futures_util::{StreamExt, stream};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tonic::Status;
use weft_client::{DirEntry, FileKind, Filesystem};
use weft_proto::{ErrorKind, InodeId, Result};

/// The answer waits so long for all to be gone; the rest goes without it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Volumes that are taken apart at a time.
const AT_A_TIME: usize = 2;
/// Names that are read, and removed, at once.
const PAGE: u32 = 256;
const PARALLEL: usize = 32;
/// Folders of one folder that wait for their turn at most: what is remembered grows with the
/// depth, and not with the number of names.
const FOLDERS: usize = 8;
/// A folder in which somebody makes names as fast as they are removed is left for later.
const MAX_VISITS: usize = 1_000_000;
/// Between tries of what could not be deleted.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(300);

/// Takes apart what was deleted.
#[derive(Clone)]
pub struct Purge {
    cluster: Cluster,
    places: Arc<Semaphore>,
}

impl Purge {
    /// Nothing is done yet.
    pub fn new(cluster: Cluster) -> Self {
        Self { cluster, places: Arc::new(Semaphore::new(AT_A_TIME)) }
    }

    /// Goes on with what others have left, once the cluster answers.
    pub async fn go_on(&self) {
        let mut pause = FIRST_PAUSE;
        let left = loop {
            let left = match self.cluster.place().await {
                Ok(place) => trash(&place).await.map_err(|e| e.to_string()),
                Err(status) => Err(status.message().to_owned()),
            };
            match left {
                Ok(left) => break left,
                Err(error) => tracing::warn!("the cluster is not there yet: {error}"),
            }
            sleep(pause).await;
            pause = (2 * pause).min(MAX_PAUSE);
        };
        for name in left {
            tokio::spawn(self.clone().take_apart(name));
        }
    }

    /// Takes apart what has this name among what was deleted, however often it takes.
    async fn take_apart(self, name: String) {
        let Ok(_place) = self.places.acquire().await else { return };
        let mut pause = FIRST_PAUSE;
        loop {
            match self.try_to(&name).await {
                Ok(()) => return tracing::info!("{name} is gone"),
                Err(error) => tracing::warn!("{name} is not gone yet: {error}"),
            }
            sleep(pause).await;
            pause = (2 * pause).min(MAX_PAUSE);
        }
    }

    async fn try_to(&self, name: &str) -> Result<(), Status> {
        let place = self.cluster.place().await?;
        let fail = |e| failed(name, e);
        let top = match place.fs.lookup(place.trash, name.as_bytes()).await {
            Err(e) if e.kind == ErrorKind::NotFound => return Ok(()),
            top => top.map_err(fail)?,
        };
        remove_tree(&place, top.ino, name).await.map_err(fail)
    }
}

/// Names of what was deleted and is not gone.
async fn trash(place: &Place) -> Result<Vec<String>> {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let page = place.fs.read_dir(place.trash, cookie, PAGE, false).await?;
        for entry in &page.entries {
            cookie = entry.cookie;
            names.push(String::from_utf8_lossy(&entry.name).into_owned());
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
    let place = purge.cluster.place().await?;
    let what = format!("volume {id:?}");
    let fail = |error| failed(&what, error);
    let Some(found) = place.find(id).await.map_err(fail)? else { return Ok(()) };
    let foreign =
        || Status::failed_precondition(format!("{what} was not made by this driver: it stays"));
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
    match moved {
        Err(e) if e.kind == ErrorKind::NotFound => return Ok(()),
        moved => moved.map_err(fail)?,
    }
    place.fs.sync_dir(place.volumes).await.map_err(fail)?;
    tracing::info!("deleted {what}");
    let gone = tokio::spawn(purge.clone().take_apart(name));
    // It goes on whether somebody waits or not.
    let _ = timeout(ANSWER_TIMEOUT, gone).await;
    Ok(())
}

/// A folder that is being emptied.
struct Level {
    parent: InodeId,
    name: Vec<u8>,
    folder: InodeId,
}

/// Takes names away, many at once.
async fn unlink_all(fs: &Filesystem, folder: InodeId, entries: Vec<DirEntry>) -> Result<()> {
    let removals = entries.into_iter().map(|entry| {
        let fs = fs.clone();
        async move { fs.unlink(folder, &entry.name).await }
    });
    let mut removals = stream::iter(removals).buffer_unordered(PARALLEL);
    while let Some(removed) = removals.next().await {
        match removed {
            Err(e) if e.kind == ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    Ok(())
}

/// Removes all below a folder of what was deleted, and it.
async fn remove_tree(place: &Place, top: InodeId, name: &str) -> Result<()> {
    let fs = &place.fs;
    let top = Level { parent: place.trash, name: name.as_bytes().to_vec(), folder: top };
    let mut left = vec![top];
    let mut visits = 0;
    while let Some(level) = left.last() {
        let (parent, folder, name) = (level.parent, level.folder, level.name.clone());
        visits += 1;
        let page = match fs.read_dir(folder, 0, PAGE, false).await {
            Err(e) if matches!(e.kind, ErrorKind::Stale | ErrorKind::NotFound) => {
                left.pop();
                continue;
            }
            page => page?,
        };
        if page.entries.is_empty() {
            match fs.rm_dir(parent, &name).await {
                Err(e) if e.kind == ErrorKind::NotFound => {}
                // Somebody who has it mounted still makes something there.
                Err(e) if e.kind == ErrorKind::NotEmpty && visits < MAX_VISITS => continue,
                removed => removed?,
            }
            left.pop();
            visits = 0;
            continue;
        }
        let (folders, others): (Vec<_>, Vec<_>) =
            page.entries.into_iter().partition(|entry| entry.kind == FileKind::Directory);
        unlink_all(fs, folder, others).await?;
        left.extend(folders.into_iter().take(FOLDERS).map(|entry| Level {
            parent: folder,
            name: entry.name.to_vec(),
            folder: entry.ino,
        }));
    }
    Ok(())
}
