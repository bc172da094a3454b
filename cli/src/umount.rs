//! `weft umount`: takes a mount away and waits until its process has ended.

use crate::mounts;
use crate::process::Process;
use crate::progress::Progress;
use anyhow::{Context, Result, bail};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_fuse::mount_at;

/// Unmount; returns when everything that was written is durable and the client has ended
#[derive(clap::Args, Debug)]
pub struct Args {
    #[arg(value_name = "MNT")]
    mount_point: PathBuf,
    /// Take it out of the tree now even if files in it are open; it ends when they are closed
    #[arg(long)]
    lazy: bool,
    /// Seconds to wait for the client process to end
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u64,
}

pub fn run(args: &Args) -> Result<()> {
    let path = weft_fuse::resolve_mount_point(&args.mount_point)
        .with_context(|| format!("mount point {} does not exist", args.mount_point.display()))?;
    match mount_at(&path)? {
        Some(mount) if mount.is_weft() => {}
        Some(mount) => bail!("{} is a mount of {}, not of weft", path.display(), mount.fs_type),
        None => bail!("nothing is mounted at {}", path.display()),
    }
    let record = mounts::find(&path)?;
    let progress = Progress::new(format!("unmounting {}", path.display()));
    weft_fuse::unmount(&path, args.lazy).or_else(|e| match e.kind() {
        ErrorKind::ResourceBusy => bail!(
            "{0} is in use; close the files (fuser -vm {0} lists who has them) or use --lazy",
            path.display()
        ),
        _ => Err(e).with_context(|| format!("cannot unmount {}", path.display())),
    })?;
    let Some(record) = record else { return Ok(()) };
    let limit = Duration::from_secs(args.timeout);
    if args.lazy || record.process.wait(limit) {
        drop(progress);
        if !record.process.alive() {
            record.remove()?;
        }
        return Ok(());
    }
    bail!(
        "{} is unmounted, but its process {} still writes after {limit:?}; see its log",
        path.display(),
        record.process.pid
    )
}

/// Ends a mount through its process, which flushes and unmounts; kills it after `limit`.
pub fn stop(path: &Path, process: &Process, limit: Duration) -> Result<()> {
    if !process.stop(limit)? {
        eprintln!(
            "weft: the mount {} (process {}) did not stop in time and is killed",
            path.display(),
            process.pid
        );
    }
    detach_dead(path)
}

/// Takes away the mount of a process that has died: such a mount answers only `ENOTCONN`.
pub fn detach_dead(path: &Path) -> Result<()> {
    if mount_at(path)?.is_none_or(|m| !m.is_weft()) {
        return Ok(());
    }
    let record = mounts::find(path)?;
    if record.as_ref().is_some_and(|r| r.process.alive()) || !is_dead(path) {
        return Ok(());
    }
    weft_fuse::unmount(path, true)
        .with_context(|| format!("cannot detach the dead mount at {}", path.display()))?;
    record.map_or(Ok(()), |r| r.remove())
}

fn is_dead(path: &Path) -> bool {
    let answer = std::fs::metadata(path);
    answer.is_err_and(|e| matches!(e.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)))
}
