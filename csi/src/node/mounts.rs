//! What is mounted where, whether it lives, and mounts of a folder at another place.
//!
//! What a container sees of a place is a copy of the mount that was there when it began, and a
//! follower of it: it sees what is mounted on top of that one, and nothing that is mounted in its
//! place. So what has died stays where it is shown, and what replaces it comes on top. Until then
//! nobody writes to the folder beneath, which is the machine's.

use nix::errno::Errno;
use nix::libc;
use nix::sys::statvfs::{Statvfs, statvfs};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use weft_fuse::{mount_at, mounts, resolve_mount_point, unmount};

/// A mount that answers nothing for so long is silent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Who waits for the look of another looks so often whether that is done.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// Mounts on top of each other at one place, at most.
const MAX_LAYERS: usize = 64;
/// Of those so many are kept where a mount has died again and again. A container that began while
/// one of them was on top sees what comes on top of that one, as long as it is kept.
const KEPT_LAYERS: usize = 8;
/// A mount says by itself that it has no such attribute: no server is asked, nothing is kept by the
/// kernel, and nobody's rights are looked at.
const ASKED: &CStr = c"security.capability";

/// What is at a place.
pub enum Found<T = ()> {
    /// Nothing is mounted there.
    Nothing,
    /// It answers, with this.
    Alive(T),
    /// Its process has died.
    Dead,
    /// It does not answer: it stands still, or what was asked for is not known without the
    /// cluster, which may be away.
    Silent,
    /// It is no mount of weft.
    Foreign(String),
}

/// Looks at mounts, each by one thread at a time for each question: one that does not answer takes
/// no more.
#[derive(Clone, Default)]
pub struct Looks(Arc<Mutex<HashSet<(&'static str, PathBuf)>>>);

impl Looks {
    /// What is at a place. No server is asked.
    pub async fn look(&self, place: &Path) -> io::Result<Found> {
        self.ask("life", place, lives).await
    }

    /// What is at a place, and how much room there is, which the cluster says.
    pub async fn room(&self, place: &Path) -> io::Result<Found<Statvfs>> {
        self.ask("room", place, statvfs).await
    }

    async fn ask<T: Send + 'static>(
        &self,
        what: &'static str,
        place: &Path,
        question: fn(&Path) -> nix::Result<T>,
    ) -> io::Result<Found<T>> {
        match on_top(place).await? {
            None => return Ok(Found::Nothing),
            Some(Shown::Foreign(fs)) => return Ok(Found::Foreign(fs)),
            Some(Shown::Weft(_)) => {}
        }
        let until = Instant::now() + ANSWER_TIMEOUT;
        let key = (what, place.to_owned());
        while !self.0.lock().insert(key.clone()) {
            if Instant::now() > until {
                return Ok(Found::Silent);
            }
            sleep(LOOK_INTERVAL).await;
        }
        let looks = self.0.clone();
        let answer = spawn_blocking(move || {
            let answer = question(&key.1);
            looks.lock().remove(&key);
            answer
        });
        Ok(match timeout(ANSWER_TIMEOUT, answer).await {
            Err(_) => Found::Silent,
            Ok(answer) => match answer? {
                Ok(told) => Found::Alive(told),
                Err(Errno::ENOTCONN | Errno::ECONNABORTED) => Found::Dead,
                Err(_) => Found::Silent,
            },
        })
    }
}

/// Whether the process of a mount answers.
fn lives(at: &Path) -> nix::Result<()> {
    let name = CString::new(at.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    // SAFETY: both are C strings that live through the call, which has no room to write in.
    let asked = unsafe { libc::getxattr(name.as_ptr(), ASKED.as_ptr(), std::ptr::null_mut(), 0) };
    match Errno::result(asked) {
        Ok(_) | Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The topmost mount at a place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shown {
    /// One of weft: the number of its device, which no other mount has while it is there.
    Weft(String),
    /// Another, of this type.
    Foreign(String),
}

/// What is at a place, by the kernel's table alone: nobody is asked, and nothing waits.
pub async fn on_top(place: &Path) -> io::Result<Option<Shown>> {
    let place = place.to_owned();
    spawn_blocking(move || {
        let found = match resolve_mount_point(&place) {
            // What it lies in is gone.
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            place => mount_at(&place?)?,
        };
        Ok(found.map(|found| match found.is_weft() {
            true => Shown::Weft(found.device),
            false => Shown::Foreign(found.fs_type),
        }))
    })
    .await?
}

/// Whether a place is not there. What is mounted is not asked: one that stands still does not
/// answer.
pub async fn is_gone(place: &Path) -> io::Result<bool> {
    if on_top(place).await?.is_some() {
        return Ok(false);
    }
    let place = place.to_owned();
    let found = spawn_blocking(move || place.symlink_metadata()).await?;
    Ok(found.is_err_and(|e| e.kind() == ErrorKind::NotFound))
}

/// Whether what is mounted at a place is only to be read there, by the kernel's table alone.
pub async fn is_read_only(place: &Path) -> io::Result<bool> {
    let place = place.to_owned();
    spawn_blocking(move || {
        let place = resolve_mount_point(&place)?;
        Ok(mounts()?.iter().rev().find(|m| m.mount_point == place).is_some_and(|m| m.read_only))
    })
    .await?
}

/// Whether one mount of weft is on top at all of these places, by the kernel's table alone.
pub async fn is_at_all(places: Vec<PathBuf>) -> io::Result<bool> {
    spawn_blocking(move || {
        let (table, mut devices) = (mounts()?, HashSet::new());
        for place in &places {
            let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
                return Ok(false);
            };
            let at = parent.canonicalize()?.join(name);
            match table.iter().rev().find(|mount| mount.mount_point == at) {
                Some(mount) if mount.is_weft() => devices.insert(mount.device.as_str()),
                _ => return Ok(false),
            };
        }
        Ok(devices.len() == 1)
    })
    .await?
}

/// Takes away all mounts of weft at a place, whoever uses them.
pub async fn detach(place: &Path) -> io::Result<()> {
    detach_above(place, 0).await
}

/// Leaves so few of the dead mounts at a place that another has room on top. If it takes any, it
/// takes all but the lowest, which containers that began first look at.
pub async fn thin_out(place: &Path) -> io::Result<()> {
    let resolved = place.to_owned();
    let layers = spawn_blocking(move || {
        let at = resolve_mount_point(&resolved)?;
        Ok::<_, io::Error>(mounts()?.into_iter().filter(|m| m.mount_point == at).count())
    });
    if layers.await?? < KEPT_LAYERS {
        return Ok(());
    }
    detach_above(place, 1).await
}

/// Takes mounts of weft away from the top, until so many mounts are left.
async fn detach_above(place: &Path, kept: usize) -> io::Result<()> {
    let place = place.to_owned();
    spawn_blocking(move || {
        let place = match resolve_mount_point(&place) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            place => place?,
        };
        for _ in 0..MAX_LAYERS {
            let layers: Vec<_> =
                mounts()?.into_iter().filter(|mount| mount.mount_point == place).collect();
            if layers.len() <= kept || !layers.last().is_some_and(|top| top.is_weft()) {
                return Ok(());
            }
            unmount(&place, false).or_else(|_| unmount(&place, true))?;
        }
        Err(io::Error::other("there are too many mounts on top of each other"))
    })
    .await?
}

/// Shows what is mounted at `staging` at `target`, too, on top of what is there.
pub async fn bind(staging: &Path, target: &Path, read_only: bool) -> io::Result<()> {
    let (staging, target) = (staging.to_owned(), target.to_owned());
    spawn_blocking(move || {
        // What is dead cannot even be asked whether it is a folder.
        if mount_at(&resolve_parent(&target)?)?.is_none() {
            fs::create_dir_all(&target)?;
        }
        let copy = copy_of(&staging)?;
        // It is to be read before anybody, in whatever namespace, can see it.
        let attributes = if read_only { libc::MOUNT_ATTR_RDONLY } else { 0 };
        // What is mounted on top of a copy would come on top of all others, if they were of one
        // group. So each is of its own.
        change(&copy, attributes, libc::MS_PRIVATE)?;
        change(&copy, 0, libc::MS_SHARED)?;
        attach(&copy, &target)
    })
    .await?
}

/// The place as the kernel's table names it. Its parents are made if they are not there.
fn resolve_parent(target: &Path) -> io::Result<PathBuf> {
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    resolve_mount_point(target)
}

/// A copy of a mount that is nowhere yet.
fn copy_of(place: &Path) -> io::Result<OwnedFd> {
    let name = CString::new(place.as_os_str().as_bytes())?;
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    // SAFETY: `name` is a NUL-terminated string that outlives the call.
    let opened =
        unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, name.as_ptr(), flags) };
    let opened = Errno::result(opened).map_err(named("open_tree"))?;
    let opened = i32::try_from(opened).map_err(io::Error::other)?;
    // SAFETY: the kernel just gave us this descriptor; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(opened) })
}

/// Gives a mount attributes, and says who follows it.
fn change(mount: &OwnedFd, attributes: u64, propagation: u64) -> io::Result<()> {
    let attr = libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation, userns_fd: 0 };
    // SAFETY: the path is a C string and the attributes a structure of the length that is said;
    // both live through the call, which only reads them.
    let changed = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of_val(&attr),
        )
    };
    Errno::result(changed).map(drop).map_err(named("mount_setattr"))
}

fn attach(mount: &OwnedFd, place: &Path) -> io::Result<()> {
    let name = CString::new(place.as_os_str().as_bytes())?;
    // SAFETY: both are NUL-terminated strings that outlive the call.
    let moved = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            name.as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    Errno::result(moved).map(drop).map_err(named("move_mount"))
}

/// A kernel that lacks a call is told of by what it lacks.
fn named(call: &'static str) -> impl FnOnce(Errno) -> io::Error {
    move |errno| match errno {
        Errno::ENOSYS => io::Error::other(format!("the kernel is older than 5.12: no {call}")),
        errno => errno.into(),
    }
}
