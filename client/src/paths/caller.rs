//! Who calls, and from which directory.

use crate::access::{self, Access, Credentials};
use crate::filesystem::Filesystem;
use crate::types::{Attr, Creator};
use std::sync::Arc;
use weft_proto::{ErrorKind, InodeId, Result};

/// The extended attribute with the list that decides.
const ACL: &[u8] = b"system.posix_acl_access";

/// A filesystem as a user sees it, by paths. Clones are cheap.
///
/// Paths are bytes without NUL, at most 4095 of them; a name has at most 255 (`NameTooLong`). One
/// that begins with `/` starts at the root of the filesystem, also where a symbolic link leads to
/// it; others start at [`Self::at`]'s directory. Each directory on the way has to be searched
/// (`AccessDenied`). At most 40 symbolic links are followed (`TooDeep`, which is `ELOOP`). An empty
/// path leads nowhere (`NotFound`).
///
/// Permission is checked before the metadata group acts, not in one step with that: as with NFS,
/// a call may act on what another one has put in place of what was checked. So it is with
/// `unlink`, `rmdir` and `rename` over an existing name where several users may write, as in a
/// sticky directory; names that were not there are never replaced. An open file stays open,
/// whatever becomes of its mode.
#[derive(Clone)]
pub struct Caller {
    pub(super) fs: Filesystem,
    pub(super) who: Arc<Credentials>,
    pub(super) start: InodeId,
    umask: u32,
}

impl Filesystem {
    /// The filesystem by paths, with the rights of a user; of nobody in particular if that is who
    /// root is here ([`Self::squashed`]).
    pub fn as_user(&self, who: Credentials) -> Caller {
        let who = who.map(|id| self.squashed(id));
        Caller { fs: self.clone(), who: Arc::new(who), start: self.root(), umask: 0 }
    }
}

impl Caller {
    /// Relative paths start at this directory, as those of `openat(2)` do. It has to come from a
    /// walk of the same user: that the directories above may be searched is not checked again.
    #[must_use]
    pub fn at(&self, dir: InodeId) -> Self {
        Self { start: dir, ..self.clone() }
    }

    /// These bits are taken off the mode of what is made, unless an access control list is
    /// inherited. They are 0 at first.
    #[must_use]
    pub fn with_umask(&self, umask: u32) -> Self {
        Self { umask, ..self.clone() }
    }

    /// Whose rights it has.
    pub fn credentials(&self) -> &Credentials {
        &self.who
    }

    /// Who is to own what is made.
    pub(super) fn creator(&self) -> Creator {
        Creator { uid: self.who.uid, gid: self.who.gid, umask: self.umask }
    }

    /// Whether the user may do what is wanted with an inode. Errors: `AccessDenied`.
    pub(super) async fn check(&self, attr: &Attr, want: Access) -> Result<()> {
        if want == Access::NONE {
            return Ok(());
        }
        let list = match access::depends_on_acl(&self.who, attr) {
            true => match self.fs.get_xattr(attr.ino, ACL).await {
                Ok(list) => Some(list),
                // It has only one to inherit.
                Err(e) if e.kind == ErrorKind::NoAttribute => None,
                Err(e) => return Err(e),
            },
            false => None,
        };
        access::check(&self.who, attr, list.as_deref(), want)
    }

    /// Whether the user may make names in a directory, or take them away.
    pub(super) async fn check_change(&self, dir: &Attr) -> Result<()> {
        self.check(dir, Access::WRITE | Access::SEARCH).await
    }
}
