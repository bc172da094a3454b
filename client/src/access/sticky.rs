//! Sticky directories.

use super::credentials::Credentials;
use super::owner::owns;
use crate::types::{Attr, FileKind};
use weft_proto::{Error, ErrorKind, Result};

const STICKY: u32 = 0o1000;

pub(super) fn is_sticky(dir: &Attr) -> bool {
    dir.kind == FileKind::Directory && dir.mode & STICKY != 0
}

/// Whether the user may take the name of `victim` from a directory in which it may write: in a
/// sticky one, that of one's own only, or all if the directory is one's own. Errors:
/// `NotPermitted`.
pub(crate) fn check_sticky(who: &Credentials, dir: &Attr, victim: &Attr) -> Result<()> {
    if !is_sticky(dir) || dir.uid == who.uid || owns(who, victim) {
        return Ok(());
    }
    let what = format!("inode {} is another user's, in sticky directory {}", victim.ino, dir.ino);
    Err(Error::new(ErrorKind::NotPermitted, what))
}

/// Whether the user may open what it could have made, where anybody may make names: in a sticky
/// directory it may be somebody's trap. As in Linux, of what is neither a file nor a pipe; for
/// those `fs.protected_regular` and `fs.protected_fifos` of a host decide. Errors: `AccessDenied`.
pub(crate) fn check_create(who: &Credentials, dir: &Attr, found: &Attr) -> Result<()> {
    let is_left_to_hosts = matches!(found.kind, FileKind::Regular | FileKind::Fifo);
    let is_known = found.uid == dir.uid || found.uid == who.uid;
    if !is_sticky(dir) || dir.mode & 0o002 == 0 || is_left_to_hosts || is_known {
        return Ok(());
    }
    let what = format!("inode {} is another user's, in sticky directory {}", found.ino, dir.ino);
    Err(Error::new(ErrorKind::AccessDenied, what))
}
