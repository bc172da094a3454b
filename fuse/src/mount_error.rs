//! Why a filesystem could not be mounted, and what to do.

use std::io;
use std::path::PathBuf;

/// Why a filesystem could not be mounted.
#[derive(thiserror::Error, Debug)]
pub enum MountError {
    #[error("mount point {0} does not exist; make it with mkdir -p {0}")]
    Missing(PathBuf),
    #[error("mount point {0} is not a directory")]
    NotDirectory(PathBuf),
    #[error(
        "mount point {0} is not empty; choose another, or hide what is there with --allow-nonempty"
    )]
    NotEmpty(PathBuf),
    #[error("{path} is already a mount ({fs_type} from {source_name}); unmount it first")]
    AlreadyMounted { path: PathBuf, fs_type: String, source_name: String },
    #[error(
        "/dev/fuse is not there; load the kernel module (modprobe fuse) or give this container \
         the device"
    )]
    NoFuse,
    #[error(
        "this user may not mount: root may, or others where /dev/fuse has mode 666 and the package \
         fuse3 is installed"
    )]
    Denied,
    #[error("FUSE over io_uring is not to be had here: {0}; mount with --io-uring auto")]
    NoIoUring(io::Error),
    #[error("cannot use mount point {path}: {error}")]
    MountPoint { path: PathBuf, error: io::Error },
    #[error("cannot mount at {path}: {error}")]
    Mount { path: PathBuf, error: io::Error },
}
