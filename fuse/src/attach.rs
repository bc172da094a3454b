//! Getting a connected `/dev/fuse` for a mount point: by mount(2) where this process may, else
//! through the set-user-id helper of Debian's `fuse3`.

use crate::descriptor::receive_descriptor;
use crate::flags::MountFlags;
use crate::mount_error::MountError;
use nix::mount::mount;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// What the kernel's table of mounts shows as the type.
const TYPE: &str = "weft";

/// Mounts `source` at `path`, which is absolute and free of links; permissions are checked by the
/// kernel.
pub fn attach(
    path: &Path,
    source: &str,
    allow_other: bool,
    flags: MountFlags,
) -> Result<OwnedFd, MountError> {
    let failed = |error: io::Error| MountError::Mount { path: path.to_owned(), error };
    let device = match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(device) => device,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(MountError::NoFuse),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(MountError::Denied),
        Err(e) => return Err(failed(e)),
    };
    match by_mount(&device, path, source, allow_other, flags) {
        Ok(()) => Ok(device.into()),
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
            by_helper(path, source, allow_other, flags).map_err(|e| match e.kind() {
                io::ErrorKind::PermissionDenied => MountError::Denied,
                _ => failed(e),
            })
        }
        Err(e) => Err(failed(e)),
    }
}

fn by_mount(
    device: &File,
    path: &Path,
    source: &str,
    allow_other: bool,
    flags: MountFlags,
) -> io::Result<()> {
    let (uid, gid) = (nix::unistd::getuid(), nix::unistd::getgid());
    let others = if allow_other { ",allow_other" } else { "" };
    let options = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions{others}",
        device.as_raw_fd()
    );
    let kind = format!("fuse.{TYPE}");
    Ok(mount(Some(source), path, Some(&*kind), flags.to_kernel(), Some(&*options))?)
}

fn by_helper(
    path: &Path,
    source: &str,
    allow_other: bool,
    flags: MountFlags,
) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    // A comma would end the option.
    let source = source.replace('\\', "\\\\").replace(',', "\\,");
    let others = if allow_other { ",allow_other" } else { "" };
    let options = format!("fsname={source},subtype={TYPE},default_permissions{others},{flags}");
    let child = Command::new("fusermount3")
        .args(["-o", &options, "--"])
        .arg(path)
        // It sends the descriptor to the socket that it is given as its standard input.
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => io::ErrorKind::PermissionDenied.into(),
            _ => e,
        })?;
    let received = receive_descriptor(&ours);
    let output = child.wait_with_output()?;
    received.map_err(|e| match String::from_utf8_lossy(&output.stderr).trim() {
        "" => e,
        said if said.contains("user_allow_other") => {
            io::Error::new(io::ErrorKind::PermissionDenied, said.to_owned())
        }
        said => io::Error::other(said.to_owned()),
    })
}
