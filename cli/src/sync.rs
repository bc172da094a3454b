//! `weft sync`: what `sync(1)` would do, which the kernel does not tell mounts of FUSE.

use anyhow::{Context, Result, bail};
use nix::unistd::syncfs;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What a mount syncs for when it is read: root, who is told once of what was lost, and anybody,
/// who takes that from nobody.
const BY_ROOT: &CStr = c"trusted.weft.sync";
const BY_ANYBODY: &CStr = c"user.weft.sync";

/// Wait until everything that was done through a mount is durable (sync(1) and syncfs(2) do not
/// reach mounts of FUSE)
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Any path in the mount
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    args.paths.iter().try_for_each(|path| sync(path))
}

fn sync(path: &Path) -> Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    // What was stored through mappings only the kernel knows: this has it tell the mount.
    syncfs(&file).with_context(|| format!("cannot sync {}", path.display()))?;
    let read = |attribute: &CStr| {
        // SAFETY: both are C strings that live through the call, which has no room to write in.
        match unsafe { libc::getxattr(name.as_ptr(), attribute.as_ptr(), std::ptr::null_mut(), 0) }
        {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // Who is not root has no such attribute, and neither has a mount of an older version.
    let is_none = |e: &io::Error| e.raw_os_error() == Some(libc::ENODATA);
    let synced = read(BY_ROOT).or_else(|e| if is_none(&e) { read(BY_ANYBODY) } else { Err(e) });
    let Err(error) = synced else { return Ok(()) };
    let at = path.display();
    match error.raw_os_error() {
        Some(libc::ENODATA | libc::EOPNOTSUPP) => bail!("{at} is not in a mount of weft"),
        _ => Err(error).with_context(|| format!("not everything done through {at} is durable")),
    }
}
