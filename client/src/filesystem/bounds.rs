//! Where a mount begins and what may be done through it.

use super::facade::Filesystem;
use crate::types::{Creator, SetAttr};
use weft_proto::mode::SET_IDS;
use weft_proto::{Error, ErrorKind, InodeId, Result};

impl Filesystem {
    /// The directory where all paths begin: that of the filesystem, or the one that the client's
    /// certificate or [`Options::subdir`](crate::Options::subdir) names. It stays the same however
    /// it is renamed; when it is removed, everything answers `Stale`.
    pub fn root(&self) -> InodeId {
        self.inner.group.confinement.root()
    }

    /// Whether nothing can be changed: the client's certificate says so, or
    /// [`Options::read_only`](crate::Options::read_only).
    pub fn is_read_only(&self) -> bool {
        self.inner.group.confinement.is_read_only()
    }

    /// Who a user or group counts as: root as nobody (65534) where the client's certificate says
    /// so, and everybody else as themselves.
    pub fn squashed(&self, id: u32) -> u32 {
        self.inner.group.confinement.squashed(id)
    }

    /// Errors: `ReadOnly`.
    pub(super) fn may_change(&self) -> Result<()> {
        match self.is_read_only() {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::ReadOnly, "this client may only read")),
        }
    }

    /// Whose what is made becomes. Errors: `ReadOnly`.
    pub(super) fn may_make(&self, by: Creator) -> Result<Creator> {
        self.may_change()?;
        Ok(Creator { uid: self.squashed(by.uid), gid: self.squashed(by.gid), ..by })
    }

    /// Whether attributes may be set so. Errors: `ReadOnly`; `NotPermitted`, something is to be
    /// given to root, which owns nothing here.
    pub(super) fn may_set(&self, change: &SetAttr) -> Result<()> {
        self.may_change()?;
        let to_root = change.uid == Some(0) || change.gid == Some(0);
        if to_root && self.inner.group.confinement.squashes_root() {
            let what = "this client's root owns nothing: its certificate says squash=root";
            return Err(Error::new(ErrorKind::NotPermitted, what));
        }
        self.may_plant(change.mode.unwrap_or(0) & SET_IDS != 0)
    }

    /// Whether something may be made by which a program runs as another, or that is a device, if
    /// this is such: told at once, as what is done here is not refused long after. Errors:
    /// `NotPermitted`.
    pub(super) fn may_plant(&self, is_such: bool) -> Result<()> {
        if is_such && self.inner.group.confinement.squashes_root() {
            let what = "no devices, and no programs that run as their owner: this client's \
                        certificate says squash=root";
            return Err(Error::new(ErrorKind::NotPermitted, what));
        }
        Ok(())
    }

    /// Begins the mount at a path below the root of its session. Errors: `NotFound`,
    /// `NotDirectory` of what is no directory, symbolic links too, `Invalid` of `..`.
    pub(super) async fn enter(&self, path: &[u8]) -> Result<()> {
        let shown = String::from_utf8_lossy(path);
        let mut at = self.root();
        for name in path.split(|byte| *byte == b'/') {
            if matches!(name, b"" | b".") {
                continue;
            }
            if name == b".." || name.contains(&0) {
                let what = format!("the subdirectory {shown} has .. or a NUL in it");
                return Err(Error::new(ErrorKind::Invalid, what));
            }
            let found = self.lookup(at, name).await.map_err(|error| {
                let part = String::from_utf8_lossy(name);
                let what = match error.kind {
                    ErrorKind::NotFound => {
                        format!("there is no {part:?}: make it through a mount of what is above it")
                    }
                    _ => format!("{part:?}: {error}"),
                };
                Error::new(
                    error.kind,
                    format!("the subdirectory {shown} cannot be mounted: {what}"),
                )
            })?;
            if !found.is_dir() {
                let part = String::from_utf8_lossy(name);
                let what = format!("the subdirectory {shown} cannot be mounted: {part:?} is none");
                return Err(Error::new(ErrorKind::NotDirectory, what));
            }
            at = found.ino;
        }
        self.inner.group.confinement.enter(at);
        Ok(())
    }
}
