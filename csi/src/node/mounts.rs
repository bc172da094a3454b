//! What is mounted where, whether it lives, and mounts of a folder at another place.

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::statvfs::{Statvfs, statvfs};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use weft_fuse::{MountFlags, mount_at, resolve_mount_point, unmount};

/// A mount that answers nothing for so long is silent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Who waits for the look of another looks so often whether that is done.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// Mounts on top of each other at one place, at most.
const MAX_LAYERS: usize = 16;

/// What is at a place.
pub enum Found {
    /// Nothing is mounted there.
    Nothing,
    /// It answers, and this is the room there.
    Alive(Box<Statvfs>),
    /// Its process has died.
    Dead,
    /// It does not answer: its cluster may be away.
    Silent,
    /// It is no mount of weft.
    Foreign(String),
}

/// Looks at mounts, each by one thread at a time: one that does not answer takes no more.
#[derive(Clone, Default)]
pub struct Looks(Arc<Mutex<HashSet<PathBuf>>>);

impl Looks {
    /// What is at a place.
    pub async fn look(&self, place: &Path) -> io::Result<Found> {
        let at = place.to_owned();
        let mounted = spawn_blocking(move || match resolve_mount_point(&at) {
            // What it lies in is gone.
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
            Ok(at) => mount_at(&at),
        });
        match mounted.await?? {
            None => return Ok(Found::Nothing),
            Some(found) if !found.is_weft() => return Ok(Found::Foreign(found.fs_type)),
            Some(_) => {}
        }
        let until = Instant::now() + ANSWER_TIMEOUT;
        while !self.0.lock().insert(place.to_owned()) {
            if Instant::now() > until {
                return Ok(Found::Silent);
            }
            sleep(LOOK_INTERVAL).await;
        }
        let (looks, at) = (self.0.clone(), place.to_owned());
        let answer = spawn_blocking(move || {
            let answer = statvfs(&at);
            looks.lock().remove(&at);
            answer
        });
        Ok(match timeout(ANSWER_TIMEOUT, answer).await {
            Err(_) => Found::Silent,
            Ok(answer) => match answer? {
                Ok(room) => Found::Alive(Box::new(room)),
                Err(Errno::ENOTCONN | Errno::ECONNABORTED) => Found::Dead,
                Err(_) => Found::Silent,
            },
        })
    }
}

/// Takes away all mounts of weft at a place, whoever uses them.
pub async fn detach(place: &Path) -> io::Result<()> {
    let place = place.to_owned();
    spawn_blocking(move || {
        let place = match resolve_mount_point(&place) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            place => place?,
        };
        for _ in 0..MAX_LAYERS {
            if !mount_at(&place)?.is_some_and(|found| found.is_weft()) {
                return Ok(());
            }
            unmount(&place, false).or_else(|_| unmount(&place, true))?;
        }
        Err(io::Error::other("there are too many mounts on top of each other"))
    })
    .await?
}

/// Shows what is mounted at `staging` at `target`, too, with the options that it has.
pub async fn bind(
    staging: &Path,
    target: &Path,
    read_only: bool,
    flags: &[String],
) -> io::Result<()> {
    let (staging, target) = (staging.to_owned(), target.to_owned());
    let mut options = MountFlags::default();
    for flag in flags {
        // Others are the mount's own.
        let _ = options.set(flag);
    }
    spawn_blocking(move || {
        fs::create_dir_all(&target)?;
        let none = None::<&str>;
        mount(Some(&staging), &target, none, MsFlags::MS_BIND, none)?;
        if !read_only {
            return Ok(());
        }
        let mut kept = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        kept.set(MsFlags::MS_NOSUID, !options.suid);
        kept.set(MsFlags::MS_NODEV, !options.dev);
        kept.set(MsFlags::MS_NOEXEC, options.noexec);
        kept.set(MsFlags::MS_NOATIME, options.noatime);
        mount(none, &target, none, kept, none).map_err(|e| {
            // Nobody is to write there.
            let _ = unmount(&target, true);
            e.into()
        })
    })
    .await?
}
