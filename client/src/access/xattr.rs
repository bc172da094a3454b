//! Extended attributes: the rules of each namespace.

use super::bits::Access;
use super::credentials::Credentials;
use super::owner::owns;
use super::sticky::is_sticky;
use crate::types::{Attr, FileKind};
use weft_proto::{Error, ErrorKind, Result};

fn refused(kind: ErrorKind, who: &Credentials, attr: &Attr) -> Error {
    let what = format!("user {} has no such attribute of inode {}", who.uid, attr.ino);
    Error::new(kind, what)
}

/// What a name's first part says.
enum Namespace {
    /// Files and directories have it, by their permission bits.
    User,
    /// Root's.
    Trusted,
    /// Labels, which anybody reads.
    Security,
    /// Access control lists, which anybody reads.
    System,
    Unknown,
}

impl Namespace {
    fn of(name: &[u8]) -> Self {
        match () {
            () if name.starts_with(b"user.") => Self::User,
            () if name.starts_with(b"trusted.") => Self::Trusted,
            () if name.starts_with(b"security.") => Self::Security,
            () if name.starts_with(b"system.") => Self::System,
            () => Self::Unknown,
        }
    }
}

fn has_content(attr: &Attr) -> bool {
    matches!(attr.kind, FileKind::Regular | FileKind::Directory)
}

/// What must be permitted beside to read an attribute. Errors: `NoAttribute` of what the user
/// must not see.
pub(crate) fn read_xattr(who: &Credentials, attr: &Attr, name: &[u8]) -> Result<Access> {
    match Namespace::of(name) {
        Namespace::Security | Namespace::System => Ok(Access::NONE),
        Namespace::Trusted if !who.is_root() => Err(refused(ErrorKind::NoAttribute, who, attr)),
        Namespace::User if !has_content(attr) => Err(refused(ErrorKind::NoAttribute, who, attr)),
        _ => Ok(Access::READ),
    }
}

/// What must be permitted beside to set or remove an attribute. Errors: `NotPermitted`;
/// `NotSupported` of capabilities.
pub(crate) fn write_xattr(who: &Credentials, attr: &Attr, name: &[u8]) -> Result<Access> {
    // It would have to go whenever the content changes.
    if name == b"security.capability" {
        let what = "capabilities of files are not kept";
        return Err(Error::new(ErrorKind::NotSupported, what));
    }
    let (allowed, beside) = match Namespace::of(name) {
        Namespace::System => (owns(who, attr), Access::NONE),
        Namespace::Security => (who.is_root(), Access::NONE),
        Namespace::Trusted => (who.is_root(), Access::WRITE),
        Namespace::User => {
            (has_content(attr) && (!is_sticky(attr) || owns(who, attr)), Access::WRITE)
        }
        Namespace::Unknown => (true, Access::WRITE),
    };
    match allowed {
        true => Ok(beside),
        false => Err(refused(ErrorKind::NotPermitted, who, attr)),
    }
}
