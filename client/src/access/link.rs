//! Whose files may be given one more name.

use super::bits::Access;
use super::credentials::Credentials;
use super::owner::owns;
use crate::types::{Attr, FileKind};
use weft_proto::{Error, ErrorKind, Result};

const SETUID: u32 = 0o4000;
/// Together: a program that runs as its group.
const SETGID_EXEC: u32 = 0o2010;

/// What must be permitted beside to give an inode another name, as Linux has it with
/// `fs.protected_hardlinks`: the owner may, and who could keep the content anyhow. Errors:
/// `NotPermitted`.
pub(crate) fn link(who: &Credentials, attr: &Attr) -> Result<Access> {
    if owns(who, attr) {
        return Ok(Access::NONE);
    }
    let gives_rights = attr.mode & SETUID != 0 || attr.mode & SETGID_EXEC == SETGID_EXEC;
    if attr.kind == FileKind::Regular && !gives_rights {
        return Ok(Access::READ | Access::WRITE);
    }
    let what = format!("inode {} is another user's", attr.ino);
    Err(Error::new(ErrorKind::NotPermitted, what))
}
