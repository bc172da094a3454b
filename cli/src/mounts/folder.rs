//! Where records of mounts lie, for as long as the mounts: a folder that every command of this user
//! finds, wherever it is run from.
//!
//! A user's folder is in `/var/tmp`: `/tmp` is swept within days, and what `XDG_RUNTIME_DIR` names
//! goes when he logs out, or is not named at all, as in a cron job. Anybody may make a folder of
//! that name there. So it counts only if it is the user's own and closed to others; else another
//! name is taken.

use anyhow::{Context, Result, ensure};
use nix::unistd::Uid;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A user's folder is there, where files are kept for weeks.
const KEPT: &str = "/var/tmp";
/// Where versions before made it if no other place was named.
const SWEPT: &str = "/tmp";
/// Names that are tried: others may have taken as many.
const NAMES: u32 = 100;

/// `$WEFT_RUN_DIR`, or `/run/weft` for root, or a folder of the user's own. The folder in it for
/// mounts is there, too.
pub fn own() -> Result<PathBuf> {
    let uid = Uid::effective();
    let dir = match std::env::var_os("WEFT_RUN_DIR") {
        Some(dir) => PathBuf::from(dir),
        None if uid.is_root() => PathBuf::from("/run/weft"),
        None => of_user(Path::new(KEPT), uid.as_raw())?,
    };
    let what = || format!("cannot use {} for run-time records; set WEFT_RUN_DIR", dir.display());
    let mounts = dir.join("mounts");
    DirBuilder::new().recursive(true).mode(0o700).create(mounts).with_context(what)?;
    let owner = fs::metadata(&dir).with_context(what)?.uid();
    ensure!(owner == uid.as_raw(), "{} belongs to user {owner}; set WEFT_RUN_DIR", dir.display());
    Ok(dir)
}

/// Where else records of this user may be, of mounts that a version before has made.
pub fn others() -> Vec<PathBuf> {
    let uid = Uid::effective();
    if uid.is_root() || std::env::var_os("WEFT_RUN_DIR").is_some() {
        return Vec::new();
    }
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(|dir| PathBuf::from(dir).join("weft"));
    let swept = named(Path::new(SWEPT), uid.as_raw(), 0);
    session.into_iter().chain([swept]).filter(|dir| is_own(dir, uid.as_raw())).collect()
}

/// The place of a file for a mount.
pub fn place_of(name: &str) -> Result<PathBuf> {
    Ok(place_in(&own()?, &others(), name))
}

/// The place of a file, which may be in one of the other folders, and is to be in the first.
pub(super) fn place_in(own: &Path, others: &[PathBuf], name: &str) -> PathBuf {
    let place = own.join("mounts").join(name);
    let elsewhere = || others.iter().map(|dir| dir.join("mounts").join(name));
    match place.exists() {
        true => place,
        false => elsewhere().find(|other| other.exists()).unwrap_or(place),
    }
}

/// The folder of a user in one that all may write to. The first that is his own, or else the first
/// name that nobody has.
pub(super) fn of_user(above: &Path, uid: u32) -> Result<PathBuf> {
    let names = || (0..NAMES).map(|number| named(above, uid, number));
    if let Some(own) = names().find(|dir| is_own(dir, uid)) {
        return Ok(own);
    }
    for dir in names() {
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => return Ok(dir),
            // Another command of this user may have made it just now.
            Err(e) if e.kind() == ErrorKind::AlreadyExists && is_own(&dir, uid) => return Ok(dir),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => {
                let what =
                    format!("cannot make {} for run-time records; set WEFT_RUN_DIR", dir.display());
                return Err(e).context(what);
            }
        }
    }
    let last = named(above, uid, NAMES - 1);
    let what = io::Error::from(ErrorKind::AlreadyExists);
    Err(what)
        .with_context(|| format!("all names to {} are taken; set WEFT_RUN_DIR", last.display()))
}

fn named(above: &Path, uid: u32, number: u32) -> PathBuf {
    match number {
        0 => above.join(format!("weft-{uid}")),
        _ => above.join(format!("weft-{uid}.{number}")),
    }
}

/// Whether it is a folder of this user, and no link to one, that nobody else can use.
fn is_own(dir: &Path, uid: u32) -> bool {
    let found = dir.symlink_metadata();
    found.is_ok_and(|found| found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0)
}
