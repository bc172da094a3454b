//! `weft umount`: takes a mount away and waits until its process has ended.

use crate::mounts::{self, MountRecord};
use crate::process::{Process, holders};
use crate::progress::Progress;
use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::sys::statvfs::statvfs;
use nix::unistd::{Uid, User};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use weft_fuse::{MountEntry, mount_at};

/// How long a mount may be busy without anybody who is seen to use it.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
const RELEASE_POLL: Duration = Duration::from_millis(20);
/// A mount that can be used is recorded after so long.
const RECORD_TIMEOUT: Duration = Duration::from_secs(5);
/// Who ends as it should does not take longer.
const DYING_TIMEOUT: Duration = Duration::from_secs(1);
/// A process whose requests are answered is gone after so long, unless its core is dumped.
const GONE_TIMEOUT: Duration = Duration::from_secs(5);

/// Unmount; returns when everything that was written is durable and the client has ended
#[derive(clap::Args, Debug)]
pub struct Args {
    #[arg(value_name = "MNT")]
    mount_point: PathBuf,
    /// Take it out of the tree now even if files in it are open; it ends when they are closed
    #[arg(long)]
    lazy: bool,
    /// Only if it is a mount of weft whose process has died; what else is there stays (for a
    /// service manager)
    #[arg(long, conflicts_with = "lazy")]
    dead: bool,
    /// Seconds to wait for the client process to end
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u64,
}

pub fn run(args: &Args) -> Result<()> {
    let path = weft_fuse::resolve_mount_point(&args.mount_point)
        .with_context(|| format!("mount point {} does not exist", args.mount_point.display()))?;
    if args.dead {
        return detach_dead(&path);
    }
    let mount = match mount_at(&path)? {
        Some(mount) if mount.is_weft() => mount,
        Some(mount) => bail!("{} is a mount of {}, not of weft", path.display(), mount.fs_type),
        None => return give_up(&path),
    };
    may_unmount(&mount, Uid::effective())?;
    let record = record_of(&path, &mount)?;
    // Else it may be that nobody is there to unmount it from.
    if let Err(error) = record.iter().try_for_each(release) {
        eprintln!("weft: {error:#}");
    }
    let died = record.as_ref().is_some_and(|r| !r.process.alive());
    if let Some(record) = record.as_ref().filter(|_| died) {
        record.end_supervision();
    }
    let progress = Progress::new(format!("unmounting {}", path.display()));
    unmount(&mount, args.lazy)?;
    let Some(record) = record else {
        // It may be another user's, or of another `WEFT_RUN_DIR`.
        ensure!(
            args.lazy,
            "{} is unmounted, but the process that served it was not found, so it is not known \
             when everything that was written is durable; `weft umount` of whoever mounted it says \
             so",
            path.display()
        );
        return Ok(());
    };
    let limit = Duration::from_secs(args.timeout);
    if died {
        eprintln!("weft: the process of {} had died: what was not synced is lost", path.display());
        return record.remove();
    }
    if args.lazy && record.process.alive() {
        return Ok(());
    }
    let mut record = record;
    loop {
        ensure!(
            record.process.wait(limit),
            "{} is unmounted, but its process {} still writes after {limit:?}; see its log",
            path.display(),
            record.process.pid
        );
        // It may have handed the mount over just before. Or it is mounted anew by now.
        let next = mounts::find(&path)?.filter(|r| r.process != record.process);
        match next.filter(|_| mount_at(&path).is_ok_and(|mount| mount.is_none())) {
            Some(next) => record = next,
            None => break,
        }
    }
    drop(progress);
    record.verdict()
}

/// Waits a moment for who only looks at a mount: asks for its room, or has not read an event yet.
/// Who is seen to use it is named, at once.
fn unmount(mount: &MountEntry, lazy: bool) -> Result<()> {
    let path = &mount.mount_point;
    let until = Instant::now() + RELEASE_TIMEOUT;
    loop {
        let busy = match weft_fuse::unmount(path, lazy) {
            Err(e) if e.kind() == ErrorKind::ResourceBusy => held_by(path),
            ended => return ended.with_context(|| format!("cannot unmount {}", path.display())),
        };
        if !busy.is_empty() || Instant::now() >= until {
            bail!("{} is in use{busy}; close its files, or use --lazy", path.display());
        }
        sleep(RELEASE_POLL);
        // Another may have taken it away meanwhile, and mounted something in its place.
        if mount_at(path)?.is_none_or(|now| now.device != mount.device) {
            return Ok(());
        }
    }
}

/// Nothing is mounted there, but a mount whose process has died may be about to come back.
fn give_up(path: &Path) -> Result<()> {
    let looked_after = |record: &MountRecord| {
        !record.process.alive() && record.supervisor.as_ref().is_some_and(|s| s.alive())
    };
    let Some(record) = mounts::find(path)?.filter(looked_after) else {
        bail!("nothing is mounted at {}", path.display())
    };
    record.end_supervision();
    record.remove()?;
    eprintln!("weft: the mount of {} had died, and is not brought back now", path.display());
    Ok(())
}

/// What is recorded of a mount. What is left of one that was there before says nothing of it; but
/// what was mounted anew just now may be used before it is recorded.
fn record_of(path: &Path, mount: &MountEntry) -> Result<Option<MountRecord>> {
    let until = Instant::now() + RECORD_TIMEOUT;
    loop {
        match mounts::find(path)? {
            Some(record) if !record.is_of(mount) => {}
            found => return Ok(found),
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        sleep(RELEASE_POLL);
    }
}

/// Who may not unmount is told so, in our words and not in those of the helper that would refuse.
fn may_unmount(mount: &MountEntry, me: Uid) -> Result<()> {
    let Some(owner) = mount.user.map(Uid::from_raw).filter(|&owner| owner != me && !me.is_root())
    else {
        return Ok(());
    };
    let name = User::from_uid(owner).ok().flatten().map_or_else(|| owner.to_string(), |u| u.name);
    let who = if owner.is_root() { name.clone() } else { format!("{name} or root") };
    bail!("{} was mounted by {name}: only {who} may unmount it", mount.mount_point.display())
}

/// The processes that have files in a mount open, to be said behind it; empty if none is known.
pub fn held_by(path: &Path) -> String {
    let mut names: Vec<_> =
        holders(path).into_iter().map(|(pid, name)| format!("{name} ({pid})")).collect();
    let more = names.len().saturating_sub(8);
    names.truncate(8);
    match (names.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => format!(" by {}", names.join(", ")),
        (false, more) => format!(" by {} and {more} more", names.join(", ")),
    }
}

/// Ends a mount through its process, which flushes and unmounts; kills it after `limit`. Fails if
/// what was written is not durable; the mount is gone all the same.
pub fn stop(record: &MountRecord, limit: Duration) -> Result<()> {
    let MountRecord { path, process, .. } = record;
    record.end_supervision();
    let stopped = process.stop(limit)?;
    // It may have handed the mount over just before.
    if let Some(next) = mounts::find(path)?.filter(|r| r.process != *process && r.process.alive()) {
        return stop(&next, limit);
    }
    detach_dead(path)?;
    ensure!(
        stopped,
        "the mount {} (process {}) did not stop within {limit:?} and was killed: what was not \
         synced is lost",
        path.display(),
        process.pid
    );
    record.verdict()
}

/// Takes away the mount of a process that has died: such a mount answers only `ENOTCONN`.
pub fn detach_dead(path: &Path) -> Result<()> {
    detach(path)?.map_or(Ok(()), |record| record.remove())
}

/// The same, for another process to take its place. Answers what is known of it.
pub fn detach(path: &Path) -> Result<Option<MountRecord>> {
    if mount_at(path)?.is_none_or(|m| !m.is_weft()) {
        return Ok(None);
    }
    let record = mounts::find(path)?;
    record.iter().try_for_each(release)?;
    if record.as_ref().is_some_and(|r| r.process.alive()) || !is_dead(path) {
        return Ok(None);
    }
    weft_fuse::unmount(path, true)
        .with_context(|| format!("cannot detach the dead mount at {}", path.display()))?;
    Ok(record)
}

/// Answers an error to all who wait for a mount whose process has died and cannot go, and waits a
/// moment for it to be gone. One of its threads tells the kernel of a change then, and waits for a
/// directory that one of those holds; and the kernel gives up on the process only when its last
/// thread is gone. Errors: the connection cannot be ended from here.
pub fn release(record: &MountRecord) -> Result<()> {
    let MountRecord { path, process, .. } = record;
    let Some(connection) = record.connection().filter(|_| process.is_dying()) else {
        return Ok(());
    };
    sleep(DYING_TIMEOUT);
    if heir(record)?.is_some() || !process.is_dying() {
        return Ok(());
    }
    let (pid, device) = (process.pid, &connection.device);
    let what = || format!("process {pid} has died, and who waits for {path:?} waits on");
    if !connection.abort().with_context(what)? {
        return Ok(());
    }
    tracing::warn!(pid, device, "who waits for {} gets an error: it has died", path.display());
    let until = Instant::now() + GONE_TIMEOUT;
    while !process.is_gone() && Instant::now() < until {
        sleep(RELEASE_POLL);
    }
    Ok(())
}

/// Who serves the mount now in the place of this process. One of a version before does not say what
/// it serves.
pub fn heir(record: &MountRecord) -> Result<Option<Process>> {
    let is_heir = |now: &MountRecord| {
        now.process != record.process
            && (now.device.is_none() || now.device == record.device && now.life == record.life)
            && now.process.alive()
    };
    Ok(mounts::find(&record.path)?.filter(is_heir).map(|now| now.process))
}

/// The kernel asks for the room each time, where it may know attributes for some seconds more.
fn is_dead(path: &Path) -> bool {
    matches!(statvfs(path), Err(Errno::ENOTCONN | Errno::ECONNABORTED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_user_is_told_who_may_unmount() {
        let mount = MountEntry {
            mount_point: "/mnt".into(),
            device: "0:57".into(),
            fs_type: "fuse.weft".into(),
            source: "weft:a:1".into(),
            user: Some(0),
            read_only: false,
        };
        let said = may_unmount(&mount, Uid::from_raw(65_534)).unwrap_err().to_string();
        assert_eq!(said, "/mnt was mounted by root: only root may unmount it");
        assert!(may_unmount(&mount, Uid::from_raw(0)).is_ok());
        let mine = MountEntry { user: Some(65_534), ..mount };
        assert!(may_unmount(&mine, Uid::from_raw(65_534)).is_ok());
        assert!(may_unmount(&mine, Uid::from_raw(0)).is_ok(), "root may");
    }
}
