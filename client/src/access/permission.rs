//! Permission to read, write and execute, or to search a directory.

use super::acl;
use super::bits::Access;
use super::credentials::Credentials;
use crate::types::{Attr, FileKind};
use weft_proto::{Error, ErrorKind, Result};

/// Whether an access control list, if the inode has one, is to be looked at. The owner's bits
/// decide alone. So do the others' where the group has none, list or not, as in Linux.
pub(crate) fn depends_on_acl(who: &Credentials, attr: &Attr) -> bool {
    attr.acls && !who.is_root() && who.uid != attr.uid && attr.mode & 0o070 != 0
}

/// Whether the user may do what is wanted. `list` is the access control list if there is one and
/// [`depends_on_acl`]. Errors: `AccessDenied`.
pub(crate) fn check(
    who: &Credentials,
    attr: &Attr,
    list: Option<&[u8]>,
    want: Access,
) -> Result<()> {
    let allowed = match list {
        _ if who.is_root() => root_may(attr, want),
        Some(list) if depends_on_acl(who, attr) => acl::allows(list, attr, who, want)?,
        _ => bits_of(who, attr).contains(want),
    };
    match allowed {
        true => Ok(()),
        false => {
            let what = format!("user {} may not do that with inode {}", who.uid, attr.ino);
            Err(Error::new(ErrorKind::AccessDenied, what))
        }
    }
}

/// Whether a user may do that whatever groups he is in, and without what root stands above: more
/// may be allowed.
pub fn allows_in_any_group(attr: &Attr, uid: u32, want: Access) -> bool {
    let allow = |shift| Access::from_bits(attr.mode >> shift).contains(want);
    match uid == attr.uid {
        true => allow(6),
        // A list says something else of some.
        false => !attr.acls && allow(3) && allow(0),
    }
}

/// The bits of the first class that the user is in.
fn bits_of(who: &Credentials, attr: &Attr) -> Access {
    let shift = match () {
        () if who.uid == attr.uid => 6,
        () if who.is_in(attr.gid) => 3,
        () => 0,
    };
    Access::from_bits(attr.mode >> shift)
}

/// `CAP_DAC_OVERRIDE`: all, but to execute what nobody may.
fn root_may(attr: &Attr, want: Access) -> bool {
    let runs = attr.kind == FileKind::Directory || attr.mode & 0o111 != 0;
    runs || !want.contains(Access::EXECUTE)
}
