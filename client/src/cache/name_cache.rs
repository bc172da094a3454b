//! What caches names and attributes above this library, as the kernel does in its dentries and
//! inodes.

use bytes::Bytes;
use std::pin::Pin;
use weft_proto::InodeId;

/// Ends when something is used no more.
pub type Forgotten = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A cache of names and attributes above this library.
///
/// What it is told to forget it forgets also if nobody waits for that.
pub trait NameCache: Send + Sync {
    /// Forgets the attributes of an inode, and the names in it if it is a directory.
    fn forget(&self, ino: InodeId) -> Forgotten;

    /// Forgets the attributes of these inodes, and of what these names lead to, which a change of
    /// this mount makes old, or has made old. The names themselves stay.
    fn forget_attrs(&self, inos: &[InodeId], names: &[(InodeId, Bytes)]) -> Forgotten;

    /// Forgets all names and attributes.
    fn forget_all(&self) -> Forgotten;

    /// Whether an inode may be opened without looking up its name: until
    /// [`Filesystem::forgotten`](crate::Filesystem::forgotten).
    fn may_know(&self, _ino: InodeId) -> bool {
        false
    }
}
